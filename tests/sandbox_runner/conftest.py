"""Boxes for the tests: small, real, and of every driver that this machine has."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.sandbox_runner.harness import SMALL, drivers, make
from turnkeep.sandbox.boxes.ports import Box, Driver


@pytest.fixture(params=drivers())
async def driver(request: pytest.FixtureRequest) -> Driver:
    return make(request.param)


@pytest.fixture
async def box(driver: Driver) -> AsyncIterator[Box]:
    box = await driver.start(SMALL.limits)
    yield box
    await box.close()


@pytest.fixture
def mark() -> str:
    """Seconds to sleep that no other process of this machine sleeps: by them its sleepers are known."""
    return str(10**9 + secrets.randbelow(10**9))
