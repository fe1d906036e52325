"""Sites on both databases."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests import servers
from tests.faults.sites import Site
from tests.faults.stores import open_store

_numbers = count(1)


@pytest.fixture(scope="session")
def migrated_template() -> str:
    """The name of a migrated database, from which those of the tests are copied."""
    name = servers.of_this_worker("faults")

    async def make() -> None:
        store = await open_store(await servers.create_database(servers.shared_postgres_uri(), name))
        await store.close()

    asyncio.run(make())
    return name


@pytest.fixture
async def postgres_url(migrated_template: str) -> AsyncIterator[str]:
    """A database for one test."""
    shared = servers.shared_postgres_uri()
    name = f"{migrated_template}_{next(_numbers)}"
    yield await servers.create_database(shared, name, migrated_template)
    await servers.drop_database(shared, name)


@pytest.fixture
async def postgres_site(postgres_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    site = await Site.open(postgres_url, tmp_path)
    try:
        yield site
    finally:
        await site.close()


@pytest.fixture
async def sqlite_site(tmp_path: Path) -> AsyncIterator[Site]:
    site = await Site.open(f"sqlite:///{tmp_path / 'turnkeep.db'}", tmp_path)
    try:
        yield site
    finally:
        await site.close()


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found
