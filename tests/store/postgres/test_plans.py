"""Query plans: what runs every second, and what pages and turns read, must not cost more when there is more data, and
looks only at the partitions that its turns are in."""

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import asyncpg
import msgspec
import pytest
from msgspec import Struct

from tests.store.factories import Tenant, a_conversation, a_file, begin, finish
from turnkeep.ids import first_turn_id
from turnkeep.store.commands import ConversationFilter
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.pool import Connection
from turnkeep.store.postgres.io.statements import statements

FEW, MANY = 30_000, 500_000
USERS = 1_000
ANSWERED_LATER = 10_000
"""Turns that wait for a person."""
WAITING = 3
"""Conversations with turns that no search finds yet."""

MONTHS = 24
"""Their turns were made in so many months, each with its partitions of messages and events."""
MONTH_MS = 30 * 86_400_000
BEGINNING = time.time_ns() // 1_000_000

# One in a second, of a thousand users. Half of them have an agent, and hardly any is no chat, or unlisted. Each has a
# settled turn of two messages, and a title that can be found. For every ten there is a file, in a conversation or
# saved, of which the first few are deleted, and a table. In the first ten thousand a second turn waits for a person.
# Each user has slots of usage.
INSERTS = (
    """
INSERT INTO turnkeep.conversations (id, org_id, workspace_id, user_id, kind, title, turn_count, message_count,
                                    next_ordinal, indexed_ordinal, head_turn_id, created_at, updated_at, agent_id,
                                    external_id, is_listed)
SELECT format('conv_%s', n), {org}, {workspace}, format('user_%s', n % {users}),
       CASE n % 5000 WHEN 11 THEN 'run' WHEN 12 THEN 'sandbox' ELSE 'chat' END, 'Title ' || n, 1, 2, 2,
       CASE WHEN n > {size} - {waiting} THEN 0 ELSE 1 END, {turn}, n * 1000, n * 1000,
       CASE WHEN n % 5000 IN (11, 12, 13) THEN 'agent_rare' WHEN n % 2 = 0 THEN 'agent_usual' END, format('doc-%s', n),
       n % 5000 <> 14
  FROM generate_series(1, {size}) n
""",
    """
INSERT INTO turnkeep.turns (id, org_id, workspace_id, conversation_id, user_id, ordinal, active, status, attempt,
                            last_seq, principal_ref, source, month, created_at, started_at, settled_at)
SELECT {turn}, {org}, {workspace}, format('conv_%s', n), format('user_%s', n % {users}), 1, true,
       'succeeded', 1, 2, 'user_1', 'api', '2025-06', n * 1000, n * 1000, n * 1000
  FROM generate_series(1, {size}) n
""",
    """
INSERT INTO turnkeep.turns (id, org_id, workspace_id, conversation_id, user_id, ordinal, active, status, attempt,
                            last_seq, principal_ref, source, month, background, waiting, waiting_until, created_at)
SELECT format('turn_waits_%s', n), {org}, {workspace}, format('conv_%s', n), format('user_%s', n % {users}), 2, true,
       'running', 2, 3, 'user_1', 'api', '2025-06', true, '{{"reason":"approval"}}', 4000000000000 + n, n * 1000
  FROM generate_series(1, {answered_later}) n
""",
    """
INSERT INTO turnkeep.messages (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, blocks, created_at)
SELECT {turn}, s, format('msg_%s_%s', n, s), {org}, format('conv_%s', n),
       CASE s WHEN 0 THEN 'user' ELSE 'assistant' END, false, '[{{"type":"text","text":"Hello"}}]', n * 1000
  FROM generate_series(1, {size}) n, generate_series(0, 1) s
""",
    """
INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
SELECT {turn}, s, {org}, CASE s WHEN 1 THEN 'turn' ELSE 'result' END, '{{}}'
  FROM generate_series(1, {size}) n, generate_series(1, 2) s
""",
    """
INSERT INTO turnkeep.search_entries (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
SELECT format('conv_%s', n), CASE s WHEN -1 THEN format('conv_%s', n) ELSE {turn} END, s, {org},
       {workspace}, format('user_%s', n % {users}),
       array_to_tsvector(ARRAY['hello', 'number' || n] || CASE WHEN n <= 3 THEN '{{seldom}}'::text[] ELSE '{{}}' END)
  FROM generate_series(1, {size} - {waiting}) n, generate_series(-1, 0) s
""",
    """
INSERT INTO turnkeep.files (id, org_id, workspace_id, user_id, conversation_id, name, name_key, mime_type, size, sha256,
                            storage_key, source, status, created_at, deleted_at, saved_at)
SELECT format('file_%s', n), {org}, {workspace}, format('user_%s', n % {users}),
       CASE WHEN n % 20 = 1 THEN format('conv_%s', n) END, 'a', 'a',
       'text/plain', 1, md5(n::text) || md5(n::text), 'bag/' || n, 'user', 'ready', n * 1000,
       CASE WHEN n <= 30 THEN 1 END, CASE WHEN n % 20 <> 1 THEN n * 1000 END
  FROM generate_series(1, {size}, 10) n
""",
    """
INSERT INTO turnkeep.file_texts (org_id, sha256, text, created_at)
SELECT f.org_id, f.sha256 || '/plain', 'text', f.created_at FROM turnkeep.files f
""",
    """
INSERT INTO turnkeep.tables (id, org_id, workspace_id, name, name_key, description, columns, created_at, updated_at)
SELECT format('table_%s', n), {org}, {workspace}, 'Table ' || n, 'table ' || n, '', '[]', n * 1000, n * 1000
  FROM generate_series(1, {size}, 10) n
""",
    """
INSERT INTO turnkeep.webhooks (id, org_id, workspace_id, url, events, is_enabled, secret, created_at, updated_at)
SELECT format('webhook_%s', n), {org}, {workspace}, 'https://example.com', '[]', true, '', 1, 1
  FROM generate_series(1, 10) n
""",
    """
INSERT INTO turnkeep.webhook_deliveries (webhook_id, id, org_id, user_id, conversation_id, type, data, status,
                                         created_at, not_before, give_up_at)
SELECT format('webhook_%s', n % 10 + 1), format('evt_%s', n), {org}, format('user_%s', n % {users}),
       format('conv_%s', n), 'turn.succeeded', '{{}}', CASE WHEN n <= 5 THEN 'pending' ELSE 'delivered' END,
       {later} - n, CASE WHEN n <= 5 THEN n END, 1
  FROM generate_series(1, {size}) n
""",
    """
INSERT INTO turnkeep.usage_slots (org_id, scope, scope_id, month, slot)
SELECT {org}, 'user', format('user_%s', n), '2025-06', 1 FROM generate_series(1, {users}) n
""",
    """
INSERT INTO turnkeep.usage_day_slots (org_id, workspace_id, day, user_id, agent_id, model, source, slot)
SELECT {org}, {workspace}, '2025-06-01', format('user_%s', n), '', '', 'api', 1 FROM generate_series(1, {users}) n
""",
)
LATER = 2**62
"""After everything that was made."""


