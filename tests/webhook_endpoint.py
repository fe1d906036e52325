"""An endpoint of the host on a loopback port, which keeps what it gets and answers what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from msgspec import Struct


class Received(Struct, frozen=True, kw_only=True):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def type(self) -> str:
        return str(msgspec.json.decode(self.body)["type"])


class WebhookEndpoint:
    """What came, and where it is. `answer` is called for each request; without it, all are taken."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.answer: Callable[[Received], Awaitable[web.Response]] | None = None

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator["WebhookEndpoint"]:
        receiver = cls()
        runner = web.ServerRunner(web.Server(receiver._handle), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        receiver.url = f"http://{host}:{port}/hook"
        try:
            yield receiver
        finally:
            await runner.cleanup()

    async def until(self, count: int, *, seconds: float = 60.0) -> list[Received]:
        """Wait for so many requests."""
        async with asyncio.timeout(seconds):
            while len(self.received) < count:  # noqa: ASYNC110 - they come from another loop or process
                await asyncio.sleep(0.02)
        return self.received

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(headers=headers, body=await request.read())
        self.received.append(received)
        return web.Response(status=204) if self.answer is None else await self.answer(received)
