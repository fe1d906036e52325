"""What all tests share: one PostgreSQL for the whole session, started by the session itself."""

import pytest

from tests import servers


def pytest_configure(config: pytest.Config) -> None:
    servers.start_shared_postgres(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    servers.stop_shared_postgres(config)
