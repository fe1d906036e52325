"""What the sweeper takes away."""

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster
from turnkeep.errors import NotFound
from turnkeep.model.knowledge import Column


class TestADeletedConversation:
    async def test_is_erased_after_the_days_of_the_settings(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]])
        turn = await cluster.answer(engine)
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.store.restore_conversation(cluster.ann, turn.conversation_id)
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def is_erased() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(is_erased)
        with pytest.raises(NotFound):
            await cluster.store.restore_conversation(cluster.ann, turn.conversation_id)


class TestTheKeysOfRows:
    async def test_are_remembered_for_a_day_even_where_nothing_else_is(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]])
        turn = await cluster.answer(engine)
        table = await cluster.store.create_table(cluster.ann, name="T", columns=[Column(key=0, name="A", type="text")])
        await cluster.store.add_rows(cluster.ann, table.id, [["x"]], batch="k")
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def has_swept() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(has_swept)
        assert await cluster.store.added_rows(cluster.ann, table.id, batch="k") == range(1, 2)