class Case(Struct, frozen=True):
    """A statement, what it is given, how many rows it finds, and how many blocks it may read for them."""

    name: str
    values: tuple[Any, ...] = ()
    rows: int | None = None
    blocks: int = 60
    partitions: int = 1
    """Of how many partitions of a table it may look at rows or entries of an index."""
    by_array: bool = False
    """It finds turns by an array. PostgreSQL does not choose partitions by an array that a generic plan does not know,
    and looks once into the index of each."""
    as_client: bool = False


class Crowd(Struct, frozen=True):
    """A database with many conversations, whose statistics are current."""

    connection: Any
    tenant: Tenant
    size: int

    def turn(self, n: int) -> str:
        """The id of the turn of this conversation."""
        return first_turn_id(BEGINNING + n * pace(self.size))

    @property
    def sweep(self) -> tuple[Case, ...]:
        """What a worker asks while nothing happens, and what it does about the little that there is to do."""
        waiting = [f"conv_{n}" for n in range(self.size - WAITING + 1, self.size + 1)]
        none: list[str] = []
        some = [self.turn(n) for n in range(1, self.size, self.size // 10)]
        return (
            Case("due_work", (False,), rows=1, blocks=100),
            Case("due_work", (True,), rows=1, blocks=100),
            Case("park_waiting", (500,), rows=0),
            Case("backlog", rows=1, blocks=100),
            Case("hold_sweep", ("worker-1", 1_000)),
            Case("conversations_waiting", rows=0),
            Case("expired_turns", (50, False), rows=0),
            Case("cancel_unwatched", rows=0),
            Case("end_overdue_waits", rows=0),
            Case("last_seqs", ([self.turn(n) for n in range(1, 11)],), rows=10),
            Case("make_partition", ("messages", "messages_first", self.turn(1), self.turn(2)), rows=1, blocks=200),
            Case("turns_to_compact", ("", 10), rows=10),
            Case("events_of_turns", (some,), rows=2 * len(some), blocks=200, partitions=len(some), by_array=True),
            Case("rows_of_turns", (some,), rows=2 * len(some), blocks=200, partitions=len(some), by_array=True),
            Case(
                "compact_turns",
                (self.turn(9), some, some, [0] * len(some)),
                rows=0,
                blocks=1_500,
                partitions=len(some),
                by_array=True,
            ),
            Case(
                "turns_to_pack", (self.turn(1), self.turn(self.size // MONTHS), 10), rows=10, blocks=100, partitions=2
            ),
            Case("pack_events", (some,), rows=0, blocks=1_000, partitions=len(some), by_array=True),
            Case("delete_idle", (LATER, "conv_2", 10), rows=10, blocks=500),
            Case("delete_unlisted", (LATER, "~", 4), rows=4, blocks=300),
            Case("add_up_slots", (10,), rows=10, blocks=300),
            Case("add_up_day_slots", (10,), rows=10, blocks=400),
            Case("turns_to_purge", (["conv_41", "conv_61"],), rows=4),
            Case("purge_messages", (some[:3],), rows=0, blocks=200, partitions=3, by_array=True),
            Case("purge_events", (some[:3],), rows=0, blocks=200, partitions=3, by_array=True),
            Case("pending_titles", (None, 500), rows=WAITING),
            Case("pending_titles", (self.tenant.workspace.id, 500), rows=WAITING),
            Case("pending_conversations", (None, 500, 50), rows=WAITING),
            Case("pending_conversations", (self.tenant.workspace.id, 500, 50), rows=WAITING),
            Case("rows_to_index", (waiting, [0] * WAITING, [1] * WAITING), rows=2 * WAITING),
            Case(
                "index_turns",
                (waiting, [0] * WAITING, [1] * WAITING, ["x"] * WAITING, ["x"] * WAITING, *[none] * 4),
                rows=WAITING,
                blocks=150,
            ),
            Case("take_erasures", (1_000, 10), rows=0),
            Case("take_entries", (100, 1_000), rows=0),
            Case("take_deliveries", ("", none, none, 8, 64, 1_000), rows=5, blocks=250),
            Case("take_deliveries", ("webhook_4", ["webhook_5"], none, 8, 64, 1_000), rows=1, blocks=150),
            Case("purge_old_deliveries", (0, 100), rows=0),
            Case("purge_orphaned_deliveries", (100,), rows=0, blocks=120),
            Case("purgeable", (LATER, 100), rows=0),
            Case("purgeable_files", (none, LATER, 100), rows=3),
            Case("purgeable_files", (["conv_41", "conv_61"], 0, 100), rows=2),
            Case("lock_purgeable", (LATER, none), rows=0),
            Case("drop_unfinished_files", (LATER, LATER, 100), rows=0),
            Case("drop_lost_texts", (100,), rows=0),
            Case("tables_to_erase", (LATER,), rows=0),
            Case("erase_old_batches", (LATER,), rows=0),
        )

    @property
    def reads(self) -> tuple[Case, ...]:
        """The lists, the transcript, the window, and a search."""
        org, workspace = self.tenant.org.id, self.tenant.workspace.id
        middle = self.size // 2 * 1_000
        user = (org, workspace, "user_7")
        everyone, owner, anyone = (org, workspace, "*"), user, (org, workspace, None)
        found = [f"conv_{n}" for n in range(1, 4)]
        return (
            Case("my_conversations", (*user, LATER, "~", 21), rows=21, blocks=250, as_client=True),
            Case(
                "my_conversations",
                (*user, middle, "~", 21),
                rows=min(21, self.size // USERS // 2),
                blocks=250,
                as_client=True,
            ),
            Case("my_conversations", (*everyone, LATER, "~", 21), rows=21, blocks=900, as_client=True),
            Case("my_conversations", (*everyone, middle, "~", 21), rows=21, blocks=900, as_client=True),
            Case("my_conversation", (*everyone, "conv_7"), rows=1, as_client=True),
            Case("my_conversation_with_queue", (*everyone, "conv_7"), rows=1, as_client=True),
            Case("my_transcript", (*everyone, "conv_7", False, 2**31 - 1, 0, 51), rows=2, as_client=True),
            Case("my_transcript", (*everyone, "conv_7", True, 0, -1, 51), rows=2, as_client=True),
            Case("my_saved_files", (*user, "~", 51), as_client=True, blocks=600),
            Case("window", ("conv_7", 20, 1_001, 2**31 - 1), rows=2, partitions=2),
            Case("events_after", (self.turn(7), 0, 1_000), rows=2),
            Case("turn_rows", (self.turn(7),), rows=2),
            Case("old_events", (self.turn(7),), rows=0),
            Case("conversation_rows", ("conv_7", 0, -1, 100), rows=2, partitions=2),
            Case("conversation_of_host", (workspace, "user_7", "doc-7"), rows=1),
            Case("listed_conversations", (*anyone, LATER, "~", 21, only(external_id="doc-7")), rows=1),
            Case("listed_conversations", (*owner, LATER, "~", 21, only(external_id="doc-7", since=1)), rows=1),
            Case("listed_conversations", (*anyone, LATER, "~", 21, only(external_id="none")), rows=0),
            Case("listed_conversations", (*anyone, LATER, "~", 3, only(agent_id="agent_rare")), rows=3),
            Case("listed_conversations", (*owner, LATER, "~", 21, only(agent_id="agent_rare")), rows=0, blocks=800),
            Case("listed_conversations", (*anyone, LATER, "~", 21, only(agent_id="agent_usual")), rows=21, blocks=900),
            Case("listed_conversations", (*anyone, LATER, "~", 3, only(kind="run")), rows=3),
            Case("listed_conversations", (*anyone, LATER, "~", 3, only(kind="sandbox", since=1)), rows=3),
            Case("listed_conversations", (*anyone, LATER, "~", 21, only(kind="chat")), rows=21, blocks=900),
            Case("listed_conversations", (*owner, LATER, "~", 21, only(since=1)), rows=21, blocks=250),
            Case("listed_conversations", (*anyone, LATER, "~", 21, only(since=LATER)), rows=0),
            Case("found_conversations", (*owner, "number7", LATER, "~", 21, None), rows=1),
            Case("found_conversations", (*owner, "number7", LATER, "~", 21, only(since=1)), rows=1),
            Case("found_conversations", (*owner, "hello", LATER, "~", 21, None), rows=21, blocks=1_000),
            Case("found_conversations", (*anyone, "seldom", LATER, "~", 21, None), rows=3, blocks=120),
            Case("found_conversations", (*anyone, "hello", LATER, "~", 21, None), rows=21, blocks=6_000),
            Case("found_conversations", (*anyone, "hello", LATER, "~", 3, only(kind="run")), rows=3, blocks=6_000),
            Case("found_messages", (found, "seldom"), rows=3),
            Case("my_found", (*everyone, found), rows=3, as_client=True),
            Case("my_messages", (*everyone, [self.turn(1), self.turn(2)], [0, 1]), rows=2, as_client=True),
        )

    async def problems(self, cases: Sequence[Case], mode: str) -> list[str]:
        """What is wrong with the plans of these statements."""
        return [problem for case in cases for problem in await self._problems(case, mode)]

    async def _problems(self, case: Case, mode: str) -> list[str]:
        await self.connection.execute("BEGIN")
        try:
            await self.connection.execute(
                f"SET LOCAL ROLE {'turnkeep_client' if case.as_client else 'turnkeep_engine'}"
            )
            await self.connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            await self.connection.execute(f"PREPARE asked AS {statements()[case.name]}")
            asked = f"asked ({', '.join(map(_literal, case.values))})" if case.values else "asked"
            await self.connection.execute("SAVEPOINT unchanged")
            await self.connection.execute(f"EXECUTE {asked}")  # so that what it needs of the catalogue is known
            await self.connection.execute("ROLLBACK TO unchanged")
            found = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {asked}")
        finally:
            await self.connection.execute("ROLLBACK")
            await self.connection.execute("DEALLOCATE asked")
        [plan] = msgspec.json.decode(found)
        return list(_problems(case, plan["Plan"], mode))


def only(**fields: Any) -> str:
    """A filter as it is sent."""
    return msgspec.json.encode(ConversationFilter(**fields)).decode()


def _problems(case: Case, plan: dict[str, Any], mode: str) -> Iterator[str]:
    label = f"{case.name}{case.values}"[:120]
    blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    if blocks > case.blocks:
        yield f"{label} read {blocks} blocks, more than {case.blocks}"
    if case.rows is not None and plan["Actual Rows"] != case.rows:
        yield f"{label} found {plan['Actual Rows']} rows, not {case.rows}"
    most = max(Counter(visited(plan)).values(), default=0)
    if most > case.partitions and not (case.by_array and mode == "force_generic_plan"):
        yield f"{label} looked at {most} partitions, more than {case.partitions}"
    for node in nodes(plan):
        if "Seq Scan" in node["Node Type"] and LARGE.match(node["Relation Name"]) and not is_small(node):
            yield f"{label} reads all of {node['Relation Name']}"


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(_literal, value))}]" if value else "'{}'"
    if isinstance(value, bool) or value is None:
        return {None: "NULL", True: "true", False: "false"}[value]
    return repr(value)


def visited(plan: dict[str, Any]) -> list[str]:
    """For each partition that the plan has looked at, the table that it is of. Others were left out, or never read."""
    read = {node["Relation Name"] for node in nodes(plan) if "Relation Name" in node and node["Actual Loops"]}
    return [found[1] for name in read if (found := PARTITION.match(name))]


def is_small(node: dict[str, Any]) -> bool:
    """Whether it is a partition with hardly any rows, which is best read as a whole."""
    return bool(PARTITION.match(node["Relation Name"])) and node["Shared Hit Blocks"] + node["Shared Read Blocks"] <= 2


PARTITION = re.compile(r"(messages|turn_events)_(first|other|\d+_\d+)$")
LARGE = re.compile(
    rf"(conversations|turns|search_entries|files|file_texts|tables|webhook_deliveries)$|{PARTITION.pattern}"
)


def pace(size: int) -> int:
    """The milliseconds between two turns, if this many are made in all months."""
    return MONTHS * MONTH_MS // size


@pytest.fixture(params=[pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.nightly)])
async def crowd(request: pytest.FixtureRequest, uri: str, store: PostgresStore, tenant: Tenant) -> AsyncIterator[Crowd]:
    connection = await asyncpg.connect(uri)
    size = request.param
    for month in range(MONTHS):
        await store.make_partitions(now=BEGINNING + month * MONTH_MS)
    names = {
        "org": f"'{tenant.org.id}'",
        "workspace": f"'{tenant.workspace.id}'",
        "users": USERS,
        "waiting": WAITING,
        "answered_later": ANSWERED_LATER,
        "turn": f"'turn_' || lpad(to_hex({BEGINNING} + n * {pace(size)}::bigint), 12, '0')",
        "size": size,
        "later": LATER,
    }
    for insert in INSERTS:
        await connection.execute(insert.format(**names))
    # As autovacuum does it: it visits partitions, and not the tables that they are of.
    tables = await connection.fetch(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace AND relkind = 'r'"
    )
    await connection.execute(f"VACUUM ANALYZE {', '.join(table for (table,) in tables)}")
    yield Crowd(connection, tenant, size)
    await connection.close()


class TestManyConversations:
    async def test_make_no_statement_of_a_sweep_read_more(self, crowd: Crowd) -> None:
        for mode in ("force_custom_plan", "force_generic_plan"):
            assert "\n".join(await crowd.problems(crowd.sweep, mode)) == ""

    async def test_make_no_list_page_window_or_search_read_more(self, crowd: Crowd) -> None:
        for mode in ("force_custom_plan", "force_generic_plan"):
            assert "\n".join(await crowd.problems(crowd.reads, mode)) == ""


BY_KEY = {
    *("adopt_turns", "promotion_facts", "start_waiting", "index_titles", "limits_of"),
    *("compacted_up_to", "partitions", "drop_partition", "not_purged"),
    *("purge_conversations", "purge_deleted_files", "purge_files", "purge_logs", "purge_outbox", "purge_search"),
    *("purge_tokens", "purge_turns", "erase_rows", "erase_table", "end_import"),
}
"""What a sweep does about rows whose keys it has found, and what it asks the catalogue or a table of one row."""


class TestASweep:
    async def test_has_no_statement_that_is_not_looked_at_here(
        self, store: PostgresStore, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names, asked = {text: name for name, text in statements().items()}, set[str]()
        fetch = Connection.fetch

        async def noted(connection: Connection, query: str, *values: Any) -> Any:
            asked.add(names[query])
            return await fetch(connection, query, *values)

        old = await finish(store, tenant.ann)
        await store.hand_over([await begin(store, tenant.ann)])
        gone = await a_conversation(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=gone.id)
        await store.delete_conversation(tenant.ann, gone.id)
        monkeypatch.setattr(Connection, "fetch", noted)
        await store.due_work()
        await store.backlog()
        await store.hold_sweep("worker-1", seconds=1)
        await store.promote_waiting()
        await store.end_overdue_waits()
        await store.adopt("worker-1", lease_seconds=1)
        await store.cancel_unwatched()
        await store.last_seqs([old.id])
        await store.take_erasures(lease_seconds=1)
        await store.take_entries(lease_seconds=1)
        await store.index_pending()
        await store.add_up_usage()
        await store.purge_deliveries()
        await store.purge_knowledge(before=LATER)
        await store.delete_idle(unchanged_since=0)
        await store.delete_unlisted(unchanged_since=0)
        await store.purge(deleted_before=LATER)
        await store.drop_unfinished(created_before=LATER, unused_before=LATER)
        await store.compact(settled_before=LATER)
        await store.make_partitions(now=BEGINNING)
        await store.drop_partitions(ended_before=BEGINNING)
        assert {"adopt_turns", "compact_turns", "purge_conversations", "index_turns"} <= asked
        assert asked - BY_KEY == asked & {case.name for case in Crowd(None, tenant, FEW).sweep}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan and every plan below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
