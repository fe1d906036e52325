"""The outbox: every turn that ends leaves one entry for the outside, in the transaction that ends it."""

import asyncio
from collections.abc import Callable

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_tenant,
    answered,
    begin,
    claim,
    elsewhere,
    failed,
    finish,
    nothing_written,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import LeaseLost, TurnSettled
from turnkeep.model.outbox import OutboxEntry
from turnkeep.model.turns import Held
from turnkeep.store.commands import Settlement
from turnkeep.store.ports import Store

LEASE_SECONDS = 30.0


async def take(store: Store, limit: int = 100) -> list[OutboxEntry]:
    return await store.take_entries(limit=limit, lease_seconds=LEASE_SECONDS)


def told(entries: list[OutboxEntry]) -> list[tuple[str, str]]:
    return [(entry.type, entry.subject_id) for entry in entries]


class TestWhatIsWritten:
    async def test_an_entry_says_what_happened_to_whom_and_when(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=3)
        await store.settle(held, after=1, settlement=answered(held))
        [entry] = await take(store)
        assert entry == OutboxEntry(
            id=entry.id,
            org_id=tenant.org.id,
            workspace_id=tenant.workspace.id,
            user_id=tenant.ann.user_id,
            type="turn.succeeded",
            conversation_id=held.conversation_id,
            subject_id=held.turn_id,
            created_at=database.now,
            attempts=1,
        )
        assert entry.id.startswith("evt_")

    @pytest.mark.parametrize(
        "settlement, type_",
        [(answered, "turn.succeeded"), (failed, "turn.failed"), (stopped, "turn.cancelled")],
        ids=["succeeded", "failed", "cancelled"],
    )
    async def test_each_status_has_its_type(
        self, store: Store, tenant: Tenant, settlement: Callable[[Held], Settlement], type_: str
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=settlement(held))
        assert told(await take(store)) == [(type_, held.turn_id)]

    async def test_a_turn_of_a_service_has_no_user(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.service)
        [entry] = await take(store)
        assert entry.user_id is None

    async def test_many_that_settle_at_once_leave_one_each(self, store: Store, tenant: Tenant) -> None:
        held = [await begin(store, tenant.ann) for _ in range(20)]
        await asyncio.gather(*(store.settle(each, after=1, settlement=answered(each)) for each in held))
        entries = await take(store)
        assert sorted(entry.subject_id for entry in entries) == sorted(each.turn_id for each in held)

    async def test_turns_that_run_or_wait_have_none(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.request_cancel(tenant.ann, held.turn_id)
        assert await take(store) == []

    async def test_turns_from_elsewhere_have_none(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "Hello", "Hi!"))
        exported = await store.export_conversation(tenant.service, conversation.id)
        await store.import_conversation(tenant.ann, exported)
        assert await take(store) == []


class TestEveryEnd:
    async def test_the_stop_of_a_waiting_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        for _ in range(2):
            await store.request_cancel(tenant.ann, waiting.id)
        [entry] = await take(store)
        assert (entry.type, entry.subject_id) == ("turn.cancelled", waiting.id)
        assert (entry.org_id, entry.workspace_id) == (tenant.org.id, tenant.workspace.id)
        assert (entry.conversation_id, entry.user_id) == (held.conversation_id, tenant.ann.user_id)

    async def test_the_delete_of_a_conversation_in_which_turns_wait(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id) for _ in range(2)]
        await store.delete_conversation(tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=stopped(held))
        ended = sorted([*(turn.id for turn in waiting), held.turn_id])
        assert sorted(told(await take(store))) == [("turn.cancelled", turn_id) for turn_id in ended]

    async def test_an_edit_that_replaces_a_waiting_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await claim(store, tenant.ann, conversation_id=held.conversation_id, beside=waiting.id, if_busy="interrupt")
        assert told(await take(store)) == [("turn.cancelled", waiting.id)]

    async def test_the_settle_that_lets_another_turn_run(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        assert told(await take(store)) == [("turn.succeeded", held.turn_id)]

    async def test_the_settle_by_a_worker_that_adopted_the_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=60)
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        settlement = failed(adopted.held, code="worker_lost")
        await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=settlement)
        assert told(await take(store)) == [("turn.failed", adopted.turn.id)]


