"""Every error that the API answers with, as a class. Its `code` is part of the wire and never changes.

    TurnkeepError
    ├── CallerError            the caller can fix it
    │   ├── InvalidRequest
    │   │   └── TooManyFiles
    │   ├── TooLarge
    │   │   ├── FileTooLarge
    │   │   └── HeadersTooLarge
    │   ├── RequestTimeout
    │   ├── UnsupportedMediaType
    │   ├── Unauthorized
    │   ├── Forbidden
    │   │   └── OutOfScope
    │   ├── NotFound
    │   ├── Conflict
    │   │   ├── AlreadyDecided
    │   │   ├── ConversationBusy
    │   │   └── IdempotencyConflict
    │   └── LimitReached
    │       ├── QuotaExceeded
    │       ├── RateLimited
    │       └── QueueFull
    ├── WorldError             something outside failed; a retry may help
    │   ├── Unavailable
    │   │   └── SandboxUnavailable
    │   └── StorageFull
    └── Defect                 a bug or a broken installation; an operator must look

The server raises these classes, and the client raises the same ones for what the server answered (`Problem`).
"""

from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType


class TurnkeepError(Exception):
    """The root. `detail` is a sentence for a person; `code` is for a program and never changes."""

    code: ClassVar[str] = "internal"
    status: int | None = None
    """The status of the response, in a client that got it as one."""
    request_id: str | None = None
    """Likewise the id of the request, which is also in the server's log."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __repr__(self) -> str:
        answered = "" if self.status is None else f", status={self.status}, request_id={self.request_id!r}"
        return f"{type(self).__name__}({self.detail!r}{answered})"


class CallerError(TurnkeepError):
    """The request was wrong or came at the wrong time. The message says what to change."""

    code = "invalid_request"


class InvalidRequest(CallerError):
    """A value is missing, malformed or impossible. Nothing was written."""


class TooManyFiles(InvalidRequest):
    """A message names more files than it may carry. Send the rest with the next one."""

    code = "too_many_files"


class TooLarge(CallerError):
    """A text or body is over its limit. Make it shorter, or attach it as a file."""

    code = "body_too_large"


class FileTooLarge(TooLarge):
    """A file is over the limit for one file."""

    code = "file_too_large"


class HeadersTooLarge(TooLarge):
    """The headers of a request, or its address, are over their limit. Send fewer or shorter ones."""

    code = "headers_too_large"


class RequestTimeout(CallerError):
    """A request was begun and not finished in time. Nothing was done; send it again."""

    code = "request_timeout"


class UnsupportedMediaType(CallerError):
    """Files of this type are not accepted."""

    code = "unsupported_media_type"


class Unauthorized(CallerError):
    """No key, a wrong key, or one that was revoked."""

    code = "unauthorized"


class Forbidden(CallerError):
    """The caller is known, but not allowed to do this. Ask an admin of the workspace."""

    code = "forbidden"


class OutOfScope(Forbidden):
    """The scopes of the token or key leave this out. Ask for a token with wider scopes."""

    code = "out_of_scope"


class NotFound(CallerError):
    """It does not exist, or it belongs to another user; the answer is the same for both."""

    code = "not_found"


class Conflict(CallerError):
    """Something else happened first."""

    code = "conflict"


BUSY_ADVICE = "Follow its events, send with if_busy=enqueue or interrupt, or cancel it first."


class ConversationBusy(Conflict):
    """A turn of this conversation is running. Follow its stream, wait in the queue, or cancel it first."""

    code = "conversation_busy"

    def __init__(
        self, turn_id: str, started_at: int | None, *, advice: str = BUSY_ADVICE, waiting_for: str | None = None
    ) -> None:
        """`advice` says what the caller can do, if the request cannot wait in the queue. `waiting_for` says what the
        turn waits for, if it does."""
        does = "is running" if waiting_for is None else f"waits for {waiting_for.replace('_', ' ')}"
        super().__init__(f"Turn {turn_id} of this conversation {does}. {advice}")
        self.turn_id = turn_id
        self.started_at = started_at
        self.waiting_for = waiting_for


class AlreadyDecided(Conflict):
    """Another decision or result for this call came first, and holds. `decision` says which: `allow` or `deny`; None
    for the result of a client tool."""

    code = "already_decided"

    def __init__(self, detail: str, *, turn_id: str, decision: str | None = None) -> None:
        super().__init__(detail)
        self.turn_id = turn_id
        self.decision = decision


class IdempotencyConflict(Conflict):
    """This idempotency key was used with another body. Use a new key for a new request."""

    code = "idempotency_conflict"

    def __init__(
        self,
        turn_id: str | None = None,
        detail: str = "This Idempotency-Key was already used with another request. Use a new key for a new request.",
    ) -> None:
        """`turn_id` is the turn that used the key; rows that were added under it have none."""
        super().__init__(detail)
        self.turn_id = turn_id


class ReachedLimit(Struct, frozen=True, kw_only=True):
    """The limit that a request has reached: what it is set on (`workspace`, `user`, `key` or `server`), the name of its
    field, its value, and how much of it is used. `resets_at` is the end of the month; null for what has no month."""

    scope: str
    name: str
    value: float
    used: float
    resets_at: int | None = None


class LimitReached(CallerError):
    """A counted limit is used up for now. `limit` says which, if the server has named it."""

    code = "limit_reached"

    def __init__(self, detail: str, *, limit: ReachedLimit | None = None) -> None:
        super().__init__(detail)
        self.limit = limit


class QuotaExceeded(LimitReached):
    """A monthly limit of messages, tokens or cost is used up. Raise the limit or wait for the next month."""

    code = "quota_exceeded"


class RateLimited(LimitReached):
    """Too many requests in the last minute, or too many turns at the same time. Wait `retry_after_seconds`."""

    code = "rate_limited"

    def __init__(self, detail: str, *, retry_after_seconds: int, limit: ReachedLimit | None = None) -> None:
        super().__init__(detail, limit=limit)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(LimitReached):
    """The queue of this conversation is full. Wait for one of its turns, or cancel some."""

    code = "queue_full"


class WorldError(TurnkeepError):
    """The database, the bucket or the network failed. Nothing is half-written; try again."""

    code = "unavailable"


class Unavailable(WorldError):
    """It cannot be reached just now."""


class SandboxUnavailable(Unavailable):
    """No sandbox runner answers. Start one, or send the turn to a chat conversation."""

    code = "sandbox_unavailable"


class StorageFull(WorldError):
    """The disk or the bucket is full, or a limit of stored bytes is reached (`limit`). Reads go on; writes work again
    once there is room."""

    code = "storage_full"

    def __init__(self, detail: str, *, limit: ReachedLimit | None = None) -> None:
        super().__init__(detail)
        self.limit = limit


class Defect(TurnkeepError):
    """We have a bug, or the installation is broken."""


class Problem(Struct, frozen=True, kw_only=True):
    """An error as callers get it (RFC 9457). `code` is for programs and never changes; `detail` is for people."""

    code: str
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    turn_id: str | UnsetType = UNSET
    """`conversation_busy`: the turn that runs; `idempotency_conflict`: the one that used the key, if it was one."""
    events_url: str | UnsetType = UNSET
    started_at: int | UnsetType | None = UNSET
    waiting_for: str | UnsetType = UNSET
    """`conversation_busy`: what that turn waits for, if it does: `approval` or `client_tools`."""
    decision: str | UnsetType = UNSET
    """`already_decided`: the decision that holds, if it is one."""
    limit: ReachedLimit | UnsetType = UNSET
    """`quota_exceeded`, `storage_full` and `rate_limited`: the limit that is reached, if it can be set."""
    request_id: str | UnsetType = UNSET
    """Names the line in the server's log."""
