"""Connections of readers: the event stream as a bare ASGI response, and the socket below it.

`EventStream` knows neither the engine nor the API. It is given batches of frames, an encoder, and a context that is
held while the stream is open (so that the turn counts as watched). All waiting frames are sent in one write. One
`OpenStreams` per process watches all streams: it sends the heartbeats, cuts readers that accept nothing, and, when the
worker drains, ends every stream whose turn does not run here any more.

`WatchedProtocol` is a uvicorn protocol that gives a response access to its own socket. ASGI alone cannot tell how much
is still unsent. It can close a connection only after flushing it, which never ends if the reader does not read. And its
`send` must be awaited by a task, which costs more than the write itself. With access to the socket a piece of preview
text is written at the moment it is published, and no task runs.

    uvicorn.Config(app, http=WatchedProtocol)

Without this protocol streams work too, but they cost more, and a reader that was cut keeps its socket until the peer
closes it.

Decision: docs/decisions/0401
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Any, Literal, Protocol, cast

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from turnkeep.streaming.follow import Take
from turnkeep.streaming.formats import Encoder
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame
from turnkeep_client.wire import sse

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""The types of ASGI."""

EXTENSION = "turnkeep.connection"

Batches = AsyncIterator[Sequence[Frame]]
Follow = Callable[[Take], Batches]
"""Starts to follow a turn. The argument takes single frames at once while the reader waits; see `follow`."""
Header = tuple[bytes, bytes]

HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
"""Proxies must neither cache nor buffer nor compress it."""

SHORT_CHARS = 4_096
"""A longer piece of text may be too large for one write, however it is encoded."""

DRAIN_TICK_SECONDS = 0.1
"""How often a draining worker looks which of its turns are over or handed over."""

Ending = Literal["complete", "gone", "draining", "stalled", "failed"]


class ReaderConnection(Protocol):
    """The part of a connection that streams use."""

    def can_write(self) -> bool:
        """Whether `write` may be called now. If not, `send` waits until the client has read more, or has gone."""

    def write(self, body: bytes) -> None:
        """Write the next part of the body of the response that is being sent, and do not wait."""

    def unsent_bytes(self) -> int: ...

    def when_gone(self, tell: Callable[[], None] | None) -> bool:
        """Call this once when the client has gone. False, and not called, if parts of the request are still unread:
        then `receive` must be awaited."""

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""


class JoinedWrites:
    """The transport of one response, as uvicorn sees it. The head of the response and the first part of its body are
    one write, because each write costs more than all that is done for it. The head waits for this round of the event
    loop at most."""

    __slots__ = ("_cycle", "_has_begun", "_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop):
        self._transport = transport
        self._cycle = cycle
        self._loop = loop
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif not self._has_begun and self._cycle.response_started:  # not yet with `100 Continue`
            self._has_begun = True
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class WatchedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it. It is among the scope's extensions, as the `ReaderConnection` of the request."""

    _running: RequestResponseCycle | None = None
    """The request that is being answered. Pipelined requests wait for its end."""
    _writes: JoinedWrites
    _tell_gone: Callable[[], None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, object], self.scope)
        scope["extensions"] = {EXTENSION: {"connection": self}}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._writes = JoinedWrites(self.transport, cycle, self.loop)
        cycle.transport = cast(asyncio.Transport, self._writes)  # it uses no other method of a transport
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._writes.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._tell_gone is not None:
            self._tell_gone()

    def can_write(self) -> bool:
        cycle = self._running
        return (
            cycle is not None
            and bool(cycle.chunked_encoding)
            and not (self.flow.write_paused or cycle.disconnected or cycle.response_complete)
            and not self.transport.is_closing()
        )

    def write(self, body: bytes) -> None:
        if body:  # an empty chunk would end the response
            self._writes.write(b"%x\r\n%b\r\n" % (len(body), body))

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def when_gone(self, tell: Callable[[], None] | None) -> bool:
        self._tell_gone = tell
        cycle = self._running
        if tell is None or cycle is None or cycle.more_body or cycle.body:
            self._tell_gone = None
            return False
        if cycle.disconnected:
            self.loop.call_soon(tell)
        self.flow.resume_reading()
        return True

    def abort(self) -> None:
        self.transport.abort()


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. Read the request body first: messages until then are ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