class TestOnceOrNotAtAll:
    async def test_a_settle_that_is_fenced_off_writes_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        stale = Held(turn_id=held.turn_id, conversation_id=held.conversation_id, attempt=7)
        async with nothing_written(database):
            with pytest.raises(LeaseLost):
                await store.settle(stale, after=1, settlement=answered(stale))
        assert await take(store) == []

    async def test_a_settle_whose_answer_was_lost_writes_one_entry(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        settlement = answered(held)
        for _ in range(3):
            await store.settle(held, after=1, settlement=settlement)
        [entry] = await take(store)
        await store.mark_delivered([entry.id])
        await store.settle(held, after=1, settlement=settlement)
        assert await take(store) == []

    async def test_a_second_end_of_the_turn_writes_nothing(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=answered(held))
        with pytest.raises(TurnSettled):
            await store.settle(held, after=1, settlement=stopped(held))
        assert told(await take(store)) == [("turn.succeeded", held.turn_id)]


class TestDelivery:
    async def test_the_oldest_come_first(self, store: Store, tenant: Tenant) -> None:
        turns = [await finish(store, tenant.ann) for _ in range(5)]
        first, rest = await take(store, limit=2), await take(store)
        assert [entry.subject_id for entry in first + rest] == [turn.id for turn in turns]
        assert [entry.id for entry in first + rest] == sorted(entry.id for entry in first + rest)

    async def test_two_workers_never_hold_the_same_entry(self, store: Store, tenant: Tenant) -> None:
        for _ in range(20):
            await finish(store, tenant.ann)
        parts = await asyncio.gather(*(take(store, limit=4) for _ in range(8)))
        taken = [entry.id for part in parts for entry in part]
        assert len(taken) == len(set(taken))
        assert len(taken) + len(await take(store)) == 20

    async def test_a_lease_that_ended_gives_the_entry_to_the_next_worker(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await finish(store, tenant.ann)
        [entry] = await take(store)
        await database.advance(seconds=LEASE_SECONDS - 1)
        assert await take(store) == []
        await database.advance(seconds=1)
        [again] = await take(store)
        assert (again.id, entry.attempts, again.attempts) == (entry.id, 1, 2)

    async def test_what_was_delivered_is_gone(self, store: Store, tenant: Tenant, database: Database) -> None:
        for _ in range(3):
            await finish(store, tenant.ann)
        first, second, third = await take(store)
        await store.mark_delivered([first.id, third.id])
        await store.mark_delivered([first.id])
        await store.mark_delivered([])
        await database.advance(seconds=LEASE_SECONDS)
        assert [entry.id for entry in await take(store)] == [second.id]

    async def test_a_postponed_entry_comes_back_after_its_time(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await finish(store, tenant.ann)
        [entry] = await take(store)
        await store.postpone_entry(entry.id, seconds=300)
        await database.advance(seconds=299)
        assert await take(store) == []
        await database.advance(seconds=1)
        assert [each.id for each in await take(store)] == [entry.id]

    async def test_to_postpone_what_is_gone_changes_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await finish(store, tenant.ann)
        [entry] = await take(store)
        await store.mark_delivered([entry.id])
        async with nothing_written(database):
            await store.postpone_entry(entry.id, seconds=1)

    async def test_entries_survive_a_restart(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        await database.reopen()
        assert told(await take(database.store)) == [("turn.succeeded", turn.id)]


class TestTenants:
    async def test_an_entry_names_the_tenant_of_its_turn(self, store: Store, tenant: Tenant) -> None:
        other = await a_tenant(store, "Other")
        mine, theirs = await finish(store, tenant.bob), await finish(store, other.ann)
        assert {(entry.subject_id, entry.org_id, entry.workspace_id, entry.user_id) for entry in await take(store)} == {
            (mine.id, tenant.org.id, tenant.workspace.id, tenant.bob.user_id),
            (theirs.id, other.org.id, other.workspace.id, other.ann.user_id),
        }

    async def test_a_purge_erases_the_entries_of_its_conversations_alone(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        gone, kept = await finish(store, tenant.ann), await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, gone.conversation_id)
        await database.advance(seconds=10)
        assert (await store.purge(deleted_before=database.now)).conversations == 1
        assert told(await take(store)) == [("turn.succeeded", kept.id)]
