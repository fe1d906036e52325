"""The sandbox runner as a server: `POST /stream` runs one turn and responds with its lines, `GET /healthz` reports.

It runs turns of one server, which shows the shared secret. A page in a browser on this machine can send requests to it
too, so it takes only JSON, and on a loopback address it answers only to the names of this machine.

It is a bare ASGI app. A turn lives exactly as long as its request: when the client disconnects, or the server shuts
down, its box is killed and nothing is written back. However the process ends, every box ends with it.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec

from turnkeep.errors import (
    Forbidden,
    InvalidRequest,
    QueueFull,
    SandboxUnavailable,
    TurnkeepError,
    Unauthorized,
    UnsupportedMediaType,
)
from turnkeep.fair_queue import FairQueue, Owner, Shares
from turnkeep.http_server.sockets import host_name, is_loopback, keep_alive, listen
from turnkeep.http_server.uvicorn_server import GracefulServer
from turnkeep.ids import TurnId
from turnkeep.sandbox.boxes.docker import Docker
from turnkeep.sandbox.boxes.images import ImageFolder
from turnkeep.sandbox.boxes.limits import Cgroups
from turnkeep.sandbox.boxes.ports import BoxUnavailable, Driver
from turnkeep.sandbox.line_stream import LineStream
from turnkeep.sandbox.server_client import read_shape
from turnkeep.sandbox.settings import RunnerSettings
from turnkeep.sandbox.turn import SandboxTurn
from turnkeep.streaming.connection import Receive, Scope, Send, disconnected
from turnkeep.trace_context import TRACEPARENT, Origin, current_origin, set_origin, valid_traceparent
from turnkeep_client.wire.sandbox import ErrorLine, SandboxRequest

BODY_BYTES = 4 * 1024 * 1024
HEARTBEAT_SECONDS = 15.0
"""After this long without a line a blank one is sent: a broken connection is only noticed by writing to it."""
BACKLOG = 512
CLOSE_SECONDS = 2
ID_CHARS = 64
ORG_HEADER, USER_HEADER = b"turnkeep-org", b"turnkeep-user"
"""Whose turn it is, so that the places are shared fairly."""
_STATUSES: dict[type[TurnkeepError], int] = {
    SandboxUnavailable: 503,
    Unauthorized: 401,
    UnsupportedMediaType: 415,
}

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


NO_CGROUP = (
    "The kernel cannot limit the memory of boxes: no memory cgroup can be made here. Start the runner as a service of "
    "systemd with `Delegate=yes`, or as root, or use the docker driver. TURNKEEP_SANDBOX_MEMORY_GUARD=watchdog runs it "
    "all the same, for users whom you trust (docs/howto/run-a-sandbox.md)."
)


def make_driver(settings: RunnerSettings) -> Driver:
    """Raises BoxUnavailable if the settings ask for a memory cgroup and there is none."""
    if settings.driver == "docker":
        return Docker(image=settings.docker_image, runtime=settings.docker_runtime or None)
    from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap

    cgroups = Cgroups.find()
    if cgroups is None and settings.needs_cgroup:
        raise BoxUnavailable(NO_CGROUP)
    return Bubblewrap(cgroups=cgroups, images=ImageFolder(settings.images_dir))


class RunnerApp:
    """The ASGI app, with all turns of one runner. Create it with `open_runner`."""

    def __init__(self, driver: Driver, settings: RunnerSettings, session: aiohttp.ClientSession) -> None:
        self._driver = driver
        self._settings = settings
        self._session = session
        self._places = FairQueue(
            Shares.of(
                settings.turns,
                waiting=settings.queue,
                per_org=settings.turns_per_org,
                per_user=settings.turns_per_user,
            ),
            seconds=settings.queue_seconds,
        )
        self._turns: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if is_loopback(self._settings.host) and not is_loopback(host_name(headers.get(b"host", b"").decode("latin-1"))):
            await _problem(send, 403, Forbidden.code, "This runner is local and does not answer to that Host.")
            return
        match scope["method"], scope["path"]:
            case "POST", "/stream":
                await self._stream(headers, receive, send)
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
            "turns": self._places.taken,
            "waiting": self._places.waiting,
            "places": self._settings.turns,
        }

    async def _stream(self, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        lines = LineStream()
        owner = owner_of(headers)
        try:
            self._check(headers)
            turn = self._accept(await _read_body(receive), lines, owner)
        except TurnkeepError as exc:
            await _problem(send, _STATUSES.get(type(exc), 422), exc.code, exc.detail)
            return
        running = asyncio.create_task(self._run(turn, lines, owner, origin_of(headers, turn.name)))
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

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse clients without the secret, and bodies that a page of any origin can send without being asked."""
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if self._settings.secret and not secrets.compare_digest(given, self._settings.secret.encode()):
            raise Unauthorized("Send the secret of this runner (TURNKEEP_SANDBOX_SECRET) as a bearer token.")
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise UnsupportedMediaType("Send JSON, with `Content-Type: application/json`.")

    def _accept(self, body: bytes, lines: LineStream, owner: Owner) -> SandboxTurn:
        if self._is_closing:
            raise SandboxUnavailable("This sandbox runner is shutting down.")
        if self._places.is_full(owner):
            raise SandboxUnavailable("The sandbox runner and its queue are full.")
        request: SandboxRequest = read_shape(body, SandboxRequest, origin="The body")
        server = self._settings.server
        if server and not (request.agent_url == server or request.agent_url.startswith(f"{server}/")):
            raise InvalidRequest(f"This runner serves only turns of {server}.")
        return SandboxTurn(request, lines, driver=self._driver, settings=self._settings, session=self._session)

    async def _run(self, turn: SandboxTurn, lines: LineStream, owner: Owner, origin: Origin) -> None:
        set_origin(origin)
        began = time.monotonic()
        try:
            await self._run_in_place(turn, lines, owner)
        except TurnkeepError as exc:
            lines.error(exc.code, exc.detail)
        finally:
            _log_end(turn, lines, seconds=time.monotonic() - began)

    async def _run_in_place(self, turn: SandboxTurn, lines: LineStream, owner: Owner) -> None:
        """Raises SandboxUnavailable if no place becomes free."""
        seconds = self._settings.queue_seconds
        async with AsyncExitStack() as stack:

            def announce(ahead: int) -> None:
                lines.log("info", f"Waiting for a place, {ahead} ahead")

            try:
                await stack.enter_async_context(self._places.place(owner, on_wait=announce))
            except QueueFull as exc:
                raise SandboxUnavailable("The sandbox runner and its queue are full.") from exc
            except TimeoutError as exc:
                raise SandboxUnavailable(f"No place became free within {seconds:g} seconds.") from exc
            await turn.run()


