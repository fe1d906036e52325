"""Connections of readers: the event stream as a bare ASGI response, and the socket below it.

`EventStream` knows neither the engine nor the API. It is given batches of frames, an encoder, and a context that is
held while the stream is open (so that the turn counts as watched). All waiting frames are sent in one write. One
`OpenStreams` per process watches all streams: it cuts readers that accept nothing, and ends every stream when the
worker drains.

`WatchedProtocol` is a uvicorn protocol that gives a response access to its own socket. ASGI alone cannot tell how much
is still unsent. It can close a connection only after flushing it, which never ends if the reader does not read.

    uvicorn.Config(app, http=WatchedProtocol)

Without this protocol streams work too, but a reader that was cut keeps its socket until the peer closes it.

Decision: docs/decisions/0401
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Any, Literal, Protocol, cast

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnkeep.streaming.formats import Encoder
from turnkeep.streaming.frames import Frame
from turnkeep_client.wire import sse

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""The types of ASGI."""

EXTENSION = "turnkeep.connection"

Batches = AsyncIterator[Sequence[Frame]]
Header = tuple[bytes, bytes]

HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
"""Proxies must neither cache nor buffer nor compress it."""

Ending = Literal["complete", "gone", "draining", "stalled", "failed"]


class ReaderConnection(Protocol):
    """The part of a transport that streams use."""

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""


class WatchedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, with the transport among the scope's extensions."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, object], self.scope)
        scope["extensions"] = {EXTENSION: {"transport": self.transport}}


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. Read the request body first: messages until then are ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


def connection_of(scope: object) -> ReaderConnection | None:
    """The connection of an ASGI scope, if the server runs with `WatchedProtocol`."""
    extensions = cast(dict[str, object], scope).get("extensions") or {}
    found = cast(dict[str, dict[str, object]], extensions).get(EXTENSION)
    return None if found is None else cast(ReaderConnection, found["transport"])


class SlowReaderPolicy(Struct, frozen=True, kw_only=True):
    """A reader whose socket accepts nothing is disconnected. It may reconnect with its cursor.

    Until then it costs one write and what the server buffers for a socket. Other readers are not affected.
    """

    stall_seconds: float = 30.0
    """A socket is closed if it accepted nothing for this long while there was something to send."""
    write_bytes: int = 65_536
    """Maximum size of one write. A longer body is sent in pieces, each after the one before was accepted."""


_DEFAULT_POLICY = SlowReaderPolicy()

_logger = logging.getLogger(__name__)


class OpenStreams:
    """All streams of this process. Create one; the event `draining` ends them all."""

    def __init__(
        self,
        *,
        draining: asyncio.Event | None = None,
        slow_readers: SlowReaderPolicy = _DEFAULT_POLICY,
        heartbeat_seconds: float = 15.0,
        retry_milliseconds: int = 1_000,
    ) -> None:
        self.draining = draining or asyncio.Event()
        self.slow_readers = slow_readers
        self.heartbeat_seconds = heartbeat_seconds
        self.retry_milliseconds = retry_milliseconds
        self._open: dict[EventStream, None] = {}
        self._watcher: asyncio.Task[None] | None = None

    def respond(
        self,
        batches: Batches,
        encoder: Encoder,
        *,
        attach: Callable[[], AbstractContextManager[object]] = nullcontext,
        headers: Iterable[Header] = (),
    ) -> "EventStream":
        """A stream of these batches. The context `attach` is held while it is open."""
        return EventStream(self, batches, encoder, attach, (*HEADERS, *headers))

    def __len__(self) -> int:
        return len(self._open)

    def __bool__(self) -> bool:
        """Always true, also when no stream is open."""
        return True

    def add(self, stream: "EventStream") -> None:
        self._open[stream] = None
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_all())

    def discard(self, stream: "EventStream") -> None:
        self._open.pop(stream, None)
        if not self._open and self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _watch_all(self) -> None:
        """Watch all streams with one task: a timer for each would cost more than the stream itself."""
        tick = min(1.0, self.slow_readers.stall_seconds / 4)
        now = asyncio.get_running_loop().time
        while not self.draining.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), tick)
            for stream in tuple(self._open):
                stream.check_progress(now())
        for stream in tuple(self._open):
            stream.end("draining")


