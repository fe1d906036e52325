"""Opening a file: one owner, the promised settings, migrations, and what an earlier process left behind."""

import asyncio
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from tests.store.factories import Tenant, a_conversation, a_tenant, begin, elsewhere, finish, step
from turnkeep.clock import FakeClock
from turnkeep.errors import Conflict, SchemaMismatch, StorageFull, TurnkeepError
from turnkeep.model.knowledge import Column
from turnkeep.store.migrations import load_migrations
from turnkeep.store.sqlite import SqliteStore
from turnkeep.store.sqlite.io.executors import BESIDE_PAGES


class TestOneOwner:
    async def test_a_second_store_is_refused_and_told_who_holds_the_file(self, store: SqliteStore, path: Path) -> None:
        with pytest.raises(Conflict, match=f"process {os.getpid()}"):
            await SqliteStore.open(path)

    async def test_another_process_is_refused_too(self, store: SqliteStore, path: Path) -> None:
        program = (
            "import asyncio, sys\n"
            "from turnkeep.errors import Conflict\n"
            "from turnkeep.store.sqlite import SqliteStore\n"
            "try:\n"
            "    asyncio.run(SqliteStore.open(sys.argv[1]))\n"
            "except Conflict as exc:\n"
            "    print(exc)\n"
        )
        answer = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert f"process {os.getpid()}" in answer.stdout

    async def test_closing_lets_the_file_go(self, store: SqliteStore, path: Path) -> None:
        await store.close()
        await store.close()
        again = await SqliteStore.open(path)
        await again.close()

    async def test_a_file_that_is_no_database_is_refused_and_let_go(self, path: Path) -> None:
        path.write_text("a letter to a friend, long enough to be no header of any database at all\n" * 20)
        with pytest.raises(TurnkeepError):
            await SqliteStore.open(path)
        path.unlink()
        await (await SqliteStore.open(path)).close()


class TestTheFiles:
    @pytest.mark.parametrize("is_old", [False, True])
    async def test_are_for_their_owner_alone_also_in_a_folder_that_others_may_read(
        self, tmp_path: Path, is_old: bool
    ) -> None:
        tmp_path.chmod(0o755)
        path = tmp_path / "open.db"
        before = os.umask(0)
        try:
            if is_old:
                for file in (path, path.with_name("open.db.lock")):
                    file.touch(0o666)
            store = await SqliteStore.open(path)
            try:
                await finish(store, (await a_tenant(store)).ann)
                modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
            finally:
                await store.close()
        finally:
            os.umask(before)
        assert modes == dict.fromkeys(("open.db", "open.db-wal", "open.db-shm", "open.db.lock"), 0o600)


class TestSettings:
    async def test_what_is_acknowledged_is_flushed(self, store: SqliteStore) -> None:
        connection = store._session.connection
        for pragma, expected in (("synchronous", 2), ("journal_mode", "wal"), ("foreign_keys", 1)):
            assert connection.execute(f"PRAGMA {pragma}").fetchall() == [(expected,)]

    async def test_the_log_does_not_grow_without_bound(self, store: SqliteStore, tenant: Tenant, path: Path) -> None:
        conversation = await a_conversation(store, tenant.ann)
        for _ in range(120):
            await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "word " * 20_000, "ok"))
        assert path.with_name(path.name + "-wal").stat().st_size < 6 * BESIDE_PAGES * 4096


class TestMigrating:
    async def test_a_second_opening_applies_nothing(self, store: SqliteStore, path: Path) -> None:
        before = store._session.connection.execute("SELECT * FROM schema_migrations").fetchall()
        await store.close()
        again = await SqliteStore.open(path)
        assert again._session.connection.execute("SELECT * FROM schema_migrations").fetchall() == before
        await again.close()
        assert len(before) == len(load_migrations("sqlite"))

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE schema_migrations SET checksum = 'other'",
            "INSERT INTO schema_migrations VALUES (9999, 'later', 'x', 1)",
        ],
    )
    async def test_a_schema_of_another_release_is_refused(self, store: SqliteStore, path: Path, change: str) -> None:
        await store.close()
        connection = apsw.Connection(str(path))
        connection.execute(change)
        connection.close()
        with pytest.raises(SchemaMismatch):
            await SqliteStore.open(path)

    async def test_without_migrating_a_missing_or_older_file_is_refused_and_not_touched(self, tmp_path: Path) -> None:
        path = tmp_path / "other.db"
        with pytest.raises(SchemaMismatch, match="turnkeep migrate"):
            await SqliteStore.open(path, auto_migrate=False)
        assert not path.exists()
        await (await SqliteStore.open(path)).close()
        await (await SqliteStore.open(path, auto_migrate=False)).close()
        *_, before, last = load_migrations("sqlite")
        first = f"{2:04}_{load_migrations('sqlite')[1].name}"
        for version, missing in (
            (last.version, f"migrations {last.version:04}_{last.name}\\. Run"),
            (before.version, f"{before.version:04}_{before.name}, {last.version:04}_{last.name}\\. Run"),
            (2, f"{first} to {last.version:04}_{last.name} \\({last.version - 1} of them\\)\\. Run"),
        ):
            connection = apsw.Connection(str(path))
            connection.execute("DELETE FROM schema_migrations WHERE version >= ?", (version,))
            connection.close()
            with pytest.raises(SchemaMismatch, match=missing):
                await SqliteStore.open(path, auto_migrate=False)

    async def test_the_schema_is_the_sum_of_the_migrations(self, store: SqliteStore, path: Path) -> None:
        made = apsw.Connection(":memory:")
        made.execute((files("turnkeep.store") / "sql" / "sqlite" / "schema.sql").read_text(encoding="utf-8"))
        query = (
            "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name <> 'schema_migrations' ORDER BY name, type"
        )
        assert made.execute(query).fetchall() == store._session.connection.execute(query).fetchall()


