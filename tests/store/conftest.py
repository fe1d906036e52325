"""`store` runs on SQLite and on PostgreSQL: each test of the contract, whole, on both."""

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.store.databases import Database, PostgresDatabase, SqliteDatabase, make_postgres_database
from tests.store.factories import Tenant, a_tenant
from turnkeep.store.ports import Store


@pytest.fixture(scope="session")
def postgres_uri() -> str:
    """A migrated database for this worker alone."""
    return make_postgres_database(f"contract_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")


@pytest.fixture(params=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Awaitable[Database]]:
    if request.param == "sqlite":
        return functools.partial(SqliteDatabase.open, tmp_path / "turnkeep.db")
    return functools.partial(PostgresDatabase.open, request.getfixturevalue("postgres_uri"))


@pytest.fixture
async def database(opening: Callable[[], Awaitable[Database]]) -> AsyncIterator[Database]:
    opened = await opening()
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Database) -> Store:
    return database.store


@pytest.fixture
async def tenant(store: Store) -> Tenant:
    return await a_tenant(store)
