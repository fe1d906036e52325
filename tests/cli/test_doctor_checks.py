"""`turnkeep doctor` without a file: every part of an installation, with what to do about it."""

import json
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests import buckets
from tests.cli.conftest import Shell
from tests.redis_server import RedisServer
from tests.server_process import clean_environment, run_turnkeep, serving
from tests.store.databases import make_postgres_database
from turnkeep.cli.doctor_checks import CheckFailed, TableSize, judge_files, judge_sizes
from turnkeep.files.objects import open_objects
from turnkeep.files.orphans import BagReport
from turnkeep.files.ports import Objects

PARTS = [
    "server",
    "key",
    "database",
    "roles",
    "sizes",
    "erasures",
    "webhooks",
    "bucket",
    "files",
    "redis",
    "runner",
    "models",
    "clock",
]


def checks(report: str) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(report)["checks"]}


async def everything(objects: Objects) -> list[str]:
    return [stored.key async for some in objects.list("") for stored in some]


class TestTheChecks:
    def test_of_a_server_that_runs(self, shell: Shell) -> None:
        done = shell.run("doctor")
        assert done.returncode == 0, done.stdout
        lines = done.stdout.splitlines()
        assert [line.split()[1] for line in lines if not line.startswith(" ")] == PARTS
        report = json.loads(shell.here("doctor", "--json").stdout)
        assert report["ok"] is True
        assert {one["state"] for one in report["checks"]} <= {"ok", "warn", "skip"}

    def test_of_a_server_whose_file_names_its_folder_and_switches_the_sandbox_off(self, tmp_path: Path) -> None:
        (tmp_path / "turnkeep.toml").write_text('data_dir = "kept"\nsandbox_url = "off"\n')
        env = clean_environment(COLUMNS="200", XDG_STATE_HOME=str(tmp_path / "state"))
        with serving(tmp_path, env) as server:
            done = run_turnkeep("doctor", "--json", env=env, cwd=tmp_path)
        found = checks(done.stdout)
        assert done.returncode == 0, done.stdout
        assert server.url in found["server"]["says"]
        assert found["key"]["state"] == "ok"
        assert (found["runner"]["state"], found["runner"]["says"]) == ("ok", "switched off")

    def test_of_the_rows_are_made_on_request_while_a_server_runs(self, shell: Shell) -> None:
        shell.ok("chat", "Hello?")
        found = checks(shell.here("doctor", "--rows", "--json").stdout)["rows"]
        assert found["state"] == "ok"
        assert re.fullmatch(
            r"[1-9]\d* conversations with [1-9]\d* turns, [1-9]\d* messages and \d+ files", found["says"]
        )

    def test_of_the_rows_find_what_a_broken_copy_of_a_file_lacks(self, shell: Shell, tmp_path: Path) -> None:
        shell.ok("chat", "Hello?")
        shutil.copytree(shell.folder / "data", tmp_path / "data")
        connection = apsw.Connection(str(tmp_path / "data" / "turnkeep.db"))
        connection.execute("DELETE FROM turn_events WHERE type = 'result'")
        connection.close()
        done = shell.run("doctor", "--rows", "--json", TURNKEEP_DATA_DIR=str(tmp_path / "data"), TURNKEEP_PORT="9")
        found = checks(done.stdout)["rows"]
        assert (done.returncode, found["state"]) == (1, "fail")
        assert "turns without all of their events" in found["says"]

    def test_of_erasures_find_one_that_is_late_and_say_why(self, shell: Shell, tmp_path: Path) -> None:
        shell.ok("chat", "Hello?")
        shutil.copytree(shell.folder / "data", tmp_path / "data")
        connection = apsw.Connection(str(tmp_path / "data" / "turnkeep.db"))

        def found(minutes: int, problem: str | None) -> Any:
            connection.execute("DELETE FROM erasures")
            connection.execute(
                "INSERT INTO erasures (id, org_id, workspace_id, counts, created_at, not_before, problem) "
                "VALUES ('erasure_1', 'o', 'w', '{}', ?, 0, ?)",
                ((int(time.time()) - 60 * minutes) * 1000, problem),
            )
            done = shell.run("doctor", "--json", TURNKEEP_DATA_DIR=str(tmp_path / "data"), TURNKEEP_PORT="9")
            return checks(done.stdout)["erasures"]

        assert found(59, "The disk is full.")["state"] == "ok"
        late = found(180, "The disk is full.")
        assert late["state"] == "fail"
        assert "3.0 hours: The disk is full." in late["says"]
        assert "no server works on it" in found(180, None)["says"]
        connection.close()

    def test_of_webhooks_find_endpoints_that_fail_or_are_gone(self, shell: Shell, tmp_path: Path) -> None:
        shell.ok("chat", "Hello?")
        shutil.copytree(shell.folder / "data", tmp_path / "data")
        connection = apsw.Connection(str(tmp_path / "data" / "turnkeep.db"))
        [(workspace,)] = connection.execute("SELECT id FROM workspaces LIMIT 1").fetchall()
        connection.execute(
            "INSERT INTO webhooks (id, org_id, workspace_id, url, events, is_enabled, disabled_reason, secret, "
            "created_at, updated_at) VALUES ('w1', 'o', ?1, 'u', '[]', 1, NULL, 's', 1, 1), "
            "('w2', 'o', ?1, 'u', '[]', 0, 'Gone.', 's', 1, 1)",
            (workspace,),
        )

        def found(minutes: int) -> Any:
            connection.execute("DELETE FROM webhook_deliveries")
            connection.execute(
                "INSERT INTO webhook_deliveries (webhook_id, id, org_id, type, data, attempts, created_at, not_before, "
                "give_up_at) VALUES ('w1', 'evt_1', 'o', 'turn.failed', '{}', 2, ?, 1, 1)",
                ((int(time.time()) - 60 * minutes) * 1000,),
            )
            done = shell.run("doctor", "--json", TURNKEEP_DATA_DIR=str(tmp_path / "data"), TURNKEEP_PORT="9")
            return checks(done.stdout)["webhooks"]

        late = found(70)
        assert late["state"] == "warn"
        assert "1 have failed for more than an hour, 1 are disabled" in late["says"]
        assert "0 have failed" in found(50)["says"]
        connection.execute("DELETE FROM webhooks WHERE id = 'w2'")
        assert found(50)["state"] == "ok"
        connection.close()

    def test_of_a_server_that_is_down_check_the_other_parts(self, shell: Shell, tmp_path: Path) -> None:
        done = shell.run("doctor", TURNKEEP_DATA_DIR=str(tmp_path), TURNKEEP_PORT="9")
        assert done.returncode == 1
        assert re.search(r"^fail  server +nothing answers at \S+ \(connection refused\)$", done.stdout, re.MULTILINE)
        assert "Start it with `turnkeep serve`." in done.stdout
        assert "warn  database" in done.stdout
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == [], "it changes nothing"

    def test_of_a_remote_server_ask_only_that_server(self, shell: Shell) -> None:
        found = checks(shell.here("doctor", "--json", "--url", "http://turnkeep.invalid", "--key", "k").stdout)
        assert set(found) == {"server", "models", "clock"}
        assert found["server"]["state"] == "fail"

    def test_a_wrong_key_is_found(self, shell: Shell) -> None:
        found = checks(shell.here("doctor", "--json", "--url", shell.site.url, "--key", "wrong").stdout)
        assert (found["key"]["state"], "keys create" in found["key"]["todo"]) == ("fail", True)

    def test_of_postgresql_redis_and_a_bucket(self, shell: Shell, tmp_path: Path) -> None:
        uri = make_postgres_database("doctor")
        redis = RedisServer()
        shell.on_server(redis.__aenter__)
        try:
            done = shell.run(
                "doctor",
                "--json",
                TURNKEEP_DATA_DIR=str(tmp_path),
                TURNKEEP_PORT="9",
                TURNKEEP_DATABASE_URL=uri,
                TURNKEEP_REDIS_URL=redis.url,
                TURNKEEP_FILES_URL="s3://no-such-bucket",
                TURNKEEP_SANDBOX_URL="http://127.0.0.1:9",
                AWS_ENDPOINT_URL="http://127.0.0.1:9",
                AWS_ACCESS_KEY_ID="a",
                AWS_SECRET_ACCESS_KEY="b",
                ANTHROPIC_API_KEY="sk-x",
            )
        finally:
            shell.on_server(redis.__aexit__)
        found = checks(done.stdout)
        assert re.fullmatch(
            r"[\d.]+ [KMG]B \(.*\w+ [\d.]+ [KMG]B.*\); \d+ % of the rows are dead", found["sizes"]["says"]
        )
        states = {name: one["state"] for name, one in found.items()}
        assert states == {
            "server": "fail",
            "database": "ok",
            "roles": "ok",
            "sizes": "ok",
            "erasures": "ok",
            "webhooks": "ok",
            "bucket": "fail",
            "files": "warn",
            "redis": "ok",
            "runner": "fail",
            "models": "ok",
            "clock": "skip",
        }, done.stdout
        assert all(one["todo"] for one in found.values() if one["state"] == "fail")
        assert "sk-x" not in done.stdout

    def test_of_a_bucket_that_works(self, shell: Shell, tmp_path: Path) -> None:
        """A real one: the probe is written, and removed again."""
        environ, prefix = buckets.shared_environ(), secrets.token_hex(8)
        files = {"TURNKEEP_FILES_URL": f"s3://{buckets.BUCKET}/{prefix}", "TURNKEEP_DATA_DIR": str(tmp_path)}
        done = shell.run("doctor", "--json", TURNKEEP_PORT="9", **files, **environ)
        found = checks(done.stdout)["bucket"]
        assert (found["state"], "can be written" in found["says"]) == ("ok", True), done.stdout
        assert environ["AWS_SECRET_ACCESS_KEY"] not in done.stdout
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            objects = open_objects(files["TURNKEEP_FILES_URL"], folder=tmp_path)
            assert shell.on_server(lambda: everything(objects)) == [], "nothing is left behind"

    def test_of_a_bucket_with_a_wrong_key(self, shell: Shell, tmp_path: Path) -> None:
        environ = buckets.shared_environ() | {"AWS_SECRET_ACCESS_KEY": "wrong" * 8}
        files = {"TURNKEEP_FILES_URL": f"s3://{buckets.BUCKET}/x", "TURNKEEP_DATA_DIR": str(tmp_path)}
        found = checks(shell.run("doctor", "--json", TURNKEEP_PORT="9", **files, **environ).stdout)["bucket"]
        assert (found["state"], "AWS_*" in found["todo"]) == ("fail", True), found

    def test_of_services_that_are_away(self, shell: Shell, tmp_path: Path) -> None:
        done = shell.here(
            "doctor", "--json", "--data-dir", tmp_path, "--database-url", "postgresql://127.0.0.1:9/nothing"
        )
        found = checks(done.stdout)
        assert (found["database"]["state"], found["roles"]["state"]) == ("fail", "fail")
        assert "TURNKEEP_DATABASE_URL" in found["database"]["todo"]

    @pytest.mark.parametrize("count, said", [(0, "0 files, all"), (1, "1 file, which"), (2, "2 files, all")])
    def test_of_files_that_are_there_count_them(self, count: int, said: str) -> None:
        assert judge_files(BagReport(objects=count, files=count, orphans=(), missing=())).startswith(said)

    def test_find_files_whose_bytes_are_lost(self, shell: Shell) -> None:
        (shell.folder / "kept.txt").write_text("kept")
        asked = shell.run("chat", "what is in it?", "--attach", shell.folder / "kept.txt", "--json")
        assert asked.returncode == 0, asked.stderr
        assert checks(shell.here("doctor", "--json").stdout)["files"]["state"] == "ok"
        bag = shell.site.data_dir / "files" / "bag"
        bag.rename(bag.with_name("gone"))
        try:
            found = checks(shell.here("doctor", "--json").stdout)["files"]
        finally:
            bag.with_name("gone").rename(bag)
        assert (found["state"], "are not there" in found["says"]) == ("fail", True)
        assert "backup" in found["todo"]


class TestSizes:
    def test_of_the_largest_tables_are_named(self) -> None:
        tables = [TableSize(name, size, 900, 100) for size, name in ((2_000_000_000, "messages"), (70_000, "turns"))]
        assert judge_sizes(tables) == "2 GB (messages 2 GB, turns 70 KB); 10 % of the rows are dead"

    def test_with_tables_of_mostly_dead_rows_are_a_warning(self) -> None:
        tables = [TableSize("turns", 5_000_000, 40_000, 50_000), TableSize("usage", 9_000, 1, 5)]
        with pytest.raises(
            CheckFailed, match=r"55 % of the rows are dead\. Mostly dead: turns \(50,000 rows\)"
        ) as failed:
            judge_sizes(tables)
        assert (failed.value.state, "Autovacuum" in failed.value.todo) == ("warn", True)

    def test_of_a_sqlite_file_say_how_much_of_it_is_free(self, shell: Shell) -> None:
        found = checks(shell.here("doctor", "--json").stdout)["sizes"]
        assert found["state"] == "ok"
        assert re.fullmatch(r"turnkeep.db has [\d.]+ [KM]B, of which [\d.]+ \w+ are free", found["says"])
