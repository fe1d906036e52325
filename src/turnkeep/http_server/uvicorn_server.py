"""uvicorn with a graceful shutdown, and with limits on what a client may send and how long it may take to send it.

The API server and the sandbox runner are both a `GracefulServer`. Each brings its own steps of a shutdown.

uvicorn sets no limits of its own. `BoundedProtocol`, which speaks HTTP/1.1, refuses a request that exceeds one with a
problem (431, 408, or 400 if it is not HTTP), and closes its connection. Further connections than a server may have get
a 503. Earlier requests of the same connection are
answered first; then the connection is closed without the refusal, which would otherwise be written into the middle of
their responses.
"""

import asyncio
import logging
import math
import signal
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import httptools
import msgspec
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from turnkeep.errors import HeadersTooLarge, InvalidRequest, RequestTimeout, TurnkeepError, Unavailable
from turnkeep.http_server.sockets import SharedListener, raise_open_files
from turnkeep.streaming.connection import WatchedProtocol

BLANK_LINE = b"\r\n\r\n"
MIN_CONNECTIONS = 16
RESERVED_FILES = 256
"""Open files that the process needs for other things than clients: databases, tools, files."""

Field = tuple[bytes, bytes]

Owed = Literal["nothing", "head", "body", "rest"]
"""What the server waits for. `head` is the request line and the header fields; `rest` is what remains of the body of a
request that has been answered already."""

_logger = logging.getLogger(__name__)


class RequestLimits(Struct, frozen=True, kw_only=True):
    """What one connection may ask of the server."""

    head_bytes: int = 32 * 1024
    """The request line and all header fields together. Chunked bodies may have as much in a row that is not body:
    trailer fields, chunk extensions."""
    fields: int = 100
    """Header fields of one request, and as many trailer fields."""
    pipelined: int = 8
    """Requests that wait for the response of the one before. The server does not read on until there are fewer."""
    head_seconds: float = 30.0
    """From the first byte of a head, or from the start of the connection, to the end of the head."""
    body_seconds: float = 60.0
    """How often the progress of a body is checked. The rest of a body has this long once its request is answered."""
    body_bytes: int = 30_000
    """Minimum number of bytes of an unfinished body in `body_seconds`: 500 bytes a second."""
    small_chunks: int = 4_096
    """Chunks of a body of less than `small_bytes`: each takes as long as a large one."""
    small_bytes: int = 32
    rest_bytes: int = 256 * 1024 * 1024
    """What is read, and thrown away, of a body whose request is answered, and of a connection that is refused. Many
    clients read the answer only when they have sent everything."""
    idle_seconds: int = 5
    """How long a connection without a request is kept open after a response."""
    grace_seconds: float = 1.0
    """How long after its deadline a request is refused. If the server itself stood still, it reads in this time what
    came meanwhile."""
    linger_seconds: float = 2.0
    """How long a refused client has to read the refusal."""
    write_seconds: float = 60.0
    """How often the progress of a response is checked whose client reads slower than the server writes."""
    write_bytes: int = 30_000
    """Minimum number of bytes that such a client reads in `write_seconds`. A client that reads less is cut."""


class RequestDeadline:
    """How long the server still waits for one client. The protocol says what the server waits for; this class has no
    timer."""

    __slots__ = ("_limits", "_owed", "_since", "received")

    def __init__(self, limits: RequestLimits) -> None:
        self.received = 0
        """Bytes of the body that came while the server waited for them. The protocol adds to it."""
        self._limits = limits
        self._owed: Owed = "nothing"
        self._since = 0.0

    def expect(self, owed: Owed, now: float) -> None:
        """Wait for this. The time counts from the first call that names it."""
        if owed != self._owed:
            self._owed = owed
            self._restart(now)

    def left(self, now: float) -> float:
        """Seconds until the client is too late; zero or less if it is late."""
        match self._owed:
            case "nothing":
                return math.inf
            case "head":
                return self._since + self._limits.head_seconds - now
            case "body" if now - self._since >= self._limits.body_seconds and self.received >= self._limits.body_bytes:
                self._restart(now)
        return self._since + self._limits.body_seconds - now

    def _restart(self, now: float) -> None:
        self._since = now
        self.received = 0


