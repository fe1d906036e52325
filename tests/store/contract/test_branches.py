"""Branches: edit and regenerate start beside a turn; the visible chain is that of the head."""

from typing import Any

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    answered,
    begin,
    claim,
    elsewhere,
    failed,
    finish,
    finish_with_tool,
    nothing_written,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import CallerError, Conflict, ConversationBusy, NotFound
from turnkeep.ids import ConversationId, TurnId, new_turn_id
from turnkeep.model.turns import IfBusy, Turn
from turnkeep.store.commands import ConversationChange, RemovedBlocks
from turnkeep.store.ports import Store


async def a_thread(store: Store, tenant: Tenant, *questions: str) -> list[Turn]:
    turns = [await finish(store, tenant.ann, questions[0], f"re {questions[0]}")]
    for question in questions[1:]:
        conversation_id = turns[0].conversation_id
        turns.append(await finish(store, tenant.ann, question, f"re {question}", conversation_id=conversation_id))
    return turns


async def shows(store: Store, tenant: Tenant, conversation_id: ConversationId, *questions: str) -> None:
    """The chain is these settled turns of two messages each: in the transcript, the window and the counters."""
    lines = [line for text in questions for line in (f"user: {text}", f"assistant: re {text}")]
    assert await transcript_of(store, tenant.ann, conversation_id) == lines
    conversation = await store.conversation(tenant.ann, conversation_id)
    assert (conversation.message_count, conversation.turn_count) == (len(lines), len(questions))
    window = await store.window(conversation_id)
    assert len(window.rows) == len(lines)


async def siblings_of(
    store: Store, tenant: Tenant, conversation_id: ConversationId
) -> dict[TurnId, tuple[TurnId, ...]]:
    page = await store.transcript(tenant.ann, conversation_id)
    by_turn: dict[TurnId, tuple[TurnId, ...]] = {}
    for message in page.data:
        assert by_turn.setdefault(message.turn_id, message.siblings) == message.siblings
    return by_turn


async def switch(store: Store, tenant: Tenant, turn: Turn) -> None:
    change = ConversationChange(head_turn_id=turn.id)
    changed = await store.change_conversation(tenant.ann, turn.conversation_id, change)
    assert changed.head_turn_id == turn.id


