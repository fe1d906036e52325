"""A server that can be stopped, a client of it, and a proxy between two of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.proxy import CuttingProxy
from tests.client.site import Site, running
from turnkeep.client import AsyncTurnkeep


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running(tmp_path) as started:
        yield started


@pytest.fixture
async def turnkeep(site: Site) -> AsyncIterator[AsyncTurnkeep]:
    async with site.client() as client:
        yield client


@pytest.fixture
async def proxy(site: Site) -> AsyncIterator[CuttingProxy]:
    async with CuttingProxy(site.port) as started:
        yield started
