"""The two databases as the contract sees them: a store, a clock that tests move, and what lies in the tables."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from tests import servers
from tests.pgbouncer import PgBouncer
from tests.store.postgres_clock import set_test_clock
from turnkeep.clock import FakeClock
from turnkeep.store.ports import Store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore

BEGINNING = 1_750_000_000_000
"""15 June 2025: far from both ends of its month."""

CLIENT_PASSWORD = "client-of-the-tests"

Contents = dict[str, list[tuple[Any, ...]]]


class Database(ABC):
    """A database with an open store on it."""

    name: str

    def __init__(self) -> None:
        self.now = BEGINNING

    @property
    @abstractmethod
    def store(self) -> Store: ...

    async def advance(self, *, seconds: float) -> None:
        """Move the database's clock."""
        await self.move_clock_to(self.now + int(seconds * 1000))

    @abstractmethod
    async def move_clock_to(self, now: int) -> None: ...

    @abstractmethod
    async def contents(self) -> Contents:
        """Every row of every table, to prove that nothing was written."""

    @abstractmethod
    async def execute(self, sql: str) -> None:
        """Change the tables behind the store's back, for states that no verb leads to."""

    @abstractmethod
    async def reopen(self) -> None:
        """Close the store and open it again, as a restarted server does."""

    @abstractmethod
    async def close(self) -> None: ...


class SqliteDatabase(Database):
    """A file of its own."""

    name = "sqlite"

    def __init__(self, path: Path, clock: FakeClock, store: SqliteStore) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._store = store

    @classmethod
    async def open(cls, path: Path) -> SqliteDatabase:
        clock = FakeClock(BEGINNING)
        return cls(path, clock, await SqliteStore.open(path, clock=clock))

    @property
    def store(self) -> Store:
        return self._store

    async def move_clock_to(self, now: int) -> None:
        self.now = self._clock.now = now

    async def contents(self) -> Contents:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' "
                "AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
            )
            return {
                str(table): sorted(connection.execute(f'SELECT * FROM "{table}"'), key=repr)
                for (table,) in tables.fetchall()
            }
        finally:
            connection.close()

    async def execute(self, sql: str) -> None:
        connection = apsw.Connection(str(self._path))
        try:
            connection.execute(sql)
        finally:
            connection.close()

    async def reopen(self) -> None:
        await self._store.close()
        self._store = await SqliteStore.open(self._path, clock=self._clock)

    async def close(self) -> None:
        await self._store.close()


class PostgresDatabase(Database):
    """A database of the session's server, emptied when it is opened."""

    name = "postgres"

    def __init__(
        self,
        opening: Callable[[], Awaitable[PostgresStore]],
        admin: asyncpg.Connection[asyncpg.Record],
        store: PostgresStore,
    ) -> None:
        super().__init__()
        self._opening = opening
        self._admin = admin
        self._store = store

    @classmethod
    async def create(cls, name: str) -> str:
        """Make and migrate a database; return its address."""
        uri = await servers.create_database(servers.shared_postgres_uri(), name)

        store = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        await store.close()
        return uri

    @classmethod
    async def open(cls, uri: str, pooler: PgBouncer | None = None) -> PostgresDatabase:
        """Open it with a store that reaches it through the pooler, if there is one."""
        admin = await asyncpg.connect(uri)
        await empty(admin)
        opening = functools.partial(_patient_store, uri, pooler)
        database = cls(opening, admin, await opening())
        await database.move_clock_to(BEGINNING)
        return database

    @property
    def store(self) -> Store:
        return self._store

    async def move_clock_to(self, now: int) -> None:

        self.now = now
        await set_test_clock(self._admin, now)

    async def contents(self) -> Contents:
        found: Contents = {}
        for table in await _tables(self._admin):
            rows = await self._admin.fetch(f'SELECT * FROM turnkeep."{table}"')
            found[table] = sorted((tuple(row) for row in rows), key=repr)
        return found

    async def execute(self, sql: str) -> None:
        await self._admin.execute(f"SET search_path TO turnkeep; {sql}; RESET search_path")

    async def reopen(self) -> None:
        await self._store.close()
        self._store = await self._opening()

    async def close(self) -> None:
        await self._store.close()
        await self._admin.close()


async def _patient_store(uri: str, pooler: PgBouncer | None) -> PostgresStore:
    """Hundreds come at once in some tests; on a slow machine the last of them wait longer than an operator would."""
    return await PostgresStore.open(
        uri if pooler is None else pooler.uri,
        client_password=CLIENT_PASSWORD,
        retry_seconds=60,
        prepared_statements=pooler is None or pooler.keeps_statements,
    )


async def _tables(admin: asyncpg.Connection[asyncpg.Record]) -> list[str]:
    rows = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'turnkeep' ORDER BY tablename")
    return [row["tablename"] for row in rows]


async def empty(admin: asyncpg.Connection[asyncpg.Record]) -> None:
    """Delete every row. For a few rows this is many times faster than TRUNCATE or a new database."""
    tables = [table for table in await _tables(admin) if "migration" not in table]
    deletes = "; ".join(f'DELETE FROM turnkeep."{table}"' for table in tables)
    await admin.execute(f"SET session_replication_role = replica; {deletes}; RESET session_replication_role")


def make_postgres_database(name: str) -> str:
    """A migrated database for this pytest worker alone; its address. For fixtures that outlive one event loop."""
    return asyncio.run(PostgresDatabase.create(servers.of_this_worker(name)))
