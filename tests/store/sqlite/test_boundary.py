"""The client connection: whatever the query says, its principal sees their own visible rows and nothing else."""

import asyncio
import random
from pathlib import Path

import apsw
import pytest
from msgspec import structs

from tests.store.factories import Tenant, a_conversation, a_file, a_tenant, as_user, finish, finish_with_tool
from turnkeep.errors import Forbidden, TurnkeepError
from turnkeep.model.agents import AgentSpec
from turnkeep.model.knowledge import Column
from turnkeep.model.principals import Principal
from turnkeep.store.sqlite import SqliteStore
from turnkeep.store.sqlite.io.boundary import (
    ENGINE_TABLES,
    TENANT_TABLES,
    VIEWS,
    CurrentPrincipal,
    close_boundary,
    install_views,
)
from turnkeep.store.sqlite.io.session import load_texts, open_reading

ATTACKS = [
    "SELECT * FROM messages",
    "SELECT count(*) FROM messages",
    "SELECT 1 FROM messages",
    "SELECT rowid FROM messages",
    "SELECT * FROM main.messages",
    "WITH my_messages AS (SELECT * FROM messages) SELECT * FROM my_messages",
    "WITH my_messages AS (SELECT * FROM main.messages) SELECT * FROM my_messages",
    "WITH my_messages(a) AS (SELECT blocks FROM messages) SELECT a FROM my_messages",
    "WITH RECURSIVE my_turns(a) AS (SELECT id FROM turns UNION SELECT a FROM my_turns) SELECT * FROM my_turns",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 9) SELECT n FROM c",
    "SELECT * FROM (SELECT * FROM messages) my_messages",
    "SELECT id FROM my_messages UNION ALL SELECT id FROM messages",
    "SELECT id FROM my_messages WHERE EXISTS (SELECT 1 FROM messages m WHERE m.internal = 1)",
    "SELECT (SELECT group_concat(blocks) FROM messages)",
    "SELECT m.* FROM my_conversations c JOIN messages m ON m.conversation_id = c.id",
    "SELECT max(blocks) OVER () FROM messages",
    "SELECT * FROM my_messages ORDER BY (SELECT payload FROM turn_events LIMIT 1)",
    "SELECT * FROM turn_events",
    "SELECT * FROM turn_logs",
    "SELECT secret_hash FROM api_keys",
    "SELECT * FROM one_time_tokens",
    "SELECT * FROM usage",
    "SELECT * FROM members",
    "SELECT secret_hash FROM sessions",
    "SELECT secret_hash FROM invites",
    "SELECT secret_hash FROM shares",
    "SELECT comment FROM feedback",
    "SELECT * FROM orgs",
    "SELECT * FROM search_entries",
    "SELECT * FROM search_tokens('secret')",
    "SELECT * FROM search_tokens WHERE search_tokens MATCH 'secret'",
    "SELECT * FROM search_tokens_data",
    "SELECT * FROM search_tokens_idx",
    "SELECT * FROM sqlite_schema",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM sqlite_temp_schema",
    "SELECT sql FROM temp.sqlite_master",
    "SELECT * FROM pragma_table_info('messages')",
    "SELECT * FROM pragma_table_list",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_function_list",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM bytecode('SELECT 1')",
    "PRAGMA table_list",
    "PRAGMA table_info(messages)",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA database_list",
    "ATTACH DATABASE ':memory:' AS other",
    "DETACH DATABASE main",
    "SELECT load_extension('x')",
    "SELECT readfile('x')",
    "SELECT sqlite_version()",
    "SELECT fts5_source_id()",
    "SELECT randomblob(10)",
    "CREATE TEMP VIEW peek AS SELECT * FROM messages",
    "CREATE TEMP TABLE peek AS SELECT * FROM messages",
    "CREATE TEMP TRIGGER peek INSTEAD OF INSERT ON my_messages BEGIN SELECT * FROM messages; END",
    "CREATE VIEW peek AS SELECT * FROM messages",
    "CREATE VIRTUAL TABLE temp.peek USING fts5vocab(main, search_tokens, 'row')",
    "CREATE INDEX peek ON messages (blocks)",
    "DROP VIEW my_messages",
    "DROP VIEW temp.my_messages",
    "ALTER TABLE messages RENAME TO my_own",
    "INSERT INTO messages SELECT * FROM messages",
    "INSERT INTO my_messages (id) VALUES ('msg_x')",
    "UPDATE messages SET internal = 0",
    "UPDATE my_messages SET internal = 0",
    "DELETE FROM messages",
    "DELETE FROM my_messages",
    "UPDATE sqlite_schema SET sql = ''",
    "INSERT INTO temp.sqlite_master VALUES (1, 2, 3, 4, 5)",
    "ANALYZE",
    "REINDEX",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "SAVEPOINT a",
    "SELECT 1; SELECT * FROM messages",
    "SELECT * FROM my_messages; DROP VIEW my_messages",
    "EXPLAIN SELECT * FROM my_messages",
    "EXPLAIN QUERY PLAN SELECT * FROM my_messages",
]


