"""A real uvicorn on a loopback port, and clients that read it as bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, cast

import uvicorn

from tests.streaming.turns import ListSource
from turnkeep.http_server.uvicorn_server import BoundedProtocol
from turnkeep.ids import TurnId
from turnkeep.streaming.connection import OpenStreams
from turnkeep.streaming.follow import follow, poll
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import START, parse_cursor
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.ports import EventSource, Hub


class Site:
    """`GET /{turn_id}?{format}` is that turn's stream, resumed at `Last-Event-ID`."""

    def __init__(
        self,
        *,
        source: EventSource | None = None,
        hub: Hub | None = None,
        streams: OpenStreams | None = None,
        attach: Callable[[], AbstractContextManager[object]] = nullcontext,
        poll_seconds: float = 2.0,
    ) -> None:
        self.source = source or ListSource()
        self.hub = hub or LocalHub()
        self.streams = streams or OpenStreams()
        self.poll_seconds = poll_seconds
        self.port = 0
        self.server: uvicorn.Server | None = None
        self._attach = attach

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        turn_id = TurnId(scope["path"][1:])
        sent = dict(scope["headers"]).get(b"last-event-id", b"").decode()
        cursor = parse_cursor(sent) if sent else START
        format = cast(FormatName, scope["query_string"].decode() or "native")
        encoder = encoder_for(format, turn_id=turn_id, model="demo", created_at=0, cursor=cursor)
        stream = self.streams.respond(
            lambda take: follow(self.source, self.hub, turn_id, cursor, take=take), encoder, attach=self._attach
        )
        await stream(scope, receive, send)

    @property
    def connections(self) -> int:
        assert self.server is not None
        return len(self.server.server_state.connections)


@asynccontextmanager
async def served(site: Site, *, http: Any = BoundedProtocol) -> AsyncIterator[Site]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=4_096)
    site.port = listening.getsockname()[1]
    config = uvicorn.Config(site, http=http, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    site.server = uvicorn.Server(config)
    serving = asyncio.create_task(site.server.serve(sockets=[listening]))
    polling = asyncio.create_task(poll(site.source, site.hub, seconds=site.poll_seconds))
    try:
        while not site.server.started:  # noqa: ASYNC110 - uvicorn has only a flag
            await asyncio.sleep(0.005)
        yield site
    finally:
        polling.cancel()
        site.server.should_exit = True
        await serving
        listening.close()


class Client:
    """One HTTP/1.1 connection. It hands out the body's bytes as they come, however they are chunked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.head = b""
        self.is_complete = False
        """The server ended the body, and not just the connection."""
        self._raw = b""

    @classmethod
    async def get(cls, port: int, path: str, *, cursor: str = "") -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        last = f"Last-Event-ID: {cursor}\r\n" if cursor else ""
        client._writer.write(f"GET /{path} HTTP/1.1\r\nHost: test\r\n{last}\r\n".encode())
        return client

    async def headers(self) -> dict[str, str]:
        if not self.head:
            self.head = await self._reader.readuntil(b"\r\n\r\n")
        lines = self.head.decode().split("\r\n")[1:-2]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    async def body(self, *, most: int = 65_536) -> bytes:
        """More of the body; empty at its end. `most` bounds the raw bytes that are taken from the socket."""
        await self.headers()
        while not self.is_complete:
            try:
                chunk = await self._reader.read(most)
            except ConnectionError:
                return b""
            self._raw += chunk
            body = self._dechunk()
            if body or not chunk:
                return body
        return b""

    async def whole(self) -> bytes:
        parts = []
        while part := await self.body():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self._writer.transport.abort()

    def _dechunk(self) -> bytes:
        """Whole chunks. A chunk that is cut in the middle is given as far as it came when the socket ends."""
        found = []
        while b"\r\n" in self._raw:
            size, rest = self._raw.split(b"\r\n", 1)
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            found.append(rest[:length])
            self._raw = rest[length + 2 :]
            self.is_complete = length == 0
        return b"".join(found)

    def cut_chunk(self) -> bytes:
        """What had come of the chunk in which the connection was cut."""
        size, found, rest = self._raw.partition(b"\r\n")
        return rest[: int(size, 16)] if found and size else b""
