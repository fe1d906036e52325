"""The sweep lease: of all workers on one database, one does what no other needs to do as well."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.engine.harness import Cluster
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import Tenant, finish
from tests.store.postgres_clock import set_test_clock
from turnkeep.store.postgres import PostgresStore

BEGINNING = 1_750_000_000_000


class TestTheSweepLease:
    async def test_is_held_by_one_worker_until_it_ends(self, store: PostgresStore, uri: str) -> None:
        await set_test_clock(uri, BEGINNING)
        assert await store.hold_sweep("worker-1", seconds=15)
        assert not await store.hold_sweep("worker-2", seconds=15)
        await set_test_clock(uri, BEGINNING + 10_000)
        assert await store.hold_sweep("worker-1", seconds=15), "its holder keeps it"
        await set_test_clock(uri, BEGINNING + 20_000)
        assert not await store.hold_sweep("worker-2", seconds=15)
        await set_test_clock(uri, BEGINNING + 25_001)
        assert await store.hold_sweep("worker-2", seconds=15), "its holder went silent"
        assert not await store.hold_sweep("worker-1", seconds=15)

    async def test_is_taken_at_once_when_its_holder_has_left(self, store: PostgresStore) -> None:
        assert await store.hold_sweep("worker-1", seconds=15)
        await store.leave_sweep("worker-2")
        assert not await store.hold_sweep("worker-2", seconds=15), "only its holder can let go of it"
        await store.leave_sweep("worker-1")
        assert await store.hold_sweep("worker-2", seconds=15)

    async def test_is_given_to_one_of_many_that_ask_at_once(self, uri: str, store: PostgresStore) -> None:
        async with AsyncExitStack() as stack:
            stores = [await PostgresStore.open(uri, client_password=CLIENT_PASSWORD) for _ in range(4)]
            for each in stores:
                stack.push_async_callback(each.close)
            answers = await asyncio.gather(
                *(each.hold_sweep(f"worker-{n}", seconds=15) for n, each in enumerate(stores))
            )
            assert sorted(answers) == [False, False, False, True]


class TestAWorkerWithoutIt:
    async def test_leaves_the_search_index_to_its_holder_and_takes_over_when_that_is_gone(
        self, store: PostgresStore, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.engine.worker.SWEEP_LEASE_SECONDS", 0.6)
        assert await store.hold_sweep("another worker", seconds=3_600)
        await finish(store, tenant.ann)
        async with AsyncExitStack() as stack:
            cluster = Cluster(store, tenant, stack)
            await cluster.enter([])
            for _ in range(20):
                await asyncio.sleep(0.05)
                assert (await store.due_work()).has_unindexed
            await store.leave_sweep("another worker")

            async def is_indexed() -> bool:
                return not (await store.due_work()).has_unindexed

            await cluster.until(is_indexed)
