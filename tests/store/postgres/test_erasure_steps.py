"""The erasure of a user who has very much: each statement ends within its time limit, and few rows are read."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import msgspec
import pytest

from tests.engine.harness import Cluster
from tests.servers import execute
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import Tenant, a_tenant
from tests.store.postgres.test_plans import nodes
from turnkeep.model.knowledge import Column
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io import pool
from turnkeep.store.postgres.io.statements import statements

CONVERSATIONS = 300
TURNS = 5
ROWS = 20_000

CONVERSATIONS_OF_USER = f"""
INSERT INTO turnkeep.conversations (id, org_id, workspace_id, user_id, kind, turn_count, next_ordinal, indexed_ordinal,
                                    created_at, updated_at)
SELECT format('conv_%s', n), $1, $2, $3, 'chat', {TURNS}, {TURNS + 1}, {TURNS}, n, n
  FROM generate_series(1, {CONVERSATIONS}) n
"""
TURNS_OF_USER = f"""
INSERT INTO turnkeep.turns (id, org_id, workspace_id, conversation_id, user_id, ordinal, active, status, principal_ref,
                            source, month, last_seq, created_at, started_at, settled_at)
SELECT format('turn_%s_%s', n, o), $1, $2, format('conv_%s', n), $3, o, true, 'succeeded', $3,
       'api', '2025-06', 4, n, n, n
  FROM generate_series(1, {CONVERSATIONS}) n, generate_series(1, {TURNS}) o
"""
EVENTS_OF_USER = """
INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
SELECT t.id, s, t.org_id, 'step', '{}' FROM turnkeep.turns t, generate_series(1, 4) s
"""
ROWS_OF_USER = f"""
INSERT INTO turnkeep.table_rows (table_id, number, org_id, cells, tokens, created_at, updated_at, user_id)
SELECT $1, n, $2, '["word"]', 'word'::tsvector, n, n, $3 FROM generate_series(1, {ROWS}) n
"""

# As on a busy disk, a statement takes longer the more rows it deletes. To delete all rows at once takes eight seconds.
SLOW_ROWS = """
CREATE FUNCTION slow_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep((SELECT count(*) FROM gone) * 0.0004);
    RETURN NULL;
END $$;
CREATE TRIGGER slow_rows AFTER DELETE ON turnkeep.table_rows REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION slow_rows();
CREATE FUNCTION slow_conversations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(1.5);
    RETURN NULL;
END $$;
CREATE TRIGGER slow_conversations AFTER UPDATE ON turnkeep.conversations
    FOR EACH STATEMENT EXECUTE FUNCTION slow_conversations();
"""


@pytest.fixture
async def store(uri: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store whose statements have a second, and five seconds if they are marked as slow."""
    monkeypatch.setattr(pool, "SLOW_SECONDS", 5.0)
    opened = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, command_seconds=1.0)
    yield opened
    await opened.close()


async def have_much(store: PostgresStore, tenant: Tenant, uri: str) -> None:
    """Ann has conversations, and rows in a table of Bob's."""
    table = await store.create_table(tenant.bob, name="Bob's", columns=[Column(key=0, name="c", type="text")])
    await store.add_rows(tenant.bob, table.id, [["stays"]], batch="b")
    connection = await asyncpg.connect(uri)
    whose = (tenant.org.id, tenant.workspace.id, tenant.ann.user_id)
    await connection.execute(CONVERSATIONS_OF_USER, *whose)
    await connection.execute(TURNS_OF_USER, *whose)
    await connection.execute(EVENTS_OF_USER)
    await connection.execute("DELETE FROM turnkeep.table_rows WHERE table_id = $1", table.id)
    await connection.execute(ROWS_OF_USER, table.id, tenant.org.id, tenant.ann.user_id)
    await connection.execute(f"UPDATE turnkeep.tables SET row_count = {ROWS} WHERE id = $1", table.id)
    await connection.close()


async def test_a_user_who_has_much_is_erased_in_steps(store: PostgresStore, uri: str) -> None:
    async with AsyncExitStack() as stack:
        cluster = await Cluster.open(store, stack)
        tenant = cluster.tenant
        await have_much(store, tenant, uri)
        await execute(uri, SLOW_ROWS)
        engine = await cluster.enter([], start=False)
        assert tenant.ann.user_id is not None
        job = await engine.eraser.erase_user(tenant.service, tenant.ann.user_id)

        async def is_done() -> bool:
            found = await store.erasure(tenant.service, job.id)
            assert found.problem is None
            return found.done_at is not None

        await cluster.until(is_done, seconds=120)
        counts = (await store.erasure(tenant.service, job.id)).counts
        assert (counts.conversations, counts.turns) == (CONVERSATIONS, CONVERSATIONS * TURNS)
        assert counts.table_rows == ROWS
        [table] = (await store.tables(tenant.bob)).data
        assert table.row_count == 0


class TestThePlans:
    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    @pytest.mark.parametrize(
        "name, types, values",
        [
            ("left_to_erase", "text, text, text", "'{org}', '{workspace}', '{user}'"),
            ("conversations_to_erase", "text, text, text, bigint", "'{org}', '{workspace}', '{user}', 1000"),
            ("erase_rows_of_user", "text, text, bigint", "'{org}', '{user}', 1000"),
            ("erase_batches_of_user", "text", "'{user}'"),
        ],
    )
    async def test_do_not_read_what_others_have(self, uri: str, mode: str, name: str, types: str, values: str) -> None:
        store = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        tenant = await a_tenant(store)
        await have_much(store, tenant, uri)
        await store.close()
        given = values.format(org=tenant.org.id, workspace=tenant.workspace.id, user=tenant.bob.user_id)
        connection = await asyncpg.connect(uri)
        try:
            await connection.execute("VACUUM ANALYZE")
            await connection.execute(f"SET plan_cache_mode = {mode}")
            await connection.execute(f"PREPARE asked ({types}) AS {statements()[name]}")
            found = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked ({given})")
        finally:
            await connection.close()
        [plan] = msgspec.json.decode(found)
        assert not [node for node in nodes(plan["Plan"]) if node.get("Actual Rows", 0) >= CONVERSATIONS], plan
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 100, plan