class EventStream:
    """One open stream: an ASGI application for one request."""

    def __init__(
        self,
        streams: OpenStreams,
        batches: Batches,
        encoder: Encoder,
        attach: Callable[[], AbstractContextManager[object]],
        headers: Sequence[Header],
    ) -> None:
        self._streams = streams
        self._batches = batches
        self._encoder = encoder
        self._attach = attach
        self._headers = headers
        self._connection: ReaderConnection | None = None
        self._progress = WriteProgress(streams.slow_readers, None)
        self._ended: asyncio.Future[Ending] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = connection_of(scope)
        self._progress = WriteProgress(self._streams.slow_readers, self._connection)
        await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        if scope.get("method") == "HEAD":  # there is no reader, so the turn is not watched
            return
        with self._attach():
            ending = await self._serve(receive, send)
        match ending:
            case "complete":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            case "draining" | "failed" if not self._progress.is_blocked:
                await self._say_goodbye(send)
            case "draining" | "failed" | "stalled":
                # The write may have stopped in the middle of a frame; anything sent now would become a part of it.
                _logger.info("A reader that accepted nothing was disconnected (%s)", ending)
                await self._cut(receive)
            case "gone":
                pass

    def end(self, ending: Ending) -> None:
        """Stop serving. The first reason counts."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ending)

    def check_progress(self, now: float) -> None:
        """End the stream if the reader accepts nothing any more."""
        if self._progress.is_stalled(now):
            self.end("stalled")

    async def _serve(self, receive: Receive, send: Send) -> Ending:
        """Serve until something ends the stream. Writing has a task of its own."""
        self._ended = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(self._watch(receive))]
        self._streams.add(self)
        try:
            return await self._ended
        finally:
            self._streams.discard(self)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _write(self, send: Send) -> None:
        try:
            async with aclosing(cast(Any, self._batches)):
                await self._send_batches(send)
            self.end("complete")
        except Exception:
            # The reader can reconnect with its cursor; the operator finds the error in the log.
            _logger.exception("A stream failed and was ended")
            self.end("failed")

    async def _send_batches(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        encode, progress, limit = self._encoder.encode, self._progress, self._streams.slow_readers.write_bytes
        woken = written = now()
        async for batch in self._batches:
            before, woken = woken, now()
            if batch:
                body = encode(batch[0]) if len(batch) == 1 else b"".join([encode(frame) for frame in batch])
            elif woken + (woken - before) >= written + self._streams.heartbeat_seconds:
                body = sse.HEARTBEAT
            else:
                body = b""
            if not body:
                continue
            written = woken
            progress.is_blocked = True
            for piece in (body,) if len(body) <= limit else _pieces(body, limit):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                progress.sent += len(piece)
            progress.is_blocked = False

    async def _watch(self, receive: Receive) -> None:
        await disconnected(receive)
        self.end("gone")

    async def _say_goodbye(self, send: Send) -> None:
        """Tell the reader when to reconnect, and end cleanly. Do not wait long for a reader that does not read."""
        body = sse.retry(self._streams.retry_milliseconds)
        try:
            await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": False}), 1.0)
        except TimeoutError:
            self._abort()

    async def _cut(self, receive: Receive) -> None:
        self._abort()
        if self._connection is not None:
            # uvicorn notices it in one of the next rounds of the event loop, and reports it here.
            with suppress(TimeoutError):
                await asyncio.wait_for(disconnected(receive), 5.0)

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


def _pieces(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


class WriteProgress:
    """How much one reader has accepted, to find out whether it has stopped reading."""

    __slots__ = ("_accepted", "_connection", "_policy", "_since", "is_blocked", "sent")

    def __init__(self, policy: SlowReaderPolicy, connection: ReaderConnection | None) -> None:
        self.sent = 0
        """Bytes that were handed to uvicorn."""
        self.is_blocked = False
        """uvicorn makes us wait, because its buffer for this socket is full."""
        self._policy = policy
        self._connection = connection
        self._accepted = -1
        self._since = 0.0

    def is_stalled(self, now: float) -> bool:
        unsent = 0 if self._connection is None else self._connection.get_write_buffer_size()
        accepted = self.sent - unsent
        if accepted > self._accepted or not (unsent or self.is_blocked):
            self._accepted = max(accepted, self._accepted)
            self._since = now
        return now - self._since >= self._policy.stall_seconds
