"""The sandbox runner as a server: `POST /stream` runs one turn and responds with its lines, `GET /healthz` reports.

It is a bare ASGI app. A turn lives exactly as long as its request: when the client disconnects, or the server shuts
down, its box is killed and nothing is written back. However the process ends, every box ends with it.
"""

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from turnkeep.errors import InvalidRequest, SandboxUnavailable, TurnkeepError
from turnkeep.http_server.sockets import keep_alive, listen
from turnkeep.http_server.uvicorn_server import GracefulServer
from turnkeep.sandbox.boxes.docker import Docker
from turnkeep.sandbox.boxes.limits import Cgroups
from turnkeep.sandbox.boxes.ports import Driver
from turnkeep.sandbox.line_stream import LineStream
from turnkeep.sandbox.server_client import read_shape
from turnkeep.sandbox.settings import RunnerSettings
from turnkeep.sandbox.turn import SandboxTurn
from turnkeep.streaming.connection import Receive, Scope, Send, disconnected
from turnkeep_client.wire.sandbox import ErrorLine, SandboxRequest

BODY_BYTES = 4 * 1024 * 1024
HEARTBEAT_SECONDS = 15.0
"""After this long without a line a blank one is sent: a broken connection is only noticed by writing to it."""
BACKLOG = 512
CLOSE_SECONDS = 2

_logger = logging.getLogger("turnkeep.sandbox")


async def serve_runner(
    settings: RunnerSettings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] | None = None,
    until_eof: bool = False,
) -> None:
    """Serve until a signal comes; with `until_eof` also until standard input ends, as it does when the parent dies.

    Raises BoxUnavailable if no box can be started.
    """
    async with open_runner(make_driver(settings), settings) as app:
        server = RunnerServer(app, on_ready=on_ready)
        if until_eof:
            threading.Thread(target=_wait_for_eof, args=(asyncio.get_running_loop(), server.stop), daemon=True).start()
        await server.serve([listener])


def bind(settings: RunnerSettings) -> socket.socket:
    """A listening socket. Raises Conflict if the port is in use."""
    return keep_alive(listen(settings.host, settings.port, variable="TURNKEEP_SANDBOX_HOST", backlog=BACKLOG))


def make_driver(settings: RunnerSettings) -> Driver:
    if settings.driver == "docker":
        return Docker(image=settings.docker_image, runtime=settings.docker_runtime or None)
    from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap

    return Bubblewrap(cgroups=Cgroups.find())


class RunnerApp:
    """The ASGI app, with all turns of one runner. Create it with `open_runner`."""

    def __init__(self, driver: Driver, settings: RunnerSettings, session: aiohttp.ClientSession) -> None:
        self._driver = driver
        self._settings = settings
        self._session = session
        self._limit = ConcurrencyLimit(settings.turns, queue=settings.queue, seconds=settings.queue_seconds)
        self._turns: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "POST", "/stream":
                await self._stream(receive, send)
            case "GET", "/healthz":
                await _respond(send, 503 if self._is_closing else 200, self._health())
            case _, "/stream" | "/healthz":
                await _problem(send, 405, "method_not_allowed", "Use POST /stream or GET /healthz.")
            case _:
                await _problem(send, 404, "not_found", "There is POST /stream and GET /healthz.")

    async def close(self) -> None:
        """Stop every turn at once. When this returns, the boxes are gone; the streams end without a last line."""
        self._is_closing = True
        turns = list(self._turns)
        for turn in turns:
            turn.cancel()
        if turns:
            await asyncio.wait(turns)

    def _health(self) -> dict[str, object]:
        return {
            "status": "closing" if self._is_closing else "ok",
            "driver": self._driver.name,
            "turns": self._limit.taken,
            "waiting": self._limit.waiting,
            "places": self._limit.count,
        }

    async def _stream(self, receive: Receive, send: Send) -> None:
        lines = LineStream()
        try:
            turn = self._accept(await _read_body(receive), lines)
        except InvalidRequest as exc:
            await _problem(send, 422, exc.code, exc.detail)
            return
        except SandboxUnavailable as exc:
            await _problem(send, 503, exc.code, exc.detail)
            return
        running = asyncio.create_task(self._run(turn, lines))
        self._turns.add(running)
        lines.on_overflow = running.cancel
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: running.cancel())
        try:
            await _send_lines(send, lines, running)
        finally:
            running.cancel()
            gone.cancel()
            # Do not let another cancellation end this early: the box must be gone before the request ends.
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({running})
            self._turns.discard(running)

    def _accept(self, body: bytes, lines: LineStream) -> SandboxTurn:
        if self._is_closing:
            raise SandboxUnavailable("This sandbox runner is shutting down.")
        if self._limit.is_full:
            raise SandboxUnavailable("The sandbox runner and its queue are full.")
        request: SandboxRequest = read_shape(body, SandboxRequest, origin="The body")
        server = self._settings.server
        if server and not (request.agent_url == server or request.agent_url.startswith(f"{server}/")):
            raise InvalidRequest(f"This runner serves only turns of {server}.")
        return SandboxTurn(request, lines, driver=self._driver, settings=self._settings, session=self._session)

    async def _run(self, turn: SandboxTurn, lines: LineStream) -> None:
        began = time.monotonic()
        try:
            async with self._limit.slot(lambda ahead: lines.log("info", f"Waiting for a place, {ahead} ahead")):
                await turn.run()
        except TurnkeepError as exc:
            lines.error(exc.code, exc.detail)
        finally:
            _log_end(turn, lines, seconds=time.monotonic() - began)


