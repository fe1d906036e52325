"""Due work: one look says what a sweep has to do."""

from tests.store.databases import Database
from tests.store.factories import LEASE_SECONDS, Tenant, answered, begin, finish, wait_in_queue
from turnkeep.store.commands import DueWork, NewConversation
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
