"""Here `store` is the SQLite store, on a file of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store.factories import Tenant, a_tenant
from turnkeep.clock import FakeClock
from turnkeep.store.sqlite import SqliteStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turnkeep.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def tenant(store: SqliteStore) -> Tenant:
    return await a_tenant(store)
