"""Leases: a running turn belongs to one worker until its lease ends; then any worker may take it over."""

import asyncio

from tests.store.databases import Database
from tests.store.factories import (
    LEASE_SECONDS,
    Tenant,
    a_row,
    answered,
    begin,
    claim,
    kinds,
    step,
    wait_in_queue,
)
from turnkeep.ids import new_conversation_id, new_turn_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import Adopted, Renewal
from turnkeep.store.ports import Store
from turnkeep_client.wire.events import Reset


async def adopt(store: Store, worker: str = "worker-2", lease_seconds: float = LEASE_SECONDS) -> Adopted:
    [adopted] = await store.adopt(worker, lease_seconds=lease_seconds)
    return adopted


class TestAdoptingWhatWasHandedOver:
    async def test_passes_over_turns_whose_worker_fell_silent(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        silent, left = await begin(store, tenant.ann), await begin(store, tenant.ann)
        await database.advance(seconds=LEASE_SECONDS + 1)
        await store.hand_over([left])
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS, only_handed_over=True)
        assert adopted.turn.id == left.turn_id
        assert await store.adopt("worker-2", lease_seconds=LEASE_SECONDS, only_handed_over=True) == []
        assert (await adopt(store)).turn.id == silent.turn_id


class TestRenewing:
    async def test_it_keeps_a_turn_from_being_adopted(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        for _ in range(5):
            await database.advance(seconds=20)
            [renewal] = await store.renew([held], lease_seconds=30)
            assert renewal == Renewal(turn_id=held.turn_id, is_held=True, cancel_requested=False)
            assert await store.adopt("worker-2", lease_seconds=30) == []

    async def test_answers_come_in_the_order_of_the_questions(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        mine = [await begin(store, tenant.ann) for _ in range(4)]
        ended = mine[1]
        await store.settle(ended, after=1, settlement=answered(ended))
        await store.request_cancel(tenant.ann, mine[2].turn_id)
        unknown = Held(turn_id=new_turn_id(), conversation_id=new_conversation_id(), attempt=1)
        stale = Held(turn_id=mine[3].turn_id, conversation_id=mine[3].conversation_id, attempt=7)
        asked = [mine[2], unknown, ended, mine[0], stale]
        answers = await store.renew(asked, lease_seconds=30)
        assert [answer.turn_id for answer in answers] == [held.turn_id for held in asked]
        assert [(answer.is_held, answer.cancel_requested) for answer in answers] == [
            (True, True),
            (False, False),
            (False, False),
            (True, False),
            (False, False),
        ]

    async def test_an_old_attempt_beside_the_new_one_is_not_held(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        old = await begin(store, tenant.ann)
        await database.advance(seconds=31)
        new = (await adopt(store)).held
        answers = await store.renew([new, old, new], lease_seconds=30)
        assert [answer.is_held for answer in answers] == [True, False, True]

    async def test_of_nothing_it_answers_nothing(self, store: Store, tenant: Tenant) -> None:
        assert await store.renew([], lease_seconds=30) == []

    async def test_a_turn_that_was_taken_over_is_not_renewed(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=31)
        await adopt(store)
        [renewal] = await store.renew([held], lease_seconds=3600)
        assert not renewal.is_held
        await database.advance(seconds=31)
        assert (await adopt(store, "worker-3")).turn.attempt == 3

    async def test_an_expired_lease_that_nobody_took_is_renewed(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=31)
        [renewal] = await store.renew([held], lease_seconds=30)
        assert renewal.is_held
        assert await store.adopt("worker-2", lease_seconds=30) == []


class TestAdopting:
    async def test_nothing_is_adopted_while_its_lease_lives(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=30)
        assert await store.adopt("worker-2", lease_seconds=30) == []
        await database.advance(seconds=0.001)
        assert len(await store.adopt("worker-2", lease_seconds=30)) == 1

    async def test_the_attempt_rises_and_readers_are_told_at_once(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
        await database.advance(seconds=31)
        adopted = await adopt(store)
        assert adopted.held == Held(turn_id=held.turn_id, conversation_id=held.conversation_id, attempt=2)
        assert not adopted.is_first_start
        assert (adopted.turn.status, adopted.turn.attempt, adopted.turn.last_seq) == ("running", 2, 3)
        assert await store.turn(tenant.ann, held.turn_id) == adopted.turn
        assert (await store.events(held.turn_id))[-1].event == Reset(attempt=2, reason="lease_expired", at=database.now)

    async def test_what_was_complete_stays_and_the_new_holder_goes_on(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
        await database.advance(seconds=31)
        adopted = await adopt(store)
        assert len(await store.turn_rows(held.turn_id)) == 2
        await store.settle(adopted.held, after=3, settlement=answered(adopted.held, sequence=2))
        assert kinds(await store.events(held.turn_id)) == ["turn", "step", "reset", "result"]

    async def test_only_the_turn_that_is_named(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, two = await begin(store, tenant.ann), await begin(store, tenant.ann)
        assert await store.adopt("worker-2", lease_seconds=30, turn_id=one.turn_id) == []
        await database.advance(seconds=31)
        [adopted] = await store.adopt("worker-2", lease_seconds=30, turn_id=two.turn_id)
        assert adopted.turn.id == two.turn_id
        assert await store.adopt("worker-2", lease_seconds=30, turn_id=new_turn_id()) == []

    async def test_the_longest_abandoned_come_first_up_to_the_limit(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        helds = [await begin(store, tenant.ann, lease_seconds=seconds) for seconds in (20, 10, 15, 10)]
        await database.advance(seconds=60)
        expected = [helds[1], helds[3], helds[2], helds[0]]
        if expected[0].turn_id > expected[1].turn_id:
            expected[:2] = expected[1::-1]
        taken = []
        for size in (3, 1, 0):
            some = await store.adopt("worker-2", lease_seconds=30, limit=3)
            assert len(some) == size
            taken += [adopted.turn.id for adopted in some]
        assert taken == [held.turn_id for held in expected]

    async def test_settled_and_waiting_turns_are_not_adopted(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        ended = await begin(store, tenant.ann)
        await store.settle(ended, after=1, settlement=answered(ended))
        await database.advance(seconds=31)
        assert (await adopt(store)).turn.id == held.turn_id

    async def test_of_20_workers_at_once_each_turn_goes_to_exactly_one(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(15)]
        await database.advance(seconds=31)
        taken = [
            adopted
            for some in await asyncio.gather(
                *(store.adopt(f"worker-{n}", lease_seconds=30, limit=15) for n in range(20))
            )
            for adopted in some
        ]
        assert sorted(adopted.turn.id for adopted in taken) == sorted(held.turn_id for held in helds)
        assert {adopted.turn.attempt for adopted in taken} == {2}

    async def test_a_turn_under_a_request_to_stop_is_adopted_too_so_that_it_can_be_settled(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.request_cancel(tenant.ann, held.turn_id)
        await database.advance(seconds=31)
        adopted = await adopt(store)
        assert adopted.turn.cancel_requested_at is not None
        assert (await store.record(adopted.held, after=2)).cancel_requested


class TestFailures:
    async def test_a_lease_that_ends_without_progress_is_one(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        for expected in (1, 2, 3):
            await database.advance(seconds=31)
            assert (await adopt(store)).turn.failures == expected

    async def test_a_new_event_is_progress_and_the_count_begins_again(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=31)
        await adopt(store)
        await database.advance(seconds=31)
        adopted = await adopt(store)
        assert adopted.turn.failures == 2
        await store.record(adopted.held, after=3, events=[step("a")])
        await database.advance(seconds=31)
        assert (await adopt(store)).turn.failures == 0
        await database.advance(seconds=31)
        assert (await adopt(store)).turn.failures == 1

    async def test_a_renewal_is_no_progress(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.renew([held], lease_seconds=40)
        await database.advance(seconds=41)
        assert (await adopt(store)).turn.failures == 1

    async def test_progress_before_the_first_lease_ended_counts(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step("a")])
        await database.advance(seconds=31)
        assert (await adopt(store)).turn.failures == 0

    async def test_a_first_start_from_the_queue_is_none_and_later_ones_count(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=600)
        assert (await adopt(store)).turn.failures == 0
        await database.advance(seconds=31)
        again = await adopt(store)
        assert (again.is_first_start, again.turn.failures, again.turn.attempt) == (False, 1, 2)


class TestHandingOver:
    async def test_any_worker_may_adopt_at_once_and_it_is_no_failure(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.hand_over([held])
        adopted = await adopt(store)
        assert (adopted.turn.attempt, adopted.turn.failures) == (2, 0)
        assert (await store.events(held.turn_id))[-1].event == Reset(attempt=2, reason="handover", at=database.now)

    async def test_failures_so_far_are_neither_raised_nor_forgotten(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await begin(store, tenant.ann)
        await database.advance(seconds=31)
        adopted = await adopt(store)
        await store.record(adopted.held, after=2, events=[step("a")])
        await store.hand_over([adopted.held])
        assert (await adopt(store)).turn.failures == 1

    async def test_who_holds_it_no_more_cannot_let_go_of_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        stale = await begin(store, tenant.ann)
        await database.advance(seconds=31)
        await adopt(store)
        ended = await begin(store, tenant.bob)
        await store.settle(ended, after=1, settlement=answered(ended))
        unknown = Held(turn_id=new_turn_id(), conversation_id=new_conversation_id(), attempt=1)
        await store.hand_over([stale, ended, unknown])
        assert await store.adopt("worker-3", lease_seconds=30) == []

    async def test_several_at_once_and_none_at_all(self, store: Store, tenant: Tenant) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(3)]
        await store.hand_over([])
        assert await store.adopt("worker-2", lease_seconds=30) == []
        await store.hand_over(helds)
        assert len(await store.adopt("worker-2", lease_seconds=30)) == 3

    async def test_until_somebody_takes_it_the_old_holder_may_still_write(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.hand_over([held])
        assert (await store.record(held, after=1, events=[step("last words")])).last_seq == 2
        assert (await adopt(store)).turn.last_seq == 3


class TestReleasing:
    async def test_what_was_taken_under_a_name_may_be_adopted_at_once_and_it_is_no_failure(
        self, store: Store, tenant: Tenant
    ) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(2)]
        await store.hand_over(helds)
        await store.adopt("unheard", lease_seconds=30)
        await store.release(["unheard", "nobody"])
        adopted = await store.adopt("worker-3", lease_seconds=30)
        assert sorted((each.turn.attempt, each.turn.failures) for each in adopted) == [(3, 0), (3, 0)]

    async def test_turns_of_other_names_stay_where_they_are(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.release([])
        await store.release(["unheard"])
        assert await store.adopt("worker-3", lease_seconds=30) == []
        assert (await store.record(held, after=1, events=[step("a")])).last_seq == 2


class TestTheQueueAndTheLease:
    async def test_a_turn_that_waits_has_no_lease_to_lose(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, lease_seconds=3600)
        claimed = await claim(store, tenant.ann, conversation_id=held.conversation_id, if_busy="enqueue")
        await database.advance(seconds=600)
        assert await store.adopt("worker-2", lease_seconds=30, turn_id=claimed.turn.id) == []
