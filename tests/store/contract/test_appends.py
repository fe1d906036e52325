"""Appending: whole turns that happened elsewhere. They count in history, not against the quota."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_tenant,
    answered,
    begin,
    elsewhere,
    finish,
    kinds,
    nothing_written,
    save_workspace,
    shown,
    transcript_of,
    wait_in_queue,
)
from turnkeep.clock import month_of
from turnkeep.errors import AttachedElsewhere, ConversationBusy, InvalidRequest, NotFound
from turnkeep.ids import new_conversation_id
from turnkeep.model.files import File
from turnkeep.store.commands import Appended, ConversationChange
from turnkeep.store.exports import exported_from_rows
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import Result


class TestATurnFromElsewhere:
    async def test_it_is_there_whole(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id, "Hello", "thinking", "Hi!", model="m-1", source="ui")
        assert await store.append(tenant.ann, conversation.id, turn) == 1
        stored = await store.turn(tenant.ann, turn.turn_id)
        assert (stored.status, stored.attempt, stored.active, stored.last_seq) == ("succeeded", 1, True, 0)
        assert (stored.model, stored.source, stored.usage) == ("m-1", "ui", turn.usage)
        assert (stored.started_at, stored.settled_at) == (turn.started_at, turn.settled_at)
        assert stored.month == month_of(turn.started_at)
        assert tuple(await store.turn_rows(turn.turn_id)) == turn.rows
        assert await transcript_of(store, tenant.ann, conversation.id) == ["user: Hello", "assistant: Hi!"]

    async def test_the_conversation_follows(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await database.advance(seconds=9)
        turn = elsewhere(conversation.id, "Hello", "thinking", "Hi!")
        await store.append(tenant.ann, conversation.id, turn)
        after = await store.conversation(tenant.ann, conversation.id)
        assert (after.message_count, after.turn_count, after.head_turn_id) == (2, 1, turn.turn_id)
        assert (after.title, after.preview, after.updated_at) == ("Hello", "Hello", database.now)

    async def test_it_follows_the_head(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        turn = elsewhere(first.conversation_id)
        assert await store.append(tenant.ann, first.conversation_id, turn) == 2
        assert (await store.turn(tenant.ann, turn.turn_id)).parent_turn_id == first.id
        next_one = await finish(store, tenant.ann, conversation_id=first.conversation_id)
        assert next_one.parent_turn_id == turn.turn_id

    async def test_the_same_turn_again_changes_nothing(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        first, second = elsewhere(conversation.id), elsewhere(conversation.id)
        assert await store.append(tenant.ann, conversation.id, first) == 1
        assert await store.append(tenant.ann, conversation.id, second) == 2
        async with nothing_written(database):
            assert await store.append(tenant.ann, conversation.id, first) == 1

    async def test_its_events_are_told_from_its_rows(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id, "Hello", "thinking", "Hi!")
        await store.append(tenant.ann, conversation.id, turn)
        events = await store.events(turn.turn_id)
        assert kinds(events) == ["turn", "tool_calls", "result"]
        result = events[-1].event
        assert isinstance(result, Result)
        assert shown(result.content) == "Hi!"
        assert [event.seq for event in await store.events(turn.turn_id, after=1)] == [2, 3]
        assert [event.seq for event in await store.events(turn.turn_id, after=1, limit=1)] == [2]
        assert await store.events(turn.turn_id, after=3) == []

    async def test_many_at_once_are_numbered_without_gaps(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        ordinals = await asyncio.gather(
            *(store.append(tenant.ann, conversation.id, elsewhere(conversation.id)) for _ in range(20))
        )
        assert sorted(ordinals) == list(range(1, 21))
        after = await store.conversation(tenant.ann, conversation.id)
        assert (after.message_count, after.turn_count) == (40, 20)

    async def test_the_same_turn_many_times_at_once_is_there_once(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id)
        ordinals = await asyncio.gather(*(store.append(tenant.ann, conversation.id, turn) for _ in range(20)))
        assert set(ordinals) == {1}
        assert (await store.conversation(tenant.ann, conversation.id)).message_count == 2

    async def test_no_usage_is_counted_and_no_quota_asked(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=0))
        turn = elsewhere(conversation.id, usage=Usage(input_tokens=100))
        await store.append(tenant.ann, conversation.id, turn)
        for by in (tenant.ann, tenant.service):
            for month in (None, month_of(turn.started_at)):
                usage = await store.usage(by, month=month)
                assert (usage.messages, usage.input_tokens) == (0, 0)


class TestRefusals:
    async def test_busy_while_a_turn_runs_or_waits(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(ConversationBusy) as refused:
                await store.append(tenant.ann, held.conversation_id, elsewhere(held.conversation_id))
        assert refused.value.turn_id == held.turn_id
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.execute(f"UPDATE turns SET status = 'failed' WHERE id = '{held.turn_id}'")
        with pytest.raises(ConversationBusy) as refused:
            await store.append(tenant.ann, held.conversation_id, elsewhere(held.conversation_id))
        assert refused.value.turn_id == waiting.id

    async def test_not_busy_once_the_turn_has_ended(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=answered(held))
        assert await store.append(tenant.ann, held.conversation_id, elsewhere(held.conversation_id)) == 2

    async def test_a_conversation_of_somebody_else(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        unknown = new_conversation_id()
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service):
                with pytest.raises(NotFound):
                    await store.append(by, mine.id, elsewhere(mine.id))
            with pytest.raises(NotFound):
                await store.append(tenant.ann, unknown, elsewhere(unknown))

    async def test_a_turn_of_another_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        one, two = await a_conversation(store, tenant.ann), await a_conversation(store, tenant.ann)
        turn = elsewhere(one.id)
        await store.append(tenant.ann, one.id, turn)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await store.append(tenant.ann, two.id, elsewhere(two.id, turn_id=turn.turn_id))

    async def test_a_turn_of_another_tenant_is_not_revealed(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        stranger = await a_tenant(store, "Other")
        theirs = await finish(store, stranger.ann)
        mine = await a_conversation(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await store.append(tenant.ann, mine.id, elsewhere(mine.id, turn_id=theirs.id))

    async def test_rows_that_are_no_turn(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id)
        async with nothing_written(database):
            for rows in ((), turn.rows[1:], turn.rows[::-1], (*turn.rows, turn.rows[-1])):
                with pytest.raises(InvalidRequest):
                    await store.append(tenant.ann, conversation.id, structs.replace(turn, rows=rows))


def naming(turn: Appended, *files: File) -> Appended:
    """The turn, whose question names these files."""
    question = structs.replace(turn.rows[0], attachments=tuple(file.ref() for file in files))
    return structs.replace(turn, rows=(question, *turn.rows[1:]))


class TestFilesOfATurnFromElsewhere:
    async def test_they_join_the_conversation_under_names_of_their_own(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        known = await a_file(store, tenant.ann, conversation_id=conversation.id)
        loose = await a_file(store, tenant.ann)
        turns = (naming(elsewhere(conversation.id), known, loose), naming(elsewhere(conversation.id), loose))
        change = ConversationChange(appended=turns, attached=(loose.id,))
        await store.change_conversation(tenant.ann, conversation.id, change)
        joined = await store.file(tenant.ann, loose.id)
        assert (joined.conversation_id, joined.name) == (conversation.id, "notes-1.txt")
        assert joined.message_id == turns[0].rows[0].id
        for turn, names in zip(turns, (["notes.txt", "notes-1.txt"], ["notes-1.txt"]), strict=True):
            rows = await store.turn_rows(turn.turn_id)
            assert [ref.name for ref in rows[0].attachments] == names

    async def test_an_import_takes_them_in_and_keeps_their_ids(self, store: Store, tenant: Tenant) -> None:
        loose, other = await a_file(store, tenant.ann), await a_file(store, tenant.ann)
        rows = naming(elsewhere(new_conversation_id()), loose, other).rows
        made = await store.import_conversation(tenant.ann, exported_from_rows(rows), attached=(loose.id, other.id))
        assert made.head_turn_id is not None
        [question, _] = await store.turn_rows(made.head_turn_id)
        assert [(ref.file_id, ref.name) for ref in question.attachments] == [
            (loose.id, "notes.txt"),
            (other.id, "notes-1.txt"),
        ]
        assert [(file.id, file.message_id) for file in await store.files(tenant.ann, made.id)] == [
            (loose.id, question.id),
            (other.id, question.id),
        ]

    async def test_those_that_cannot_join_are_refused_and_nothing_is_written(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        conversation, other = await a_conversation(store, tenant.ann), await a_conversation(store, tenant.ann)
        refused: list[tuple[File, type[Exception]]] = [
            (await a_file(store, tenant.bob), NotFound),
            (await a_file(store, (await a_tenant(store, "Other")).ann), NotFound),
            (await a_file(store, tenant.ann, conversation_id=other.id), AttachedElsewhere),
            (await a_file(store, tenant.ann, sha256=None), InvalidRequest),
        ]
        async with nothing_written(database):
            for file, error in refused:
                turn = naming(elsewhere(conversation.id), file)
                change = ConversationChange(appended=(turn,), attached=(file.id,))
                with pytest.raises(error):
                    await store.change_conversation(tenant.ann, conversation.id, change)
                with pytest.raises(error):
                    await store.import_conversation(tenant.ann, exported_from_rows(turn.rows), attached=(file.id,))


class TestAnExpectedHead:
    async def test_a_change_after_another_one_is_refused(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        changes = [ConversationChange(appended=(elsewhere(conversation.id),), expected_head=None) for _ in range(5)]
        asked = (store.change_conversation(tenant.ann, conversation.id, change) for change in changes)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 4 + ["Conversation"]
        after = await store.conversation(tenant.ann, conversation.id)
        assert after.turn_count == 1
        last = ConversationChange(appended=(elsewhere(conversation.id),), expected_head=after.head_turn_id)
        assert (await store.change_conversation(tenant.ann, conversation.id, last)).turn_count == 2
