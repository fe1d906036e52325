"""`worker` records the events of a turn, which has begun; `source` is where readers find them."""

import pytest

from tests.streaming.turns import ListSource, Worker


@pytest.fixture
def source() -> ListSource:
    return ListSource()


@pytest.fixture
def worker(source: ListSource) -> Worker:
    worker = Worker(source)
    worker.begin()
    return worker
