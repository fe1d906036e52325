"""Errors as `application/problem+json` (RFC 9457): one table from error families to a status.

Under `/openai/` errors have OpenAI's shape instead, because OpenAI's clients read them: `{"error": {message, type,
param, code}}`. What is 422 elsewhere is 400 there, and so is a conversation that is busy.

An error that the caller can fix says how. A defect of the server shows only the id under which the log has it.
"""

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from turnkeep.api.http.requests import notes_of
from turnkeep.api.http.responses import events_url
from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.errors import (
    AlreadyDecided,
    CallerError,
    Conflict,
    ConversationBusy,
    Defect,
    Fenced,
    Forbidden,
    HeadersTooLarge,
    IdempotencyConflict,
    InvalidRequest,
    LimitReached,
    NotFound,
    RateLimited,
    RequestTimeout,
    StorageFull,
    TooLarge,
    TurnkeepError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    UnsupportedOption,
    WorldError,
)
from turnkeep_client.wire.errors import Problem

STATUSES: dict[type[TurnkeepError], int] = {
    CallerError: 422,
    InvalidRequest: 422,
    RequestTimeout: 408,
    TooLarge: 413,
    HeadersTooLarge: 431,
    UnsupportedMediaType: 415,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    LimitReached: 429,
    WorldError: 503,
    Unavailable: 503,
    StorageFull: 507,
    Fenced: 500,
    Defect: 500,
}
"""An error class without a line of its own has the status of its nearest parent."""

OPENAI_PATHS = "/openai/"
OPENAI_OPTIONS = {"output": "response_format", "tool": "tool_choice", "max_tokens": "max_output_tokens"}
"""What OpenAI calls an option that has another name here."""

RETRY_SECONDS = 1
"""`Retry-After` of a 503."""

_logger = logging.getLogger("turnkeep.http")

_TITLES = {
    "quota_exceeded": "The monthly limit is used up",
    "rate_limited": "Too many requests",
    "internal": "Something went wrong on our side",
}


class MethodNotAllowed(CallerError):
    """The route exists, the method does not."""

    code = "method_not_allowed"


class InvalidField(InvalidRequest):
    """A field of the body has a value that cannot be used. `field` names it as the caller wrote it."""

    def __init__(self, detail: str, *, field: str) -> None:
        super().__init__(detail)
        self.field = field


class RangeNotSatisfiable(CallerError):
    """The range of a download lies outside the file."""

    code = "range_not_satisfiable"

    def __init__(self, detail: str, *, size: int) -> None:
        super().__init__(detail)
        self.size = size


STATUSES |= {MethodNotAllowed: 405, RangeNotSatisfiable: 416}


def status_of(error: type[TurnkeepError]) -> int:
    """The status of the nearest parent in the table. 500 for an error of no family: it is not meant for callers."""
    return next((STATUSES[parent] for parent in error.__mro__ if parent in STATUSES), 500)


def translated(error: Exception) -> TurnkeepError:
    """Our own error for an exception of Starlette or of a bug."""
    match error:
        case TurnkeepError():
            return error
        case HTTPException(status_code=404):
            return NotFound("There is no such route. /openapi.json lists them.")
        case HTTPException(status_code=405):
            return MethodNotAllowed("This route does not know that method; the header Allow lists those it knows.")
        case HTTPException() if error.status_code < 500:
            return InvalidRequest(error.detail or "The request cannot be understood.")
        case _:
            return Defect(str(error))


def answer_error(request: Request, error: Exception) -> Response:
    """The response for what a request raised: an error of ours, of Starlette's router, or of a bug, which is logged."""
    notes = notes_of(request.scope)
    ours = translated(error)
    notes["code"] = ours.code
    if status_of(type(ours)) == 500:
        _logger.error("a request failed", exc_info=error, extra={FIELDS: dict(notes)})
    request_id = notes.get("request_id", "")
    if request.scope["path"].startswith(OPENAI_PATHS):
        return openai_response(error, request_id=request_id)
    return problem_response(error, request_id=request_id)


def openai_response(error: Exception, *, request_id: str) -> Response:
    """The response for any exception, as OpenAI's clients read it. They repeat a request after 408, 409, 429 and 5xx by
    themselves, so a header says where that is of no use."""
    ours = translated(error)
    status = status_of(type(ours))
    headers = _headers(error, ours, status)
    code, kind, param = ours.code, "invalid_request_error", None
    match ours:
        case ConversationBusy():
            status, code, param = 400, "conversation_locked", "conversation"
        case UnsupportedOption():
            status, code, param = 400, "unsupported_parameter", OPENAI_OPTIONS.get(ours.option, ours.option)
        case InvalidField():
            status, param = 400, ours.field
        case Unauthorized():
            code = "invalid_api_key"
        case RateLimited():
            code, kind = "rate_limit_exceeded", "rate_limit_error"
        case LimitReached():
            code, kind = "insufficient_quota", "insufficient_quota"
            headers["x-should-retry"] = "false"
        case _ if status >= 500:
            kind = "server_error"
        case _ if status == 422:
            status = 400
    detail = f"The server's log has it as {request_id}." if status == 500 else ours.detail
    body = {"error": {"message": detail, "type": kind, "param": param, "code": code if status != 500 else "internal"}}
    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/json")


def problem_response(error: Exception, *, request_id: str) -> Response:
    """The response for any exception. Of a defect the client sees only the request id."""
    ours = translated(error)
    status = status_of(type(ours))
    is_defect = status == 500
    code = "internal" if is_defect else ours.code
    body = Problem(
        type=f"urn:turnkeep:error:{code}",
        title=_TITLES.get(code, HTTPStatus(status).phrase),
        status=status,
        detail=f"The server's log has it as {request_id}." if is_defect else ours.detail,
        code=code,
        request_id=request_id,
        **_where(ours),
    )
    # A cache must not give the answer to one caller to another, who may be allowed what this one is not.
    headers = {"cache-control": "no-store", **_headers(error, ours, status)}
    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/problem+json")


def _where(error: TurnkeepError) -> dict[str, Any]:
    match error:
        case ConversationBusy():
            return {
                "turn_id": error.turn_id,
                "events_url": events_url(error.turn_id),
                "started_at": error.started_at,
                "waiting_for": error.waiting_for or UNSET,
            }
        case AlreadyDecided():
            return {"turn_id": error.turn_id, "decision": error.decision or UNSET}
        case IdempotencyConflict() if error.turn_id is not None:
            return {"turn_id": error.turn_id}
        case LimitReached() | StorageFull() if error.limit is not None:
            return {"limit": error.limit}
        case _:
            return {}


def _headers(raised: Exception, error: TurnkeepError, status: int) -> dict[str, str]:
    match status:
        case 401:
            return {"www-authenticate": "Bearer"}
        case 405 if isinstance(raised, HTTPException):
            return {"allow": (raised.headers or {}).get("allow", "")}
        case 416 if isinstance(error, RangeNotSatisfiable):
            return {"content-range": f"bytes */{error.size}"}
        case 409:
            # The OpenAI SDK retries a 409 by itself unless this header says no.
            return {"x-should-retry": "false"}
        case 429 if isinstance(error, RateLimited):
            return {"retry-after": str(error.retry_after_seconds)}
        case 503:
            return {"retry-after": str(RETRY_SECONDS)}
        case _:
            return {}
