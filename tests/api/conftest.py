"""`server` runs on SQLite; a test that asks for `indirect` parameters runs on PostgreSQL too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.store.databases import make_postgres_database
from turnkeep.config import Settings


@pytest.fixture(scope="session")
def api_database() -> str:
    """A migrated PostgreSQL database for this worker's API tests."""
    return make_postgres_database("api")


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of the test's server."""
    if getattr(request, "param", "sqlite") == "postgres":
        return settings_for(tmp_path, database_url=request.getfixturevalue("api_database"))
    return settings_for(tmp_path)


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings) as running:
        yield running


@pytest.fixture
async def service(server: ApiServer) -> Client:
    """A service key of a tenant that no other test has."""
    return await server.tenant()


@pytest.fixture
async def user(server: ApiServer, service: Client) -> Client:
    """A member of that tenant's default workspace."""
    return await server.user(service)


both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
"""For tests that run on either store."""
