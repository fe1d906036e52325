"""The runner as a process, and how it leaves. Every way out kills every box."""

import asyncio
import contextlib
import importlib
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
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from turnkeep.errors import InvalidRequest, SandboxUnavailable, TurnkeepError
from turnkeep.sandbox.boxes.cgroups import Cgroups
from turnkeep.sandbox.boxes.docker import Docker
from turnkeep.sandbox.boxes.ports import Driver
from turnkeep.sandbox.envelope import StreamRequest, read
from turnkeep.sandbox.line_stream import Lines
from turnkeep.sandbox.settings import RunnerSettings
from turnkeep.sandbox.turn import SandboxTurn
from turnkeep.serving import OrderlyServer
from turnkeep.sockets import keep_alive, listen
from turnkeep.streaming.connection import disconnected
from turnkeep.streaming.ndjson import ErrorLine

BODY_BYTES = 4 * 1024 * 1024
BEAT_SECONDS = 15.0
"""After so long without a line a blank one is sent: a reader that is gone is noticed only by writing to it."""


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
    """Serve until a signal comes; with `until_eof` also until standard input ends, as it does when a parent dies.

    Raises BoxUnavailable where no box can be started.
    """
    async with open_runner(make_driver(settings), settings) as app:
        server = RunnerServer(app, on_ready=on_ready)
        if until_eof:
            threading.Thread(target=_wait_for_eof, args=(asyncio.get_running_loop(), server.stop), daemon=True).start()
        await server.serve([listener])


def bind(settings: RunnerSettings) -> socket.socket:
    """A listening socket. Raises Conflict if somebody else listens there."""
    return keep_alive(listen(settings.host, settings.port, variable="TURNKEEP_SANDBOX_HOST", backlog=BACKLOG))


def make_driver(settings: RunnerSettings) -> Driver:
    if settings.driver == "docker":
        return Docker(image=settings.docker_image, runtime=settings.docker_runtime or None)
    from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap

    return Bubblewrap(cgroups=Cgroups.find())


class RunnerApp:
    """All turns of one runner. Make it with `open_runner`."""

    def __init__(self, driver: Driver, settings: RunnerSettings, session: aiohttp.ClientSession) -> None:
        self._driver = driver
        self._settings = settings
        self._session = session
        self._places = Places(settings.turns, queue=settings.queue, seconds=settings.queue_seconds)
        self._turns: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            return
        match scope["method"], scope["path"]:
            case "POST", "/stream":
                await self._stream(receive, send)
            case "GET", "/healthz":
                await _answer(send, 503 if self._is_closing else 200, self._health())
            case _, "/stream" | "/healthz":
                await _problem(send, 405, "method_not_allowed", "Use POST /stream or GET /healthz.")
            case _:
                await _problem(send, 404, "not_found", "There is POST /stream and GET /healthz.")

    async def close(self) -> None:
        """Stop every turn at once: their boxes are gone when this returns, and their streams break off."""
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
            "turns": self._places.taken,
            "waiting": self._places.waiting,
            "places": self._places.count,
        }

    async def _stream(self, receive: Receive, send: Send) -> None:
        lines = Lines()
        try:
            turn = self._accept(await _body(receive), lines)
        except InvalidRequest as exc:
            await _problem(send, 422, exc.code, exc.detail)
            return
        except SandboxUnavailable as exc:
            await _problem(send, 503, exc.code, exc.detail)
            return
        running = asyncio.create_task(self._run(turn, lines))
        self._turns.add(running)
        lines.on_flood = running.cancel
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: running.cancel())
        try:
            await _send_lines(send, lines, running)
        finally:
            running.cancel()
            gone.cancel()
            # Another cancellation must not cut this short: the box has to be gone before the request is.
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({running})
            self._turns.discard(running)

    def _accept(self, body: bytes, lines: Lines) -> SandboxTurn:
        if self._is_closing:
            raise SandboxUnavailable("This sandbox runner is shutting down.")
        if self._places.is_full:
            raise SandboxUnavailable("The sandbox runner has no place free, and as many turns wait as may.")
        request: StreamRequest = read(body, StreamRequest, origin="The body")
        server = self._settings.server
        if server and not (request.agent_url == server or request.agent_url.startswith(f"{server}/")):
            raise InvalidRequest(f"This runner serves only turns of {server}.")
        return SandboxTurn(request, lines, driver=self._driver, settings=self._settings, session=self._session)

    async def _run(self, turn: SandboxTurn, lines: Lines) -> None:
        began = time.monotonic()
        try:
            async with self._places.one(lambda ahead: lines.log("info", f"Waiting for a place, {ahead} ahead")):
                await turn.run()
        except TurnkeepError as exc:
            lines.error(exc.code, exc.detail)
        finally:
            _log_end(turn, lines, seconds=time.monotonic() - began)


