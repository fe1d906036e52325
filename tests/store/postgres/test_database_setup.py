"""Opening a database: migrated once, by whoever comes first, and refused when it is not what this release expects."""

import asyncio
from importlib.resources import files

import asyncpg
import msgspec
import pytest

from tests import servers
from tests.servers import execute
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import a_claim, a_tenant, begin, finish, transcript_of
from turnkeep.config import Settings
from turnkeep.errors import Defect, SchemaMismatch
from turnkeep.runtime import open_store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.roles import client_login, scram_verifier
from turnkeep.store.postgres.io.statements import statements
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

    async def test_functions_of_another_build_are_replaced_and_leftovers_removed(
        self, uri: str, store: PostgresStore
    ) -> None:
        expected = {name for name, _ in await catalogue(uri)}
        await execute(
            uri,
            "UPDATE turnkeep.migrations_of_functions SET checksum = 'another'; "
            "CREATE FUNCTION turnkeep.leftover() RETURNS int LANGUAGE sql AS 'SELECT 1'; "
            "DROP FUNCTION turnkeep.promotion_facts(text)",
        )
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()
        assert {name for name, _ in await catalogue(uri)} == expected

    async def test_a_store_that_is_open_meanwhile_works_on(self, uri: str, store: PostgresStore) -> None:
        tenant = await a_tenant(store)
        turn = await finish(store, tenant.ann)
        await execute(uri, "UPDATE turnkeep.migrations_of_functions SET checksum = 'another'")
        await (await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)).close()
        await finish(store, tenant.ann, conversation_id=turn.conversation_id)
        assert len(await transcript_of(store, tenant.ann, turn.conversation_id)) == 4

    async def test_a_newer_database_is_refused(self, uri: str) -> None:
        await execute(uri, "INSERT INTO turnkeep.migrations (version, name, checksum) VALUES (999, 'later', 'x')")
        for is_automatic in (True, False):
            with pytest.raises(SchemaMismatch):
                await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=is_automatic)

    async def test_without_migrating_an_old_one_is_refused(self, uri: str) -> None:
        await execute(uri, "UPDATE turnkeep.migrations_of_functions SET checksum = 'older'")
        with pytest.raises(SchemaMismatch, match="turnkeep migrate"):
            await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, auto_migrate=False)


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


def database_name(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]


async def catalogue(uri: str) -> list[tuple[str, int]]:
    connection = await asyncpg.connect(uri)
    try:
        rows = await connection.fetch(
            "SELECT p.proname::text, p.oid::bigint FROM pg_proc p WHERE p.pronamespace = 'turnkeep'::regnamespace "
            "UNION ALL SELECT c.relname, c.oid FROM pg_class c WHERE c.relnamespace = 'turnkeep'::regnamespace"
        )
        return sorted((row[0], row[1]) for row in rows)
    finally:
        await connection.close()