def owner_of(headers: Mapping[bytes, bytes]) -> Owner:
    """Whose turn it is, as the server says."""
    return Owner(headers.get(ORG_HEADER, b"").decode("latin-1"), headers.get(USER_HEADER, b"").decode("latin-1"))


def origin_of(headers: Mapping[bytes, bytes], turn_id: str) -> Origin:
    """The request and the trace that the turn belongs to, as the server says."""
    request_id = headers.get(b"x-request-id", b"").decode("latin-1")[:ID_CHARS]
    traceparent = valid_traceparent(headers.get(TRACEPARENT.encode(), b"").decode("latin-1"))
    return Origin(request_id=request_id or None, turn_id=TurnId(turn_id), traceparent=traceparent)


async def send_traceparent(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Add the trace of the turn to each request to the server: its gateway, its tools, its files."""
    traceparent = current_origin().traceparent
    if traceparent is not None:
        request.headers[TRACEPARENT] = traceparent
    return await handler(request)


@asynccontextmanager
async def open_runner(driver: Driver, settings: RunnerSettings) -> AsyncIterator[RunnerApp]:
    """A runner whose driver was checked. Every turn is stopped at the end of the block. Raises BoxUnavailable."""
    await driver.check()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False, middlewares=(send_traceparent,)) as session:
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