@asynccontextmanager
async def open_runner(driver: Driver, settings: RunnerSettings) -> AsyncIterator[RunnerApp]:
    """A runner whose driver has been checked. Leaving stops every turn. Raises BoxUnavailable."""
    await driver.check()
    await asyncio.to_thread(importlib.import_module, "openai")  # takes most of a second; not in the first turn
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        app = RunnerApp(driver, settings, session)
        try:
            yield app
        finally:
            await app.close()


class RunnerServer(OrderlyServer):
    """One runner: its way out kills the boxes and ends the streams."""

    def __init__(self, app: RunnerApp, *, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(app, leave=app.close, backlog=BACKLOG, close_seconds=CLOSE_SECONDS, on_ready=on_ready)


def _log_end(turn: SandboxTurn, lines: Lines, *, seconds: float) -> None:
    """One line of the runner's own log for each turn. Tokens and contents have no place in it."""
    match lines.ending:
        case ErrorLine(code=code):
            outcome = code
        case None:
            outcome = "stopped"
        case _:
            outcome = "succeeded"
    fields = {"turn_id": turn.name, "outcome": outcome, "duration_ms": round(seconds * 1000)}
    _logger.info("turn ended", extra={"fields": fields})


async def _send_lines(send: Send, lines: Lines, running: "asyncio.Task[None]") -> None:
    headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    running.add_done_callback(lambda _: lines.wake())
    while not running.done() or lines.has_unsent:
        body = await lines.take(seconds=BEAT_SECONDS)
        if body or not running.done():
            await send({"type": "http.response.body", "body": body or b"\n", "more_body": True})
    if lines.ending is not None:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    # Without an ending the body stays unfinished: the reader must see a broken stream, not a short one.


async def _body(receive: Receive) -> bytes:
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


async def _answer(send: Send, status: int, value: object, *, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(value), "more_body": False})


async def _problem(send: Send, status: int, code: str, detail: str) -> None:
    problem = {"type": "about:blank", "title": code.replace("_", " "), "status": status, "detail": detail, "code": code}
    await _answer(send, status, problem, kind=b"application/problem+json")


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)


class RunnerBusy(SandboxUnavailable):
    """Every place is taken, and so is the queue. Try again later, or start another runner."""


class WaitedTooLong(SandboxUnavailable):
    """No place became free in time."""


class Places:
    """First come, first served."""

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
    async def one(self, on_wait: Callable[[int], None]) -> AsyncIterator[None]:
        """Hold a place. `on_wait` is told how many are ahead, if one must wait. Raises RunnerBusy, WaitedTooLong."""
        if self.is_full:
            raise RunnerBusy("The sandbox runner has no place free, and as many turns wait as may.")
        if self._free:
            self._free -= 1
        else:
            on_wait(len(self._waiting))
            await self._wait()
        try:
            yield
        finally:
            self._leave()

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came in the moment in which we left
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(exc, TimeoutError):
                raise WaitedTooLong(f"No place became free within {self._seconds:g} seconds.") from exc
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
