"""`line` is a provider of ours, connected to a fake server of its protocol; a test runs for each protocol."""

from collections.abc import AsyncIterator

import pytest

from tests.providers.wire.vendors import VENDORS, Line, connected


@pytest.fixture(params=VENDORS, ids=lambda vendor: vendor.name)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with connected(request.param) as line:
        yield line
