"""The pytest fixture. Import it into your conftest.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeep.testing.server import TurnkeepServer


@pytest.fixture
def turnkeep_server(tmp_path: Path) -> Iterator[TurnkeepServer]:
    """A server of its own for one test, on a free port, with an empty database and a scripted model."""
    with TurnkeepServer(tmp_path / "turnkeep") as server:
        yield server