class ConnectionCounts:
    """The open connections of one server, by the address of the client. Each may have a part of all."""

    def __init__(self, *, total: int = 10_000, per_address: int = 0) -> None:
        """`per_address` 0 means half of the total. The total is less if the process may not open as many files."""
        self.total = min(total, max(MIN_CONNECTIONS, raise_open_files() - RESERVED_FILES))
        self.per_address = per_address or max(1, self.total // 2)
        self._open: Counter[str] = Counter()

    def add(self, address: str) -> bool:
        """Count one more; False, and not counted, if that is too many."""
        if self._open[address] >= self.per_address or self._open.total() >= self.total:
            return False
        self._open[address] += 1
        return True

    def remove(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class HeldFlow(FlowControl):
    """Flow control with a pause of our own. uvicorn resumes reading whenever the app asks for more of its body, and
    after each response; while the flow is held, it does not."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedProtocol(WatchedProtocol):
    """HTTP/1.1 as uvicorn speaks it, within `limits`. It offers no upgrade to another protocol.

    One timer per connection, which is set only while a request is unfinished: an open stream has none.
    """

    limits = RequestLimits()
    flow: HeldFlow

    def __init__(self, *args: Any, connections: ConnectionCounts | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._address: str | None = None
        """Under which this connection is counted, if it is."""
        self._stall: asyncio.TimerHandle | None = None
        self.timeout_keep_alive = self.limits.idle_seconds
        self._deadline = RequestDeadline(self.limits)
        self._alarm: asyncio.TimerHandle | None = None
        self._unparsed = b""
        """Bytes that were read, but are parsed later because too many requests wait."""
        self._overhead_bytes = 0
        """Bytes since the last request ended, or since the last byte of a body."""
        self._is_head = True
        """The next byte belongs to a head, and not to a body."""
        self._is_measured = False
        """The size of this head is counted from its fields, because `_overhead_bytes` does not tell it."""
        self._is_refused = False
        """Further bytes are thrown away."""
        self._thrown_bytes = 0
        self._chunks: list[bytes] = []
        """Parts of a body in this piece. They reach the app as one."""
        self._small_chunks = 0

    # The transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        if not self._is_counted():
            # It is closed at once, and not after a while as other refused ones: it would still hold an open file.
            self._is_refused = True
            error = Unavailable("Too many connections are open. Close some, or try again later.")
            transport.write(refusal(STATUSES[Unavailable], error, self.server_state.default_headers))
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarm()
        self._stop_stall()
        if self._connections is not None and self._address is not None:
            self._connections.remove(self._address)
        if self._running is not None and not self._running.response_complete:
            # uvicorn informs only the newest request, and that may be one that waits behind this one.
            _disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            self._feed(self._unparsed + data)
            return
        self._thrown_bytes += len(data)
        if self._thrown_bytes > self.limits.rest_bytes:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._expect_reading()

    def resume_writing(self) -> None:
        self._stop_stall()
        super().resume_writing()

    def _is_counted(self) -> bool:
        """Count this connection. A client without an address, as on a Unix socket, is a proxy."""
        if self._connections is None or self.client is None:
            return True
        if self._connections.add(self.client[0]):
            self._address = self.client[0]
            return True
        return False

    def _expect_reading(self) -> None:
        """Look again in time. While writing is paused nothing is added to what is unsent, so it must become less."""
        unsent = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.limits.write_seconds, self._look_at_reading, unsent)

    def _look_at_reading(self, unsent: int) -> None:
        if unsent - self.transport.get_write_buffer_size() < self.limits.write_bytes:
            _logger.info("client reads too slowly", extra={"fields": {"unsent_bytes": unsent}})
            self.transport.abort()
        else:
            self._expect_reading()

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._unparsed:
            self.flow.release()
            self._feed(self._unparsed)
        elif self._is_refused and self.cycle.response_complete:
            self._close(None)

    def _feed(self, data: bytes) -> None:
        """Parse as much as may be parsed now, and keep the rest."""
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data) and not self._is_refused and len(self.pipeline) < self.limits.pipelined:
            room = self.limits.head_bytes - self._overhead_bytes
            end = end_of_piece(data, start, room, is_head=self._is_head)
            self._parse(data[start:end])
            start = end
        if self._is_refused:
            return
        self._unparsed = data[start:]
        if self._unparsed:
            self.flow.hold()
        self._watch()

    def _parse(self, piece: bytes) -> None:
        self._overhead_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
            self._flush()
        except httptools.HttpParserUpgrade:
            pass  # none is offered, so this is an ordinary request
        except httptools.HttpParserError as exc:
            cause = exc.__context__
            self._refuse(cause if isinstance(cause, TurnkeepError) else InvalidRequest("This is not HTTP/1.1."))
        else:
            if self._overhead_bytes >= self.limits.head_bytes:
                self._refuse(self._too_large())

    # The parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._overhead_bytes:
            # Another request ended earlier in this piece, so it is not known how much of the piece is this one.
            self._overhead_bytes = 1
            self._is_measured = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) > self.limits.fields:
            raise self._too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.headers) > self.limits.fields:
            raise self._too_large()
        if self._is_measured and size_of(self.url, self.headers) > self.limits.head_bytes:
            raise self._too_large()
        if self.parser.should_upgrade() and has_body(self.headers):
            # The parser skips such a body, and would read what follows as the next request.
            raise InvalidRequest("A request with a body cannot ask for another protocol. Send it without `Upgrade`.")
        # Pieces end with a head. Only behind a body, or where packets cut a blank line in two, are there more in one.
        if len(self.pipeline) >= 2 * self.limits.pipelined:
            raise InvalidRequest("Too many requests were sent before the first was answered.")
        super().on_headers_complete()
        self._is_head = False
        # The request keeps its list. uvicorn would add the trailer fields to it.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        self._deadline.received += len(body)
        if self.cycle.response_complete:
            self._thrown_bytes += len(body)
            if self._thrown_bytes > self.limits.rest_bytes:
                raise InvalidRequest("The request was answered before its body had come.")
        if len(body) < self.limits.small_bytes:
            self._small_chunks += 1
            if self._small_chunks > self.limits.small_chunks:
                raise InvalidRequest("The body came in too many small chunks. Send larger ones.")
        self._chunks.append(body)

    def _flush(self) -> None:
        if self._chunks:
            body = b"".join(self._chunks)
            self._chunks.clear()
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._flush()
        self._small_chunks = self._thrown_bytes = 0
        if len(self.headers) > self.limits.fields:
            raise self._too_large()
        super().on_message_complete()
        self._overhead_bytes = 0
        self._is_head = True
        self._is_measured = False

    def _should_upgrade(self) -> bool:
        return False

    # The clock

    def _watch(self) -> None:
        """Look again in time, as long as a request is unfinished. Cheap, as it is called for every packet."""
        latest = self._latest()
        if self._is_head and not self._overhead_bytes and latest is not None:
            self._deadline.expect("nothing", 0.0)
            if latest.response_complete and self.timeout_keep_alive_task is None:
                # The last of its body came after the response. uvicorn starts this timer only with a response.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            return
        now = self.loop.time()
        self._deadline.expect(self._owed(), now)
        if self._alarm is None:
            wait = min(self._deadline.left(now), self.limits.head_seconds, self.limits.body_seconds)
            self._alarm = self.loop.call_later(wait, self._look)

    def _look(self, *, is_last: bool = False) -> None:
        self._alarm = None
        owed, now = self._owed(), self.loop.time()
        self._deadline.expect(owed, now)
        if self._deadline.left(now) > 0:
            self._watch()
        elif not is_last:
            self._alarm = self.loop.call_later(self.limits.grace_seconds, partial(self._look, is_last=True))
        elif owed == "head" and not self._overhead_bytes:
            self.transport.close()
        else:
            self._refuse(RequestTimeout("The request came too slowly. Send it again, faster or in smaller parts."))

    def _owed(self) -> Owed:
        """The client is not late while the server is slow: it answers another request first, or does not read."""
        cycle = self._latest()
        if cycle is None:
            return "head"
        if self._is_head:
            return "head" if self._overhead_bytes and cycle.response_complete else "nothing"
        if cycle.response_complete:
            return "rest"
        is_busy = self.pipeline or cycle.response_started or self.flow.read_paused
        return "nothing" if is_busy or cycle.waiting_for_100_continue else "body"

    def _latest(self) -> RequestResponseCycle | None:
        """The newest request whose head is complete. It is answered last."""
        return self.cycle

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # Refusals

    def _refuse(self, error: TurnkeepError) -> None:
        """Parse no more, and close once the earlier requests are answered. Say why, if there are none."""
        if self.transport.is_closing():
            return
        self._is_refused = True
        self._unparsed = b""
        self._stop_alarm()
        if not self._is_head and self.pipeline:
            # It waits behind others. Without it, the one before is the last.
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running  # type: ignore[assignment]
            self._is_head = True
        cycle = self._latest()
        if not self._is_head:
            self._break_off(error)
        elif cycle is None or cycle.response_complete:
            self._close(error)

    def _break_off(self, error: TurnkeepError) -> None:
        """End the request that runs, whose body will not be complete."""
        if self.cycle.response_complete:
            self._close(None)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            _disconnect(self.cycle)
            self._close(error)

    def _close(self, error: TurnkeepError | None) -> None:
        """Close in such a way that the client can read what was written. A socket that is closed while there is
        something to read is reset, and the client may lose what it has not read."""
        self._unset_keepalive_if_required()
        if error is not None:
            status = STATUSES.get(type(error), HTTPStatus.BAD_REQUEST)
            _logger.info("request refused", extra={"fields": {"status": int(status), "code": error.code}})
            self.transport.write(refusal(status, error, self.server_state.default_headers))
        self.flow.release()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._alarm = self.loop.call_later(self.limits.linger_seconds, self.transport.abort)

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"A request may have {self.limits.fields} header fields and {self.limits.head_bytes:,} bytes of them, its "
            "first line included. Send fewer or shorter headers, or a shorter address."
        )


STATUSES: dict[type[TurnkeepError], HTTPStatus] = {
    HeadersTooLarge: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    RequestTimeout: HTTPStatus.REQUEST_TIMEOUT,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}


def end_of_piece(data: bytes, start: int, room: int, *, is_head: bool) -> int:
    """Where to stop parsing for a look at the counts: at the end of a head, and in any case after `room` bytes."""
    last = min(len(data), start + room)
    found = data.find(BLANK_LINE, start, last) if is_head else -1
    return last if found < 0 else found + len(BLANK_LINE)


def size_of(url: bytes, fields: Iterable[Field]) -> int:
    """The least bytes that a head with these can have. Used where its first byte is not known."""
    return len(url) + sum(len(name) + len(value) + 3 for name, value in fields)


def has_body(fields: Iterable[Field]) -> bool:
    return any(name == b"transfer-encoding" or (name == b"content-length" and int(value)) for name, value in fields)


def refusal(status: HTTPStatus, error: TurnkeepError, headers: Sequence[Field]) -> bytes:
    """A whole response: the error as a problem (RFC 9457), and that the connection is closed."""
    problem = {
        "type": f"urn:turnkeep:error:{error.code}",
        "title": status.phrase,
        "status": int(status),
        "detail": error.detail,
        "code": error.code,
    }
    body = msgspec.json.encode(problem)
    fields = [
        *headers,
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    first = f"HTTP/1.1 {int(status)} {status.phrase}".encode()
    return b"\r\n".join([first, *(name + b": " + value for name, value in fields), b"", body])


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the app that its client has disconnected, and drop what it sends."""
    cycle.disconnected = True
    cycle.message_event.set()


class GracefulServer(uvicorn.Server):
    """Serves one app. `stop` begins the shutdown by calling `leave`; `serve` returns when the shutdown is done.

    The first SIGTERM or SIGINT calls `stop`; a second one ends the server at once.
    """

    def __init__(
        self,
        app: Any,
        *,
        leave: Callable[[], Awaitable[None]],
        backlog: int,
        close_seconds: int,
        connections: ConnectionCounts | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(BoundedProtocol, connections=connections or ConnectionCounts()),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=backlog,
            timeout_graceful_shutdown=close_seconds,
        )
        super().__init__(config)
        self._leave = leave
        self._on_ready = on_ready
        self._leaving: asyncio.Task[None] | None = None

    shares_sockets = False
    """Whether other processes accept connections from the same sockets."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.shares_sockets and sockets is not None:
            await super().startup([])
            self.servers += [SharedListener(each, self._make_protocol) for each in sockets]  # type: ignore[misc]
        else:
            await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )
        return made

    def stop(self) -> None:
        """Shut down gracefully; when called again, at once."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._go())
        else:
            self.force_exit = self.should_exit = True

    async def _go(self) -> None:
        try:
            await self._leave()
        finally:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, before what was opened around the server is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
