"""Engines to run turns with, on each database."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from tests.engine.harness import Cluster
from tests.store.databases import CLIENT_PASSWORD, empty, make_postgres_database
from turnkeep.store.ports import Store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore


@pytest.fixture(scope="session")
def engine_postgres_uri() -> str:
    """A migrated database for this worker alone, with the real clock."""
    return make_postgres_database("engine")


@pytest.fixture(params=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Awaitable[Store]]:
    if request.param == "sqlite":
        return partial(SqliteStore.open, tmp_path / "turnkeep.db")
    return partial(_open_empty, request.getfixturevalue("engine_postgres_uri"))


@pytest.fixture
async def cluster(opening: Callable[[], Awaitable[Store]]) -> AsyncIterator[Cluster]:
    store = await opening()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        yield await Cluster.open(store, stack)


async def _open_empty(uri: str) -> Store:
    """Engines adopt whatever they find, so what earlier tests left behind must go."""
    admin = await asyncpg.connect(uri)
    await empty(admin)
    await admin.close()
    return await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
