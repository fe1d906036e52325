"""Middleware around all routes: request ids, host checks, logs and metrics; the bundled page; CORS.

All of it is plain ASGI. Starlette's `BaseHTTPMiddleware` would run each response in a task of its own.
"""

import functools
import logging
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeep.api.http.bundled_page import EMBED, BundledPage
from turnkeep.api.http.problem_details import problem_response
from turnkeep.api.http.requests import Notes, begin_notes, notes_of
from turnkeep.api.http.responses import no_content
from turnkeep.api.identity.authentication import refuse_key_in_query
from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.config import Settings
from turnkeep.errors import Forbidden, InvalidRequest, TurnkeepError
from turnkeep.http_server.sockets import host_name, is_loopback
from turnkeep.ids import random_bytes
from turnkeep.runtime import Runtime
from turnkeep.trace_context import Origin, origin, valid_traceparent

if TYPE_CHECKING:
    from opentelemetry.trace import Span

REQUEST_ID = b"x-request-id"

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
REQUEST_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Range",
    "Traceparent",
    "Turnkeep-Share",
    "Turnkeep-Workspace",
    "User-Agent",
    "X-Request-Id",
)
"""Headers that a page of another origin may send. SDKs set `User-Agent`, and some browsers ask about it."""
SDK_HEADERS = ("openai-", "x-stainless-")
"""How headers begin that SDKs send along about themselves. They are allowed and not read."""
RESPONSE_HEADERS = (
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Location",
    "Retry-After",
    "Turnkeep-Turn",
    "X-Request-Id",
    "X-Should-Retry",
)
"""Headers that a page of another origin may read."""
MAX_AGE_SECONDS = 600

_COUNTED_METHODS = frozenset({*METHODS, "OPTIONS"})
_READ_HEADERS = frozenset({REQUEST_ID, b"host", b"traceparent"})
_KNOWN_HEADERS = frozenset(map(str.lower, REQUEST_HEADERS)) | {"accept", "accept-language", "content-language"}
_SDK_HEADER = re.compile(rf"({'|'.join(SDK_HEADERS)})[a-z0-9-]{{1,60}}", re.IGNORECASE)
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")

_logger = logging.getLogger("turnkeep.http")


