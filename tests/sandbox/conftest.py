"""A server with a scripted runner behind it; a test that asks for it runs on PostgreSQL too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.sandbox.scripted_runner import ScriptedRunner, scripted_runner
from tests.store.databases import make_postgres_database
from turnkeep.config import Settings


@pytest.fixture(scope="session")
def sandbox_database() -> str:
    """A migrated PostgreSQL database for this worker's sandbox tests."""
    return make_postgres_database("sandbox")


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if getattr(request, "param", "sqlite") == "postgres":
        return settings_for(tmp_path, database_url=request.getfixturevalue("sandbox_database"))
    return settings_for(tmp_path)


@pytest.fixture
async def runner() -> AsyncIterator[ScriptedRunner]:
    async with scripted_runner() as running:
        yield running


@pytest.fixture
async def server(settings: Settings, runner: ScriptedRunner) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings, runner_url=runner.url) as running:
        yield running


@pytest.fixture
async def service(server: ApiServer) -> Client:
    return await server.tenant()


@pytest.fixture
async def user(server: ApiServer, service: Client) -> Client:
    return await server.user(service)


both = pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
"""For tests that run on either store."""
