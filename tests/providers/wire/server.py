"""A real HTTP/1.1 server on a loopback port whose bytes a test decides: where they are split, where they stop."""

import asyncio
import random
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self

import msgspec
from msgspec import Struct

from tests.providers.wire.script import Brain, Cut, End, Hang, HangBeforeHeaders, Json, Script, Wait

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class Request(Struct, frozen=True):
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json


class Plain(Struct, frozen=True):
    """A whole answer."""

    status: int
    content: bytes
    headers: dict[str, str] = {}
    content_type: str = "application/json"


Frame = bytes | Hang | HangBeforeHeaders | Wait | Cut | End
Streamed = Sequence[Frame]


class WireProtocol(Protocol):
    """One vendor's way to speak."""

    ping: bytes

    def answer(self, request: Request, think: Brain) -> Plain | Streamed: ...


class WireServer:
    """Serves one protocol. `says` queues scripts; a `brain` decides by the request. `requests` holds what was asked."""

    def __init__(self, protocol: WireProtocol, *, brain: Brain | None = None, seed: int | None = 1) -> None:
        self._protocol = protocol
        self._brain = brain
        self._scripts: list[Script] = []
        self._random = random.Random(seed) if seed is not None else None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.gone = asyncio.Event()
        """A client went away before it had its answer."""

    def says(self, *scripts: Script) -> None:
        self._scripts.extend(scripts)

    @property
    def bodies(self) -> list[Json]:
        """Every question to the model, without those about models."""
        return [request.body for request in self.requests if request.method == "POST"]

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _think(self, body: Json) -> Script:
        if self._scripts:
            return self._scripts.pop(0)
        assert self._brain is not None, "the model was asked more often than the test planned"
        return self._brain(body)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        except ConnectionError:
            self.gone.set()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await _read(reader)) is not None:
            self.requests.append(request)
            answer = self._protocol.answer(request, self._think)
            if isinstance(answer, Plain):
                writer.write(_plain(answer))
                await writer.drain()
            elif not await self._stream(answer, reader, writer):
                return

    async def _stream(self, frames: Streamed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send the frames; False when the connection is over."""
        if not (frames and isinstance(frames[0], HangBeforeHeaders)):
            await self._write(
                writer,
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n",
            )
        for frame in frames:
            match frame:
                case bytes():
                    await self._write(writer, b"%x\r\n%b\r\n" % (len(frame), frame))
                case Hang() | HangBeforeHeaders():
                    await self._hang(frame, reader, writer)
                    return False
                case Wait():
                    await frame.until()
                case Cut():
                    writer.write(b"ff\r\nevent: cont")
                    await writer.drain()
                    writer.transport.abort()
                    return False
                case End():
                    break
        await self._write(writer, b"0\r\n\r\n")
        return True

    async def _hang(self, frame: Hang | HangBeforeHeaders, reader: asyncio.StreamReader, writer: Any) -> None:
        every = frame.ping_seconds if isinstance(frame, Hang) else None
        while True:
            try:
                async with asyncio.timeout(every):
                    await reader.read(1)
                    self.gone.set()
                    return
            except TimeoutError:
                ping = self._protocol.ping
                writer.write(b"%x\r\n%b\r\n" % (len(ping), ping))
            except ConnectionError:
                self.gone.set()
                return

    async def _write(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        """All at once, or in fragments that respect nothing: no line, no chunk, no character."""
        if self._random is None:
            writer.write(content)
            await writer.drain()
            return
        start = 0
        while start < len(content):
            size = self._random.choice((1, 2, 7, 40, 400, 4000))
            writer.write(content[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
            start += size


async def _read(reader: asyncio.StreamReader) -> Request | None:
    line = (await reader.readline()).decode()
    if not line:
        return None
    method, path, _ = line.split(" ", 2)
    headers: dict[str, str] = {}
    while (text := (await reader.readline()).decode().strip()) != "":
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, msgspec.json.decode(content) if content else {})


def _plain(answer: Plain) -> bytes:
    headers = {"content-type": answer.content_type, "content-length": str(len(answer.content)), **answer.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Status')}\r\n{lines}\r\n".encode() + answer.content


def compact(value: Any) -> bytes:
    return msgspec.json.encode(value)


class Close(Struct, frozen=True):
    """Close the connection without an answer."""


class Endless(Struct, frozen=True):
    """Begin with `head`, then send `piece` for ever."""

    head: bytes
    piece: bytes


class Kept(Struct, frozen=True):
    """Send this, and then nothing, on an open connection."""

    content: bytes


class Later(Struct, frozen=True):
    """Send this, a moment later the rest, and then nothing, on an open connection."""

    head: bytes
    rest: bytes


class ByteServer:
    """Answers each request with the next of these answers, byte for byte; the last one is used again."""

    def __init__(self, *answers: bytes | Close | Endless | Kept | Later, tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.heads: list[str] = []
        """Each request without its body."""
        self.connections = 0
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
                while await self._answered(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
        await reader.readexactly(int(length.partition(":")[2]))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        match answer:
            case bytes():
                writer.write(answer)
            case Kept():
                writer.write(answer.content)
                await reader.read()
            case Later():
                writer.write(answer.head)
                await asyncio.sleep(0.2)
                writer.write(answer.rest)
                await reader.read()
            case Close():
                return False
            case Endless():
                writer.write(answer.head)
                while True:
                    writer.write(answer.piece)
                    self.sent_bytes += len(answer.piece)
                    await writer.drain()
        await writer.drain()
        return True


def http_response(
    body: bytes, *, status: int = 200, content_type: str = "text/event-stream", headers: Mapping[str, str] | None = None
) -> bytes:
    lines = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n{head}\r\n".encode() + body
