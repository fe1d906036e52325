"""CORS: which pages of other origins may call the API from a browser, and what their scripts may send and read.

Such pages bring a token of their own; the bundled page's cookie is never for them, so credentials are not allowed.
"""

from collections.abc import Sequence

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from turnkeep.api.http.problem_details import problem
from turnkeep.api.http.responses import Answer, no_content
from turnkeep.api.notes import notes_of
from turnkeep.errors import Forbidden, InvalidRequest, TurnkeepError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
ASKED_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Range",
    "Traceparent",
    "Turnkeep-Workspace",
    "X-Request-Id",
)
ANSWERED_HEADERS = (
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Location",
    "Retry-After",
    "Turnkeep-Turn",
    "X-Request-Id",
    "X-Should-Retry",
)
MAX_AGE_SECONDS = 600

_ALWAYS_ALLOWED = frozenset({"accept", "accept-language", "content-language"})
_KNOWN_HEADERS = frozenset(name.lower() for name in ASKED_HEADERS) | _ALWAYS_ALLOWED
_VARY = (b"vary", b"Origin")
_EXPOSED = (b"access-control-expose-headers", ", ".join(ANSWERED_HEADERS).encode())


class Cors:
    """An ASGI app around the routes. Answers preflights itself, and tells browsers who may read the other answers."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = Headers.from_scope(scope)
        origin = headers.get("origin")
        is_allowed = origin is not None and origin.lower() in self._origins

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Said to everybody, also to those who may not: what is kept on the way must not be handed to others.
                added = [_VARY]
                if origin is not None and is_allowed:
                    added += [(b"access-control-allow-origin", origin.encode("latin-1")), _EXPOSED]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        answer = self._app
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            answer = _preflight(headers, is_allowed=is_allowed, request_id=notes_of(scope).get("request_id", ""))
        await answer(scope, receive, send_with_origin)


def _preflight(headers: Headers, *, is_allowed: bool, request_id: str) -> Answer:
    refused = _refusal(headers, is_allowed=is_allowed)
    if refused is not None:
        return problem(refused, request_id=request_id)
    return no_content(
        headers={
            "access-control-allow-methods": ", ".join(METHODS),
            "access-control-allow-headers": ", ".join(ASKED_HEADERS),
            "access-control-max-age": str(MAX_AGE_SECONDS),
        }
    )


def _refusal(headers: Headers, *, is_allowed: bool) -> TurnkeepError | None:
    if not is_allowed:
        return Forbidden(
            "Pages of this origin may not call this server. TURNKEEP_ALLOWED_ORIGINS lists those that may."
        )
    method = headers.get("access-control-request-method", "")
    if method not in METHODS:
        return InvalidRequest(f"Pages may not send {method}. Allowed: {', '.join(METHODS)}.")
    asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
    unknown = [name for name in asked if name and name.lower() not in _KNOWN_HEADERS]
    if unknown:
        return InvalidRequest(f"Pages may not send the header {unknown[0]}. Allowed: {', '.join(ASKED_HEADERS)}.")
    return None
