"""What all tests share: one PostgreSQL and one S3 server for the whole session, started by the session itself."""

import pytest
from hypothesis import settings

from tests import buckets, servers

# No deadline for an example, as the machine may be busy; and the same examples in every run, so that what a commit is
# told depends on the commit. The nightly run searches anew (decision 0123).
settings.load_profile("ci")
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False)


def pytest_configure(config: pytest.Config) -> None:
    servers.start_shared_postgres(config)
    buckets.prepare_shared(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    buckets.forget_shared(config)
    servers.stop_shared_postgres(config)
