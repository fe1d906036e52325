"""The boundary on PostgreSQL: whatever a query says, the client path shows a principal its own visible rows alone."""

import asyncio
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.servers import execute
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import Tenant, a_conversation, a_file, a_tenant, elsewhere, finish, finish_with_tool
from turnkeep.errors import BoundaryBroken, Forbidden, NotFound, TurnkeepError
from turnkeep.model.agents import AgentSpec
from turnkeep.model.knowledge import Column
from turnkeep.model.principals import Principal
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.roles import client_login
from turnkeep.store.postgres.io.statements import in_this_release, statements

READABLE = {"conversations", "turns", "messages", "turn_reports", "files", "agents", "pages", "tables", "table_rows"}

REFUSED = [
    "SELECT * FROM turnkeep.api_keys",
    "SELECT * FROM turnkeep.one_time_tokens",
    "SELECT * FROM turnkeep.turn_events",
    "SELECT * FROM turnkeep.turn_logs",
    "SELECT * FROM turnkeep.search_entries",
    "SELECT * FROM turnkeep.passages",
    "SELECT * FROM turnkeep.file_texts",
    "SELECT * FROM turnkeep.row_batches",
    "SELECT tokens FROM turnkeep.table_rows",
    "SELECT turnkeep.add_rows('a', 'b', 'c', 'd', '{}', '{}')",
    "SELECT * FROM turnkeep.usage",
    "SELECT * FROM turnkeep.members",
    "SELECT * FROM turnkeep.sessions",
    "SELECT * FROM turnkeep.invites",
    "SELECT * FROM turnkeep.shares",
    "SELECT * FROM turnkeep.feedback",
    "SELECT * FROM turnkeep.orgs",
    "SELECT * FROM turnkeep.workspaces",
    "SELECT * FROM turnkeep.schema_migrations",
    "SELECT * FROM turnkeep.schema_migrations_of_functions",
    "SELECT idempotency_key FROM turnkeep.turns",
    "SELECT worker FROM turnkeep.turns",
    "SELECT * FROM turnkeep.turns",
    "SELECT 1 FROM turnkeep.conversations FOR UPDATE",
    "INSERT INTO turnkeep.messages (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, blocks,"
    " created_at) VALUES ('t', 0, 'm', 'o', 'c', 'user', false, '[]', 1)",
    "UPDATE turnkeep.conversations SET title = 'mine'",
    "UPDATE turnkeep.messages SET internal = false",
    "DELETE FROM turnkeep.messages",
    "TRUNCATE turnkeep.messages",
    "DROP TABLE turnkeep.messages",
    "ALTER TABLE turnkeep.messages DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE turnkeep.messages NO FORCE ROW LEVEL SECURITY",
    "DROP POLICY client ON turnkeep.messages",
    "CREATE POLICY mine ON turnkeep.messages FOR SELECT USING (true)",
    "CREATE TABLE turnkeep.mine (a text)",
    "GRANT turnkeep_engine TO CURRENT_USER",
    "SET ROLE turnkeep_engine",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "SET row_security = off; SELECT * FROM turnkeep.messages",
    "COPY turnkeep.messages TO '/tmp/turnkeep-messages'",
    "COPY turnkeep.api_keys TO STDOUT",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('.')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT turnkeep.now_ms()",
    "SELECT * FROM turnkeep.renew('{}', '{}', 1)",
    "SELECT turnkeep.purge(9999999999999, 100)",
    "SELECT turnkeep.delete_conversation('a', 'b', NULL, 'c')",
    "SELECT turnkeep.write_entries('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
]

