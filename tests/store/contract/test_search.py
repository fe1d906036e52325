"""Search: titles and visible messages of one's own conversations, by whole words and the beginning of the last."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_row,
    a_tenant,
    answered,
    as_user,
    begin,
    elsewhere,
    finish,
)
from turnkeep.ids import ConversationId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store.commands import ConversationChange, NewConversation
from turnkeep.store.fulltext import CHUNK_TURNS, PendingConversation, PendingIndex
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import ReasoningPart, Text, TextPart


async def found(store: Store, by: Principal, query: str) -> list[ConversationId]:
    return [hit.conversation.id for hit in (await store.conversations(by, query=query)).data]


async def snippets(store: Store, by: Principal, query: str) -> list[str | None]:
    return [hit.snippet for hit in (await store.conversations(by, query=query)).data]


class TestWhatIsFound:
    async def test_words_of_questions_answers_and_titles_right_after_the_turn_ended(
        self, store: Store, tenant: Tenant
    ) -> None:
        turn = await finish(
            store, tenant.ann, "Where grows saffron?", "In Kashmir.", new=NewConversation(title="Spices")
        )
        for query in ("saffron", "Kashmir", "KASHMIR", "spices", "grows where"):
            assert await found(store, tenant.ann, query) == [turn.conversation_id], query
        assert await found(store, tenant.ann, "saffron turmeric") == []

    async def test_the_beginning_of_the_last_word(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "The constellation of Cassiopeia")
        assert await found(store, tenant.ann, "constellation cass") == [turn.conversation_id]
        assert await found(store, tenant.ann, "const") == [turn.conversation_id]
        assert await found(store, tenant.ann, "const cassiopeia") == []
        assert await found(store, tenant.ann, "tellation") == []

    @pytest.mark.parametrize("query", ["京", "東京", "京都", "都市", "大阪", "東京都市", "서울", "서", "แม"])
    async def test_scripts_without_spaces_by_one_or_two_characters_or_more(
        self, store: Store, tenant: Tenant, query: str
    ) -> None:
        turn = await finish(store, tenant.ann, "東京都市計画と大阪。서울특별시 แม่น้ำ", "はい")
        await finish(store, tenant.ann, "Unrelated", "Nothing")
        assert await found(store, tenant.ann, query) == [turn.conversation_id]

    async def test_characters_that_do_not_follow_each_other_are_not_found_as_a_word(
        self, store: Store, tenant: Tenant
    ) -> None:
        await finish(store, tenant.ann, "東の京")
        assert await found(store, tenant.ann, "東京") == []

    async def test_case_width_and_accents_as_written(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "Straße café ＡＢＣ")
        for query in ("STRASSE", "café", "cafe\u0301", "abc"):
            assert await found(store, tenant.ann, query) == [turn.conversation_id], query

    async def test_characters_that_stand_for_several_words(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "Prophet ﷺ, rule a⑴b and ½ of it")
        for query in ("ﷺ", "a⑴b", "½", "الله", "⑴ prophet"):
            assert await found(store, tenant.ann, query) == [turn.conversation_id], query
        for query in ("⒜", "㈱", "℀", "№", "ﷻ"):
            await found(store, tenant.ann, query)

    async def test_an_appended_turn(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "Ask", "marmalade"))
        assert await found(store, tenant.ann, "marmalade") == [conversation.id]

    async def test_a_title_as_soon_as_it_is_given_and_the_old_one_no_more(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "Hello", new=NewConversation(title="Umbrella"))
        assert await found(store, tenant.ann, "umbrella") == [turn.conversation_id]
        await store.change_conversation(tenant.ann, turn.conversation_id, ConversationChange(title="Parasol"))
        assert await found(store, tenant.ann, "parasol") == [turn.conversation_id]
        assert await found(store, tenant.ann, "umbrella") == []

    async def test_the_title_of_a_conversation_without_turns(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann, title="Umbrella")
        assert await found(store, tenant.ann, "umbrella") == [conversation.id]

    async def test_a_title_while_its_first_turn_still_runs(self, store: Store, tenant: Tenant) -> None:
        given = await begin(store, tenant.ann, "Hello", new=NewConversation(title="Umbrella"))
        made = await begin(store, tenant.ann, "Parasol")
        assert await found(store, tenant.ann, "umbrella") == [given.conversation_id]
        assert await found(store, tenant.ann, "parasol") == [made.conversation_id]

    async def test_newest_change_first_and_page_by_page(self, store: Store, tenant: Tenant, database: Database) -> None:
        turns = []
        for _ in range(5):
            turns.append(await finish(store, tenant.ann, "needle"))
            await database.advance(seconds=1)
        expected = [turn.conversation_id for turn in reversed(turns)]
        met: list[ConversationId] = []
        cursor: str | None = None
        while not met or cursor is not None:
            page = await store.conversations(tenant.ann, query="needle", limit=2, cursor=cursor)
            met += [hit.conversation.id for hit in page.data]
            cursor = page.next_cursor
        assert met == expected

    async def test_after_a_restore(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "needle")
        assert await found(store, tenant.ann, "needle") == [turn.conversation_id]
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        assert await found(store, tenant.ann, "needle") == []
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert await found(store, tenant.ann, "needle") == [turn.conversation_id]


class TestWhatIsNotFound:
    async def test_internal_rows(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "Question")
        await store.record(held, after=1, rows=[a_row(held, 1, Text(text="conspiracy"))])
        await store.settle(held, after=1, settlement=answered(held, "Answer", sequence=2))
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id, "Q", "treachery", "A")
        await store.append(tenant.ann, conversation.id, turn)
        for by in (tenant.ann, tenant.service):
            assert await found(store, by, "treachery") == []
            assert await found(store, by, "conspiracy") == []
            assert await found(store, by, "answer") == [held.conversation_id]

    async def test_what_the_model_thought(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        content = (ReasoningPart(text="pondering"), TextPart(text="done"))
        await store.settle(held, after=1, settlement=answered(held, "done", content=content))
        assert await found(store, tenant.ann, "done") == [held.conversation_id]
        assert await found(store, tenant.ann, "pondering") == []

    async def test_what_belongs_to_somebody_else(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        mine = await finish(store, tenant.ann, "needle")
        for by in (tenant.bob, stranger.ann, stranger.service, as_user(tenant.service, tenant.bob)):
            assert await found(store, by, "needle") == []
        for by in (tenant.ann, tenant.service, as_user(tenant.service, tenant.ann)):
            assert await found(store, by, "needle") == [mine.conversation_id]

    async def test_what_lies_in_another_workspace(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann, "needle")
        other = await store.create_workspace(tenant.org.id, "Other")
        assert await found(store, structs.replace(tenant.service, workspace_id=other.id), "needle") == []

    async def test_an_abandoned_branch(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann, "apricot", new=NewConversation(title="Fruit"))
        assert await found(store, tenant.ann, "apricot") == [first.conversation_id]
        await finish(store, tenant.ann, "quince", conversation_id=first.conversation_id, beside=first.id)
        assert await found(store, tenant.ann, "apricot") == []
        assert await found(store, tenant.ann, "quince") == [first.conversation_id]
        await store.change_conversation(tenant.ann, first.conversation_id, ConversationChange(head_turn_id=first.id))
        assert await found(store, tenant.ann, "apricot") == [first.conversation_id]
        assert await found(store, tenant.ann, "quince") == []

    async def test_runs(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann, "needle", new=NewConversation(kind="run"))
        assert await found(store, tenant.ann, "needle") == []

    @pytest.mark.parametrize(
        "query", ["", "   ", "?!…", '"', "*", "AND", "NOT needle", "a OR b", "tokens:x", "(", "'; --"]
    )
    async def test_a_query_that_says_nothing_or_tries_to_be_a_command(
        self, store: Store, tenant: Tenant, query: str
    ) -> None:
        await finish(store, tenant.ann, "needle in haystack")
        assert await found(store, tenant.ann, query) == []


class TestSnippets:
    async def test_they_show_the_newest_match_marked(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "A needle here", "no match", new=NewConversation(title="needle"))
        await finish(store, tenant.ann, "Another needle there", conversation_id=turn.conversation_id)
        assert await snippets(store, tenant.ann, "needle") == ["Another **needle** there"]

    async def test_a_title_where_only_that_matched(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann, "Hello", new=NewConversation(title="The needle"))
        assert await snippets(store, tenant.ann, "needle") == ["The **needle**"]

    async def test_a_list_has_none(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann)
        [hit] = (await store.conversations(tenant.ann)).data
        assert hit.snippet is None


class TestIndexing:
    async def test_it_says_how_many_conversations_it_brought_up_to_date(self, store: Store, tenant: Tenant) -> None:
        for _ in range(3):
            await finish(store, tenant.ann)
        assert await store.index_pending() == 3
        assert await store.index_pending() == 0

    async def test_in_steps_of_its_limit(self, store: Store, tenant: Tenant) -> None:
        for _ in range(3):
            await finish(store, tenant.ann, "needle")
        assert [await store.index_pending(limit=2) for _ in range(3)] == [2, 1, 0]
        assert len(await found(store, tenant.ann, "needle")) == 3

    async def test_a_turn_that_runs_is_indexed_when_it_ends(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann, "apricot")
        held = await begin(store, tenant.ann, "quince", conversation_id=first.conversation_id)
        assert await found(store, tenant.ann, "apricot") == [first.conversation_id]
        assert await found(store, tenant.ann, "quince") == []
        await store.settle(held, after=1, settlement=answered(held))
        assert await found(store, tenant.ann, "quince") == [first.conversation_id]

    async def test_several_workers_at_once_do_no_harm(self, store: Store, tenant: Tenant) -> None:
        turns = [await finish(store, tenant.ann, "needle") for _ in range(10)]
        await asyncio.gather(*(store.index_pending(limit=4) for _ in range(8)))
        assert sorted(await found(store, tenant.ann, "needle")) == sorted(t.conversation_id for t in turns)
        assert await store.index_pending() == 0

    async def test_a_long_conversation_beside_short_ones(self, store: Store, tenant: Tenant) -> None:
        long = await a_conversation(store, tenant.ann)
        for number in range(CHUNK_TURNS + 5):
            await store.append(tenant.ann, long.id, elsewhere(long.id, f"question{number}", "internal", "A"))
        short = [await finish(store, tenant.ann, "needle") for _ in range(4)]
        assert await store.index_pending() == 5
        assert sorted(await found(store, tenant.ann, "needle")) == sorted(turn.conversation_id for turn in short)
        for number in (0, CHUNK_TURNS - 1, CHUNK_TURNS, CHUNK_TURNS + 4):
            assert await found(store, tenant.ann, f"question{number}") == [long.id]


class TestGapsBetweenOrdinals:
    """Imports once kept the ordinals of a document, whatever they were."""

    async def test_are_passed_over(self, store: Store, tenant: Tenant, database: Database) -> None:
        first = await finish(store, tenant.ann, "apricot")
        second = await finish(store, tenant.ann, "quince", conversation_id=first.conversation_id)
        await move_turn(database, second, 2**30)
        async with asyncio.timeout(60):
            assert await store.index_pending() == 1
            assert await found(store, tenant.ann, "quince") == [first.conversation_id]
        assert not (await store.due_work()).has_unindexed

    async def test_in_a_long_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        long = await a_conversation(store, tenant.ann)
        for number in range(2 * CHUNK_TURNS + 1):
            await store.append(tenant.ann, long.id, elsewhere(long.id, f"question{number}", "internal", "A"))
        await database.execute(
            f"UPDATE turns SET ordinal = ordinal * 1000 WHERE conversation_id = '{long.id}' "
            f"AND ordinal >= {CHUNK_TURNS};"
            f"UPDATE conversations SET next_ordinal = {(2 * CHUNK_TURNS + 1) * 1000 + 1} WHERE id = '{long.id}'"
        )
        async with asyncio.timeout(60):
            assert await store.index_pending() == 1
            for number in (0, CHUNK_TURNS - 2, CHUNK_TURNS - 1, CHUNK_TURNS, 2 * CHUNK_TURNS):
                assert await found(store, tenant.ann, f"question{number}") == [long.id]

    async def test_when_an_earlier_indexer_stopped_within(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish(store, tenant.ann, "apricot")
        await store.index_pending()
        second = await finish(store, tenant.ann, "quince", conversation_id=first.conversation_id)
        await move_turn(database, second, 2**30)
        await database.execute(f"UPDATE conversations SET indexed_ordinal = 5001 WHERE id = '{first.conversation_id}'")
        assert (await store.due_work()).has_unindexed
        async with asyncio.timeout(60):
            assert await store.index_pending() == 1
        assert await found(store, tenant.ann, "quince") == [first.conversation_id]

    async def test_before_a_turn_that_runs(self, store: Store, tenant: Tenant, database: Database) -> None:
        first = await finish(store, tenant.ann, "apricot")
        held = await begin(store, tenant.ann, "quince", conversation_id=first.conversation_id)
        await move_turn(database, held, 2**30)
        async with asyncio.timeout(60):
            await store.index_pending()
            assert not (await store.due_work()).has_unindexed
            await store.settle(held, after=1, settlement=answered(held))
            assert await found(store, tenant.ann, "quince") == [first.conversation_id]


async def move_turn(database: Database, turn: Turn | Held, ordinal: int) -> None:
    """Give the last turn of its conversation another ordinal, as an import once could."""
    turn_id = turn.id if isinstance(turn, Turn) else turn.turn_id
    await database.execute(
        f"UPDATE turns SET ordinal = {ordinal} WHERE id = '{turn_id}';"
        f"UPDATE conversations SET next_ordinal = {ordinal + 1} WHERE id = '{turn.conversation_id}'"
    )


class TestOneCall:
    async def test_does_a_bounded_amount_of_work(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("postgres", "sqlite"):
            monkeypatch.setattr(f"turnkeep.store.{module}.conversations.SWEPT_WRITES", 2)
        long = await a_conversation(store, tenant.ann)
        for number in range(3 * CHUNK_TURNS):
            await store.append(tenant.ann, long.id, elsewhere(long.id, f"question{number}", "internal", "A"))
        assert await store.index_pending() == 0
        assert (await store.due_work()).has_unindexed, "the next sweep goes on"
        assert await store.index_pending() == 1
        assert not (await store.due_work()).has_unindexed


class TestGroupsForTheIndex:
    def test_many_short_conversations_share_one_write(self) -> None:
        pending = PendingIndex(PendingConversation(ConversationId(f"conv_{n}"), 0, 1, 1) for n in range(CHUNK_TURNS))
        group = pending.next_group()
        assert len(group) == CHUNK_TURNS
        pending.mark(group, [each.id for each in group])
        assert (pending.next_group(), pending.done) == ([], CHUNK_TURNS)

    def test_a_long_one_has_more(self) -> None:
        pending = PendingIndex([PendingConversation(ConversationId("conv_1"), 3, 3 + CHUNK_TURNS, 2 * CHUNK_TURNS)])
        group = pending.next_group()
        pending.mark(group, [each.id for each in group])
        assert (pending.next_group(), pending.done, pending.has_more) == ([], 0, True)

    def test_one_that_another_worker_has_indexed_is_left_alone(self) -> None:
        pending = PendingIndex([PendingConversation(ConversationId("conv_1"), 0, CHUNK_TURNS, 2 * CHUNK_TURNS)])
        pending.mark(pending.next_group(), [])
        assert (pending.next_group(), pending.done, pending.has_more) == ([], 0, False)
