"""Counters of usage: many turns at once are counted without waiting for each other, unless there is a limit."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec import structs

from tests.store.factories import Tenant, begin, claim, finish, wait_in_queue
from turnkeep.errors import QuotaExceeded
from turnkeep.model.principals import Workspace
from turnkeep.store.commands import UsageFilter
from turnkeep.store.postgres import PostgresStore

LOCK_COUNTERS = """
INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month)
SELECT $1, s.scope, s.id, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')
  FROM (VALUES ('workspace', $2), ('user', $3)) AS s (scope, id)
ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE SET cost = u.cost
"""


@pytest.fixture
async def connection(uri: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(uri)
    yield opened
    await opened.close()


async def counted(connection: "asyncpg.Connection[asyncpg.Record]", table: str) -> int:
    found: int = await connection.fetchval(f"SELECT count(*) FROM turnkeep.{table}")
    return found


async def lock_counters(connection: "asyncpg.Connection[asyncpg.Record]", tenant: Tenant) -> None:
    await connection.execute(LOCK_COUNTERS, tenant.org.id, tenant.workspace.id, tenant.ann.user_id)


async def limit_messages(store: PostgresStore, tenant: Tenant, limit: int) -> None:
    def change(workspace: Workspace) -> Workspace:
        return structs.replace(workspace, monthly_message_limit=limit)

    await store.change_workspace(tenant.org.id, tenant.workspace.id, change)


class TestACounterWithoutALimit:
    async def test_is_counted_while_another_transaction_holds_its_row(
        self, store: PostgresStore, tenant: Tenant, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        async with connection.transaction():
            await lock_counters(connection, tenant)
            async with asyncio.timeout(60):
                await finish(store, tenant.ann)
                held = await begin(store, tenant.ann)
                waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
                await store.request_cancel(tenant.ann, waiting.id)
        assert (await store.usage(tenant.ann)).messages == 2, "what never ran is not counted"

    async def test_says_the_same_after_it_was_added_up(
        self, store: PostgresStore, tenant: Tenant, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        for _ in range(3):
            await finish(store, tenant.ann)
        month = (await store.usage(tenant.ann)).month
        before = [
            await store.usage(tenant.ann),
            await store.usage(tenant.service),
            await store.usage_rows(tenant.service, UsageFilter(month=month), group_by="user"),
        ]
        assert await counted(connection, "usage_slots")
        assert await counted(connection, "usage_day_slots")
        while await store.add_up_usage(limit=1):
            pass
        assert not await counted(connection, "usage_slots") + await counted(connection, "usage_day_slots")
        after = [
            await store.usage(tenant.ann),
            await store.usage(tenant.service),
            await store.usage_rows(tenant.service, UsageFilter(month=month), group_by="user"),
        ]
        assert after == before
        await finish(store, tenant.ann)
        assert (await store.usage(tenant.ann)).messages == 4

    async def test_is_not_added_up_while_a_turn_is_being_counted(
        self, store: PostgresStore, tenant: Tenant, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        await finish(store, tenant.ann)
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM turnkeep.usage_slots FOR UPDATE")
            async with asyncio.timeout(60):
                await store.add_up_usage()
            assert await counted(connection, "usage_slots")
        assert (await store.usage(tenant.ann)).messages == 1


class TestACounterWithALimit:
    async def test_has_what_was_counted_before_there_was_one(self, store: PostgresStore, tenant: Tenant) -> None:
        for _ in range(2):
            await finish(store, tenant.ann)
        await limit_messages(store, tenant, 3)
        await finish(store, tenant.ann)
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.ann)
        await store.add_up_usage()
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.ann)

    async def test_lets_claims_wait_for_each_other(
        self, store: PostgresStore, tenant: Tenant, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        await limit_messages(store, tenant, 3)
        async with connection.transaction():
            await lock_counters(connection, tenant)
            claimed = asyncio.create_task(claim(store, tenant.ann))
            await asyncio.sleep(0.3)
            assert not claimed.done()
        async with asyncio.timeout(60):
            await claimed
