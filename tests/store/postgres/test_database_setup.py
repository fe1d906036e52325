"""Opening a database: migrated once, by whoever comes first, and refused when it is not what this release expects."""

import asyncio
import importlib
import re
from importlib.resources import files

import asyncpg
import msgspec
import pytest

from tests import servers
from tests.servers import execute
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import a_claim, a_tenant, begin, finish, transcript_of
from turnkeep.config import Settings
from turnkeep.errors import Defect, NotFound, SchemaMismatch, Unavailable
from turnkeep.runtime import open_store
from turnkeep.store.migrations import OLDEST_SERVED, Migration, load_migrations
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.migrate import check_schema, migrate
from turnkeep.store.postgres.io.roles import client_login, scram_verifier
from turnkeep.store.postgres.io.statements import functions, statements
from turnkeep_client.wire.events import Failure, TurnEvent


class TestMigrating:
    async def test_many_at_once_into_new_databases_of_one_server(self, uri: str) -> None:
        admin = servers.shared_postgres_uri()
        names = [f"fresh_{database_name(uri)}_{n}" for n in range(4)]
        uris = [await servers.create_database(admin, name) for name in names]
        try:
            stores = await asyncio.gather(
                *(PostgresStore.open(each, client_password=CLIENT_PASSWORD) for each in uris for _ in range(2))
            )
            for store in stores:
                await store.close()
        finally:
            for name in names:
                await servers.drop_database(admin, name)

    async def test_again_changes_nothing(self, uri: str, store: PostgresStore) -> None:
        before = await catalogue(uri)
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()
        assert await catalogue(uri) == before

    async def test_what_a_killed_migration_left_is_made_again(self, uri: str, store: PostgresStore) -> None:
        expected = {name for name, _ in await catalogue(uri)}
        own = functions().schema
        await execute(
            uri,
            f"DELETE FROM turnkeep.schema_migrations_of_functions WHERE schema_name = '{own}'; "
            f"CREATE FUNCTION {own}.leftover() RETURNS int LANGUAGE sql AS 'SELECT 1'; "
            f"DROP FUNCTION {own}.promotion_facts(text)",
        )
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()
        assert {name for name, _ in await catalogue(uri)} == expected

    async def test_without_migrating_an_old_one_is_refused(self, uri: str) -> None:
        await execute(uri, "DELETE FROM turnkeep.schema_migrations_of_functions")
        with pytest.raises(SchemaMismatch, match="lacks the functions of this release\\. Run `turnkeep migrate`"):
            await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=False)
        last = load_migrations("postgres")[-1]
        await execute(uri, f"DELETE FROM turnkeep.schema_migrations WHERE version = {last.version}")
        with pytest.raises(SchemaMismatch, match=f"migrations {last.version:04}_{last.name}. Run `turnkeep migrate`"):
            await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=False)


class TestOtherReleases:
    async def test_keep_their_functions_while_they_are_served(self, uri: str, store: PostgresStore) -> None:
        await another_release(uri, "turnkeep_served", migration=OLDEST_SERVED)
        await another_release(uri, "turnkeep_gone", migration=OLDEST_SERVED - 1)
        await execute(
            uri,
            "CREATE FUNCTION turnkeep.of_an_old_release() RETURNS int LANGUAGE sql AS 'SELECT 1'; "
            f"DELETE FROM turnkeep.schema_migrations_of_functions WHERE schema_name = '{functions().schema}'",
        )
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()
        names = {name for name, _ in await catalogue(uri)}
        assert "now_in_turnkeep_served" in names
        assert not names & {"now_in_turnkeep_gone", "of_an_old_release"}

    async def test_a_newer_one_may_migrate_while_a_store_is_open(self, uri: str, store: PostgresStore) -> None:
        tenant = await a_tenant(store)
        turn = await finish(store, tenant.ann)
        await newer_release(uri, oldest=len(load_migrations("postgres")))
        await finish(store, tenant.ann, conversation_id=turn.conversation_id)
        assert len(await transcript_of(store, tenant.ann, turn.conversation_id)) == 4
        assert "works with it until it is replaced" in (await store.check_ready() or "")

    @pytest.mark.parametrize("is_automatic", [True, False])
    async def test_a_newer_database_is_opened_if_it_works_with_this_release(
        self, uri: str, store: PostgresStore, is_automatic: bool
    ) -> None:
        tenant = await a_tenant(store)
        await newer_release(uri, oldest=len(load_migrations("postgres")))
        opened = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=is_automatic)
        await finish(opened, tenant.ann)
        await opened.close()

    async def test_a_correction_of_this_release_adds_its_functions_to_a_newer_database(
        self, uri: str, store: PostgresStore
    ) -> None:
        await newer_release(uri, oldest=len(load_migrations("postgres")))
        await execute(
            uri,
            f"DELETE FROM turnkeep.schema_migrations_of_functions WHERE schema_name = '{functions().schema}'; "
            "DROP POLICY client ON turnkeep.pages; "
            "CREATE POLICY client ON turnkeep.pages TO turnkeep_client USING (false)",
        )
        opened = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        tenant = await a_tenant(opened)
        await finish(opened, tenant.ann)
        with pytest.raises(NotFound):  # the policies of the newer release stay
            await opened.create_page(tenant.service, title="Page", content="words")
        await opened.close()

    async def test_a_newer_database_is_refused_if_it_does_not(self, uri: str) -> None:
        await newer_release(uri, oldest=999)
        for is_automatic in (True, False):
            with pytest.raises(SchemaMismatch, match="newer release"):
                await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=is_automatic)