class RequestMiddleware:
    """The outermost middleware. It gives each request an id, refuses foreign Host headers on a local server, writes one
    log line and one metric per response, and turns an unexpected exception into a problem that reveals nothing."""

    def __init__(self, app: ASGIApp, *, runtime: Runtime, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._app = app
        self._runtime = runtime
        self._metrics = metrics
        self._tracing = tracing
        self._settings = runtime.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in _READ_HEADERS}
        request_id = _request_id(headers.get(REQUEST_ID))
        notes = begin_notes(scope, request_id=request_id)
        began = time.perf_counter()

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                notes["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._common_headers(request_id)]
            await send(message)

        given = headers.get(b"traceparent")
        traceparent = None if given is None else valid_traceparent(given.decode("latin-1"))
        span = None
        if self._tracing is not None:
            span, traceparent = self._tracing.begin_request(scope["method"], traceparent)
        with origin(Origin(request_id=request_id, traceparent=traceparent)):
            try:
                if self._is_foreign(headers.get(b"host", b"")):
                    error = Forbidden("This server is local and does not answer to that Host.")
                    await problem_response(error, request_id=request_id)(scope, receive, send_noted)
                else:
                    await self._app(scope, receive, send_noted)
            except Exception as exc:
                self._metrics.defects.inc()
                _logger.error("a request failed", exc_info=exc, extra={FIELDS: dict(notes)})
                if notes["status"] is None:
                    await problem_response(exc, request_id=request_id)(scope, receive, send_noted)
            finally:
                self._record(scope["method"], notes, began)
                if span is not None:
                    _describe(span, scope["method"], notes)

    def _is_foreign(self, host: bytes) -> bool:
        return is_foreign(host_name(host.decode("latin-1")), self._settings)

    def _common_headers(self, request_id: str) -> list[tuple[bytes, bytes]]:
        headers = [(REQUEST_ID, request_id.encode()), (b"x-content-type-options", b"nosniff")]
        if self._runtime.engine.is_draining:
            headers.append((b"connection", b"close"))
        return headers

    def _record(self, method: str, notes: Notes, began: float) -> None:
        route, status = notes["route"] or "unknown", notes["status"] or 0
        counted = method if method in _COUNTED_METHODS else "other"
        ms = round((time.perf_counter() - began) * 1000, 2)
        self._metrics.requests(counted, route, str(status)).inc()
        self._metrics.request_seconds(counted, route).observe(ms / 1000)
        level = logging.WARNING if status >= 500 else logging.INFO
        if _logger.isEnabledFor(level):
            _logger.log(level, "request", extra={FIELDS: {"method": method, **notes, "ms": ms}})


class PageMiddleware:
    """Answers the addresses of the bundled page, and passes every other request on."""

    def __init__(self, app: ASGIApp, *, page: BundledPage) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._page.route(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        notes_of(scope)["route"] = route
        app: ASGIApp = self._page
        try:
            # The token of an embedded chat comes from the page around it, never in the address.
            if route == EMBED:
                refuse_key_in_query(scope["query_string"])
        except TurnkeepError as error:
            app = problem_response(error, request_id=notes_of(scope)["request_id"])
        await app(scope, receive, send)


class Cors(CORSMiddleware):
    """Which pages of other origins may call the API from a browser, and which headers they may send and read.

    Such pages bring a token of their own. The cookie of the bundled page is not for them, so credentials are not
    allowed. A preflight that is refused is answered with a problem, unlike in Starlette's own class.
    """

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(app, allow_origins=frozenset(origins), expose_headers=RESPONSE_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            if "origin" in headers and "access-control-request-method" in headers:
                response = self._preflight(headers, request_id=notes_of(scope).get("request_id", ""))
                await response(scope, receive, functools.partial(self.send, send=send, request_headers=headers))
                return
        await super().__call__(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        return origin.lower() in self.allow_origins

    def _preflight(self, headers: Headers, *, request_id: str) -> Response:
        refusal = self._refusal(headers)
        if refusal is not None:
            return problem_response(refusal, request_id=request_id)
        return no_content(
            headers={
                "access-control-allow-methods": ", ".join(METHODS),
                "access-control-allow-headers": ", ".join([*REQUEST_HEADERS, *_sdk_headers(headers)]),
                "access-control-max-age": str(MAX_AGE_SECONDS),
            }
        )

    def _refusal(self, headers: Headers) -> TurnkeepError | None:
        if not self.is_allowed_origin(headers["origin"]):
            return Forbidden(
                "Pages of this origin may not call this server. TURNKEEP_ALLOWED_ORIGINS lists those that may."
            )
        method = headers["access-control-request-method"]
        if method not in METHODS:
            return InvalidRequest(f"Pages may not send {method}. Allowed: {', '.join(METHODS)}.")
        asked = _asked_headers(headers)
        unknown = [name for name in asked if name and not _is_known(name)]
        if unknown:
            return InvalidRequest(f"Pages may not send the header {unknown[0]}. Allowed: {', '.join(REQUEST_HEADERS)}.")
        return None


def _asked_headers(headers: Headers) -> list[str]:
    return [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]


def _sdk_headers(headers: Headers) -> list[str]:
    return [name for name in _asked_headers(headers) if _SDK_HEADER.fullmatch(name)]


def _is_known(name: str) -> bool:
    return name.lower() in _KNOWN_HEADERS or _SDK_HEADER.fullmatch(name) is not None


def is_foreign(host: str, settings: Settings) -> bool:
    """Whether a local server must not answer under this name. A server that is not local answers under any.

    A page on the internet can make its own name point at 127.0.0.1 and then read what answers there.
    """
    if not settings.is_local or is_loopback(host):
        return False
    return host != urlsplit(settings.public_url or "").hostname


def _request_id(given: bytes | None) -> str:
    """The caller's own id, if it is a plain one; else a new one."""
    if given is not None and _GIVEN_ID.fullmatch(given):
        return given.decode()
    return f"req_{random_bytes(8).hex()}"


def _describe(span: "Span", method: str, notes: Notes) -> None:
    """End the span, with what is known only once the request has been answered."""
    route, status = notes["route"] or "unknown", notes["status"] or 0
    span.update_name(f"{method} {route}")
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status == 0 or status >= 500:
        span.set_attribute("error.type", str(status))
    span.set_attribute("turnkeep.request_id", notes["request_id"])
    if "turn_id" in notes:
        span.set_attribute("turnkeep.turn_id", notes["turn_id"])
    span.end()