class TestBeside:
    async def test_it_starts_where_the_other_started_and_replaces_it_and_what_followed(
        self, store: Store, tenant: Tenant
    ) -> None:
        one, two, three = await a_thread(store, tenant, "1", "2", "3")
        conversation_id = one.conversation_id
        again = await finish(store, tenant.ann, "2b", "re 2b", conversation_id=conversation_id, beside=two.id)
        assert (again.parent_turn_id, again.ordinal) == (one.id, 4)
        await shows(store, tenant, conversation_id, "1", "2b")
        assert [(await store.turn(tenant.ann, turn.id)).active for turn in (one, two, three, again)] == [
            True,
            False,
            False,
            True,
        ]
        assert (await store.conversation(tenant.ann, conversation_id)).head_turn_id == again.id

    async def test_beside_the_first_turn_nothing_of_the_old_chain_stays(self, store: Store, tenant: Tenant) -> None:
        one, _ = await a_thread(store, tenant, "1", "2")
        again = await finish(store, tenant.ann, "1b", "re 1b", conversation_id=one.conversation_id, beside=one.id)
        assert again.parent_turn_id is None
        await shows(store, tenant, one.conversation_id, "1b")

    async def test_the_chain_changes_when_it_starts_not_when_it_ends(self, store: Store, tenant: Tenant) -> None:
        _, two = await a_thread(store, tenant, "1", "2")
        held = await begin(store, tenant.ann, "2b", conversation_id=two.conversation_id, beside=two.id)
        assert await transcript_of(store, tenant.ann, two.conversation_id) == [
            "user: 1",
            "assistant: re 1",
            "user: 2b",
        ]
        conversation = await store.conversation(tenant.ann, two.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (3, 2)
        await store.settle(held, after=1, settlement=answered(held, "re 2b"))
        await shows(store, tenant, two.conversation_id, "1", "2b")

    async def test_the_next_turn_follows_the_new_branch(self, store: Store, tenant: Tenant) -> None:
        _, two, _ = await a_thread(store, tenant, "1", "2", "3")
        conversation_id = two.conversation_id
        again = await finish(store, tenant.ann, "2b", "re 2b", conversation_id=conversation_id, beside=two.id)
        after = await finish(store, tenant.ann, "4", "re 4", conversation_id=conversation_id)
        assert after.parent_turn_id == again.id
        await shows(store, tenant, conversation_id, "1", "2b", "4")

    async def test_counters_are_right_whatever_is_abandoned(self, store: Store, tenant: Tenant) -> None:
        one = await finish_with_tool(store, tenant.ann)
        conversation_id = one.conversation_id
        for settlement in (failed, stopped):
            held = await begin(store, tenant.ann, conversation_id=conversation_id)
            await store.settle(held, after=1, settlement=settlement(held))
        conversation = await store.conversation(tenant.ann, conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (4, 3)
        await finish_with_tool(store, tenant.ann, conversation_id=conversation_id, beside=one.id)
        conversation = await store.conversation(tenant.ann, conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (2, 1)

    async def test_while_it_waits_nothing_changes(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        conversation_id = one.conversation_id
        held = await begin(store, tenant.ann, "3", conversation_id=conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, conversation_id, "2b", beside=two.id)
        assert len(await transcript_of(store, tenant.ann, conversation_id)) == 5
        await store.settle(held, after=1, settlement=answered(held, "re 3"))
        assert await transcript_of(store, tenant.ann, conversation_id) == [
            "user: 1",
            "assistant: re 1",
            "user: 2b",
        ]
        assert (await store.turn(tenant.ann, waiting.id)).parent_turn_id == one.id

    async def test_beside_a_turn_of_an_abandoned_branch_that_branch_is_shown_again(
        self, store: Store, tenant: Tenant
    ) -> None:
        one, _, three = await a_thread(store, tenant, "1", "2", "3")
        conversation_id = one.conversation_id
        await finish(store, tenant.ann, "1b", "re 1b", conversation_id=conversation_id, beside=one.id)
        await finish(store, tenant.ann, "3b", "re 3b", conversation_id=conversation_id, beside=three.id)
        await shows(store, tenant, conversation_id, "1", "2", "3b")

    async def test_beside_a_turn_that_was_abandoned_while_it_waited(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        conversation_id = one.conversation_id
        held = await begin(store, tenant.ann, "1b", conversation_id=conversation_id, beside=one.id)
        await wait_in_queue(store, tenant.ann, conversation_id, "2b", beside=two.id)
        await store.settle(held, after=1, settlement=answered(held, "re 1b"))
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        await store.settle(adopted.held, after=2, settlement=answered(adopted.held, "re 2b"))
        await shows(store, tenant, conversation_id, "1", "2b")


class TestBesideWhat:
    async def test_an_unknown_turn_or_one_of_another_conversation_is_not_found(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        [one], [other] = await a_thread(store, tenant, "1"), await a_thread(store, tenant, "2")
        async with nothing_written(database):
            for beside in (new_turn_id(), other.id):
                with pytest.raises(NotFound):
                    await claim(store, tenant.ann, conversation_id=one.conversation_id, beside=beside)

    async def test_a_turn_that_has_not_ended_makes_the_conversation_busy(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        async with nothing_written(database):
            for beside in (held.turn_id, waiting.id):
                with pytest.raises(ConversationBusy) as busy:
                    await claim(store, tenant.ann, conversation_id=held.conversation_id, beside=beside)
                assert busy.value.turn_id == held.turn_id

    @pytest.mark.parametrize("if_busy", ["enqueue", "interrupt"])
    async def test_beside_the_turn_that_runs_it_waits_for_the_end_of_that(
        self, store: Store, tenant: Tenant, if_busy: IfBusy
    ) -> None:
        [one] = await a_thread(store, tenant, "1")
        conversation_id = one.conversation_id
        held = await begin(store, tenant.ann, "2", conversation_id=conversation_id)
        claimed = await claim(
            store, tenant.ann, "2b", conversation_id=conversation_id, beside=held.turn_id, if_busy=if_busy
        )
        assert (claimed.turn.status, claimed.held) == ("queued", None)
        running = await store.turn(tenant.ann, held.turn_id)
        assert (running.cancel_requested_at is not None) == (if_busy == "interrupt")
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.promoted == claimed.turn.id
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        assert adopted.turn.parent_turn_id == one.id
        await store.settle(adopted.held, after=2, settlement=answered(adopted.held, "re 2b"))
        await shows(store, tenant, conversation_id, "1", "2b")

    @pytest.mark.parametrize("if_busy", ["enqueue", "interrupt"])
    async def test_beside_a_turn_that_is_stopped_before_it_begins_it_takes_that_ones_place(
        self, store: Store, tenant: Tenant, if_busy: IfBusy
    ) -> None:
        [one] = await a_thread(store, tenant, "1")
        conversation_id = one.conversation_id
        held = await begin(store, tenant.ann, "2", conversation_id=conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, conversation_id, "3")
        again = await claim(
            store, tenant.ann, "3b", conversation_id=conversation_id, beside=waiting.id, if_busy=if_busy
        )
        if if_busy == "enqueue":
            await store.request_cancel(tenant.ann, waiting.id)
        assert (await store.turn(tenant.ann, waiting.id)).status == "cancelled"
        await store.settle(held, after=1, settlement=answered(held, "re 2"))
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        assert (adopted.turn.id, adopted.turn.parent_turn_id) == (again.turn.id, held.turn_id)
        await store.settle(adopted.held, after=2, settlement=answered(adopted.held, "re 3b"))
        await shows(store, tenant, conversation_id, "1", "2", "3b")

    async def test_a_turn_that_never_began_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.request_cancel(tenant.ann, waiting.id)
        await store.settle(held, after=1, settlement=answered(held))
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await claim(store, tenant.ann, conversation_id=held.conversation_id, beside=waiting.id)


class TestSiblings:
    async def test_a_turn_alone_has_none(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        assert await siblings_of(store, tenant, one.conversation_id) == {one.id: (), two.id: ()}

    async def test_turns_from_one_place_name_each_other_in_order(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        conversation_id = one.conversation_id
        second = await finish(store, tenant.ann, "2b", conversation_id=conversation_id, beside=two.id)
        third = await finish(store, tenant.ann, "2c", conversation_id=conversation_id, beside=second.id)
        assert await siblings_of(store, tenant, conversation_id) == {
            one.id: (),
            third.id: (two.id, second.id, third.id),
        }

    async def test_first_turns_are_siblings_too(self, store: Store, tenant: Tenant) -> None:
        [one] = await a_thread(store, tenant, "1")
        again = await finish(store, tenant.ann, conversation_id=one.conversation_id, beside=one.id)
        assert await siblings_of(store, tenant, one.conversation_id) == {again.id: (one.id, again.id)}

    async def test_a_turn_that_never_began_is_no_sibling(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        held = await begin(store, tenant.ann, conversation_id=one.conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, one.conversation_id, beside=two.id)
        await store.request_cancel(tenant.ann, waiting.id)
        await store.settle(held, after=1, settlement=answered(held))
        assert set((await siblings_of(store, tenant, one.conversation_id)).values()) == {()}

    async def test_they_are_grouped_by_their_question(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        conversation_id = one.conversation_id
        again = await finish(store, tenant.ann, "2", "re 2", conversation_id=conversation_id, beside=two.id)
        edited = await finish(store, tenant.ann, "2b", conversation_id=conversation_id, beside=again.id)
        last = await finish(store, tenant.ann, "2", conversation_id=conversation_id, beside=edited.id)
        page = await store.transcript(tenant.ann, conversation_id)
        assert {message.turn_id: message.versions for message in page.data} == {
            one.id: (),
            last.id: ((two.id, again.id, last.id), (edited.id,)),
        }
        assert {message.versions for message in page.data if message.turn_id == last.id} == {page.data[-1].versions}

    async def test_they_are_told_on_every_page(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        again = await finish(store, tenant.ann, conversation_id=one.conversation_id, beside=two.id)
        page = await store.transcript(tenant.ann, one.conversation_id, limit=3)
        rest = await store.transcript(tenant.ann, one.conversation_id, limit=3, cursor=page.next_cursor)
        assert page.data[-1].siblings == rest.data[0].siblings == (two.id, again.id)


class TestSwitchingTheHead:
    async def test_the_other_branch_is_shown_with_its_counters(self, store: Store, tenant: Tenant) -> None:
        _, two, three = await a_thread(store, tenant, "1", "2", "3")
        conversation_id = two.conversation_id
        again = await finish(store, tenant.ann, "2b", "re 2b", conversation_id=conversation_id, beside=two.id)
        await switch(store, tenant, three)
        await shows(store, tenant, conversation_id, "1", "2", "3")
        await switch(store, tenant, again)
        await shows(store, tenant, conversation_id, "1", "2b")
        await switch(store, tenant, two)
        await shows(store, tenant, conversation_id, "1", "2")

    async def test_to_where_it_is_already(self, store: Store, tenant: Tenant) -> None:
        _, two = await a_thread(store, tenant, "1", "2")
        await switch(store, tenant, two)
        await shows(store, tenant, two.conversation_id, "1", "2")

    async def test_the_next_turn_follows_the_new_head(self, store: Store, tenant: Tenant) -> None:
        one, _ = await a_thread(store, tenant, "1", "2")
        await switch(store, tenant, one)
        three = await finish(store, tenant.ann, "3", "re 3", conversation_id=one.conversation_id)
        assert three.parent_turn_id == one.id
        await shows(store, tenant, one.conversation_id, "1", "3")

    async def test_it_moves_the_conversation_up(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, _ = await a_thread(store, tenant, "1", "2")
        await database.advance(seconds=5)
        await switch(store, tenant, one)
        assert (await store.conversation(tenant.ann, one.conversation_id)).updated_at == database.now

    async def test_not_while_a_turn_runs_or_waits(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, _ = await a_thread(store, tenant, "1", "2")
        held = await begin(store, tenant.ann, conversation_id=one.conversation_id)
        async with nothing_written(database):
            with pytest.raises(ConversationBusy) as refused:
                await switch(store, tenant, one)
        assert refused.value.turn_id == held.turn_id

    async def test_only_to_a_turn_of_this_conversation_that_ran(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        [one], [other] = await a_thread(store, tenant, "1"), await a_thread(store, tenant, "2")
        held = await begin(store, tenant.ann, conversation_id=one.conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, one.conversation_id)
        await store.request_cancel(tenant.ann, waiting.id)
        await store.settle(held, after=1, settlement=answered(held))
        async with nothing_written(database):
            for turn_id in (other.id, new_turn_id(), waiting.id):
                with pytest.raises(CallerError):
                    await store.change_conversation(
                        tenant.ann, one.conversation_id, ConversationChange(head_turn_id=turn_id)
                    )


class TestReplacement:
    """A new head, and turns after it, in one write."""

    async def test_turns_take_the_place_of_the_head(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        conversation_id = one.conversation_id
        turns = (elsewhere(conversation_id, "3", "three"), elsewhere(conversation_id, "4", "four"))
        change = ConversationChange(head_turn_id=one.id, expected_head=two.id, appended=turns)
        changed = await store.change_conversation(tenant.ann, conversation_id, change)
        assert (changed.head_turn_id, changed.turn_count, changed.message_count) == (turns[1].turn_id, 3, 6)
        shown = (await store.transcript(tenant.ann, conversation_id)).data
        assert [message.turn_id for message in shown][::2] == [one.id, *(turn.turn_id for turn in turns)]
        assert (await store.turn(tenant.ann, turns[0].turn_id)).parent_turn_id == one.id

    async def test_all_or_nothing(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        [other] = await a_thread(store, tenant, "3")
        conversation_id = one.conversation_id
        turns = (elsewhere(conversation_id), elsewhere(conversation_id, turn_id=other.id))
        change = ConversationChange(head_turn_id=one.id, expected_head=two.id, appended=turns)
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.change_conversation(tenant.ann, conversation_id, change)

    async def test_not_after_another_change(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        await finish(store, tenant.ann, conversation_id=one.conversation_id)
        turns = (elsewhere(one.conversation_id),)
        change = ConversationChange(head_turn_id=one.id, expected_head=two.id, appended=turns)
        async with nothing_written(database):
            with pytest.raises(Conflict):
                await store.change_conversation(tenant.ann, one.conversation_id, change)

    async def test_not_while_a_turn_runs(self, store: Store, tenant: Tenant, database: Database) -> None:
        [one] = await a_thread(store, tenant, "1")
        await begin(store, tenant.ann, conversation_id=one.conversation_id)
        change = ConversationChange(appended=(elsewhere(one.conversation_id),))
        async with nothing_written(database):
            with pytest.raises(ConversationBusy):
                await store.change_conversation(tenant.ann, one.conversation_id, change)


class TestTheChain:
    async def test_is_read_in_both_orders_a_few_turns_at_a_time(self, store: Store, tenant: Tenant) -> None:
        turns = await a_thread(store, tenant, "1", "2", "3", "4")
        conversation_id = turns[0].conversation_id
        again = await finish(store, tenant.ann, "3b", "re 3b", conversation_id=conversation_id, beside=turns[2].id)
        held = await begin(store, tenant.ann, "5", conversation_id=conversation_id)
        wanted = [turns[0].id, turns[1].id, again.id, held.turn_id]
        first = await store.chain(conversation_id, limit=2)
        rest = await store.chain(conversation_id, past=first[-1].ordinal)
        assert [turn.id for turn in (*first, *rest)] == wanted
        newest = await store.chain(conversation_id, order="desc", limit=3)
        oldest = await store.chain(conversation_id, order="desc", past=newest[-1].ordinal, limit=3)
        assert [turn.id for turn in (*newest, *oldest)] == wanted[::-1]
        assert await store.chain(conversation_id, past=newest[0].ordinal) == []
        assert (await store.turn(tenant.ann, again.id)) in newest


class TestAfter:
    async def test_a_turn_starts_after_the_head_that_it_names(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        one, two = await a_thread(store, tenant, "1", "2")
        async with nothing_written(database):
            with pytest.raises(Conflict, match="has gone on"):
                await claim(store, tenant.ann, conversation_id=one.conversation_id, after=one.id)
        three = await finish(store, tenant.ann, conversation_id=one.conversation_id, after=two.id)
        assert three.parent_turn_id == two.id

    async def test_a_repeat_gets_its_turn_though_the_conversation_has_gone_on(
        self, store: Store, tenant: Tenant
    ) -> None:
        [one] = await a_thread(store, tenant, "1")
        options = {"conversation_id": one.conversation_id, "after": one.id, "idempotency_key": "k", "request_hash": "h"}
        two = await finish(store, tenant.ann, **options)
        assert (await claim(store, tenant.ann, **options)).turn.id == two.id


class TestRemovedBlocks:
    """What is removed is in no window. A row that is removed whole is in no transcript, count or search either."""

    async def removed(self, store: Store, tenant: Tenant, turn: Turn, **rows: Any) -> None:
        blocks = tuple(
            RemovedBlocks(turn_id=turn.id, turn_sequence=int(name[1:]), removed=places) for name, places in rows.items()
        )
        await store.change_conversation(tenant.ann, turn.conversation_id, ConversationChange(removed=blocks))

    async def test_a_message_is_neither_sent_nor_shown(self, store: Store, tenant: Tenant) -> None:
        turns = await a_thread(store, tenant, "1", "2", "3")
        conversation_id = turns[0].conversation_id
        for _ in range(2):  # a repeat changes nothing
            await self.removed(store, tenant, turns[1], r0="all")
        lines = ["user: 1", "assistant: re 1", "assistant: re 2", "user: 3", "assistant: re 3"]
        assert await transcript_of(store, tenant.ann, conversation_id) == lines
        newest = await store.transcript(tenant.ann, conversation_id, order="desc")
        assert len(newest.data) == 5
        assert (await store.conversation(tenant.ann, conversation_id)).message_count == 5
        rows = (await store.window(conversation_id)).rows
        assert [(row.turn_id, row.turn_sequence) for row in rows][2] == (turns[1].id, 0)
        assert len(rows) == 5
        assert len(await store.turn_rows(turns[1].id)) == 2, "the trace keeps it"
        assert (await store.turn_rows(turns[1].id))[0].removed == "all"
        again = await finish(store, tenant.ann, "2b", "re 2b", conversation_id=conversation_id, beside=turns[1].id)
        assert (await store.conversation(tenant.ann, conversation_id)).message_count == 4
        await switch(store, tenant, turns[2])
        assert (await store.conversation(tenant.ann, conversation_id)).message_count == 5
        await self.removed(store, tenant, again, r0="all")
        assert (await store.conversation(tenant.ann, conversation_id)).message_count == 5, "it is on another branch"

    async def test_the_place_of_some_blocks(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        before = (await store.window(turn.conversation_id)).rows
        await self.removed(store, tenant, turn, r1=(0,), r2=(0,))
        rows = (await store.window(turn.conversation_id)).rows
        assert [row.blocks for row in rows] == [before[0].blocks, before[-1].blocks]
        assert [row.turn_sequence for row in rows] == [0, 1]
        assert len(await transcript_of(store, tenant.ann, turn.conversation_id)) == 2
        events = await store.events(turn.id)
        assert len(events) == turn.last_seq, "the events keep it"

    @pytest.mark.parametrize("is_indexed", [True, False])
    async def test_no_search_finds_it(self, store: Store, tenant: Tenant, is_indexed: bool) -> None:
        turns = await a_thread(store, tenant, "begin", "apple", "pear")
        if is_indexed:
            assert (await store.conversations(tenant.ann, query="apple")).data
        await self.removed(store, tenant, turns[1], r0="all", r1="all")
        assert (await store.conversations(tenant.ann, query="apple")).data == ()
        [hit] = (await store.conversations(tenant.ann, query="pear")).data
        assert hit.conversation.id == turns[0].conversation_id
        while await store.index_pending():
            pass
        assert not (await store.due_work()).has_unindexed

    async def test_the_next_turn_has_another_ordinal(self, store: Store, tenant: Tenant) -> None:
        """By it a worker sees that a history which it keeps is out of date."""
        one, two = await a_thread(store, tenant, "1", "2")
        await self.removed(store, tenant, one, r0="all")
        three = await finish(store, tenant.ann, conversation_id=one.conversation_id)
        assert (three.parent_turn_id, three.ordinal) == (two.id, two.ordinal + 2)

    async def test_not_while_a_turn_runs(self, store: Store, tenant: Tenant, database: Database) -> None:
        [one] = await a_thread(store, tenant, "1")
        await begin(store, tenant.ann, conversation_id=one.conversation_id)
        async with nothing_written(database):
            with pytest.raises(ConversationBusy):
                await self.removed(store, tenant, one, r0="all")

    async def test_rows_of_other_conversations_stay(self, store: Store, tenant: Tenant) -> None:
        [one] = await a_thread(store, tenant, "1")
        [other] = await a_thread(store, tenant, "2")
        blocks = (RemovedBlocks(turn_id=other.id, turn_sequence=0, removed="all"),)
        await store.change_conversation(tenant.ann, one.conversation_id, ConversationChange(removed=blocks))
        await shows(store, tenant, other.conversation_id, "2")
        with pytest.raises(NotFound):
            await store.change_conversation(tenant.bob, one.conversation_id, ConversationChange(removed=blocks))
