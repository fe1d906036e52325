"""The front door: what holds for every request before any route is known.

Gives each request an id, refuses foreign Host headers where the server is local, hands the page's own addresses to
the page, writes one log line and one number per answer, and turns whatever still escapes into a problem that says
nothing.
"""

import logging
import re
import secrets
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from turnkeep.api.http.bundled_page import Page
from turnkeep.api.http.problem_details import problem
from turnkeep.api.notes import Notes, begin_notes
from turnkeep.api.telemetry.logs import FIELDS, elapsed_ms
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.config import LOOPBACK_HOSTS, Settings
from turnkeep.errors import Forbidden
from turnkeep.runtime import Runtime

REQUEST_ID = b"x-request-id"

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

_logger = logging.getLogger("turnkeep.http")
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")


class Front:
    """An ASGI app around the routes."""

    def __init__(self, app: ASGIApp, page: Page, runtime: Runtime, metrics: Metrics, tracing: Tracing | None) -> None:
        self._app = app
        self._page = page
        self._runtime = runtime
        self._metrics = metrics
        self._tracing = tracing
        self._hosts = allowed_hosts(runtime.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in {REQUEST_ID, b"host", b"traceparent"}}
        request_id = _request_id(headers.get(REQUEST_ID))
        notes = begin_notes(scope, request_id=request_id)
        began = time.perf_counter()

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                notes["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._every_header(request_id)]
            await send(message)

        with ExitStack() as stack:
            span = None
            if self._tracing is not None:
                carrier = {"traceparent": headers.get(b"traceparent", b"").decode("latin-1")}
                span = stack.enter_context(self._tracing.request(scope["method"], carrier))
            try:
                if self._is_foreign(headers.get(b"host", b"")):
                    error = Forbidden("This server is local and does not answer to that Host.")
                    await problem(error, request_id=request_id)(scope, receive, send_noted)
                elif route := self._page.route(scope["method"], scope["path"]):
                    notes["route"] = route
                    await self._page(scope, receive, send_noted)
                else:
                    await self._app(scope, receive, send_noted)
            except Exception as exc:
                self._metrics.defects.inc()
                _logger.error("a request failed", exc_info=exc, extra={FIELDS: dict(notes)})
                if notes["status"] is None:
                    await problem(exc, request_id=request_id)(scope, receive, send_noted)
            finally:
                self._note(scope["method"], notes, began)
                if span is not None:
                    span.update_name(f"{scope['method']} {notes['route'] or 'unknown'}")
                    span.set_attribute("http.response.status_code", notes["status"] or 0)
                    span.set_attribute("turnkeep.request_id", request_id)
                    if "turn_id" in notes:
                        span.set_attribute("turnkeep.turn_id", notes["turn_id"])

    def _is_foreign(self, host: bytes) -> bool:
        return self._hosts is not None and _host_name(host.decode("latin-1")) not in self._hosts

    def _every_header(self, request_id: str) -> list[tuple[bytes, bytes]]:
        headers = [(REQUEST_ID, request_id.encode()), (b"x-content-type-options", b"nosniff")]
        if self._runtime.engine.is_draining:
            headers.append((b"connection", b"close"))
        return headers

    def _note(self, method: str, notes: Notes, began: float) -> None:
        route, status = notes["route"] or "unknown", notes["status"] or 0
        counted = method if method in _METHODS else "other"
        ms = elapsed_ms(began)
        self._metrics.requests.labels(counted, route, str(status)).inc()
        self._metrics.request_seconds.labels(counted, route).observe(ms / 1000)
        level = logging.WARNING if status >= 500 else logging.INFO
        if _logger.isEnabledFor(level):
            _logger.log(level, "request", extra={FIELDS: {"method": method, **notes, "ms": ms}})


def allowed_hosts(settings: Settings) -> frozenset[str] | None:
    """The names under which a local server answers; None where it does not matter.

    A page on the internet can make its own name point at 127.0.0.1 and then read whatever answers there.
    """
    if not settings.is_local:
        return None
    public = urlsplit(settings.public_url or "").hostname
    return LOOPBACK_HOSTS | ({public} if public else set())


def _host_name(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rsplit(":", 1)[0] if host.count(":") == 1 else host


def _request_id(given: bytes | None) -> str:
    """The caller's own id, if it is a plain one; else a new one."""
    if given is not None and _GIVEN_ID.fullmatch(given):
        return given.decode()
    return f"req_{secrets.token_hex(8)}"