class TestAttacks:
    async def test_by_a_cte_that_is_called_like_a_view_are_refused_by_the_authorizer(
        self, store: SqliteStore, tenant: Tenant
    ) -> None:
        await finish_with_tool(store, tenant.ann)
        with pytest.raises(Forbidden):
            await store.client_query(
                tenant.ann, "WITH my_messages AS (SELECT * FROM messages) SELECT * FROM my_messages"
            )

    @pytest.mark.parametrize("sql", ATTACKS)
    async def test_are_refused(self, store: SqliteStore, tenant: Tenant, sql: str) -> None:
        await finish_with_tool(store, tenant.ann)
        for by in (tenant.ann, tenant.bob, tenant.service):
            with pytest.raises(TurnkeepError):
                await store.client_query(by, sql)

    async def test_by_someone_who_has_learned_an_inner_name_are_refused(
        self, store: SqliteStore, tenant: Tenant
    ) -> None:
        connection = open_reading(str(store.path))
        inner = install_views(connection, load_texts(), CurrentPrincipal())
        close_boundary(connection, inner)
        hidden = inner["my_messages"]
        for name in (hidden, hidden.upper(), f'"{hidden}"', f"[{hidden}]"):
            for sql in (f"WITH {name} AS (SELECT * FROM messages) SELECT * FROM {name}", f"SELECT * FROM {name}"):
                with pytest.raises((apsw.AuthError, apsw.ExecTraceAbort)):
                    connection.execute(sql).fetchall()
        connection.close()

    async def test_leave_the_connection_usable(self, store: SqliteStore, tenant: Tenant) -> None:
        await finish(store, tenant.ann)
        for sql in ATTACKS:
            with pytest.raises(TurnkeepError):
                await store.client_query(tenant.ann, sql)
        assert len(await store.client_query(tenant.ann, "SELECT id FROM my_messages")) == 2


