"""One Chromium per worker, a fresh profile and a fresh server per test, and the page built from its sources."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from tests.browser.harness import CHROMIUM, FLAGS, ROOT, House, workshop

from tests.api.harness import ApiServer, settings_for
from turnkeep.config import Settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All stories of a worker share its browser, and so its event loop."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def built_page() -> Path:
    """The page, built from these sources: at once where nothing has changed."""
    subprocess.run([ROOT / "scripts" / "web", "build"], check=True, stdout=subprocess.DEVNULL)
    return ROOT / "src" / "turnkeep" / "web"


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's Chromium, installed where it is missing."""
    subprocess.run([ROOT / "scripts" / "system", "chromium"], check=True)
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def house(built_page: Path, browser: Browser, settings: Settings) -> AsyncIterator[House]:
    gate = asyncio.Event()
    async with ApiServer.start(settings, tools=workshop(gate)) as server:
        context = await browser.new_context(viewport={"width": 1280, "height": 820})
        house = House(server, context, gate)
        try:
            yield house
            house.check()
        finally:
            await context.close()
