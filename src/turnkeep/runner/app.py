"""The runner's HTTP server: `POST /stream` runs one turn and answers with its lines; `GET /healthz` says how it is.

A bare ASGI app. A turn lives exactly as long as its request: when the reader is gone, or the server shuts down, its box
is killed, and nothing is handed back.
"""

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from starlette.types import Receive, Scope, Send

from turnkeep.errors import InvalidRequest, SandboxUnavailable, TurnkeepError
from turnkeep.runner.boxes.ports import Driver
from turnkeep.runner.envelope import StreamRequest, read
from turnkeep.runner.lines import Lines
from turnkeep.runner.places import Places
from turnkeep.runner.settings import RunnerSettings
from turnkeep.runner.turn import SandboxTurn
from turnkeep.streaming.connection import disconnected
from turnkeep.streaming.ndjson import ErrorLine

BODY_BYTES = 4 * 1024 * 1024
BEAT_SECONDS = 15.0
"""After so long without a line a blank one is sent: a reader that is gone is noticed only by writing to it."""

_logger = logging.getLogger("turnkeep.runner")


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
        if scope["type"] != "http":
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
