"""Errors of the client: those of the server as classes, and those that only a client can have.

    CallerError (turnkeep_client.wire.errors)
    └── Refused                a refusal with a code that this release does not know
    WorldError
    ├── Unavailable
    │   └── ConnectionLost     the server cannot be reached, or went away and did not come back in time
    ├── WaitTimeout            the answer did not come within the caller's time; the turn goes on
    └── TurnFailed             the turn ended without an answer
        └── TurnStopped        because a caller stopped it

Every other error is the one that the server raised: same class, same code, same words. `status` is that of the
response, and `request_id` names the line in the server's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from turnkeep_client.wire.errors import (
    AlreadyDecided,
    CallerError,
    Conflict,
    ConversationBusy,
    Defect,
    FileTooLarge,
    Forbidden,
    HeadersTooLarge,
    IdempotencyConflict,
    InvalidRequest,
    LimitReached,
    NotFound,
    OutOfScope,
    Problem,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    SandboxUnavailable,
    StorageFull,
    TooLarge,
    TooManyFiles,
    TurnkeepError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    WorldError,
)

if TYPE_CHECKING:
    from turnkeep_client.stream import Answer

__all__ = [
    "AlreadyDecided",
    "CallerError",
    "Conflict",
    "ConnectionLost",
    "ConversationBusy",
    "Defect",
    "FileTooLarge",
    "Forbidden",
    "HeadersTooLarge",
    "IdempotencyConflict",
    "InvalidRequest",
    "LimitReached",
    "NotFound",
    "OutOfScope",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "Refused",
    "RequestTimeout",
    "SandboxUnavailable",
    "StorageFull",
    "TooLarge",
    "TooManyFiles",
    "TurnFailed",
    "TurnStopped",
    "TurnkeepError",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMediaType",
    "WaitTimeout",
    "WorldError",
    "error_of",
    "failed",
    "retry_after",
]

DEFAULT_RETRY_SECONDS = 1


class ConnectionLost(Unavailable):
    """The server cannot be reached. An accepted turn continues: follow it again by its id."""

    def __init__(self, detail: str, *, turn_id: str | None = None, cursor: str = "") -> None:
        super().__init__(detail)
        self.turn_id = turn_id
        self.cursor = cursor


class WaitTimeout(WorldError):
    """The answer did not come within `timeout_seconds`. This does not stop the turn: follow it by its id, or cancel
    it."""

    code = "wait_timeout"

    def __init__(self, seconds: float, *, turn_id: str | None, cursor: str = "") -> None:
        super().__init__(f"There was no answer within {seconds:g} s. Follow the turn, or cancel it.")
        self.turn_id = turn_id
        self.cursor = cursor


class Refused(CallerError):
    """The server refused for a reason that this release has no class for; `server_code` names it."""

    def __init__(self, detail: str, *, server_code: str) -> None:
        super().__init__(detail)
        self.server_code = server_code


class TurnFailed(WorldError):
    """The turn ended without an answer. `answer` holds what was kept of it; `answer.error` says why."""

    code = "turn_failed"

    def __init__(self, answer: Answer) -> None:
        reason = answer.error.message if answer.error else "It ended without an answer."
        super().__init__(f"Turn {answer.turn_id} failed: {reason}")
        self.answer = answer


class TurnStopped(TurnFailed):
    """A caller stopped the turn. What was said until then is kept."""

    code = "cancelled"


def failed(answer: Answer) -> TurnFailed:
    """The error for a response that is not an answer."""
    return TurnStopped(answer) if answer.status == "cancelled" else TurnFailed(answer)


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TurnkeepError:
    """The error that the server meant. Only the status counts if the response comes from a proxy."""
    error = _error_of(status, headers, body)
    error.status, error.request_id = status, headers.get("x-request-id") or None
    return error


def _error_of(status: int, headers: Mapping[str, str], body: bytes) -> TurnkeepError:
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return _from_status(status, f"The server answered with status {status}, and not as Turnkeep does.", "")
    detail = problem.detail or problem.title or f"The server answered with status {status}."
    match problem.code:
        case "conversation_busy":
            return ConversationBusy(
                problem.turn_id or "", problem.started_at or None, waiting_for=problem.waiting_for or None
            )
        case "already_decided":
            return AlreadyDecided(detail, turn_id=problem.turn_id or "", decision=problem.decision or None)
        case "idempotency_conflict":
            return IdempotencyConflict(problem.turn_id or None)
        case "rate_limited":
            seconds = int(retry_after(headers) or DEFAULT_RETRY_SECONDS)
            return RateLimited(detail, retry_after_seconds=seconds, limit=problem.limit or None)
        case "quota_exceeded":
            return QuotaExceeded(detail, limit=problem.limit or None)
        case "storage_full":
            return StorageFull(detail, limit=problem.limit or None)
    known = _BY_CODE.get(problem.code)
    return known(detail) if known is not None else _from_status(status, detail, problem.code)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long the server asks to wait, if it says so in seconds."""
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _from_status(status: int, detail: str, code: str) -> TurnkeepError:
    if status in {502, 503, 504}:
        return Unavailable(detail)
    if status >= 500:
        return Defect(detail)
    known = _BY_STATUS.get(status)
    return known(detail) if known is not None else Refused(detail, server_code=code)


_BY_STATUS: dict[int, type[CallerError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    415: UnsupportedMediaType,
    429: LimitReached,
}


def _descendants(root: type[TurnkeepError]) -> Iterator[type[TurnkeepError]]:
    yield root
    for child in root.__subclasses__():
        yield from _descendants(child)


_BY_CODE: dict[str, type[TurnkeepError]] = {}
for _family in (CallerError, WorldError):
    for _error in _descendants(_family):
        if _error.__module__ == CallerError.__module__:
            _BY_CODE.setdefault(_error.code, _error)
# A family's code is that of its commonest member.
_BY_CODE |= {"internal": Defect, "invalid_request": InvalidRequest, "unavailable": Unavailable}
