"""Sessions: one connection with its named queries and its clock, used by one thread at a time.

Knows how a connection is opened so that what it acknowledges is durable, and which of our errors SQLite's are.

Decision: docs/decisions/0105
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import apsw

from turnkeep.clock import Clock
from turnkeep.errors import Defect, Forbidden, InvalidRequest, StorageFull, TurnkeepError, Unavailable
from turnkeep.model.principals import Principal
from turnkeep.store import rows
from turnkeep.store.queries import load_queries
from turnkeep.store.sqlite.io.boundary import CurrentPrincipal

Values = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

BUSY_SECONDS = 5
CACHE_KIB = 16 * 1024

_RUNNING = (
    "(SELECT r.id || coalesce(' ' || {{r.waiting_for}}, '') FROM turns r "
    "WHERE r.conversation_id = {0}.id AND r.status = 'running') AS running_turn_id"
)
_WAIT = re.compile(r"\{(\w+)\.waiting_for\}")
_WAITING_FOR = (
    r"CASE WHEN \1.waiting_until > 0 OR (\1.status = 'running' AND \1.cancel_requested_at IS NULL "
    r"AND \1.waiting ->> 'held_by' = \1.attempt) THEN \1.waiting ->> 'reason' END"
)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_PLACE = re.compile(r"\{(?:(\w+)\.)?(\w+)_(columns|values|changes)\}")


class Session:
    """One connection.

    `now` is the moment at which the present job began, the same for all it writes. `current_principal` is set on a
    connection that serves principals.
    """

    def __init__(self, connection: apsw.Connection, texts: Mapping[str, str], clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.current_principal = CurrentPrincipal()
        self.now = 0
        self._execute = connection.execute
        self._executemany = connection.executemany
        self.texts = texts

    def rows(self, name: str, values: Values = ()) -> list[Row]:
        """All rows that the named query gives."""
        return self._execute(self.texts[name], values).fetchall()

    def row(self, name: str, values: Values = ()) -> Row | None:
        """Its first row, or None."""
        found = self._execute(self.texts[name], values).fetchall()
        return found[0] if found else None

    def run(self, name: str, values: Values = ()) -> int:
        """Run a change; return how many rows it touched."""
        for _ in self._execute(self.texts[name], values):
            pass
        return self.connection.changes()

    def many(self, name: str, values: Iterable[Values]) -> None:
        """Run a change once for each of these values."""
        for _ in self._executemany(self.texts[name], values):
            pass

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see the same snapshot."""
        if self.connection.in_transaction:
            yield
            return
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._execute("COMMIT")


def in_workspace(principal: Principal) -> dict[str, Any]:
    """For what everyone in the workspace shares."""
    return {"org": principal.org_id, "workspace": principal.workspace_id}


def owner_of(principal: Principal) -> dict[str, Any]:
    """`user` is None for a service that acts for no user, which means the whole workspace.

    A missing user is no such service: the empty name owns nothing.
    """
    user: str | None = principal.user_id
    if user is None and principal.role != "service":
        user = ""
    return in_workspace(principal) | {"user": user}


@cache
def load_texts() -> Mapping[str, str]:
    """The queries of this store, with the columns of `rows.py` written in where they say `{turn_columns}`.

    `{m.message_columns}` puts the table's name before each. `{new_file_values}` are the parameters of these names, and
    `{…_changes}` sets each column to its parameter. `{t.waiting_for}` is what the turn `t` waits for, or null.
    Comments and indents are left out: a statement is found by its whole text each time it runs, and a thousand
    characters take as long as a small query.
    """
    texts = load_queries("sqlite").items()
    return {name: " ".join(_COMMENT.sub("", _filled(text)).split()) for name, text in texts}


def _filled(text: str) -> str:
    return _WAIT.sub(_WAITING_FOR, _PLACE.sub(_columns, text))


def _columns(place: re.Match[str]) -> str:
    table, kind, form = place[1], place[2], place[3]
    names = rows.COLUMNS[kind].split(", ")
    if form != "columns":
        return ", ".join(f":{name}" if form == "values" else f"{name} = :{name}" for name in names)
    if kind != "conversation":
        return ", ".join(f"{table}.{name}" if table else name for name in names)
    owner = table or "conversations"
    return ", ".join(_RUNNING.format(owner) if name == "running_turn_id" else f"{owner}.{name}" for name in names)


def open_writing(path: str, *, vfs: str | None, exclusive: bool, synchronous: str) -> apsw.Connection:
    """A connection whose commits are on the disk when they return. Its settings are read back and checked."""
    connection = apsw.Connection(path, vfs=vfs, statementcachesize=200)
    connection.set_busy_timeout(BUSY_SECONDS * 1000)
    if exclusive:
        _set(connection, "locking_mode", "EXCLUSIVE", "exclusive")
    # One pragma per execute, each read back: a second one in the same text would be silently left out.
    # The change to WAL is the one commit by rollback journal. Without EXTRA the end of that journal is not flushed:
    # after a power cut it may be back, and undo the file with all that was committed since.
    _set(connection, "synchronous", "EXTRA", 3)
    _set(connection, "journal_mode", "WAL", "wal")
    _set(connection, "synchronous", synchronous, {"OFF": 0, "NORMAL": 1, "FULL": 2}[synchronous])
    _set(connection, "foreign_keys", "ON", 1)
    _set(connection, "wal_autocheckpoint", "0", 0)
    _settle(connection)
    return connection


def open_reading(path: str) -> apsw.Connection:
    """A connection that cannot write, whatever it is asked to do."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=100)
    connection.set_busy_timeout(BUSY_SECONDS * 1000)
    _settle(connection)
    return connection


def _settle(connection: apsw.Connection) -> None:
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "MEMORY")
    # A plan must not depend on bound values: where it may, SQLite prepares the statement again for each of them, which
    # took ten times as long as running it.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0)


def _set(connection: apsw.Connection, pragma: str, value: str, expected: object) -> None:
    connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
    answer = connection.execute(f"PRAGMA {pragma}").fetchall()
    if answer != [(expected,)]:
        raise Defect(f"SQLite did not take PRAGMA {pragma} = {value}: it answers {answer}.")


def translated(exc: Exception) -> TurnkeepError:
    """Our error for an error of SQLite."""
    match exc:
        case TurnkeepError():
            return exc
        case apsw.FullError():
            return StorageFull("The disk is full. Reads go on; writes work again once there is room.")
        case apsw.AuthError() | apsw.ExecTraceAbort():
            return Forbidden("This query reaches for something that the client path may not see.")
        case apsw.BusyError() | apsw.LockedError() | apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError():
            return Unavailable(f"The database cannot be used just now: {exc}.")
        case UnicodeError():
            return InvalidRequest("A text holds something that is no character, such as half of a surrogate pair.")
        case OverflowError():
            return InvalidRequest("A number is too large to be stored.")
        case _:
            return Defect(f"{type(exc).__name__}: {exc}")
