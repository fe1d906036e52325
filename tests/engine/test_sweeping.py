"""What the sweeper takes away."""

import pytest
from msgspec import structs

from tests.engine.rooms import QUICK, Room
from turnkeep.errors import NotFound


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
