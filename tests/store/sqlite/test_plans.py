"""Query plans: a turn must not cost more in a long conversation, and no statement reads what there is of everybody."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from tests.store.factories import Tenant, a_conversation, elsewhere, finish, finish_with_tool
from turnkeep.clock import FakeClock
from turnkeep.ids import ConversationId
from turnkeep.store.sqlite import SqliteStore
from turnkeep.store.sqlite.io.boundary import CurrentPrincipal, install_views
from turnkeep.store.sqlite.io.session import load_texts

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


LARGE = {
    "conversations",
    "turns",
    "messages",
    "turn_events",
    "turn_logs",
    "search_entries",
    "files",
    "table_rows",
    "usage",
    "webhook_deliveries",
}
WHOLE = {
    # What `turnkeep doctor --rows` compares.
    "row_counts",
    "row_problems",
    # Views, which are read with a condition.
    "my_conversations",
    "my_turns",
    "my_messages",
    "my_files",
    "my_table_rows",
    # Once for a workspace that is made or deleted, or for an erasure.
    "insert_workspace",
    "workspace_holds",
    "delete_workspace",
    "conversations_to_erase",
    "left_to_erase",
}
"""Statements that may read a large table whole."""


class TestAStatement:
    async def test_reads_no_large_table_whole(self, store: SqliteStore, path: Path) -> None:
        connection = apsw.Connection(str(path))
        install_views(connection, load_texts(), CurrentPrincipal())
        found = {name: scans for name, text in load_texts().items() if (scans := scanned(connection, text))}
        connection.close()
        assert {name: scans for name, scans in found.items() if name not in WHOLE} == {}
        assert set(found) >= {"row_counts", "my_turns"}, "this test sees scans"


def scanned(connection: apsw.Connection, text: str) -> set[str]:
    """The large tables that a statement reads whole. A partial index has only few of the rows of its table."""
    names = {table: table for table in LARGE}
    names |= {alias: table for table, alias in re.findall(r"\b(\w+)(?: AS)? (\w+)\b", text) if table in LARGE}
    values = dict.fromkeys(re.findall(r":(\w+)", text)) or [None] * len(set(re.findall(r"\?\d+", text)))
    plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", values)
    scans = [re.fullmatch(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", step) for *_, step in plan]
    partial = {
        "turns_held",
        "turns_single_flight",
        "turns_waiting",
        "webhook_deliveries_due",
        "webhook_deliveries_queue",
    }
    return {names[scan[1]] for scan in scans if scan and scan[1] in names and scan[2] not in partial}


class TestTurnsThatWait:
    async def test_cost_a_sweep_nothing(
        self, store: SqliteStore, tenant: Tenant, instructions: Instructions, path: Path
    ) -> None:
        async def cost() -> int:
            before = instructions.count
            assert not (await store.due_work(queue=False)).has_unindexed
            await store.adopt("worker-2", lease_seconds=10)
            await store.cancel_unwatched()
            await store.end_overdue_waits()
            return instructions.count - before

        await cost()
        alone = await cost()
        other = apsw.Connection(str(path))
        other.execute(
            """
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
            INSERT INTO turns (id, org_id, workspace_id, conversation_id, ordinal, active, status, attempt, last_seq,
                               principal_ref, source, month, background, waiting, waiting_until, created_at)
            SELECT 'turn_' || n, ?1, ?2, 'conv_' || n, 1, 1, 'running', 2, 3, 'user_1', 'api', '2025-06', 1,
                   '{"reason":"approval"}', 4000000000000 + n, n
              FROM numbers
            """,
            (tenant.org.id, tenant.workspace.id),
        )
        other.execute(
            """
            INSERT INTO conversations (id, org_id, workspace_id, kind, next_ordinal, created_at, updated_at)
            SELECT conversation_id, org_id, workspace_id, 'chat', 3, 1, 1 FROM turns WHERE waiting IS NOT NULL
            """
        )
        other.execute(
            """
            INSERT INTO turns (id, org_id, workspace_id, conversation_id, ordinal, active, status, attempt, last_seq,
                               principal_ref, source, month, background, created_at)
            SELECT id || 'q', org_id, workspace_id, conversation_id, 2, 0, 'queued', 0, 1, 'user_1', 'api', '2025-06',
                   1, 1
              FROM turns WHERE waiting IS NOT NULL
            """
        )
        [(unindexed,)] = other.execute("SELECT count(*) FROM unindexed").fetchall()
        assert isinstance(unindexed, int)
        assert unindexed >= 10_000
        other.close()
        assert (await store.due_work(queue=False)).has_unindexed
        await store.index_pending()
        assert await cost() <= alone + 50
