"""What all tests share: one PostgreSQL and one S3 server for the whole session, started by the session itself.

`database`, and `store` and `tenant` in it, are made on SQLite and on PostgreSQL, and at night on PostgreSQL behind
PgBouncer: a test that asks for one of them runs on each. The contract of the store, `tests/store/contract`, runs so as
a whole.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import buckets, property_tests, servers
from tests.pgbouncer import PgBouncer
from tests.store.databases import Database, PostgresDatabase, SqliteDatabase, make_postgres_database
from tests.store.factories import Tenant, a_tenant
from turnkeep.store.ports import Store

# No deadline for an example, as the machine may be busy; and the same examples in every run, so that what a commit is
# told depends on the commit. The nightly run searches anew (docs/decisions/1102).
settings.load_profile("ci")
settings.register_profile(property_tests.NIGHTLY, settings.get_profile("ci"), derandomize=False)


def pytest_configure(config: pytest.Config) -> None:
    servers.start_shared_postgres(config)
    buckets.prepare_shared(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    buckets.forget_shared(config)
    servers.stop_shared_postgres(config)


@pytest.fixture(scope="session")
def postgres_uri() -> str:
    """One for all, as it is emptied whenever it is opened."""
    return make_postgres_database("both")


@pytest.fixture(scope="session")
def pooler(postgres_uri: str) -> Iterator[PgBouncer]:
    """In transaction mode, the one that asks most of a store."""
    with PgBouncer(postgres_uri, mode="transaction") as pooler:
        yield pooler


@pytest.fixture(params=["sqlite", "postgres", pytest.param("pgbouncer", marks=pytest.mark.nightly)])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Awaitable[Database]]:
    if request.param == "sqlite":
        return functools.partial(SqliteDatabase.open, tmp_path / "turnkeep.db")
    pooler = request.getfixturevalue("pooler") if request.param == "pgbouncer" else None
    return functools.partial(PostgresDatabase.open, request.getfixturevalue("postgres_uri"), pooler)


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
