"""Due work: one look says what a sweep has to do."""

import pytest

from tests.store.contract.test_waits import ALLOW, WAIT_SECONDS, decided, wait
from tests.store.databases import Database
from tests.store.factories import LEASE_SECONDS, Tenant, answered, begin, finish, wait_in_queue
from turnkeep.store.commands import Backlog, DueWork, NewConversation
from turnkeep.store.ports import Store


def due(*names: str) -> DueWork:
    return DueWork(*(name in names for name in ("waiting", "expired", "unwatched", "unindexed")))


class TestDueWork:
    async def test_there_is_none_in_an_empty_store(self, store: Store, tenant: Tenant) -> None:
        assert await store.due_work() == due()

    async def test_a_turn_that_runs_is_none_and_its_title_is_indexed_once(self, store: Store, tenant: Tenant) -> None:
        await begin(store, tenant.ann, new=NewConversation(title="Fruit"), watched_seconds=10)
        assert await store.due_work() == due("unindexed")
        await store.index_pending()
        assert await store.due_work() == due()

    async def test_a_turn_that_has_ended_waits_for_the_index(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.index_pending()
        await store.settle(held, after=1, settlement=answered(held))
        assert await store.due_work() == due("unindexed")
        await store.index_pending()
        assert await store.due_work() == due()

    @pytest.mark.parametrize("how", ["answer", "cancel", "deadline"])
    async def test_a_turn_that_waits_is_none_until_it_goes_on(
        self, store: Store, tenant: Tenant, database: Database, how: str
    ) -> None:
        held = await begin(store, tenant.ann, new=NewConversation(title="Fruit"))
        await wait(store, held, database.now)
        assert await store.due_work() == due("unindexed")
        await store.index_pending()
        assert await store.due_work() == due()
        if how == "answer":
            await decided(store, tenant, held, {"call_1": ALLOW})
        elif how == "cancel":
            await store.request_cancel(tenant.ann, held.turn_id)
        else:
            await database.advance(seconds=WAIT_SECONDS + 1)
            await store.end_overdue_waits()
        [adopted] = await store.adopt("worker-2", lease_seconds=10 * WAIT_SECONDS)
        await store.index_pending()
        assert await store.due_work() == due()
        settlement = answered(adopted.held, "Apples and pears.")
        await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=settlement)
        assert await store.due_work() == due("unindexed")
        await store.index_pending()
        assert await store.due_work() == due()

    async def test_a_lease_that_has_ended(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.index_pending()
        await database.advance(seconds=LEASE_SECONDS + 1)
        assert await store.due_work() == due("expired")
        await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        assert await store.due_work() == due()
        await store.release(["worker-2"])
        assert await store.due_work() == due("expired")
        assert held.attempt == 1

    async def test_readers_that_have_left(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, watched_seconds=10, lease_seconds=1_000)
        await begin(store, tenant.ann, watched_seconds=10, lease_seconds=1_000, background=True)
        await store.index_pending()
        await database.advance(seconds=11)
        assert await store.due_work() == due("unwatched")
        assert await store.cancel_unwatched() == [held.turn_id]
        assert await store.due_work() == due()

    async def test_turns_wait_while_none_runs(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        held = await begin(store, tenant.ann, conversation_id=first.conversation_id)
        await wait_in_queue(store, tenant.ann, first.conversation_id)
        await store.index_pending()
        assert await store.due_work() == due(), "the first one still runs"
        settled = await store.settle(held, after=1, settlement=answered(held))
        assert settled.promoted is not None
        await store.index_pending()
        assert await store.due_work() == due("expired"), "the end of a turn lets the next one run"


class TestBacklog:
    async def test_there_is_none_while_turns_run_and_end(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        assert await store.backlog() == Backlog(0, 0, 0, 0, 0)
        await store.settle(held, after=1, settlement=answered(held))
        assert await store.backlog() == Backlog(0, 0, 0, 0, 0)

    async def test_turns_in_a_queue_grow_older(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, lease_seconds=1_000)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.advance(seconds=30)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.advance(seconds=10)
        backlog = await store.backlog()
        assert (backlog.queued, backlog.unheld) == (2, 0)
        assert 40_000 <= backlog.queued_ms < 100_000

    async def test_turns_without_a_worker_are_counted_from_the_end_of_their_lease(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=LEASE_SECONDS + 20)
        backlog = await store.backlog()
        assert (backlog.queued, backlog.unheld) == (0, 1)
        assert 20_000 <= backlog.unheld_ms < 80_000
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        await store.hand_over([adopted.held])
        assert await store.backlog() == Backlog(0, 0, 1, 0, 0), "since when is not known"
