"""What the sweeper takes away."""

import pytest
from msgspec import structs
from tests.engine.harness import QUICK, Room

from turnkeep.errors import NotFound
from turnkeep.model.knowledge import Column


class TestADeletedConversation:
    async def test_is_erased_after_the_days_of_the_settings(self, room: Room) -> None:
        engine = await room.enter([["Hi."]])
        turn = await room.answer(engine)
        await room.store.delete_conversation(room.ann, turn.conversation_id)
        await room.store.restore_conversation(room.ann, turn.conversation_id)
        await room.store.delete_conversation(room.ann, turn.conversation_id)
        await room.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def is_erased() -> bool:
            return not await room.rows(turn.id)

        await room.until(is_erased)
        with pytest.raises(NotFound):
            await room.store.restore_conversation(room.ann, turn.conversation_id)


class TestTheKeysOfRows:
    async def test_are_remembered_for_a_day_even_where_nothing_else_is(self, room: Room) -> None:
        engine = await room.enter([["Hi."]])
        turn = await room.answer(engine)
        table = await room.store.create_table(room.ann, name="T", columns=[Column(key=0, name="A", type="text")])
        await room.store.add_rows(room.ann, table.id, [["x"]], batch="k")
        await room.store.delete_conversation(room.ann, turn.conversation_id)
        await room.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def has_swept() -> bool:
            return not await room.rows(turn.id)

        await room.until(has_swept)
        assert await room.store.added_rows(room.ann, table.id, batch="k") == range(1, 2)