def connection_of(scope: object) -> ReaderConnection | None:
    """The connection of an ASGI scope, if the server runs with `WatchedProtocol`."""
    extensions = cast(dict[str, object], scope).get("extensions") or {}
    found = cast(dict[str, dict[str, object]], extensions).get(EXTENSION)
    return None if found is None else cast(ReaderConnection, found["connection"])


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
    """All streams of this process. Create one. After the event `draining` each stream ends as soon as its turn does not
    run here any more."""

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
        follow: Follow,
        encoder: Encoder,
        *,
        attach: Callable[[], AbstractContextManager[object]] = nullcontext,
        runs_here: Callable[[], bool] = lambda: False,
        headers: Iterable[Header] = (),
        resumes: bool = True,
    ) -> "EventStream":
        """A stream of what `follow` finds. The context `attach` is held while it is open. `runs_here` says whether this
        worker runs the turn, and so can go on to serve it while it drains. `resumes` says whether the client notices by
        the last event that a stream is not complete. If not, a stream that ends early is cut."""
        stream = EventStream(self, follow, encoder, attach, (*HEADERS, *headers))
        stream.runs_here = runs_here
        stream.resumes = resumes
        return stream

    def __iter__(self) -> "Iterator[EventStream]":
        return iter(tuple(self._open))

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
        now = asyncio.get_running_loop().time
        while not self.draining.is_set():
            tick = min(1.0, self.slow_readers.stall_seconds / 4, self.heartbeat_seconds / 4)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), tick)
            for stream in self:
                stream.look(now(), next_look=now() + tick)
        while True:  # until the last stream has ended, which cancels this task
            for stream in self:
                if not stream.runs_here():
                    stream.end("draining")
                stream.look(now(), next_look=now() + DRAIN_TICK_SECONDS)
            await asyncio.sleep(DRAIN_TICK_SECONDS)


