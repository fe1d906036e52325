"""Fixtures: one Chromium per worker, a new profile and a new server per test, and the page built from its sources."""

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests import buckets
from tests.api.harness import ApiServer, settings_for
from tests.browser.harness import FLAGS, ROOT, Harness, find_chromium, make_tools
from tests.store.databases import empty, make_postgres_database
from turnkeep.config import Settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a worker share its browser, and so its event loop."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def built_page() -> Path:
    """The page, built from its sources. The build does nothing if they have not changed."""
    subprocess.run([ROOT / "scripts" / "web", "build"], check=True, stdout=subprocess.DEVNULL)
    return ROOT / "src" / "turnkeep" / "web"


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's Chromium, installed if it is missing."""
    subprocess.run([ROOT / "scripts" / "system", "chromium"], check=True)
    return find_chromium()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture(params=["sqlite", pytest.param("production", marks=pytest.mark.nightly)])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Every story is told on SQLite, and each night once more as in production: on PostgreSQL, with a bucket."""
    if request.param == "sqlite":
        return settings_for(tmp_path)
    for name, value in buckets.shared_environ().items():
        monkeypatch.setenv(name, value)
    database = request.getfixturevalue("browser_database")
    asyncio.run(_empty(database))
    return settings_for(tmp_path, database_url=database, files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}")


async def _empty(database: str) -> None:
    admin = await asyncpg.connect(database)
    await empty(admin)
    await admin.close()


@pytest.fixture(scope="session")
def browser_database() -> str:
    """A migrated PostgreSQL database for this worker's stories. Each one finds it empty."""
    return make_postgres_database("browser")


@pytest_asyncio.fixture(loop_scope="session")
async def harness(built_page: Path, browser: Browser, settings: Settings) -> AsyncIterator[Harness]:
    lookup_allowed = asyncio.Event()
    async with ApiServer.start(settings, tools=make_tools(lookup_allowed)) as server:
        context = await browser.new_context(viewport={"width": 1280, "height": 820})
        harness = Harness(server, context, lookup_allowed)
        try:
            yield harness
            harness.check_no_problems()
        finally:
            await context.close()