@asynccontextmanager
async def open_runner(driver: Driver, settings: RunnerSettings) -> AsyncIterator[RunnerApp]:
    """A runner whose driver was checked. Every turn is stopped at the end of the block. Raises BoxUnavailable."""
    await driver.check()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        app = RunnerApp(driver, settings, session)
        try:
            yield app
        finally:
            await app.close()


class RunnerServer(GracefulServer):
    """The server process. Its shutdown kills the boxes and ends the streams."""

    def __init__(self, app: RunnerApp, *, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(app, leave=app.close, backlog=BACKLOG, close_seconds=CLOSE_SECONDS, on_ready=on_ready)


def _log_end(turn: SandboxTurn, lines: LineStream, *, seconds: float) -> None:
    """Write one line to the runner's log for each turn, without tokens and contents."""
    match lines.ending:
        case ErrorLine(code=code):
            outcome = code
        case None:
            outcome = "stopped"
        case _:
            outcome = "succeeded"
    fields = {"turn_id": turn.name, "outcome": outcome, "duration_ms": round(seconds * 1000)}
    _logger.info("turn ended", extra={"fields": fields})


async def _send_lines(send: Send, lines: LineStream, running: "asyncio.Task[None]") -> None:
    headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    running.add_done_callback(lambda _: lines.wake())
    while not running.done() or lines.has_unsent:
        body = await lines.take(seconds=HEARTBEAT_SECONDS)
        if body or not running.done():
            await send({"type": "http.response.body", "body": body or b"\n", "more_body": True})
    if lines.ending is not None:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    # Without an ending the body stays unfinished: the client must see a broken stream, not a short one.


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidRequest("The request broke off.")
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            raise InvalidRequest(f"The body is longer than {BODY_BYTES:,} bytes.")
        if not message.get("more_body", False):
            return bytes(body)


async def _respond(send: Send, status: int, value: object, *, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(value), "more_body": False})


async def _problem(send: Send, status: int, code: str, detail: str) -> None:
    problem = {"type": "about:blank", "title": code.replace("_", " "), "status": status, "detail": detail, "code": code}
    await _respond(send, status, problem, kind=b"application/problem+json")


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)


class RunnerBusy(SandboxUnavailable):
    """The runner and its queue are full. Try again later, or start another runner."""


class WaitedTooLong(SandboxUnavailable):
    """The turn waited longer in the queue than it may."""


class ConcurrencyLimit:
    """At most `count` turns run at once, and `queue` more wait in order; further turns are refused."""

    def __init__(self, count: int, *, queue: int, seconds: float) -> None:
        self._free = count
        self._queue = queue
        self._seconds = seconds
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.count = count

    @property
    def taken(self) -> int:
        return self.count - self._free

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._free == 0 and len(self._waiting) >= self._queue

    @asynccontextmanager
    async def slot(self, on_wait: Callable[[int], None]) -> AsyncIterator[None]:
        """Hold one slot. If the turn must wait, `on_wait` gets the number of turns ahead.

        Raises RunnerBusy, WaitedTooLong.
        """
        if self.is_full:
            raise RunnerBusy("The sandbox runner and its queue are full.")
        if self._free:
            self._free -= 1
        else:
            on_wait(len(self._waiting))
            await self._wait()
        try:
            yield
        finally:
            self._release()

    async def _wait(self) -> None:
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout(self._seconds):
                await slot
        except BaseException as exc:
            if slot.done() and not slot.cancelled():
                self._release()  # the slot was given at the moment of the timeout or cancellation
            elif slot in self._waiting:
                self._waiting.remove(slot)
            if isinstance(exc, TimeoutError):
                raise WaitedTooLong(f"No place became free within {self._seconds:g} seconds.") from exc
            raise

    def _release(self) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1
