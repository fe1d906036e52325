"""One SQLite file as a store: opened, migrated, owned by one process, and closed in order."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Conflict, Forbidden
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ConnectionUse
from turnkeep.store.sqlite.conversations import SqliteConversations
from turnkeep.store.sqlite.directory import SqliteDirectory, SqliteSessions
from turnkeep.store.sqlite.erasures import SqliteErasures
from turnkeep.store.sqlite.feedback import SqliteFeedback
from turnkeep.store.sqlite.files import SqliteFiles
from turnkeep.store.sqlite.io.boundary import close_boundary, install_views
from turnkeep.store.sqlite.io.executors import Checkpoints, Readers, Statistics, Writer, ours
from turnkeep.store.sqlite.io.migrate import check_schema, migrate
from turnkeep.store.sqlite.io.session import Row, Session, load_texts, open_reading, open_writing
from turnkeep.store.sqlite.knowledge import SqliteKnowledge, SqliteTables
from turnkeep.store.sqlite.outbox import SqliteOutbox, SqliteWebhooks
from turnkeep.store.sqlite.shares import SqliteShares
from turnkeep.store.sqlite.turns import TurnVerbs
from turnkeep.store.sqlite.waits import SqliteWaits


class SqliteStore(
    TurnVerbs,
    SqliteWaits,
    SqliteConversations,
    SqliteShares,
    SqliteFeedback,
    SqliteDirectory,
    SqliteSessions,
    SqliteFiles,
    SqliteKnowledge,
    SqliteTables,
    SqliteOutbox,
    SqliteWebhooks,
    SqliteErasures,
):
    """A `Store` on one file. Make it with `open`, and close it: closing finishes what was asked for."""

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock = system_clock,
        vfs: str | None = None,
        exclusive: bool = False,
        readers: int = 2,
        synchronous: str = "FULL",
        auto_migrate: bool = True,
    ) -> Self:
        """Open the file, made and migrated as needed (without `auto_migrate`: SchemaMismatch if it is not). What an
        earlier process held may be adopted at once.

        Raises Conflict while another process (or another store of this one) has it open. `exclusive` keeps
        everything on one connection, for file systems (and a `vfs`) without shared memory. Anything but
        `synchronous="FULL"` gives up the promise that what was acknowledged survives a power cut.
        """
        if not auto_migrate:
            await asyncio.to_thread(check_schema, Path(path))
        return await asyncio.to_thread(cls._open, Path(path), clock, vfs, exclusive, readers, synchronous)

    @classmethod
    def _open(cls, path: Path, clock: Clock, vfs: str | None, exclusive: bool, readers: int, synchronous: str) -> Self:
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            if vfs is None:
                _make_private(path)
            connection = open_writing(str(path), vfs=vfs, exclusive=exclusive, synchronous=synchronous)
            try:
                migrate(connection, now=clock())
                session = Session(connection, load_texts(), clock)
                session.run("abandon_leases")
                session.run("abandon_imports")
                session.run("abandon_erasures")
            except Exception:
                connection.close()
                raise
        except Exception as exc:
            lock.release()
            raise ours(exc) from exc
        return cls(path, session, lock, is_alone=exclusive or vfs is not None, readers=readers)

    def __init__(self, path: Path, session: Session, lock: "FileLock", *, is_alone: bool, readers: int) -> None:
        self._path = path
        self._session = session
        self._lock = lock
        self._is_alone = is_alone
        self._checkpoints = Checkpoints(session.connection, None if is_alone else str(path))
        writer = Writer(session, self._checkpoints.after_commit)
        if is_alone:
            install_views(session.connection, session.texts, session.current_principal)
            super().__init__(writer, writer, writer)
        else:
            super().__init__(
                writer,
                Readers("reader", readers, self._engine_session),
                Readers("client", readers, self._client_session),
            )

    @property
    def path(self) -> Path:
        return self._path

    @property
    def statistics(self) -> Statistics:
        """What the writer has done: how many jobs shared how many commits."""
        return self._writer.statistics

    async def client_query(self, principal: Principal, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Any SQL at all on the client path, as that principal: the boundary holds whatever it says."""
        if self._is_alone:
            raise Forbidden("A store on a single connection serves no queries of others.")
        return await self._see(principal, _any_query, sql, values)

    async def check_ready(self) -> str | None:
        """The file belongs to this process, so its schema cannot change."""
        await self.orgs()
        return None

    def connection_use(self) -> ConnectionUse:
        return ConnectionUse()

    async def close(self) -> None:
        """Finish what was asked for, then let the file go. It may be called twice."""
        await self._client.close()
        await self._engine.close()
        await self._writer.close()
        await asyncio.to_thread(self._checkpoints.close)
        self._session.connection.close()
        self._lock.release()

    def _engine_session(self) -> Session:
        return Session(open_reading(str(self._path)), self._session.texts, self._session.clock)

    def _client_session(self) -> Session:
        session = self._engine_session()
        inner = install_views(session.connection, session.texts, session.current_principal)
        close_boundary(session.connection, inner)
        return session


class FileLock:
    """One server per database file: a lock file beside it, which the kernel releases however its holder ends.

    Held from its making until `release`. The file stays; only the lock on it counts.
    """

    def __init__(self, database: Path) -> None:
        """Raises Conflict, naming the process that holds it."""
        self._path = database.with_name(database.name + ".lock")
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise Conflict(
                f"The database {database.name} is in use by {holder}. One server owns a SQLite file: stop that one, "
                "or use PostgreSQL for several servers."
            ) from exc
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _any_query(session: Session, sql: str, values: Sequence[Any]) -> list[Row]:
    return session.connection.execute(sql, values).fetchall()


def _make_private(path: Path) -> None:
    """Give the database file and the log beside it to their owner alone, whatever the folder and the umask allow.

    A log that SQLite makes later has the mode of the database file. A file of another owner stays as it is, and SQLite
    says what is wrong with one that it cannot open.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).chmod(0o600)
