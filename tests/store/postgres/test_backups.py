"""Backups as docs/howto/back-up.md has them, made and restored by the server's own user, which is no superuser."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.server_process import environment, run_turnkeep
from tests.servers import PostgresFailed, PostgresServer, execute
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import Tenant, a_conversation, a_tenant, begin, finish
from turnkeep.store.postgres import PostgresStore

USER = "turnkeep"
TURNS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """With the archive that point-in-time recovery needs."""
    with PostgresServer() as server:
        archive = 'mkdir -p ../archive && cp "%p" "../archive/%f"'
        server.start(settings={"archive_mode": "on", "archive_command": archive})
        yield server


@pytest.fixture
async def url(server: PostgresServer) -> AsyncIterator[str]:
    """An empty database of the server's own user."""
    await make_database(server)
    yield server.uri(USER, USER)
    await execute(server.uri(), f"DROP DATABASE {USER} WITH (FORCE)")


async def make_database(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.uri())
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", USER):
        await connection.execute(f"CREATE ROLE {USER} LOGIN CREATEROLE")
    await connection.execute(f"CREATE DATABASE {USER} OWNER {USER}")
    await connection.close()


async def written(url: str) -> Tenant:
    """A tenant with turns that have ended, and one that runs."""
    store = await PostgresStore.open(url, client_password=CLIENT_PASSWORD)
    tenant = await a_tenant(store)
    for _ in range(TURNS):
        await finish(store, tenant.ann)
    await begin(store, tenant.ann)
    await a_conversation(store, tenant.ann)
    await store.close()
    return tenant


async def partitions(url: str) -> list[tuple[Any, ...]]:
    """Those of messages and events, with their ranges and their policies."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid), c.relforcerowsecurity, p.polname FROM pg_class c "
        "LEFT JOIN pg_policy p ON p.polrelid = c.oid WHERE c.relispartition AND c.relkind = 'r' ORDER BY c.relname"
    )
    await connection.close()
    assert len(rows) >= 4
    return [tuple(row) for row in rows]


def doctor(url: str, folder: Path, *options: str) -> dict[str, Any]:
    """What `turnkeep doctor` says about the rows and the roles."""
    done = run_turnkeep("doctor", "--rows", "--json", *options, env=on(url, folder))
    return {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def on(url: str, folder: Path) -> dict[str, str]:
    return environment(folder, TURNKEEP_DATABASE_URL=url, TURNKEEP_PORT="9")


class TestADump:
    async def test_by_the_servers_own_user_is_restored_whole(
        self, server: PostgresServer, url: str, tmp_path: Path
    ) -> None:
        tenant = await written(url)
        dump = str(server.home / "turnkeep.dump")
        server.run("pg_dump", "--enable-row-security", "--format=custom", f"--file={dump}", url)
        with PostgresServer() as other:
            other.start()
            await make_database(other)
            there = other.uri(USER, USER)
            made = run_turnkeep("migrate", "--roles", env=on(there, tmp_path))
            assert made.returncode == 0, made.stderr
            server.run("pg_restore", "--exit-on-error", f"--dbname={there}", dump)
            assert run_turnkeep("migrate", "--check", env=on(there, tmp_path)).returncode == 0
            found = doctor(there, tmp_path)
            assert (found["rows"]["state"], found["roles"]["state"]) == ("ok", "ok")
            assert f"{TURNS + 2} conversations with {TURNS + 1} turns" in found["rows"]["says"]
            assert await partitions(there) == await partitions(url)
            store = await PostgresStore.open(there, client_password=CLIENT_PASSWORD)
            assert len((await store.conversations(tenant.ann)).data) == TURNS + 2
            await finish(store, tenant.ann)
            await store.close()

    async def test_without_the_option_is_refused_and_not_made_empty(self, server: PostgresServer, url: str) -> None:
        await written(url)
        with pytest.raises(PostgresFailed, match="row-level security"):
            server.run("pg_dump", "--format=custom", f"--file={server.home / 'no.dump'}", url)

    async def test_that_is_not_complete_is_found_by_the_doctor(self, url: str, tmp_path: Path) -> None:
        await written(url)
        assert doctor(url, tmp_path)["rows"]["state"] == "ok"
        await execute(url, "DELETE FROM turnkeep.turn_events WHERE type = 'result'")
        found = doctor(url, tmp_path)["rows"]
        assert (found["state"], "back-up.md" in found["todo"]) == ("fail", True)
        assert f"{TURNS} turns without all of their events" in found["says"]
        assert f"{TURNS} settled turns without their last event" in found["says"]
        await execute(url, "DELETE FROM turnkeep.messages WHERE turn_sequence = 1")
        assert f"{TURNS} conversations without all of their turns or messages" in doctor(url, tmp_path)["rows"]["says"]

    async def test_of_an_empty_database_is_found_by_the_doctor(self, url: str, tmp_path: Path) -> None:
        store = await PostgresStore.open(url, client_password=CLIENT_PASSWORD)
        await store.close()
        assert doctor(url, tmp_path)["rows"]["says"] == "the database is empty"


class TestPointInTimeRecovery:
    async def test_brings_back_a_moment_and_not_what_came_after_it(
        self, server: PostgresServer, url: str, tmp_path: Path
    ) -> None:
        with PostgresServer() as restored:
            restored.copy(server)
            tenant = await written(url)
            connection = await asyncpg.connect(server.uri())
            moment: datetime = await connection.fetchval("SELECT clock_timestamp()")
            await execute(url, "DELETE FROM turnkeep.messages")
            # The server goes on to write, so the segment is named once.
            segment = await connection.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
            archived = "SELECT last_archived_wal >= $1 FROM pg_stat_archiver"
            async with asyncio.timeout(60):
                while not await connection.fetchval(archived, segment):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.1)
            await connection.close()
            restored.recover(server.home / "archive", until=moment.astimezone(UTC))
            there = restored.uri(USER, USER)
            assert doctor(there, tmp_path)["rows"]["state"] == "ok"
            store = await PostgresStore.open(there, client_password=CLIENT_PASSWORD)
            assert len((await store.conversations(tenant.ann)).data) == TURNS + 2
            await store.close()