class TestWhatAnEarlierProcessHeld:
    async def test_can_be_adopted_at_once(
        self, store: SqliteStore, tenant: Tenant, path: Path, clock: FakeClock
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.close()
        again = await SqliteStore.open(path, clock=clock)
        [adopted] = await again.adopt("worker-2", lease_seconds=30)
        assert adopted.held.turn_id == held.turn_id
        assert adopted.held.attempt == 2
        await again.close()

    async def test_counts_as_a_failure_only_if_it_made_no_progress(self, path: Path, clock: FakeClock) -> None:
        """So that a turn which kills its process does not do so for ever."""
        store = await SqliteStore.open(path, clock=clock)
        tenant = await a_tenant(store)
        idle, busy = await begin(store, tenant.ann), await begin(store, tenant.bob)
        await store.record(busy, after=1, events=[step("a")])
        await store.close()
        store = await SqliteStore.open(path, clock=clock)
        adopted = {each.turn.id: each.turn for each in await store.adopt("worker-2", lease_seconds=30)}
        assert adopted[idle.turn_id].failures == 1
        assert adopted[busy.turn_id].failures == 0
        await store.close()

    async def test_is_no_failure_if_it_was_handed_over_before(
        self, store: SqliteStore, tenant: Tenant, path: Path, clock: FakeClock
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.hand_over([held])
        await store.close()
        again = await SqliteStore.open(path, clock=clock)
        [adopted] = await again.adopt("worker-2", lease_seconds=30)
        assert adopted.turn.failures == 0
        last = (await again.events(held.turn_id))[-1].event
        assert getattr(last, "reason", None) == "handover"
        await again.close()


class TestOneConnection:
    async def test_everything_works_on_it(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "alone.db", exclusive=True)
        tenant = await a_tenant(store)
        turn = await finish(store, tenant.ann, "Where is the needle?", "In the haystack.")
        assert len((await store.window(turn.conversation_id)).rows) == 2
        assert len((await store.transcript(tenant.ann, turn.conversation_id)).data) == 2
        assert len((await store.conversations(tenant.ann, query="needle")).data) == 1
        assert (await store.conversations(tenant.bob, query="needle")).data == ()
        assert not (tmp_path / "alone.db-shm").exists()
        await store.close()

    async def test_an_import_of_an_earlier_process_is_given_up(
        self, store: SqliteStore, tenant: Tenant, path: Path, clock: FakeClock
    ) -> None:
        table = await store.create_table(tenant.service, name="T", columns=[Column(key=0, name="A", type="text")])
        await store.begin_import(tenant.service, table.id, import_id="i", count=2)
        await store.import_rows(table, import_id="i", first=1, rows=[["half"]])
        await store.close()
        again = await SqliteStore.open(path, clock=clock)
        with pytest.raises(Conflict):
            await again.finish_import(table, import_id="i")
        await again.purge_knowledge(before=1)
        await again.begin_import(tenant.service, table.id, import_id="j", count=1)
        await again.close()


class TestScrubbing:
    async def test_is_refused_before_it_begins_if_the_disk_has_too_little_room(
        self, store: SqliteStore, tenant: Tenant, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await finish(store, tenant.ann)
        size = path.stat().st_size
        room = {"free": size}
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, room["free"]))
        monkeypatch.setenv("SQLITE_TMPDIR", str(path.parent))
        before = path.stat().st_ino, path.read_bytes()
        with pytest.raises(StorageFull, match="too little room beside the database"):
            await store.scrub()
        assert (path.stat().st_ino, path.read_bytes()) == before
        room["free"] = 1_000 * size
        assert await store.scrub()
        await finish(store, tenant.ann)


class TestABackup:
    async def test_of_a_store_in_use_is_a_whole_store(self, store: SqliteStore, tenant: Tenant, tmp_path: Path) -> None:
        """As `docs/howto/back-up.md` says it: SQLite's own backup, from another process, while turns are written."""
        conversation = await a_conversation(store, tenant.ann)
        before = [await store.append(tenant.ann, conversation.id, elsewhere(conversation.id)) for _ in range(20)]
        copy = tmp_path / "copy.db"
        program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"
        backup = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(store.path), str(copy))
        meanwhile = 0
        while backup.returncode is None and meanwhile < 2_000:
            await store.append(tenant.ann, conversation.id, elsewhere(conversation.id))
            meanwhile += 1
        assert await backup.wait() == 0
        restored = await SqliteStore.open(copy)
        try:
            count = (await restored.conversation(tenant.ann, conversation.id)).turn_count
            assert len(before) <= count <= len(before) + meanwhile
            turns = (await restored.export_conversation(tenant.service, conversation.id)).turns
            assert [len(each.rows) for each in turns] == [2] * count
        finally:
            await restored.close()
