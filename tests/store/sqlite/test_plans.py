"""Query plans: a turn must not cost more in a long conversation."""

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from tests.store.factories import Tenant, a_conversation, elsewhere, finish, finish_with_tool
from turnkeep.clock import FakeClock
from turnkeep.ids import ConversationId
from turnkeep.store.sqlite import SqliteStore

TURNS = 300


class Instructions:
    """Counts the instructions that SQLite's virtual machine runs, on every connection of a store."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.set_progress_handler(self._next, 1)

    def _next(self) -> bool:
        self.count += 1
        return False


@pytest.fixture
def instructions() -> Instructions:
    return Instructions()


@pytest.fixture
async def store(path: Path, clock: FakeClock, instructions: Instructions) -> AsyncIterator[SqliteStore]:
    apsw.connection_hooks.append(instructions.watch)
    try:
        opened = await SqliteStore.open(path, clock=clock)
    finally:
        apsw.connection_hooks.remove(instructions.watch)
    yield opened
    await opened.close()


class TestATurnOfALongConversation:
    async def test_costs_what_one_of_a_short_conversation_costs(
        self, store: SqliteStore, tenant: Tenant, instructions: Instructions
    ) -> None:
        async def cost(conversation_id: ConversationId) -> int:
            before = instructions.count
            await finish_with_tool(store, tenant.ann, conversation_id=conversation_id)
            await store.append(tenant.ann, conversation_id, elsewhere(conversation_id))
            await store.window(conversation_id, turns=2)
            return instructions.count - before

        short, long = [(await a_conversation(store, tenant.ann)).id for _ in range(2)]
        for conversation_id, turns in ((short, 3), (long, TURNS)):
            for _ in range(turns):
                await finish(store, tenant.ann, conversation_id=conversation_id)
        cost_of_short = await cost(short)
        assert await cost(long) < 1.2 * cost_of_short
