"""What PostgreSQL and asyncpg raise → our own errors, and which of it is worth another try."""

from typing import Any

import asyncpg
import msgspec

from turnkeep.errors import (
    Conflict,
    ConversationBusy,
    Defect,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    QueueFull,
    StorageFull,
    TurnkeepError,
    Unavailable,
)

_RETRIED_STATES = frozenset(
    {
        "25006",  # a write was sent to a server that takes none: a standby, or a primary that was replaced
        "25P03",  # a transaction was idle for too long: this process stood still
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # lock not available
        "57P01",  # the server is being stopped,
        "57P02",  # has crashed,
        "57P03",  # or is starting
        "0A000",  # a cached plan must not change its result type: the schema was migrated under us
    }
)
_RETRIED_CONSTRAINTS = frozenset(
    {"conversations_external_ids", "conversations_pkey", "turns_idempotency", "turns_pkey"}
)
"""Another writer was faster. The same request, repeated, finds what that writer has written."""

_PLAIN: dict[str, type[TurnkeepError]] = {
    "TK001": NotFound,
    "TK002": InvalidRequest,
    "TK005": QueueFull,
    "TK007": Conflict,
}


LOST_STATEMENTS = (
    "A pooler in front of the database gives each transaction another connection, and prepared statements are lost. "
    "Set TURNKEEP_DATABASE_PREPARED_STATEMENTS=0, or use PgBouncer 1.21 or newer, `max_prepared_statements` above 0."
)
OVER_LIMIT = "TK006"
"""A counter of messages or turns is over its limit. The verb that counted says so in its own words."""
USER_GONE = "TK011"
"""The user of a claim was erased or disabled a moment ago."""


class RefusedWrite(Conflict):
    """A function wrote nothing. `facts` is the JSON of what it found; the rules of the verb know what that means."""

    def __init__(self, facts: str) -> None:
        super().__init__("The store refused to write.")
        self.facts = facts


def is_retried(exc: BaseException) -> bool:
    """Whether the same call may succeed a moment later: the connection broke, or two writers met."""
    if isinstance(exc, asyncpg.PostgresError):
        state = exc.sqlstate or ""
        if state == "0A000":
            return isinstance(exc, asyncpg.InvalidCachedStatementError)
        return state in _RETRIED_STATES or state.startswith("08") or is_overtaken(exc)
    return isinstance(exc, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def is_of_whole_host(exc: BaseException) -> bool:
    """Whether other connections to the same host are of no use either: it is silent, or takes no writes."""
    return isinstance(exc, TimeoutError) or is_read_only(exc)


def is_read_only(exc: BaseException) -> bool:
    """Whether a host took no writes, or of several hosts none did."""
    return isinstance(exc, asyncpg.ReadOnlySQLTransactionError | asyncpg.TargetServerAttributeNotMatched)


def is_overtaken(exc: BaseException) -> bool:
    return isinstance(exc, asyncpg.UniqueViolationError) and exc.constraint_name in _RETRIED_CONSTRAINTS


def translated(exc: BaseException) -> TurnkeepError:
    """Our error for one that asyncpg raised. Raise it `from` the original."""
    if isinstance(exc, asyncpg.PostgresError):
        return _of_state(exc.sqlstate or "", exc)
    if isinstance(exc, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return Unavailable("The database cannot be reached just now. Nothing was written; try again.")
    return Defect(f"The store failed: {exc!r}.")


def _of_state(state: str, exc: asyncpg.PostgresError) -> TurnkeepError:
    message = str(exc.args[0]) if exc.args else "The database refused."
    match state:
        case "TK003":
            busy = _busy(exc.detail)
            return ConversationBusy(busy["turn_id"], busy["started_at"])
        case "TK004":
            return IdempotencyConflict(exc.detail or None)
        case "TK010":
            return RefusedWrite(exc.detail or "null")
        case "25006":
            return Unavailable("The database takes no writes just now; reads go on. Try again.")
        case "53100":
            return StorageFull("The database's disk is full. Reads go on; writes work again once there is room.")
        case "42501":
            return Forbidden(f"The database refuses: {message}.")
        case "26000" | "42P05":
            return Defect(f"{message}. {LOST_STATEMENTS}")
        case "28000" | "28P01" | "3D000":
            return Unavailable(f"The database refuses to be opened: {message}.")
    if state in _PLAIN:
        return _PLAIN[state](message)
    if state.startswith("22"):
        return InvalidRequest(f"The database cannot keep this value: {message}.")
    if state in _RETRIED_STATES or state.startswith(("08", "53", "57")):
        return Unavailable(f"The database is not available just now: {message}. Try again.")
    return Defect(f"The database refused what the store asked of it: {message} ({state}).")


def _busy(detail: str | None) -> dict[str, Any]:
    busy: dict[str, Any] = msgspec.json.decode(detail or "{}")
    return busy
