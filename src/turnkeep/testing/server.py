"""A server in a thread of this process, on a free port, with a scripted model and a database of its own.

Everything between the HTTP request and the model is real: the API, the engine, the store (SQLite in a folder), the
streams. The thread has an event loop of its own, so the server works the same for sync and for async tests.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnkeep.config import Settings
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Line, Script, ScriptedProvider
from turnkeep.tools.ports import Tool
from turnkeep_client import AsyncTurnkeep, Turnkeep

START_SECONDS = 60.0


class TurnkeepServer:
    """Use it as a context manager, or call `start` and `stop`. After `stop` it may start again, on the same data.

    `tools` are functions made with `@tool`; every turn may call them. Other keyword arguments are settings, as
    `turnkeep.config.Settings` names them.
    """

    def __init__(self, data_dir: str | Path, *, tools: Sequence[Tool] | None = None, **settings: Any) -> None:
        self.key = secrets.token_hex(24)
        """A service key with every right."""
        self.url = ""
        """The address of the server, once it has started."""
        self.requests: list[ModelRequest] = []
        """What the model was asked, first to last."""
        usual: dict[str, Any] = {"port": 0, "bootstrap_key": self.key, "model": "scripted", "drain_seconds": 0.0}
        self._settings = Settings(**(usual | settings | {"data_dir": Path(data_dir)}))
        self._tools = tools
        self._planned: list[Script] = []
        self._answer: Callable[[ModelRequest], Script] = lambda request: ["Hello there."]
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._failure: BaseException | None = None

    # --- what the model says

    def say(self, *script: Line) -> None:
        """Plan the next reply of the model: texts and `Call`, `Think`, `Pause`, `Fail`. Replies are used in order.

        A reply with a `Call` makes the server call that tool, and then ask the model again: plan the next reply too.
        """
        self._planned.append(script)

    def answer_with(self, answer: Callable[[ModelRequest], Script]) -> None:
        """Let a function reply whenever no reply is planned. Without one the model says `Hello there.`"""
        self._answer = answer

    # --- ways to talk to it

    def client(self, **options: Any) -> Turnkeep:
        """A client with the server's own key. Close it, or use it as a context manager."""
        return Turnkeep(self.url, self.key, **options)

    def async_client(self, **options: Any) -> AsyncTurnkeep:
        """The same for code with an event loop."""
        return AsyncTurnkeep(self.url, self.key, **options)

    # --- its life

    def start(self) -> None:
        """Start the server and wait until it answers. Raises what kept it from starting."""
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="turnkeep server", daemon=True)
        self._thread.start()
        is_ready = ready.wait(START_SECONDS)
        if self._failure is not None:
            raise self._failure
        if not is_ready:
            raise TimeoutError(f"The server did not start within {START_SECONDS:.0f} seconds.")

    def stop(self) -> None:
        """Stop the server. Turns that run are left as they are; they go on after the next start."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._thread = self._loop = self._stop = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as exc:  # whatever it is, the test must see it
            self._failure = exc
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        # The server is imported where it is started: importing this module must stay cheap.
        from turnkeep.api.app import Server, bind, create_app
        from turnkeep.providers.registry import ProviderRegistry
        from turnkeep.runtime import open_runtime
        from turnkeep.tools.registry import ToolRegistry

        provider = ScriptedProvider(self._reply)
        provider.requests = self.requests
        tools = None
        if self._tools is not None:
            tools = ToolRegistry(self._tools, offered_to_all=[each.spec.name for each in self._tools])
        with bind(self._settings) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with open_runtime(self._settings, providers=ProviderRegistry([provider]), tools=tools) as runtime:
                server = Server(create_app(runtime), runtime, on_ready=ready.set)
                self._loop, self._stop = asyncio.get_running_loop(), server.stop
                await server.serve([listener])

    def _reply(self, request: ModelRequest) -> Script:
        return self._planned.pop(0) if self._planned else self._answer(request)