SEEN_BY_NOBODY_ELSE = [
    "SELECT id FROM turnkeep.messages WHERE internal",
    "SELECT id FROM turnkeep.messages WHERE org_id <> current_setting('turnkeep.org')",
    "WITH messages AS (SELECT * FROM turnkeep.messages) SELECT id FROM messages WHERE internal",
    "SELECT m.id FROM turnkeep.messages m LEFT JOIN turnkeep.turns t ON t.id = m.turn_id WHERE m.internal",
    "SELECT id FROM turnkeep.conversations WHERE user_id <> current_setting('turnkeep.user')",
    "SELECT id FROM turnkeep.conversations WHERE deleted_at IS NOT NULL",
    "SELECT id FROM turnkeep.turns t WHERE NOT EXISTS"
    " (SELECT 1 FROM turnkeep.conversations c WHERE c.id = t.conversation_id)",
    "SELECT id FROM turnkeep.files WHERE workspace_id <> current_setting('turnkeep.workspace')",
    "SELECT id FROM turnkeep.agents WHERE workspace_id <> current_setting('turnkeep.workspace')",
    "SELECT id FROM turnkeep.messages WHERE internal AND pg_sleep(0) IS NOT NULL",
    "SELECT id FROM turnkeep.pages WHERE workspace_id <> current_setting('turnkeep.workspace')",
    "SELECT id FROM turnkeep.tables WHERE deleted_at IS NOT NULL OR org_id <> current_setting('turnkeep.org')",
    "SELECT number FROM turnkeep.table_rows WHERE org_id <> current_setting('turnkeep.org')",
]


async def two_tenants(store: PostgresStore) -> tuple[Tenant, Tenant]:
    tenants = await a_tenant(store, "Acme"), await a_tenant(store, "Umbrella")
    for each in tenants:
        for by in (each.ann, each.bob):
            await finish_with_tool(store, by)
            await a_file(store, by)
        gone = await finish(store, each.ann)
        await store.delete_conversation(each.ann, gone.conversation_id)
        await store.create_agent(each.service, AgentSpec(name="helper"))
        await store.create_page(each.service, title="Page", content="secret")
        columns = [Column(key=0, name="A", type="text")]
        tables = [await store.create_table(each.service, name=name, columns=columns) for name in ("Kept", "Gone")]
        for table in tables:
            await store.add_rows(each.service, table.id, [["secret"]], batch="b")
        await store.delete_table(each.service, tables[-1].id)
    return tenants


class TestTheCatalogue:
    async def test_every_table_has_forced_row_level_security_and_a_policy(self, uri: str) -> None:
        assert await problems(uri) == []

    async def test_a_new_table_without_any_of_it_is_found(self, uri: str) -> None:
        await execute(uri, "CREATE TABLE turnkeep.notes (id text, org_id text)")
        found = await problems(uri)
        assert found == ["the table notes has no forced row-level security", "the table notes has no policy"]

    async def test_the_client_may_read_nine_tables_and_write_none(self, uri: str) -> None:
        connection = await asyncpg.connect(uri)
        try:
            rows = await connection.fetch(
                "SELECT c.relname, p.privilege FROM pg_class c, "
                "unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) "
                "AS p (privilege) "
                "WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind IN ('r', 'p', 'S', 'v') "
                "AND (has_table_privilege('turnkeep_client', c.oid, p.privilege) OR (p.privilege IN "
                "('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND "
                "has_any_column_privilege('turnkeep_client', c.oid, p.privilege)))"
            )
            assert {tuple(row) for row in rows} == {(table, "SELECT") for table in READABLE}
            callable_ = await connection.fetch(
                "SELECT p.proname FROM pg_proc p WHERE p.pronamespace::regnamespace::text LIKE 'turnkeep%' "
                "AND has_function_privilege('turnkeep_client', p.oid, 'EXECUTE')"
            )
            names = {row[0] for row in callable_}
            assert {name for name in names if not name.startswith("my_")} == {"become", "siblings"}
            definers = await connection.fetch(
                "SELECT 1 FROM pg_proc p WHERE p.pronamespace::regnamespace::text LIKE 'turnkeep%' AND p.prosecdef"
            )
            assert definers == []
        finally:
            await connection.close()


