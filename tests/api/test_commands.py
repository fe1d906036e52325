"""`turnkeep serve`, `orgs`, `keys`, `migrate`, `status`: as somebody types them."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests import servers
from turnkeep.cli.main import COMMANDS
from turnkeep.config import VARIABLES

TURNKEEP = (sys.executable, "-c", "from turnkeep.cli.main import main; main()")
SECONDS = 60


def environment(folder: Path, **changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    settings = {"TURNKEEP_DATA_DIR": str(folder / "data"), "TURNKEEP_PORT": "0", "TURNKEEP_SANDBOX_URL": "off"}
    return inherited | settings | {"COLUMNS": "200"} | changes


def run(folder: Path, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TURNKEEP, *arguments],
        env=environment(folder, **changes),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def a_database(name: str) -> str:
    """An empty PostgreSQL database."""
    return asyncio.run(servers.create_database(servers.shared_postgres_uri(), f"{name}_{os.getpid()}"))


class Serving:
    """A server as a process of its own, and what it printed when it was ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.printed = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.printed += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"running at (http://\S+)", self.printed)
        assert found is not None, self.printed
        self.url = found[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextmanager
def serving(folder: Path, *arguments: str, **changes: str) -> Iterator[Serving]:
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*TURNKEEP, "serve", *arguments],
            env=environment(folder, **changes),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Serving(process)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


class TestServing:
    def test_it_prints_where_it_is_and_a_link_that_signs_in_and_leaves_in_order(self, tmp_path: Path) -> None:
        with serving(tmp_path) as server:
            link = re.search(r"http://\S+/signin\?token=\S+", server.printed)
            assert link is not None
            with httpx.Client(follow_redirects=True, trust_env=False, timeout=120) as browser:
                assert "Turnkeep" in browser.get(link[0]).text
                assert browser.get(f"{server.url}/v1/conversations").status_code == 200
                key = (tmp_path / "data" / "local.key").read_text()
                headers = {"authorization": f"Bearer {key}"}
                body = {"message": "Hello"}
                answer = browser.post(f"{server.url}/v1/turns", json=body, headers=headers, timeout=120).json()
                assert answer["turn"]["status"] == "succeeded"
                assert answer["turn"]["model"] == "demo"
            assert server.stop() == 0
        assert not (tmp_path / "data" / "server.json").exists()
        log = (tmp_path / "log").read_text()
        assert all(json.loads(line)["message"] for line in log.splitlines())
        assert key not in log

    def test_a_second_server_on_the_same_file_is_told_why_not(self, tmp_path: Path) -> None:
        with serving(tmp_path) as server:
            second = run(tmp_path, "serve")
            assert second.returncode == 1
            assert "in use by process" in second.stderr
            assert "Traceback" not in second.stderr
            port = server.url.rpartition(":")[2]
            third = run(tmp_path, "serve", "--port", port, "--data-dir", str(tmp_path / "other"))
            assert third.returncode == 1
            assert "Cannot listen on" in third.stderr

    def test_workers_need_postgresql(self, tmp_path: Path) -> None:
        refused = run(tmp_path, "serve", "--workers", "2")
        assert refused.returncode == 2
        assert "PostgreSQL" in refused.stderr

    def test_a_wrong_setting_is_one_sentence(self, tmp_path: Path) -> None:
        for arguments in (("--lease-seconds", "soon"), ("--host", "nowhere.invalid")):
            refused = run(tmp_path, "serve", *arguments)
            assert refused.returncode == 2
            assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr

    def test_every_setting_is_a_flag(self, tmp_path: Path) -> None:
        printed = run(tmp_path, "serve", "--help").stdout
        assert [variable.flag for variable in VARIABLES if variable.flag not in printed] == []


class TestWorkers:
    def test_several_processes_share_one_address(self, tmp_path: Path) -> None:
        uri = a_database("workers")
        with serving(tmp_path, "--workers", "2", TURNKEEP_DATABASE_URL=uri, TURNKEEP_BOOTSTRAP_KEY="boot") as server:
            headers = {"authorization": "Bearer boot"}
            accepted: dict[str, str] = {}
            for _ in range(10):
                # A connection of its own each time, so that either worker may get it.
                with httpx.Client(base_url=server.url, headers=headers, timeout=120, trust_env=False) as client:
                    body = {"message": "Hello", "background": True}
                    accepted = accepted or client.post("/v1/turns", json=body).json()
                    assert "event: result" in client.get(accepted["events_url"]).text
            workers = psutil.Process(server.process.pid).children()
            assert sum("spawn_main" in " ".join(worker.cmdline()) for worker in workers) == 2
            assert server.stop() == 0


class TestTenants:
    @pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
    def test_orgs_and_keys_work_beside_a_server_and_without_one(self, tmp_path: Path, is_running: bool) -> None:
        if not is_running:
            self.check(tmp_path)
            return
        with serving(tmp_path) as server:
            key = self.check(tmp_path)
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.get(f"{server.url}/v1/usage", headers=headers, timeout=120, trust_env=False)
            assert answer.status_code == 200

    def check(self, folder: Path) -> str:
        made = run(folder, "orgs", "create", "acme")
        found = re.search(r"tk_\S+", made.stdout)
        assert found is not None, made.stderr
        listed = json.loads(run(folder, "orgs", "list", "--json").stdout)
        assert [org["name"] for org in listed] == ["default", "acme"]
        key = json.loads(run(folder, "keys", "create", "web", "--org", "acme", "--json").stdout)
        assert run(folder, "keys", "revoke", key["id"], "--org", "acme").returncode == 0
        keys = json.loads(run(folder, "keys", "list", "--org", "acme", "--json").stdout)
        assert {one["name"]: one["revoked_at"] is None for one in keys} == {"first key": True, "web": False}
        assert run(folder, "keys", "list", "--org", "nobody").returncode == 1
        return found[0]


class TestDatabase:
    def test_migrate_and_status(self, tmp_path: Path) -> None:
        missing = run(tmp_path, "migrate", "--check")
        assert missing.returncode == 1
        assert "turnkeep migrate" in missing.stderr
        assert run(tmp_path, "migrate").returncode == 0
        assert run(tmp_path, "migrate", "--check").returncode == 0
        report = json.loads(run(tmp_path, "status", "--json").stdout)
        assert report["orgs"] == 1
        assert report["server"] is None

    def test_on_postgresql(self, tmp_path: Path) -> None:
        uri = a_database("migrated")
        assert run(tmp_path, "migrate", "--check", TURNKEEP_DATABASE_URL=uri).returncode == 1
        assert run(tmp_path, "migrate", TURNKEEP_DATABASE_URL=uri).returncode == 0
        assert run(tmp_path, "migrate", "--check", TURNKEEP_DATABASE_URL=uri).returncode == 0


def test_the_commands_are_in_the_table() -> None:
    assert {"serve", "orgs", "keys", "migrate", "status"} <= {command.name for command in COMMANDS}