class EventStream:
    """One open stream: an ASGI application for one request."""

    def __init__(
        self,
        streams: OpenStreams,
        follow: Follow,
        encoder: Encoder,
        attach: Callable[[], AbstractContextManager[object]],
        headers: Sequence[Header],
    ) -> None:
        self.runs_here: Callable[[], bool] = lambda: False
        self.resumes = True
        self._streams = streams
        self._follow = follow
        self._encoder = encoder
        self._attach = attach
        self._headers = headers
        self._connection: ReaderConnection | None = None
        self._progress = WriteProgress(streams.slow_readers, None)
        self._task: asyncio.Task[Any] | None = None
        """The task that writes, while it does."""
        self._ending: Ending | None = None
        self._send: Send | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = connection_of(scope)
        self._progress = WriteProgress(self._streams.slow_readers, self._connection)
        self._send = send
        await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        if scope.get("method") == "HEAD":  # there is no reader, so the turn is not watched
            return
        with self._attach():
            ending = await self._serve(receive)
        match ending:
            case "draining" | "failed" if not self._progress.is_blocked and self.resumes:
                await self._say_goodbye(send)
            case "draining" | "failed" | "stalled":
                # The write may have stopped in the middle of a frame; anything sent now would become a part of it.
                _logger.info("A reader was disconnected (%s)", ending)
                await self._cut(receive)
            case "complete" | "gone":
                pass

    def end(self, ending: Ending) -> None:
        """Stop serving. The first reason counts."""
        if self._task is not None and self._ending is None:
            self._ending = ending
            self._task.cancel()

    def look(self, now: float, *, next_look: float) -> None:
        """End the stream if the reader accepts nothing any more. Send a comment if nothing was sent for a while."""
        progress = self._progress
        if progress.is_stalled(now):
            self.end("stalled")
        elif not progress.is_blocked and progress.is_quiet(now, next_look - self._streams.heartbeat_seconds):
            self._beat()

    def _beat(self) -> None:
        """Send a comment between two frames. Without access to the socket, a task must do so."""
        if self._connection is None:
            self._beating = asyncio.create_task(self._send_heartbeat())
        elif self._connection.can_write():
            self._connection.write(sse.HEARTBEAT)
            self._progress.sent += len(sse.HEARTBEAT)

    async def _serve(self, receive: Receive) -> Ending:
        """Write until the turn has ended, or until `end` breaks the writing off."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        watch = self._watch(receive)
        self._task = task
        self._streams.add(self)
        try:
            await self._write()
        except asyncio.CancelledError:
            # As with asyncio.timeout: the cancellation came from `end`, unless there was another one.
            if self._ending is None or task.uncancel() > cancelled_before:
                raise
            return self._ending
        except Exception:
            # The reader can reconnect with its cursor; the operator finds the error in the log.
            _logger.exception("A stream failed and was ended")
            return "failed"
        finally:
            self._task = None
            self._streams.discard(self)
            if self._connection is not None:
                self._connection.when_gone(None)
            for other in (watch, self._beating):
                if other is not None:
                    other.cancel()
        return "complete"

    def _watch(self, receive: Receive) -> asyncio.Task[None] | None:
        """End the stream when the client has gone. Without access to the connection, a task must wait for that."""

        def end() -> None:
            self.end("gone")

        async def wait() -> None:
            await disconnected(receive)
            end()

        if self._connection is not None and self._connection.when_gone(end):
            return None
        return asyncio.create_task(wait())

    async def _write(self) -> None:
        """Write all batches, and the end of the body together with the last one."""
        encode = self._encoder.encode
        async with aclosing(cast(Any, self._follow(self._write_now))) as batches:
            async for batch in batches:
                body = encode(batch[0]) if len(batch) == 1 else b"".join([encode(frame) for frame in batch])
                last = batch[-1]
                if isinstance(last, EventFrame) and last.is_terminal:
                    await self._send_all(body, is_last=True)
                    return
                if body:
                    await self._send_all(body)
        await self._send_all(b"", is_last=True)

    def _write_now(self, frame: DeltaFrame) -> bool:
        """Write this frame at once. False if that is not possible now: then it comes with the next batch."""
        connection = self._connection
        if connection is None or len(frame.text) > SHORT_CHARS or not connection.can_write():
            return False
        body = self._encoder.encode(frame)
        connection.write(body)
        self._progress.sent += len(body)
        return True

    async def _send_all(self, body: bytes, *, is_last: bool = False) -> None:
        assert self._send is not None
        progress, limit = self._progress, self._streams.slow_readers.write_bytes
        progress.is_blocked = True
        if len(body) > limit:
            *pieces, body = _pieces(body, limit)
            for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                progress.sent += len(piece)
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        progress.sent += len(body)
        progress.is_blocked = False

    async def _send_heartbeat(self) -> None:
        if self._progress.is_blocked:
            return  # the writer was quicker, and may be in the middle of a frame
        with suppress(OSError):  # the client has gone
            await self._send_all(sse.HEARTBEAT)

    async def _say_goodbye(self, send: Send) -> None:
        """Tell the reader when to reconnect, and end cleanly. Do not wait long for a reader that does not read."""
        body = sse.retry(self._streams.retry_milliseconds)
        try:
            async with asyncio.timeout(1.0):
                await send({"type": "http.response.body", "body": body, "more_body": False})
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
    """What one reader was sent and has accepted, to find out whether it has stopped reading or needs a heartbeat."""

    __slots__ = (
        "_accepted",
        "_connection",
        "_looked_at",
        "_policy",
        "_seen",
        "_since",
        "_wrote_at",
        "is_blocked",
        "sent",
    )

    def __init__(self, policy: SlowReaderPolicy, connection: ReaderConnection | None) -> None:
        self.sent = 0
        """Bytes that were handed to uvicorn."""
        self.is_blocked = False
        """uvicorn makes us wait, because its buffer for this socket is full."""
        self._policy = policy
        self._connection = connection
        self._accepted = -1
        self._since = 0.0
        self._seen = -1
        self._looked_at = self._wrote_at = 0.0

    def is_quiet(self, now: float, since: float) -> bool:
        """Whether nothing was sent after `since`. A write counts from the look before it: it keeps no time itself."""
        if self.sent != self._seen:
            self._wrote_at = self._looked_at or now
            self._seen = self.sent
        self._looked_at = now
        return self._wrote_at <= since

    def is_stalled(self, now: float) -> bool:
        unsent = 0 if self._connection is None else self._connection.unsent_bytes()
        accepted = self.sent - unsent
        if accepted > self._accepted or not (unsent or self.is_blocked):
            self._accepted = max(accepted, self._accepted)
            self._since = now
        return now - self._since >= self._policy.stall_seconds