class TestAttacks:
    @pytest.mark.parametrize("sql", REFUSED)
    async def test_are_refused(self, store: PostgresStore, tenant: Tenant, sql: str) -> None:
        await finish_with_tool(store, tenant.ann)
        with pytest.raises(TurnkeepError):
            await store.client_query(tenant.ann, in_this_release(sql))
        assert len((await store.conversations(tenant.ann)).data) == 1

    async def test_see_nothing_internal_foreign_or_deleted(self, store: PostgresStore) -> None:
        acme, umbrella = await two_tenants(store)
        for by in (acme.ann, acme.bob, umbrella.ann):
            for sql in SEEN_BY_NOBODY_ELSE:
                assert await store.client_query(by, sql) == [], sql
            assert len(await store.client_query(by, "SELECT id FROM turnkeep.conversations")) == 1
            assert len(await store.client_query(by, "SELECT id FROM turnkeep.messages")) == 2

    async def test_a_service_sees_its_workspace_but_nothing_internal(self, store: PostgresStore) -> None:
        acme, _ = await two_tenants(store)
        assert len(await store.client_query(acme.service, "SELECT id FROM turnkeep.conversations")) == 2
        assert await store.client_query(acme.service, "SELECT id FROM turnkeep.messages WHERE internal") == []

    async def test_a_user_without_a_name_owns_nothing(self, store: PostgresStore) -> None:
        acme, _ = await two_tenants(store)
        nobody = Principal(org_id=acme.org.id, workspace_id=acme.workspace.id, user_id=None, role="admin")
        for table in sorted(READABLE):
            assert await store.client_query(nobody, f"SELECT org_id FROM turnkeep.{table}") == []
        assert (await store.conversations(nobody)).data == ()

    async def test_without_an_identity_nothing_is_seen(self, uri: str, store: PostgresStore) -> None:
        await two_tenants(store)
        connection = await as_client(uri)
        try:
            for table in sorted(READABLE):
                assert await connection.fetch(f"SELECT org_id FROM turnkeep.{table}") == []
            # An identity that has ended leaves empty settings behind, not unset ones.
            await connection.fetch(in_this_release("SELECT turnkeep.become('', '', '')"))
            await connection.fetch("SELECT set_config('turnkeep.user', '*', false)")
            for table in sorted(READABLE):
                assert await connection.fetch(f"SELECT org_id FROM turnkeep.{table}") == []
        finally:
            await connection.close()


