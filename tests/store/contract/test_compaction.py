"""Compaction: what follows from the rows of an old turn is not stored any more, and readers get the same."""

from typing import Any

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    answered,
    begin,
    failed,
    finish,
    finish_with_tool,
    stopped,
    wait_in_queue,
)
from turnkeep.ids import ConversationId, TurnId
from turnkeep.store.ports import Store

HOUR = 3_600.0


async def seen(store: Store, tenant: Tenant, conversation_id: ConversationId, turn_ids: list[TurnId]) -> list[Any]:
    """What readers of these turns get, from each place."""
    return [
        [[await store.events(turn_id, after=after, limit=2) for after in range(5)] for turn_id in turn_ids],
        (await store.transcript(tenant.ann, conversation_id)).data,
        (await store.window(conversation_id)).rows,
        [(await store.trace(tenant.service, turn_id)).events for turn_id in turn_ids],
        [hit.snippet for hit in (await store.conversations(tenant.ann, query="hi")).data],
    ]


async def compact(store: Store, database: Database) -> None:
    await database.advance(seconds=2 * HOUR)
    while await store.compact(settled_before=database.now - int(HOUR * 1000), limit=1):
        pass


def events_of(contents: dict[str, list[tuple[Any, ...]]]) -> set[str]:
    return {row[0] for row in contents["turn_events"]}


class TestAnOldTurn:
    async def test_of_a_question_and_an_answer_keeps_only_its_rows(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann, answer="Hi there, long answer")
        before = await seen(store, tenant, turn.conversation_id, [turn.id])
        await compact(store, database)
        contents = await database.contents()
        assert events_of(contents) == set()
        stored = [value for table in ("messages", "turn_events") for row in contents[table] for value in row]
        assert len([value for value in stored if "long answer" in str(value)]) == 1, "the answer is there once"
        assert await seen(store, tenant, turn.conversation_id, [turn.id]) == before

    async def test_of_any_kind_is_read_as_before(self, store: Store, tenant: Tenant, database: Database) -> None:
        first = await finish(store, tenant.ann)
        conversation_id = first.conversation_id
        tool = await finish_with_tool(store, tenant.ann, conversation_id=conversation_id)
        lost = await begin(store, tenant.ann, conversation_id=conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, conversation_id)
        await store.settle(lost, after=1, settlement=failed(lost))
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=stopped(adopted.held))
        turn_ids = [first.id, tool.id, lost.turn_id, waiting.id]
        before = await seen(store, tenant, conversation_id, turn_ids)
        await compact(store, database)
        assert first.id not in events_of(await database.contents())
        assert await seen(store, tenant, conversation_id, turn_ids) == before

    async def test_that_was_exported_and_imported_is_read_as_before(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann, answer="Hi there")
        before = (await store.transcript(tenant.ann, turn.conversation_id)).data
        await compact(store, database)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        again = await store.import_conversation(tenant.service, exported)
        after = (await store.transcript(tenant.service, again.id)).data
        assert [message.content for message in after] == [message.content for message in before]

    async def test_is_looked_at_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        await finish_with_tool(store, tenant.ann)
        await compact(store, database)
        assert not await store.compact(settled_before=database.now, limit=1)


class TestARecentTurn:
    @pytest.mark.parametrize("is_settled", [True, False])
    async def test_stays_as_it_is(self, store: Store, tenant: Tenant, database: Database, is_settled: bool) -> None:
        held = await begin(store, tenant.ann)
        if is_settled:
            await store.settle(held, after=1, settlement=answered(held))
        await store.index_pending()
        before = await database.contents()
        assert not await store.compact(settled_before=database.now - int(HOUR * 1000))
        assert await database.contents() == before

    async def test_that_still_runs_is_passed_over(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await compact(store, database)
        assert (await store.renew([held], lease_seconds=30))[0].is_held
        settled = await store.settle(held, after=1, settlement=answered(held))
        assert settled.turn.last_seq == 2
