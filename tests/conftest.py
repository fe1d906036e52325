"""What all tests share: one PostgreSQL and one S3 server for the whole session, started by the session itself."""

import pytest

from tests import buckets, servers


def pytest_configure(config: pytest.Config) -> None:
    servers.start_shared_postgres(config)
    buckets.prepare_shared(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    buckets.forget_shared(config)
    servers.stop_shared_postgres(config)