class TestAnIdentity:
    async def test_does_not_outlive_its_call_even_inside_a_transaction(
        self, uri: str, store: PostgresStore, tenant: Tenant
    ) -> None:
        turn = await finish(store, tenant.ann)
        who = (tenant.org.id, tenant.workspace.id, tenant.ann.user_id)
        connection = await as_client(uri)
        try:
            async with connection.transaction():
                rows = await connection.fetch(statements()["my_turn"], *who, turn.id)
                assert len(rows) == 1
                assert await connection.fetch("SELECT id FROM turnkeep.turns") == []
            assert await connection.fetch("SELECT id FROM turnkeep.turns") == []
        finally:
            await connection.close()

    async def test_does_not_outlive_a_call_that_failed(self, uri: str, store: PostgresStore, tenant: Tenant) -> None:
        await finish(store, tenant.ann)
        who = (tenant.org.id, tenant.workspace.id, tenant.ann.user_id)
        connection = await as_client(uri)
        try:
            with pytest.raises(asyncpg.PostgresError, match="LIMIT must not be negative"):
                await connection.fetch(statements()["my_saved_files"], *who, "file_g", -1)
            assert await connection.fetch("SELECT id FROM turnkeep.turns") == []
            async with connection.transaction():
                assert await connection.fetch(statements()["my_files"], *who, "conv_none") == []
                assert await connection.fetch("SELECT id FROM turnkeep.turns") == []
        finally:
            await connection.close()

    @pytest.mark.parametrize("prepared", [True, False])
    async def test_two_tenants_on_one_connection_never_meet(self, uri: str, prepared: bool) -> None:
        """As behind PgBouncer: one connection, 10,000 reads of two tenants in turn, some of which fail."""
        store = await PostgresStore.open(
            uri, client_password=CLIENT_PASSWORD, pool_size=1, prepared_statements=prepared
        )
        try:
            tenants = await two_tenants(store)
            principals = [tenants[0].ann, tenants[1].ann]
            own = [(await store.conversations(by)).data[0].conversation for by in principals]

            async def reads(side: int, count: int) -> int:
                leaks = 0
                for n in range(count):
                    by, mine, other = principals[side], own[side], own[1 - side]
                    if n % 4 == 0:
                        leaks += not await is_hidden(store, by, other.id)
                    elif n % 4 == 1:
                        rows = await store.client_query(by, "SELECT DISTINCT org_id FROM turnkeep.conversations")
                        leaks += rows != [(by.org_id,)]
                    else:
                        leaks += (await store.conversation(by, mine.id)) != mine
                return leaks

            total = 10_000 if prepared else 1_000
            assert sum(await asyncio.gather(reads(0, total // 2), reads(1, total // 2))) == 0
        finally:
            await store.close()


class TestTiming:
    async def test_a_foreign_conversation_is_found_out_by_one_lookup_however_long_it_is(
        self, uri: str, store: PostgresStore, tenant: Tenant
    ) -> None:
        foreign = await a_conversation(store, tenant.bob)
        for _ in range(100):
            await store.append(tenant.bob, foreign.id, elsewhere(foreign.id, "q", "between", "a"))
        await execute(uri, "VACUUM ANALYZE")
        connection = await as_client(uri)
        try:
            async with connection.transaction():
                who = (tenant.org.id, tenant.workspace.id, tenant.ann.user_id)
                await connection.fetch(in_this_release("SELECT turnkeep.become($1, $2, $3)"), *who)
                plan = await connection.fetchval(
                    "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT 1 FROM turnkeep.conversations "
                    f"WHERE id = '{foreign.id}'"
                )
        finally:
            await connection.close()
        assert msgspec.json.decode(plan)[0]["Plan"]["Shared Hit Blocks"] <= 4
        with pytest.raises(NotFound):
            await store.transcript(tenant.ann, foreign.id)


class TestOpening:
    async def test_refuses_a_client_that_is_a_superuser(self, uri: str) -> None:
        with pytest.raises(BoundaryBroken, match="superuser"):
            await PostgresStore.open(uri, client_url=uri)

    @pytest.mark.parametrize(
        "spoil, repair, reason",
        [
            ("ALTER ROLE {login} BYPASSRLS", "ALTER ROLE {login} NOBYPASSRLS", "bypasses"),
            ("GRANT turnkeep_engine TO {login}", "REVOKE turnkeep_engine FROM {login}", "role of the engine"),
            ("ALTER TABLE turnkeep.usage OWNER TO {login}", "ALTER TABLE turnkeep.usage OWNER TO postgres", "owns"),
            (
                "GRANT INSERT ON turnkeep.messages TO {login}",
                "REVOKE INSERT ON turnkeep.messages FROM {login}",
                "write",
            ),
            (
                "ALTER TABLE turnkeep.files NO FORCE ROW LEVEL SECURITY",
                "ALTER TABLE turnkeep.files FORCE ROW LEVEL SECURITY",
                "files has no forced",
            ),
            (
                "ALTER TABLE turnkeep.turns DISABLE ROW LEVEL SECURITY",
                "ALTER TABLE turnkeep.turns ENABLE ROW LEVEL SECURITY",
                "turns has no forced",
            ),
        ],
    )
    async def test_refuses_a_client_that_could_see_more(
        self, uri: str, store: PostgresStore, spoil: str, repair: str, reason: str
    ) -> None:
        login = client_login(await database_of(uri))
        await execute(uri, spoil.format(login=login))
        try:
            with pytest.raises(BoundaryBroken, match=reason):
                await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        finally:
            await execute(uri, repair.format(login=login))
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()

    async def test_engine_functions_stay_closed_to_the_client(self, store: PostgresStore, tenant: Tenant) -> None:
        for call in ("cancel_unwatched()", "promotion_facts('conv_x')", "release(ARRAY['a worker'])"):
            with pytest.raises(Forbidden):
                await store.client_query(tenant.service, in_this_release(f"SELECT turnkeep.{call}"))


async def is_hidden(store: PostgresStore, by: Principal, conversation_id: Any) -> bool:
    try:
        await store.transcript(by, conversation_id)
    except NotFound:
        return True
    return False


async def problems(uri: str) -> list[str]:
    login = client_login(await database_of(uri))
    connection = await asyncpg.connect(uri)
    try:
        known = await connection.fetchval("SELECT rolname FROM pg_roles WHERE rolname = $1", login)
        rows = await connection.fetch(statements()["boundary_problems"], known or "turnkeep_client")
        return [row[0] for row in rows]
    finally:
        await connection.close()


async def database_of(uri: str) -> str:
    connection = await asyncpg.connect(uri)
    try:
        name: str = await connection.fetchval("SELECT current_database()")
        return name
    finally:
        await connection.close()


async def as_client(uri: str) -> "asyncpg.Connection[asyncpg.Record]":
    return await asyncpg.connect(uri, user=client_login(await database_of(uri)), password=CLIENT_PASSWORD)
