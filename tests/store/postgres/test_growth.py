"""Growth: what a turn leaves behind in the tables and indexes of PostgreSQL."""

import asyncio

import asyncpg

from tests.store.factories import Tenant, finish
from turnkeep.store.postgres import PostgresStore

TURNS = 40


class TestATurn:
    async def test_changes_no_index_of_its_conversation(self, store: PostgresStore, tenant: Tenant, uri: str) -> None:
        """Such an update is HOT: it leaves nothing behind that only a vacuum removes."""
        first = await finish(store, tenant.ann)
        for _ in range(TURNS):
            await finish(store, tenant.ann, conversation_id=first.conversation_id)
            await store.index_pending()
        await store.close()  # connections report what they did when they end, if not before
        connection = await asyncpg.connect(uri)
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'conversations'"
        async with asyncio.timeout(60):
            while (updates := await connection.fetchrow(query) or (0, 0))[0] < 3 * TURNS:
                await asyncio.sleep(0.1)
                await connection.execute("SELECT pg_stat_clear_snapshot()")
        await connection.close()
        # The last change of a period moves the conversation in its list.
        assert updates[1] >= 0.9 * updates[0]