class TestLocks:
    async def test_requests_go_on_while_a_migration_waits_for_a_long_transaction(
        self, uri: str, store: PostgresStore
    ) -> None:
        tenant = await a_tenant(store)
        blocking = await asyncpg.connect(uri)
        transaction = blocking.transaction()
        await transaction.start()
        await blocking.execute("LOCK TABLE turnkeep.turns IN ACCESS SHARE MODE")
        await boundary_changed(uri)
        migrating = asyncio.create_task(migrate(uri, client_password=CLIENT_PASSWORD))
        await waits_for_a_lock(uri)
        await finish(store, tenant.ann)
        assert not migrating.done()
        await transaction.rollback()
        await blocking.close()
        async with asyncio.timeout(60):
            await migrating
        await check_schema(uri)

    async def test_a_migration_that_gets_none_says_what_to_do(
        self, uri: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module("turnkeep.store.postgres.io.migrate")
        monkeypatch.setattr(module, "LOCK_TRIES", 2)
        monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
        blocking = await asyncpg.connect(uri)
        try:
            async with blocking.transaction():
                await blocking.execute("LOCK TABLE turnkeep.turns IN ACCESS SHARE MODE")
                await boundary_changed(uri)
                with pytest.raises(Unavailable, match="pg_stat_activity"):
                    await migrate(uri, client_password=CLIENT_PASSWORD)
        finally:
            await blocking.close()


class TestIndexesOfLargeTables:
    async def test_are_made_without_a_lock_and_again_where_that_failed(
        self, uri: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = load_migrations("postgres")
        sql = (
            "CREATE TABLE turnkeep.notes (id text);\n"
            "CREATE INDEX CONCURRENTLY turns_by_month\n    ON turnkeep.turns (month);\n"
            "CREATE INDEX notes_by_id ON turnkeep.notes (id);\n"
            "CREATE FUNCTION turnkeep.note_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\n"
            "CREATE TRIGGER notes_are_noted AFTER INSERT ON turnkeep.notes EXECUTE FUNCTION turnkeep.note_it();\n"
        )
        later = Migration(version=len(known) + 1, name="later", sql=sql)
        module = importlib.import_module("turnkeep.store.postgres.io.migrate")
        monkeypatch.setattr(module, "load_migrations", lambda _: (*known, later))
        await execute(uri, "DELETE FROM turnkeep.schema_migrations_of_functions")
        writing = await asyncpg.connect(uri)
        async with writing.transaction():
            # A writer of the table would hold up an index that is made with a lock, and not get on itself.
            await writing.execute("LOCK TABLE turnkeep.turn_events IN ROW EXCLUSIVE MODE")
            await migrate(uri, client_password=CLIENT_PASSWORD)
        await writing.close()
        await check_schema(uri)
        assert "note_it" in {name for name, _ in await catalogue(uri)}, "functions of migrations stay"
        await execute(
            uri, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'turnkeep.turns_by_month'::regclass"
        )
        with pytest.raises(SchemaMismatch, match="lacks the indexes turns_by_month\\. Run `turnkeep migrate`"):
            await check_schema(uri)
        await asyncio.gather(*(migrate(uri, client_password=CLIENT_PASSWORD) for _ in range(2)))
        await check_schema(uri)

    def test_no_migration_makes_them_with_a_lock(self) -> None:
        for migration in load_migrations("postgres")[OLDEST_SERVED:]:
            made = set(re.findall(r"CREATE TABLE turnkeep\.(\w+)", migration.sql))
            indexed = re.findall(r"CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\w+\s+ON turnkeep\.(\w+)", migration.sql)
            assert set(indexed) <= made, f"{migration.name}: write CREATE INDEX CONCURRENTLY"


class TestPreparing:
    @pytest.mark.parametrize("prepared", [True, False])
    async def test_a_setting_says_whether_statements_are_kept_prepared(self, uri: str, prepared: bool) -> None:
        """A pooler that gives each transaction another connection does not find them there again."""
        opened = await open_store(Settings(database_url=uri, database_prepared_statements=prepared))
        assert isinstance(opened, PostgresStore)
        tenant = await a_tenant(opened)
        await finish(opened, tenant.ann)
        assert (await opened.conversations(tenant.ann)).data
        kept = await opened.client_query(tenant.ann, "SELECT name FROM pg_prepared_statements WHERE name <> ''")
        await opened.close()
        assert bool(kept) == prepared


class TestRoles:
    async def test_a_user_without_rights_is_told_what_an_administrator_must_run(self, uri: str) -> None:
        async with limited_owner(uri) as (owner, admin, role):
            with pytest.raises(Defect, match="GRANT turnkeep_engine TO"):
                await PostgresStore.open(owner, client_password=CLIENT_PASSWORD)
            await execute(admin, f"GRANT turnkeep_engine TO {role}")
            with pytest.raises(Defect, match="CREATE ROLE"):
                await PostgresStore.open(owner, client_password=CLIENT_PASSWORD)

    async def test_an_owner_who_is_no_superuser_works_under_forced_row_level_security(self, uri: str) -> None:
        async with limited_owner(uri) as (owner, admin, role):
            login = client_login(database_name(owner))
            await execute(
                admin,
                f"GRANT turnkeep_engine TO {role}; CREATE ROLE {login} LOGIN "
                f"PASSWORD '{scram_verifier(CLIENT_PASSWORD)}'; GRANT turnkeep_client TO {login}",
            )
            store = await PostgresStore.open(owner, client_password=CLIENT_PASSWORD)
            tenant = await a_tenant(store)
            turn = await finish(store, tenant.ann)
            assert len(await transcript_of(store, tenant.ann, turn.conversation_id)) == 2
            assert len((await store.conversations(tenant.ann, query="hello")).data) == 1
            await store.close()

    def test_a_long_database_name_still_has_a_login(self) -> None:
        names = {client_login("d" * 60), client_login("d" * 61)}
        assert len(names) == 2
        assert all(len(name) <= 63 for name in names)


class TestWhatTheDatabaseHolds:
    async def test_events_are_stored_byte_for_byte_as_the_model_writes_them(
        self, uri: str, store: PostgresStore
    ) -> None:
        tenant = await a_tenant(store)
        held = await begin(store, tenant.ann)
        waiting = await store.claim(a_claim(tenant.ann, conversation_id=held.conversation_id, if_busy="enqueue"))
        deleted = await store.claim(a_claim(tenant.ann, conversation_id=held.conversation_id, if_busy="enqueue"))
        await store.request_cancel(tenant.ann, waiting.turn.id)
        await store.hand_over([held])
        await store.adopt("another", lease_seconds=30)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        connection = await asyncpg.connect(uri)
        try:
            rows = await connection.fetch(
                "SELECT type, payload FROM turnkeep.turn_events WHERE turn_id = ANY ($1::text[])",
                [held.turn_id, waiting.turn.id, deleted.turn.id],
            )
        finally:
            await connection.close()
        assert sorted(row["type"] for row in rows) == ["error", "error", "reset", "turn", "turn", "turn"]
        for row in rows:
            event = msgspec.json.decode(row["payload"], type=TurnEvent)
            assert row["payload"] == msgspec.json.encode(event).decode()
        ended = {row["payload"] for row in rows if row["type"] == "error"}
        assert ended == {msgspec.json.encode(Failure(code="cancelled", message="Stopped before it began.")).decode()}

    async def test_every_named_query_is_valid_sql(self, uri: str) -> None:
        connection = await asyncpg.connect(uri)
        try:
            for text in statements().values():
                await connection.prepare(text)
        finally:
            await connection.close()

    def test_no_function_runs_with_the_rights_of_its_owner(self) -> None:
        folder = files("turnkeep.store") / "sql" / "postgres" / "functions"
        assert not [file.name for file in folder.iterdir() if "SECURITY DEFINER" in file.read_text()]


class limited_owner:
    """A new database that belongs to a user who may neither make roles nor pass over row-level security."""

    def __init__(self, uri: str) -> None:
        self._admin = servers.shared_postgres_uri()
        self._name = f"limited_{database_name(uri)}"  # of the database, and of its owner

    async def __aenter__(self) -> tuple[str, str, str]:
        await execute(self._admin, f"CREATE ROLE {self._name} LOGIN")
        uri = await servers.create_database(self._admin, self._name)
        await execute(uri, f"ALTER DATABASE {self._name} OWNER TO {self._name}")
        return servers.database_uri(uri, self._name, self._name), uri, self._name

    async def __aexit__(self, *_: object) -> None:
        await servers.drop_database(self._admin, self._name)
        await execute(self._admin, f"DROP ROLE IF EXISTS {client_login(self._name)}; DROP ROLE {self._name}")


async def another_release(uri: str, schema: str, *, migration: int) -> None:
    """The functions of a release whose last migration is this one."""
    await execute(
        uri,
        f"CREATE SCHEMA {schema}; "
        f"CREATE FUNCTION {schema}.now_in_{schema}() RETURNS int LANGUAGE sql AS 'SELECT 1'; "
        "INSERT INTO turnkeep.schema_migrations_of_functions (schema_name, migration, oldest, boundary) "
        f"VALUES ('{schema}', {migration}, {min(migration, OLDEST_SERVED)}, '')",
    )


async def newer_release(uri: str, *, oldest: int) -> None:
    """What a release with one migration more leaves, which works with releases from `oldest` on. It added a column."""
    await execute(
        uri,
        f"INSERT INTO turnkeep.schema_migrations VALUES ({len(load_migrations('postgres')) + 1}, 'later', 'x'); "
        "ALTER TABLE turnkeep.turns ADD COLUMN later text; ALTER TABLE turnkeep.messages ADD COLUMN later text; "
        "ALTER TABLE turnkeep.turn_events ADD COLUMN later text; ALTER TABLE turnkeep.turn_logs ADD COLUMN later text; "
        "ALTER TABLE turnkeep.conversations ADD COLUMN later text; "
        "INSERT INTO turnkeep.schema_migrations_of_functions (schema_name, migration, oldest, boundary) "
        f"VALUES ('turnkeep_later', {len(load_migrations('postgres')) + 1}, {oldest}, '')",
    )


async def boundary_changed(uri: str) -> None:
    """Let the next migration make functions and policies anew, as if a build with other ones had been here."""
    await execute(
        uri,
        f"DELETE FROM turnkeep.schema_migrations_of_functions WHERE schema_name = '{functions().schema}'; ",
    )


async def waits_for_a_lock(uri: str) -> None:
    connection = await asyncpg.connect(uri)
    try:
        async with asyncio.timeout(60):
            locks = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'turnkeep.turns'::regclass"
            while not await connection.fetchval(locks):  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


def database_name(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]


async def catalogue(uri: str) -> list[tuple[str, int]]:
    connection = await asyncpg.connect(uri)
    try:
        rows = await connection.fetch(
            "SELECT p.proname::text, p.oid::bigint FROM pg_proc p "
            "WHERE p.pronamespace::regnamespace::text LIKE 'turnkeep%' "
            "UNION ALL SELECT c.relname, c.oid FROM pg_class c "
            "WHERE c.relnamespace::regnamespace::text LIKE 'turnkeep%'"
        )
        return sorted((row[0], row[1]) for row in rows)
    finally:
        await connection.close()
