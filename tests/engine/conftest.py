"""A room to run turns in, on each database."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests import servers
from tests.engine.rooms import Room
from tests.store.databases import CLIENT_PASSWORD, make_postgres_database
from turnkeep.store.ports import Store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore


@pytest.fixture(scope="session")
def engine_postgres_uri() -> str:
    """A migrated database for this worker alone, with the real clock."""
    assert servers.shared_postgres_uri()
    return make_postgres_database(f"engine_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")


@pytest.fixture(params=["sqlite", "postgres"])
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    store: Store
    if request.param == "sqlite":
        store = await SqliteStore.open(tmp_path / "turnkeep.db")
    else:
        uri = request.getfixturevalue("engine_postgres_uri")
        store = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        yield await Room.open(store, stack)
