"""Growth: what a turn leaves behind in the tables and indexes of PostgreSQL."""

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from tests.store.contract.test_webhooks import a_webhook
from tests.store.factories import Tenant, finish
from turnkeep.store.commands import ConversationChange
from turnkeep.store.postgres import PostgresStore

TURNS = 40
BATCH = 600
AT_ONCE = 20
SOON = 2**62
"""Every turn has settled before this moment."""


def words(chance: random.Random) -> str:
    """1 KB of words of a vocabulary."""
    return " ".join(f"{chance.choice(SYLLABLES)}{chance.choice(SYLLABLES)}" for _ in range(300))[:1_000]


SYLLABLES = [first + second + third for first in "bdfgklmnprst" for second in "aeiou" for third in ("", "n", "r", "s")]


class TestATurn:
    async def test_changes_no_index_of_its_conversation(self, store: PostgresStore, tenant: Tenant, uri: str) -> None:
        """Such an update is HOT: it leaves nothing behind that only a vacuum removes."""
        first = await finish(store, tenant.ann)
        for _ in range(TURNS):
            await finish(store, tenant.ann, conversation_id=first.conversation_id, background=True)
            await store.index_pending()
            await store.change_conversation(tenant.ann, first.conversation_id, ConversationChange(is_unread=False))
        await store.close()  # connections report what they did when they end, if not before
        connection = await asyncpg.connect(uri)
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'conversations'"
        async with asyncio.timeout(60):
            while (updates := await connection.fetchrow(query) or (0, 0))[0] < 4 * TURNS:
                await asyncio.sleep(0.1)
                await connection.execute("SELECT pg_stat_clear_snapshot()")
        await connection.close()
        # The last change of a period moves the conversation in its list.
        assert updates[1] >= 0.9 * updates[0]

    @pytest.mark.nightly
    async def test_of_a_kilobyte_takes_five_at_most(self, store: PostgresStore, tenant: Tenant, uri: str) -> None:
        """With all indexes, the search among them, once it was compacted and delivered. Later turns use what that
        frees."""
        chance = random.Random(1)
        connection = await asyncpg.connect(uri)

        async def talk() -> None:
            conversation_id = None
            for _ in range(BATCH // AT_ONCE):
                turn = await finish(store, tenant.ann, "Tell me.", words(chance), conversation_id=conversation_id)
                conversation_id = turn.conversation_id

        async def grown() -> int:
            await asyncio.gather(*(talk() for _ in range(AT_ONCE)))
            while await store.index_pending():
                pass
            while await store.compact(settled_before=SOON):
                pass
            while entries := await store.take_entries(lease_seconds=60):
                await store.mark_delivered([entry.id for entry in entries])
            return await vacuumed_size(connection)

        await grown()
        before = await grown()
        taken = (await grown() - before) / BATCH
        await connection.close()
        assert taken <= 5 * 1024


CHANGES = {
    "the end of a turn": """
INSERT INTO turnkeep.outbox (id, org_id, workspace_id, type, conversation_id, subject_id, created_at, not_before)
VALUES ('evt_x', '{org}', '{workspace}', 'turn.succeeded', '{conversation}', '{turn}', 1, 1)
""",
    "a conversation": """
INSERT INTO turnkeep.conversations (id, org_id, workspace_id, kind, created_at, updated_at)
VALUES ('conv_x', '{org}', '{workspace}', 'chat', 1, 1)
""",
    "a file": """
INSERT INTO turnkeep.files (id, org_id, workspace_id, name, name_key, mime_type, size, storage_key, source, status,
                            created_at)
VALUES ('file_x', '{org}', '{workspace}', 'a', 'a', 'text/plain', 1, 'x', 'user', 'ready', 1)
""",
}


class TestAWorkspaceWithoutWebhooks:
    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    async def test_does_not_open_the_table_of_deliveries(
        self, store: PostgresStore, tenant: Tenant, uri: str, change: str
    ) -> None:
        """A table with many indexes is a tenth of what a new conversation costs."""
        turn = await finish(store, tenant.ann)
        names = {"org": tenant.org.id, "workspace": tenant.workspace.id, "turn": turn.id}
        change = change.format(**names, conversation=turn.conversation_id)
        assert not await opens_deliveries(uri, change)
        webhook = await a_webhook(store, tenant, ("turn.succeeded", "conversation.created", "file.created"))
        assert await opens_deliveries(uri, change)
        await store.delete_webhook(tenant.org.id, tenant.workspace.id, webhook.id)
        assert not await opens_deliveries(uri, change)


async def opens_deliveries(uri: str, statement: str) -> bool:
    """Whether this statement opens the table of deliveries in order to write to it. It is taken back."""
    connection = await asyncpg.connect(uri)
    await connection.execute("BEGIN")
    await connection.execute(statement)
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'RowExclusiveLock' "
        "AND relation = 'turnkeep.webhook_deliveries'::regclass)"
    )
    await connection.close()
    return found


async def vacuumed_size(connection: Any) -> int:
    tables = await connection.fetch(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace AND relkind = 'r'"
    )
    await connection.execute(f"VACUUM {', '.join(table for (table,) in tables)}")
    size: int = await connection.fetchval(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relnamespace = 'turnkeep'::regnamespace AND relkind = 'r'"
    )
    return size
