"""Query plans: what runs every second on every worker must not cost more when there are more conversations."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.store.factories import Tenant
from turnkeep.store.postgres.io.statements import statements

CONVERSATIONS = 50_000
UNINDEXED = 3

# Every conversation has two settled turns and a title that can be found. The last three still wait for the index.
MANY_CONVERSATIONS = f"""
INSERT INTO turnkeep.conversations (id, org_id, workspace_id, user_id, kind, title, turn_count, next_ordinal,
                                    indexed_ordinal, created_at, updated_at)
SELECT format('conv_%s', n), $1, $2, 'user_1', 'chat', 'Title ' || n, 2, 3,
       CASE WHEN n > {CONVERSATIONS - UNINDEXED} THEN 0 ELSE 2 END, n, n
  FROM generate_series(1, {CONVERSATIONS}) n
"""
THEIR_TURNS = f"""
INSERT INTO turnkeep.turns (id, org_id, workspace_id, conversation_id, ordinal, active, status, principal_ref, source,
                            month, created_at, started_at, settled_at)
SELECT format('turn_%s_%s', n, ordinal), $1, $2, format('conv_%s', n), ordinal, true, 'succeeded', 'user_1', 'api',
       '2025-06', n, n, n
  FROM generate_series(1, {CONVERSATIONS}) n, generate_series(1, 2) ordinal
"""
THEIR_TITLES = f"""
INSERT INTO turnkeep.search_entries (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
SELECT format('conv_%s', n), format('conv_%s', n), -1, $1, $2, 'user_1', 'title'::tsvector
  FROM generate_series(1, {CONVERSATIONS - UNINDEXED}) n
"""


@pytest.fixture
async def connection(uri: str, tenant: Tenant) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection to a database with many conversations, whose statistics are current."""
    opened = await asyncpg.connect(uri)
    for insert in (MANY_CONVERSATIONS, THEIR_TURNS, THEIR_TITLES):
        await opened.execute(insert, tenant.org.id, tenant.workspace.id)
    await opened.execute("VACUUM ANALYZE")
    yield opened
    await opened.close()


class TestTheSweeper:
    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    async def test_finds_what_waits_for_the_search_index_without_reading_the_other_conversations(
        self, connection: "asyncpg.Connection[asyncpg.Record]", tenant: Tenant, mode: str
    ) -> None:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        for name in ("pending_conversations", "pending_titles"):
            await connection.execute(f"PREPARE {name} (text, bigint) AS {statements()[name]}")
            for workspace in ("NULL", f"'{tenant.workspace.id}'"):
                found = await connection.fetchval(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({workspace}, 100)"
                )
                [plan] = msgspec.json.decode(found)
                used = {node.get("Index Name") for node in nodes(plan["Plan"])}
                scans = [node["Node Type"] for node in nodes(plan["Plan"]) if "Seq Scan" in node["Node Type"]]
                assert plan["Plan"]["Actual Rows"] == UNINDEXED
                assert "conversations_to_index" in used, plan
                assert not scans, plan
                assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 100, plan

    async def test_finds_nothing_to_do_without_reading_what_has_ended(
        self, connection: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        await connection.execute("UPDATE turnkeep.conversations SET indexed_ordinal = 2 WHERE indexed_ordinal = 0")
        await connection.execute("VACUUM ANALYZE turnkeep.conversations")
        found = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements()['due_work']}")
        [plan] = msgspec.json.decode(found)
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 100, plan
        assert not any(await connection.fetchrow(statements()["due_work"]) or [True])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan and every plan below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
