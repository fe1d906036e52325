"""A real server for a client's tests, which may stop and start again on the same port and the same data."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.api.harness import OPERATOR_KEY, settings_for
from tests.ports import free_ports
from turnkeep.api.app import Server, bind, create_app
from turnkeep.client import AsyncTurnkeep
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Script, ScriptedProvider
from turnkeep.runtime import Runtime, open_runtime
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

Model = Callable[[ModelRequest], Script]


@tool(idempotent=True)
async def lookup(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


class Site:
    """The model may be replaced at any time; `providers` beside it are asked by their names."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.model: Model = lambda request: ["Hello ", "there."]
        self.runtime: Runtime | None = None
        self._settings = settings_for(folder, port=self.port, **settings)
        self._serving: asyncio.Task[None] | None = None
        self._server: Server | None = None

    @property
    def data_dir(self) -> Path:
        return self._settings.data_dir

    async def start(self) -> None:
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Leave in order, as on SIGTERM."""
        if self._serving is not None and self._server is not None:
            self._server.stop()
            await self._serving
        self._serving = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def client(self, url: str | None = None, **options: Any) -> AsyncTurnkeep:
        return AsyncTurnkeep(url or self.url, OPERATOR_KEY, **options)

    def _speak(self, request: ModelRequest) -> Script:
        return self.model(request)

    async def _serve(self, ready: asyncio.Event) -> None:
        scripted = ScriptedProvider(self._speak)
        providers = ProviderRegistry([scripted, DemoProvider(word_seconds=0.0)])
        tools = ToolRegistry([lookup], offered_to_all=["lookup"])
        with bind(self._settings) as listener:
            async with open_runtime(self._settings, providers=providers, tools=tools) as runtime:
                self.runtime = runtime
                self._server = Server(create_app(runtime), runtime, on_ready=ready.set)
                await self._server.serve([listener])


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Site]:
    site = Site(folder, **settings)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


def rounds_of(request: ModelRequest) -> int:
    """How many rounds of tools the last question has had."""
    asked = max(place for place, message in enumerate(request.messages) if message["role"] == "user")
    return sum(bool(message.get("tool_calls")) for message in request.messages[asked + 1 :])


def words(count: int) -> Sequence[str]:
    """Text that is long in bytes, in characters, and in neither."""
    some = ("wörter ", "और ", "文字。", "plain ", "🙂🙂 ", "line\n\n", '"quoted" ')
    return [some[place % len(some)] for place in range(count)]
