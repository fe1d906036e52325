"""Busy is an answer: refused, queued, or interrupting. One turn runs in a conversation, the others wait in order."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_file,
    answered,
    begin,
    claim,
    failed,
    finish,
    kinds,
    nothing_written,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import ConversationBusy, NotFound, QueueFull
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held
from turnkeep.store.commands import Claimed
from turnkeep.store.ports import Store
from turnkeep_client.wire.display import words_of
from turnkeep_client.wire.events import TurnBegan


async def adopt_one(store: Store) -> Held:
    [adopted] = await store.adopt("worker-2", lease_seconds=30)
    return adopted.held


class TestReject:
    async def test_it_names_the_running_turn(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        started_at = database.now
        await database.advance(seconds=3)
        async with nothing_written(database):
            with pytest.raises(ConversationBusy) as refused:
                await claim(store, tenant.ann, conversation_id=held.conversation_id)
        assert refused.value.turn_id == held.turn_id
        assert refused.value.started_at == started_at

    async def test_a_turn_that_was_promoted_but_not_adopted_is_running(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        with pytest.raises(ConversationBusy) as refused:
            await claim(store, tenant.ann, conversation_id=held.conversation_id)
        assert refused.value.turn_id == waiting.id

    async def test_where_turns_wait_and_none_runs_it_names_the_first(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.execute(f"UPDATE turns SET status = 'failed' WHERE id = '{held.turn_id}'")
        with pytest.raises(ConversationBusy) as refused:
            await claim(store, tenant.ann, conversation_id=held.conversation_id)
        assert (refused.value.turn_id, refused.value.started_at) == (waiting.id, None)

    async def test_of_200_claims_at_once_exactly_one_wins(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish(store, tenant.ann)
        claims = (claim(store, tenant.ann, conversation_id=first.conversation_id) for _ in range(200))
        answers = await asyncio.gather(*claims, return_exceptions=True)
        [winner] = [answer for answer in answers if isinstance(answer, Claimed)]
        losers = [answer for answer in answers if isinstance(answer, ConversationBusy)]
        assert len(losers) == 199
        assert {loser.turn_id for loser in losers} == {winner.turn.id}
        contents = await database.contents()
        assert len(contents["turns"]) == 2
        assert (await store.usage(tenant.ann)).messages == 2
        conversation = await store.conversation(tenant.ann, first.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (3, 2)


class TestEnqueue:
    async def test_a_waiting_turn_has_its_row_and_event_but_is_not_yet_part_of_the_chain(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, "One")
        claimed = await claim(store, tenant.ann, "Two", conversation_id=held.conversation_id, if_busy="enqueue")
        turn = claimed.turn
        assert claimed.held is None
        assert claimed.is_new
        assert (turn.status, turn.attempt, turn.active, turn.ordinal) == ("queued", 0, False, 2)
        assert (turn.started_at, turn.parent_turn_id) == (None, None)
        assert turn.created_at == database.now
        [row] = await store.turn_rows(turn.id)
        assert row.id == claimed.user_message_id
        [recorded] = await store.events(turn.id)
        assert isinstance(recorded.event, TurnBegan)
        assert (recorded.event.status, recorded.event.attempt) == ("queued", 0)
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (1, 1)
        assert await transcript_of(store, tenant.ann, held.conversation_id) == ["user: One"]
        window = await store.window(held.conversation_id)
        assert {row.turn_id for row in window.rows} == {held.turn_id}

    async def test_when_nothing_runs_it_starts_at_once(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        claimed = await claim(store, tenant.ann, conversation_id=first.conversation_id, if_busy="enqueue")
        assert claimed.turn.status == "running"
        assert claimed.held is not None

    async def test_a_full_queue_refuses(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        for _ in range(2):
            await wait_in_queue(store, tenant.ann, held.conversation_id, queue_limit=2)
        async with nothing_written(database):
            with pytest.raises(QueueFull):
                await wait_in_queue(store, tenant.ann, held.conversation_id, queue_limit=2)

    async def test_the_limit_holds_for_many_at_once(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        claims = (
            claim(store, tenant.ann, conversation_id=first.conversation_id, if_busy="enqueue", queue_limit=10)
            for _ in range(40)
        )
        answers = await asyncio.gather(*claims, return_exceptions=True)
        turns = [answer.turn for answer in answers if isinstance(answer, Claimed)]
        assert sorted(turn.status for turn in turns) == ["queued"] * 10 + ["running"]
        assert sorted(turn.ordinal for turn in turns) == list(range(2, 13))
        assert sum(isinstance(answer, QueueFull) for answer in answers) == 29

    async def test_they_run_one_after_the_other_in_the_order_in_which_they_came(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann, "1")
        conversation_id = held.conversation_id
        waiting = [await wait_in_queue(store, tenant.ann, conversation_id, text) for text in ("2", "3", "4")]
        promoted: list[TurnId | None] = []
        after = 1
        for _ in range(4):
            settled = await store.settle(held, after=after, settlement=answered(held, "ok"))
            promoted.append(settled.promoted)
            if settled.promoted:
                held, after = await adopt_one(store), 2
        assert promoted == [turn.id for turn in waiting] + [None]
        assert await transcript_of(store, tenant.ann, conversation_id) == [
            line for number in "1234" for line in (f"user: {number}", "assistant: ok")
        ]


async def queue_of(store: Store, by: Principal, conversation_id: ConversationId) -> list[str]:
    found = await store.conversation_with_queue(by, conversation_id)
    return [words_of(message.content) for message in found.queue]


class TestTheQueue:
    async def test_it_is_seen_with_its_messages_in_the_order_in_which_they_will_run(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, "One")
        place = held.conversation_id
        file = await a_file(store, tenant.ann, conversation_id=place)
        await claim(store, tenant.bob, "Elsewhere")
        second = await claim(
            store, tenant.ann, "Two", conversation_id=place, if_busy="enqueue", attachment_ids=(file.id,)
        )
        await wait_in_queue(store, tenant.ann, place, "Three")
        async with nothing_written(database):
            found = await store.conversation_with_queue(tenant.ann, place)
        assert found.conversation == await store.conversation(tenant.ann, place)
        first = found.queue[0]
        assert (first.id, first.turn_id) == (second.user_message_id, second.turn.id)
        assert (first.conversation_id, first.role, first.status) == (place, "user", "queued")
        assert first.created_at == second.turn.created_at
        assert [ref.file_id for ref in first.attachments] == [file.id]
        assert await queue_of(store, tenant.ann, place) == ["Two", "Three"]

    async def test_a_message_leaves_it_as_it_joins_the_transcript(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "One")
        for text in ("Two", "Three"):
            await wait_in_queue(store, tenant.ann, held.conversation_id, text)
        [waiting, _] = (await store.conversation_with_queue(tenant.ann, held.conversation_id)).queue
        await store.settle(held, after=1, settlement=answered(held, "Ok"))
        assert await queue_of(store, tenant.ann, held.conversation_id) == ["Three"]
        shown = (await store.transcript(tenant.ann, held.conversation_id)).data[-1]
        assert shown == structs.replace(waiting, status="running")

    async def test_what_is_cancelled_leaves_it(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "One")
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id, text) for text in ("Two", "Three")]
        await store.request_cancel(tenant.ann, waiting[0].id)
        assert await queue_of(store, tenant.ann, held.conversation_id) == ["Three"]
        await claim(store, tenant.ann, "Now", conversation_id=held.conversation_id, if_busy="interrupt")
        assert await queue_of(store, tenant.ann, held.conversation_id) == ["Now", "Three"]

    async def test_a_delete_empties_it(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        with pytest.raises(NotFound):
            await store.conversation_with_queue(tenant.ann, held.conversation_id)
        await store.restore_conversation(tenant.ann, held.conversation_id)
        assert await queue_of(store, tenant.ann, held.conversation_id) == []

    async def test_those_see_it_who_see_the_conversation(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id, "Mine")
        for by in (tenant.ann, tenant.service):
            assert await queue_of(store, by, held.conversation_id) == ["Mine"]
        with pytest.raises(NotFound):
            await store.conversation_with_queue(tenant.bob, held.conversation_id)

    async def test_a_turn_is_seen_running_or_waiting_never_both_or_neither(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        place = held.conversation_id
        order = [held.turn_id] + [(await wait_in_queue(store, tenant.ann, place)).id for _ in range(20)]

        async def work(held: Held, after: int) -> None:
            while (await store.settle(held, after=after, settlement=answered(held))).promoted:
                held, after = await adopt_one(store), 2

        async with asyncio.TaskGroup() as group:
            working = group.create_task(work(held, 1))
            while not working.done():
                found = await store.conversation_with_queue(tenant.ann, place)
                ahead = [] if found.conversation.running_turn_id is None else [found.conversation.running_turn_id]
                seen = ahead + [message.turn_id for message in found.queue]
                assert seen == order[len(order) - len(seen) :]


class TestPromotion:
    async def test_settling_lets_the_next_one_start_in_the_same_transaction(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, "One")
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, "Two")
        await database.advance(seconds=7)
        settled = await store.settle(held, after=1, settlement=answered(held, "Ok"))
        assert settled.promoted == waiting.id
        turn = await store.turn(tenant.ann, waiting.id)
        assert (turn.status, turn.attempt, turn.active, turn.last_seq) == ("running", 0, True, 1)
        assert turn.started_at == database.now
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (3, 2)
        assert conversation.running_turn_id == waiting.id
        assert await transcript_of(store, tenant.ann, held.conversation_id) == [
            "user: One",
            "assistant: Ok",
            "user: Two",
        ]

    async def test_parent_is_fixed_when_a_turn_starts_not_when_it_is_queued(self, store: Store, tenant: Tenant) -> None:
        first = await begin(store, tenant.ann)
        second = await wait_in_queue(store, tenant.ann, first.conversation_id)
        third = await wait_in_queue(store, tenant.ann, first.conversation_id)
        assert (second.parent_turn_id, third.parent_turn_id) == (None, None)
        await store.settle(first, after=1, settlement=failed(first))
        held = await adopt_one(store)
        await store.settle(held, after=2, settlement=stopped(held))
        assert (await store.turn(tenant.ann, second.id)).parent_turn_id == first.turn_id
        assert (await store.turn(tenant.ann, third.id)).parent_turn_id == second.id

    async def test_its_lease_has_already_ended_so_any_worker_may_adopt_it(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        assert adopted.is_first_start
        assert (adopted.turn.id, adopted.turn.attempt, adopted.turn.failures) == (waiting.id, 1, 0)
        began = [recorded.event for recorded in await store.events(waiting.id)]
        assert [(event.status, event.attempt) for event in began if isinstance(event, TurnBegan)] == [
            ("queued", 0),
            ("running", 1),
        ]
        [row] = await store.turn_rows(waiting.id)
        assert isinstance(began[1], TurnBegan)
        assert began[1].user_message_id == row.id

    async def test_wherever_turns_wait_and_none_runs_the_sweeper_starts_the_first(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        firsts = []
        for _ in range(3):
            held = await begin(store, tenant.ann)
            firsts.append(await wait_in_queue(store, tenant.ann, held.conversation_id))
            await wait_in_queue(store, tenant.ann, held.conversation_id)
            await database.execute(f"UPDATE turns SET status = 'failed' WHERE id = '{held.turn_id}'")
        busy = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, busy.conversation_id)
        assert await store.promote_waiting() == sorted(turn.id for turn in firsts)
        assert await store.promote_waiting() == []
        adopted = await store.adopt("worker-2", lease_seconds=30)
        assert sorted(each.turn.id for each in adopted) == sorted(turn.id for turn in firsts)
        assert all(each.is_first_start for each in adopted)

    async def test_several_sweepers_at_once_promote_each_turn_once(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        for _ in range(5):
            held = await begin(store, tenant.ann)
            await wait_in_queue(store, tenant.ann, held.conversation_id)
            await database.execute(f"UPDATE turns SET status = 'failed' WHERE id = '{held.turn_id}'")
        promoted = [
            turn for some in await asyncio.gather(*(store.promote_waiting() for _ in range(8))) for turn in some
        ]
        assert len(promoted) == len(set(promoted)) == 5

    async def test_in_a_deleted_conversation_waiting_turns_are_cancelled_instead(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id) for _ in range(2)]
        await database.execute(f"UPDATE conversations SET deleted_at = 1 WHERE id = '{held.conversation_id}'")
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.promoted is None
        for turn in waiting:
            assert kinds(await store.events(turn.id)) == ["turn", "error"]
        assert await store.adopt("worker-2", lease_seconds=30) == []
        assert (await store.usage(tenant.ann)).messages == 1

    async def test_the_sweeper_cancels_them_there_too(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id) for _ in range(2)]
        await database.execute(f"UPDATE turns SET status = 'failed' WHERE id = '{held.turn_id}'")
        await database.execute(f"UPDATE conversations SET deleted_at = 1 WHERE id = '{held.conversation_id}'")
        assert await store.promote_waiting() == []
        for turn in waiting:
            assert kinds(await store.events(turn.id)) == ["turn", "error"]
        assert (await store.usage(tenant.ann)).messages == 1


class TestInterrupt:
    async def test_it_asks_the_running_turn_to_stop_and_waits(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        urgent = await claim(store, tenant.ann, "Stop!", conversation_id=held.conversation_id, if_busy="interrupt")
        assert (urgent.turn.status, urgent.held) == ("queued", None)
        assert (await store.turn(tenant.ann, held.turn_id)).cancel_requested_at == database.now
        assert (await store.record(held, after=1)).cancel_requested
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.promoted == urgent.turn.id

    async def test_it_goes_first_and_what_waited_stays_behind_it_in_order(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "One")
        waiting = [
            await wait_in_queue(store, tenant.ann, held.conversation_id, text) for text in ("Two", "Gone", "Six")
        ]
        await store.request_cancel(tenant.ann, waiting[1].id)
        for text in ("Now", "At once"):
            await claim(store, tenant.ann, text, conversation_id=held.conversation_id, if_busy="interrupt")
        await wait_in_queue(store, tenant.ann, held.conversation_id, "Last")
        expected = ["At once", "Now", "Two", "Six", "Last"]
        assert await queue_of(store, tenant.ann, held.conversation_id) == expected
        assert (await store.usage(tenant.ann)).messages == 1 + len(expected)
        settled = await store.settle(held, after=1, settlement=stopped(held))
        for _ in expected:
            [adopted] = await store.adopt("worker-2", lease_seconds=30)
            assert adopted.turn.id == settled.promoted
            settled = await store.settle(adopted.held, after=2, settlement=answered(adopted.held, "Ok"))
        assert settled.promoted is None
        page = await store.transcript(tenant.ann, held.conversation_id)
        assert [words_of(message.content) for message in page.data if message.role == "user"] == ["One", *expected]

    async def test_what_waits_behind_it_can_be_found_afterwards(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "One")
        await wait_in_queue(store, tenant.ann, held.conversation_id, "Avocado")
        await claim(store, tenant.ann, "Banana", conversation_id=held.conversation_id, if_busy="interrupt")
        await store.settle(held, after=1, settlement=stopped(held))
        for word in ("banana", "avocado"):
            [adopted] = await store.adopt("worker-2", lease_seconds=30)
            await store.settle(adopted.held, after=2, settlement=answered(adopted.held, "Ok"))
            assert len((await store.conversations(tenant.ann, query=word)).data) == 1

    async def test_one_more_than_a_full_queue_is_refused_and_stops_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        for if_busy in ("enqueue", "interrupt"):
            await claim(store, tenant.ann, conversation_id=held.conversation_id, if_busy=if_busy, queue_limit=1)
        async with nothing_written(database):
            with pytest.raises(QueueFull):
                await claim(store, tenant.ann, conversation_id=held.conversation_id, if_busy="interrupt", queue_limit=1)

    async def test_a_stop_that_was_asked_for_keeps_its_time(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        asked = await store.request_cancel(tenant.ann, held.turn_id)
        await database.advance(seconds=2)
        await claim(store, tenant.ann, conversation_id=held.conversation_id, if_busy="interrupt")
        turn = await store.turn(tenant.ann, held.turn_id)
        assert turn.cancel_requested_at == asked.cancel_requested_at

    async def test_when_nothing_runs_it_starts_at_once(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        claimed = await claim(store, tenant.ann, conversation_id=first.conversation_id, if_busy="interrupt")
        assert claimed.turn.status == "running"

    async def test_it_may_drop_what_waits(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "One")
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id, text) for text in ("Two", "Three")]
        urgent = await claim(
            store, tenant.ann, "Now", conversation_id=held.conversation_id, if_busy="interrupt", drop_queue=True
        )
        assert await queue_of(store, tenant.ann, held.conversation_id) == ["Now"]
        for turn in waiting:
            assert kinds(await store.events(turn.id)) == ["turn", "error"]
        assert (await store.usage(tenant.ann)).messages == 2
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.promoted == urgent.turn.id

    async def test_a_full_queue_is_no_hindrance(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id, queue_limit=1)
        urgent = await claim(
            store, tenant.ann, conversation_id=held.conversation_id, if_busy="interrupt", queue_limit=1
        )
        assert urgent.turn.status == "queued"
