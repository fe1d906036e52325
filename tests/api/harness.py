"""A real server on a loopback port, with a model that says what a test tells it to."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from turnkeep.api.app import Server, bind, create_app
from turnkeep.api.telemetry.metrics import Metrics, observer_of
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.config import Settings
from turnkeep.engine.sandbox.runner_client import RunnerAccess
from turnkeep.providers.ports import ModelRequest, Providers
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Script, ScriptedProvider
from turnkeep.runtime import Runtime, open_runtime
from turnkeep.tools.ports import Tools
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

OPERATOR_KEY = "the-operator-key-of-the-tests"
STREAM = {"accept": "text/event-stream"}
Json = Any


class Client(httpx.AsyncClient):
    """An HTTP client that identifies itself one way."""

    def __init__(self, url: str, key: str | None, headers: dict[str, str] | None = None) -> None:
        given = dict(headers or {})
        if key is not None:
            given["authorization"] = f"Bearer {key}"
        super().__init__(base_url=url, headers=given, timeout=120, trust_env=False)
        self.key = key or ""

    async def ask(self, message: str = "Hello?", *, headers: dict[str, str] | None = None, **body: Json) -> Json:
        """A turn that must be accepted: its JSON."""
        response = await self.post("/v1/turns", json={"message": message, **body}, headers=headers)
        assert response.status_code in {200, 202}, response.text
        return response.json()

    async def read(self, path: str, **options: Json) -> Json:
        response = await self.get(path, **options)
        assert response.status_code == 200, response.text
        return response.json()


class ApiServer:
    """A server that runs in the loop of the test."""

    def __init__(self, runtime: Runtime, server: Server, url: str, scripts: "Scripts") -> None:
        self.runtime = runtime
        self.server = server
        self.url = url
        self.scripts = scripts
        self._stack = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        settings: Settings,
        *,
        tools: Tools | None = None,
        tracing: Tracing | None = None,
        scripts: "Scripts | None" = None,
        providers: Providers | None = None,
        runner_url: str | None = None,
    ) -> AsyncIterator[Self]:
        """`providers` take the place of the scripted one; `runner_url` is where turns in sandboxes are sent."""
        scripts = scripts or Scripts()
        provider = ScriptedProvider(scripts.next)
        metrics = Metrics()
        async with AsyncExitStack() as stack:
            listener = stack.enter_context(bind(settings))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            runtime = await stack.enter_async_context(
                open_runtime(
                    settings,
                    providers=providers or ProviderRegistry([provider]),
                    tools=tools,
                    observer=observer_of(metrics, tracing),
                    sandbox=None if runner_url is None else RunnerAccess(url=runner_url, server_url=url),
                )
            )
            ready = asyncio.Event()
            app = create_app(runtime, metrics=metrics, tracing=tracing)
            server = Server(app, runtime, on_ready=ready.set)
            serving = asyncio.create_task(server.serve([listener]))
            await ready.wait()
            running = cls(runtime, server, url, scripts)
            scripts.requests = provider.requests
            try:
                yield running
            finally:
                await running._stack.aclose()
                if not serving.done():
                    server.stop()
                await serving

    async def client(self, key: str | None, **headers: str) -> Client:
        """A client that is closed with the server."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._stack.enter_async_context(Client(self.url, key, named))

    async def operator(self, **headers: str) -> Client:
        return await self.client(OPERATOR_KEY, **headers)

    async def tenant(self, name: str = "a tenant") -> Client:
        """A service key of an org of its own."""
        operator = await self.operator()
        response = await operator.post("/v1/orgs", json={"name": name})
        assert response.status_code == 201, response.text
        return await self.client(response.json()["key"])

    async def user(self, service: Client, name: str = "ann", **body: Json) -> Client:
        """A token for one user, made by that service key."""
        response = await service.post("/v1/tokens", json={"user": name, **body})
        assert response.status_code == 201, response.text
        return await self.client(response.json()["token"])


class Scripts:
    """What the model says next; when nothing is planned, `Hello there.`"""

    def __init__(self) -> None:
        self.planned: list[Script] = []
        self.requests: list[ModelRequest] = []
        self.always: Callable[[ModelRequest], Script] | None = None

    def say(self, *script: Any) -> None:
        self.planned.append(script)

    def next(self, request: ModelRequest) -> Script:
        if self.planned:
            return self.planned.pop(0)
        return self.always(request) if self.always else ["Hello ", "there."]


def settings_for(data_dir: Path, **changes: Json) -> Settings:
    """Settings of a server that stops quickly. Its lease outlasts a busy machine; tests/faults has short leases."""
    usual: dict[str, Any] = {
        "port": 0,
        "data_dir": data_dir,
        "bootstrap_key": OPERATOR_KEY,
        "model": "scripted",
        "lease_seconds": 5.0,
        "drain_seconds": 0.0,
    }
    return Settings(**(usual | changes))


async def read_events(response: httpx.Response, *, until: str | None = None) -> list[ServerSentEvent]:
    """The frames of a stream, to its end or to the first of that name."""
    parser = SseParser()
    found: list[ServerSentEvent] = []
    async for chunk in response.aiter_bytes():
        found += parser.feed(chunk)
        if until is not None and any(event.event == until for event in found):
            return found
    return found


def data_of(event: ServerSentEvent) -> Json:
    return msgspec.json.decode(event.data)


def names(events: Sequence[ServerSentEvent], *, without: str = "delta") -> list[str]:
    return [event.event for event in events if event.event != without]


def said(events: Sequence[ServerSentEvent]) -> str:
    return "".join(data_of(event)["text"] for event in events if event.event == "delta")


def fake_id(prefix: str) -> str:
    """An id of the right shape that does not exist."""
    return f"{prefix}_{secrets.token_hex(16)}"


def code_of(response: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which is always a problem."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["status"] == response.status_code
    assert body["title"]
    assert body["detail"]
    assert body["type"] == f"urn:turnkeep:error:{body['code']}"
    return response.status_code, body["code"]