class TestWhatIsSeen:
    async def test_ones_own_visible_rows(self, store: SqliteStore, tenant: Tenant) -> None:
        await finish_with_tool(store, tenant.ann, "Weather?", "Rain.")
        seen = await store.client_query(tenant.ann, "SELECT role, internal FROM my_messages ORDER BY turn_sequence")
        assert seen == [("user", 0), ("assistant", 0)]
        assert await store.client_query(tenant.bob, "SELECT * FROM my_messages") == []

    async def test_json_and_common_functions_work(self, store: SqliteStore, tenant: Tenant) -> None:
        await finish(store, tenant.ann, "Hello")
        sql = """
            WITH said AS (SELECT turn_sequence, blocks FROM my_messages)
            SELECT upper(json_extract(value, '$.text')) FROM said, json_each(said.blocks) WHERE turn_sequence = 0
        """
        assert await store.client_query(tenant.ann, sql) == [("HELLO",)]

    async def test_a_service_without_a_user_sees_its_workspace_and_nothing_internal(
        self, store: SqliteStore, tenant: Tenant
    ) -> None:
        await finish_with_tool(store, tenant.ann)
        await finish(store, tenant.bob)
        other = await a_tenant(store, "Other")
        await finish(store, other.ann)
        assert await store.client_query(tenant.service, "SELECT count(*), max(internal) FROM my_messages") == [(4, 0)]
        acting = as_user(tenant.service, tenant.bob)
        assert await store.client_query(acting, "SELECT count(*) FROM my_messages") == [(2,)]

    @pytest.mark.parametrize("view", VIEWS)
    async def test_a_member_without_a_user_sees_nothing_of_anybody(
        self, store: SqliteStore, tenant: Tenant, view: str
    ) -> None:
        turn = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        nobody = structs.replace(tenant.ann, user_id=None)
        if view != "my_agents":
            assert await store.client_query(nobody, f"SELECT * FROM {view}") == []

    async def test_nobody_sees_nothing(self, store: SqliteStore, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        await store.create_agent(tenant.ann, AgentSpec(name="helper"))
        await store.create_page(tenant.ann, title="Page", content="")
        table = await store.create_table(tenant.ann, name="T", columns=[Column(key=0, name="A", type="text")])
        await store.add_rows(tenant.ann, table.id, [["x"]], batch="b")
        session = store._client_session()
        for view in VIEWS:
            assert session.connection.execute(f"SELECT * FROM {view}").fetchall() == []
        session.current_principal.set(tenant.ann)
        for view in VIEWS:
            assert session.connection.execute(f"SELECT * FROM {view}").fetchall() != []
        session.current_principal.unset()
        for view in VIEWS:
            assert session.connection.execute(f"SELECT * FROM {view}").fetchall() == []
        session.connection.close()

    async def test_what_was_deleted_is_gone_with_all_that_hangs_on_it(self, store: SqliteStore, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        for view in VIEWS:
            assert await store.client_query(tenant.ann, f"SELECT * FROM {view}") == []

    async def test_a_child_row_counts_as_its_conversations_owner_whatever_it_says(
        self, store: SqliteStore, tenant: Tenant, path: Path
    ) -> None:
        turn = await finish(store, tenant.ann)
        assert tenant.bob.user_id is not None
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE turns SET user_id = ? WHERE id = ?", (tenant.bob.user_id, turn.id))
        connection.close()
        assert await store.client_query(tenant.bob, "SELECT id FROM my_turns") == []
        assert await store.client_query(tenant.ann, "SELECT id FROM my_turns") == [(turn.id,)]

    async def test_ten_thousand_queries_of_two_tenants_on_one_connection_leak_nothing(self, path: Path) -> None:
        store = await SqliteStore.open(path, readers=1)
        owners: list[tuple[Principal, str]] = []
        for name in ("One", "Two"):
            tenant = await a_tenant(store, name)
            owners += [(by, (await a_conversation(store, by)).id) for by in (tenant.ann, tenant.bob)]
        chance = random.Random(20)
        for _ in range(100):
            asked = [chance.choice(owners) for _ in range(100)]
            answers = await asyncio.gather(
                *(store.client_query(by, "SELECT id FROM my_conversations") for by, _ in asked)
            )
            assert answers == [[(conversation_id,)] for _, conversation_id in asked]
        await store.close()


class TestTheCatalogue:
    async def test_every_table_is_behind_a_view_or_the_engines_alone(self, store: SqliteStore, path: Path) -> None:
        """A new table fails here until somebody has decided."""
        connection = apsw.Connection(str(path))
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        tables = {name for (name,) in found}
        connection.close()
        assert tables - TENANT_TABLES - ENGINE_TABLES == set()
        assert TENANT_TABLES | (ENGINE_TABLES & tables) == tables
        assert not TENANT_TABLES & ENGINE_TABLES

    def test_every_tenant_table_has_a_view_that_asks_who_reads(self) -> None:
        texts = load_texts()
        assert {f"my_{table}" for table in TENANT_TABLES} == set(VIEWS)
        for view in VIEWS:
            assert "turnkeep_org()" in texts[view]
            assert "turnkeep_workspace()" in texts[view]

    async def test_a_client_connection_cannot_write_even_without_its_authorizer(
        self, store: SqliteStore, tenant: Tenant
    ) -> None:
        session = store._client_session()
        session.connection.authorizer = None
        with pytest.raises(apsw.ReadOnlyError):
            session.connection.execute("DELETE FROM messages")
        session.connection.close()

    async def test_a_store_on_one_connection_serves_no_queries_of_others(self, tmp_path: Path) -> None:
        alone = await SqliteStore.open(tmp_path / "alone.db", exclusive=True)
        tenant = await a_tenant(alone)
        turn = await finish(alone, tenant.ann)
        with pytest.raises(Forbidden):
            await alone.client_query(tenant.ann, "SELECT 1")
        assert len((await alone.transcript(tenant.ann, turn.conversation_id)).data) == 2
        await alone.close()
