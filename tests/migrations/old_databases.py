"""Databases as an older release left them: at migration 0001, with rows in them."""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from tests.store.databases import CLIENT_PASSWORD
from turnkeep.store.migrations import Migration, load_migrations
from turnkeep.store.ports import Store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.statements import FunctionSet
from turnkeep.store.sqlite import SqliteStore

ROWS = Path(__file__).with_name("0001.sql").read_text(encoding="utf-8")

Rows = Mapping[str, list[dict[str, Any]]]
"""The rows of each table."""


class OldDatabase(ABC):
    """Made and filled as a release with one migration would have done it; opened by this one."""

    @abstractmethod
    async def make(self, monkeypatch: pytest.MonkeyPatch) -> None: ...

    @abstractmethod
    async def open(self) -> Store:
        """The store of this release on it."""

    @abstractmethod
    async def rows(self) -> Rows: ...

    @abstractmethod
    async def versions(self) -> list[int]: ...


class OldSqlite(OldDatabase):
    def __init__(self, path: Path) -> None:
        self._path = path

    async def make(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = importlib.import_module("turnkeep.store.sqlite.io.migrate")
        connection = apsw.Connection(str(self._path))
        with monkeypatch.context() as older:
            older.setattr(module, "load_migrations", lambda dialect: load_migrations(dialect)[:1])
            module.migrate(connection, now=1_750_000_000_000)
        connection.execute(ROWS)
        connection.close()

    async def open(self) -> Store:
        return await SqliteStore.open(self._path)

    async def rows(self) -> Rows:
        tables = self._query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%search%'")
        return {str(table["name"]): self._query(f'SELECT * FROM "{table["name"]}"') for table in tables}

    async def versions(self) -> list[int]:
        return [row["version"] for row in self._query("SELECT version FROM schema_migrations ORDER BY version")]

    def _query(self, sql: str) -> list[dict[str, Any]]:
        connection = apsw.Connection(str(self._path))
        try:
            cursor = connection.execute(sql)
            return [dict(zip((name for name, *_ in cursor.description), row, strict=True)) for row in cursor]
        finally:
            connection.close()


class OldPostgres(OldDatabase):
    def __init__(self, uri: str) -> None:
        self._uri = uri

    async def make(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await self._migrate(monkeypatch, 1)
        rows = re.sub(r"unhex\(('\w+')\)", r"decode(\1, 'hex')", ROWS)
        connection = await asyncpg.connect(self._uri)
        await connection.execute(f"SET search_path TO turnkeep; {rows}")
        await connection.close()

    async def migrate_in_part(self, monkeypatch: pytest.MonkeyPatch, migration: Migration, steps: int) -> None:
        """Apply the migrations before this one, and so many steps of it."""
        await self._migrate(monkeypatch, migration.version - 1)
        connection = await asyncpg.connect(self._uri)
        for step in migration.steps[:steps]:
            await connection.execute(step)
        await connection.close()

    async def _migrate(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        module = importlib.import_module("turnkeep.store.postgres.io.migrate")
        with monkeypatch.context() as older:
            older.setattr(module, "load_migrations", lambda dialect: load_migrations(dialect)[:count])
            older.setattr(module, "functions", lambda: FunctionSet(f"turnkeep_old_{count}", (), "SELECT 1"))
            await module.migrate(self._uri, client_password=CLIENT_PASSWORD)

    async def open(self) -> Store:
        return await PostgresStore.open(self._uri, client_password=CLIENT_PASSWORD)

    async def rows(self) -> Rows:
        tables = await self._query("SELECT tablename FROM pg_tables WHERE schemaname = 'turnkeep'")
        names = [row["tablename"] for row in tables if "search" not in row["tablename"]]
        return {name: await self._query(f'SELECT * FROM turnkeep."{name}"') for name in names}

    async def versions(self) -> list[int]:
        rows = await self._query("SELECT version FROM turnkeep.schema_migrations ORDER BY version")
        return [row["version"] for row in rows]

    async def execute(self, sql: str) -> None:
        await self._query(sql)

    async def _query(self, sql: str) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self._uri)
        try:
            return [dict(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()
