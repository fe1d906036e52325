"""Stopping: asked for from anywhere, done by the holder; and what happens when nobody watches any more."""

import asyncio

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_tenant,
    answered,
    begin,
    finish,
    nothing_written,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import NotFound
from turnkeep.ids import new_turn_id
from turnkeep.model.turns import TurnError
from turnkeep.store.ports import Store
from turnkeep_client.wire.events import Failure


class TestAWaitingTurn:
    async def test_it_is_settled_here_and_now(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.advance(seconds=1)
        turn = await store.request_cancel(tenant.ann, waiting.id)
        assert (turn.status, turn.active, turn.last_seq) == ("cancelled", False, 2)
        assert turn.settled_at == database.now
        assert turn.started_at is None
        assert turn.error == TurnError(code="cancelled", message="Stopped before it began.")
        last = (await store.events(waiting.id))[-1]
        assert (last.seq, last.event) == (
            2,
            Failure(code="cancelled", message="Stopped before it began."),
        )
        assert await store.turn(tenant.ann, waiting.id) == turn

    async def test_those_behind_it_move_up(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        first = await wait_in_queue(store, tenant.ann, held.conversation_id)
        second = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.request_cancel(tenant.ann, first.id)
        settled = await store.settle(held, after=1, settlement=answered(held))
        assert settled.promoted == second.id
        assert (await store.turn(tenant.ann, second.id)).parent_turn_id == held.turn_id

    async def test_a_stop_and_a_promotion_at_once_agree(self, store: Store, tenant: Tenant) -> None:
        for _ in range(10):
            held = await begin(store, tenant.ann)
            waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
            settled, turn = await asyncio.gather(
                store.settle(held, after=1, settlement=answered(held)),
                store.request_cancel(tenant.ann, waiting.id),
            )
            if settled.promoted is None:
                assert turn.status == "cancelled"
            else:
                assert turn.status == "running"
                assert turn.cancel_requested_at is not None


class TestARunningTurn:
    async def test_it_is_only_marked_and_its_holder_learns_of_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        turn = await store.request_cancel(tenant.ann, held.turn_id)
        assert (turn.status, turn.cancel_requested_at, turn.last_seq) == ("running", database.now, 1)
        [renewal] = await store.renew([held], lease_seconds=30)
        assert (renewal.is_held, renewal.cancel_requested) == (True, True)
        assert (await store.record(held, after=1)).cancel_requested
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.turn.status == "cancelled"

    async def test_asking_again_changes_nothing(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        first = await store.request_cancel(tenant.ann, held.turn_id)
        await database.advance(seconds=5)
        async with nothing_written(database):
            assert await store.request_cancel(tenant.ann, held.turn_id) == first

    async def test_it_may_still_succeed_if_the_answer_was_quicker(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.request_cancel(tenant.ann, held.turn_id)
        settled = await store.settle(held, after=1, settlement=answered(held))
        assert settled.turn.status == "succeeded"


class TestASettledTurn:
    async def test_it_stays_as_it_is(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        async with nothing_written(database):
            assert await store.request_cancel(tenant.ann, turn.id) == turn


class TestWhoMayStop:
    async def test_the_owner_and_the_service(self, store: Store, tenant: Tenant) -> None:
        for by in (tenant.ann, tenant.service):
            held = await begin(store, tenant.ann)
            assert (await store.request_cancel(by, held.turn_id)).cancel_requested_at is not None

    async def test_nobody_else(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service):
                for turn_id in (held.turn_id, waiting.id):
                    with pytest.raises(NotFound):
                        await store.request_cancel(by, turn_id)
            with pytest.raises(NotFound):
                await store.request_cancel(tenant.ann, new_turn_id())


class TestWatching:
    async def test_a_turn_that_nobody_watches_any_more_is_asked_to_stop(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, watched_seconds=10)
        await database.advance(seconds=10)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=0.001)
        assert await store.cancel_unwatched() == [held.turn_id]
        assert (await store.turn(tenant.ann, held.turn_id)).cancel_requested_at == database.now
        assert await store.cancel_unwatched() == []

    async def test_a_reader_keeps_it_alive(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, watched_seconds=10)
        for _ in range(3):
            await database.advance(seconds=9)
            await store.watch([held.turn_id], seconds=10)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=10.001)
        assert await store.cancel_unwatched() == [held.turn_id]

    async def test_a_renewal_reports_readers_too(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine, others, apart = [await begin(store, tenant.ann, watched_seconds=10) for _ in range(3)]
        background = await begin(store, tenant.ann, background=True)
        await database.advance(seconds=5)
        watched = [mine.turn_id, others.turn_id, background.turn_id]
        [renewed] = await store.renew([mine], lease_seconds=60, watched=watched, watch_seconds=20)
        assert (renewed.turn_id, renewed.is_held) == (mine.turn_id, True)
        assert await store.renew([], lease_seconds=60, watched=[others.turn_id], watch_seconds=1) == []
        await database.advance(seconds=19)
        assert await store.cancel_unwatched() == [apart.turn_id]
        await database.advance(seconds=2)
        assert await store.cancel_unwatched() == sorted([mine.turn_id, others.turn_id])
        await database.advance(seconds=20)
        adopted = {each.turn.id for each in await store.adopt("another", lease_seconds=30)}
        assert mine.turn_id not in adopted, "its lease was renewed"
        assert others.turn_id in adopted, "its lease was not"

    async def test_watching_never_shortens(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, watched_seconds=60)
        await store.watch([held.turn_id], seconds=1)
        await database.advance(seconds=30)
        assert await store.cancel_unwatched() == []

    async def test_the_last_reader_who_leaves_starts_the_grace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, watched_seconds=35)
        await store.watch([held.turn_id], seconds=35)
        await database.advance(seconds=1)
        await store.unwatch([held.turn_id], seconds=30)
        await database.advance(seconds=30)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=0.001)
        assert await store.cancel_unwatched() == [held.turn_id]

    async def test_leaving_never_lengthens(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, watched_seconds=10)
        background = await begin(store, tenant.ann, background=True)
        unwatched = await begin(store, tenant.ann)
        async with nothing_written(database):
            await store.unwatch([held.turn_id, background.turn_id, unwatched.turn_id, new_turn_id()], seconds=30)
            await store.unwatch([], seconds=30)

    async def test_a_reader_elsewhere_keeps_it_alive_after_another_has_left(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, watched_seconds=35)
        await store.unwatch([held.turn_id], seconds=30)
        await store.watch([held.turn_id], seconds=35)
        await database.advance(seconds=34)
        assert await store.cancel_unwatched() == []

    async def test_a_turn_that_was_never_watched_is_left_alone(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=3600)
        assert await store.cancel_unwatched() == []

    async def test_the_first_reader_makes_it_watched(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.watch([held.turn_id], seconds=10)
        await database.advance(seconds=11)
        assert await store.cancel_unwatched() == [held.turn_id]

    async def test_a_background_turn_runs_on(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, background=True, watched_seconds=1)
        await store.watch([held.turn_id], seconds=1)
        await database.advance(seconds=60)
        assert await store.cancel_unwatched() == []

    async def test_settled_and_unknown_turns_are_passed_over(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, watched_seconds=1)
        await store.settle(held, after=1, settlement=answered(held))
        async with nothing_written(database):
            await store.watch([held.turn_id, new_turn_id()], seconds=60)
            await store.watch([], seconds=60)
        await database.advance(seconds=61)
        assert await store.cancel_unwatched() == []

    async def test_several_come_sorted(self, store: Store, tenant: Tenant, database: Database) -> None:
        helds = [await begin(store, tenant.ann, watched_seconds=n) for n in (5, 3, 4)]
        await database.advance(seconds=6)
        assert await store.cancel_unwatched() == sorted(held.turn_id for held in helds)

    async def test_adoption_forgets_the_readers_who_were_cut_off(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, watched_seconds=10)
        await database.advance(seconds=31)
        await store.adopt("worker-2", lease_seconds=30)
        await database.advance(seconds=3600)
        assert await store.cancel_unwatched() == []
        await store.watch([held.turn_id], seconds=10)
        await database.advance(seconds=10.001)
        assert await store.cancel_unwatched() == [held.turn_id]

    async def test_a_turn_that_waits_is_not_stopped_and_gets_its_grace_when_it_starts(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, watched_seconds=10)
        await database.advance(seconds=300)
        assert await store.cancel_unwatched() == []
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=10)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=0.001)
        assert await store.cancel_unwatched() == [waiting.id]

    async def test_a_reader_who_left_a_moment_before_it_starts_has_the_same_grace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, watched_seconds=60)
        await database.advance(seconds=59)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=60)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=0.001)
        assert await store.cancel_unwatched() == [waiting.id]

    async def test_a_turn_that_waited_in_the_background_starts_without_a_grace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id, background=True)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=3600)
        assert await store.cancel_unwatched() == []

    async def test_what_its_readers_say_while_it_waits_is_the_grace_that_it_starts_with(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, watched_seconds=10)
        await store.watch([waiting.id], seconds=20)
        await database.advance(seconds=300)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=20)
        assert await store.cancel_unwatched() == []
        await database.advance(seconds=0.001)
        assert await store.cancel_unwatched() == [waiting.id]

    async def test_a_waiting_turn_may_be_watched(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, watched_seconds=10)
        await store.watch([waiting.id], seconds=600)
        await database.advance(seconds=300)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=200)
        assert await store.cancel_unwatched() == []
