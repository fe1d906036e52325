"""`turnkeep serve`, `orgs`, `keys`, `migrate`, `status`, run as commands."""

import asyncio
import fcntl
import json
import os
import re
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import servers
from tests.server_process import Serving, environment, run_turnkeep, serving
from turnkeep.api.identity.service_keys import make_key, make_org
from turnkeep.cli.main import COMMANDS
from turnkeep.config import VARIABLES, Settings
from turnkeep.runtime import open_store
from turnkeep_client.wire import NewKey

NO_SANDBOX = {"TURNKEEP_SANDBOX_URL": "off"}


def run(folder: Path, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return run_turnkeep(*arguments, env=environment(folder, **NO_SANDBOX | {"TURNKEEP_PORT": "0"} | changes))


def lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def a_server(folder: Path, *flags: str, **changes: str) -> AbstractContextManager[Serving]:
    return serving(folder, environment(folder, **NO_SANDBOX | changes), *flags)


def a_database(name: str) -> str:
    """An empty PostgreSQL database."""
    return asyncio.run(servers.create_database(servers.shared_postgres_uri(), f"{name}_{os.getpid()}"))


class TestALogThatNobodyReads:
    """Standard error is an ordinary pipe, and its reader has stalled."""

    def test_does_not_stop_the_server(self, tmp_path: Path) -> None:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
        try:
            with serving(tmp_path, environment(tmp_path, **NO_SANDBOX), stderr=writer) as server:
                with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
                    for _ in range(200):  # a line of the log each: many times what the pipe takes
                        assert client.get("/v1/me").status_code == 401
                    assert client.get("/healthz").status_code == 200
                assert os.get_blocking(writer), "others share the pipe, and it is as they left it"
                assert server.stop() == 0
        finally:
            os.close(reader)
            os.close(writer)


class TestServing:
    def test_it_prints_where_it_is_and_a_link_that_signs_in_and_leaves_in_order(self, tmp_path: Path) -> None:
        with a_server(tmp_path) as server:
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

    def test_a_second_server_on_the_same_file_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with a_server(tmp_path) as server:
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

    @pytest.mark.parametrize("model", ["nope/x", "openai", "demo/x"])
    def test_a_model_that_can_never_answer_stops_it(self, tmp_path: Path, model: str) -> None:
        refused = run(tmp_path, "serve", TURNKEEP_MODEL=model)
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
        assert f"TURNKEEP_MODEL (--model) cannot be '{model}'" in refused.stderr
        assert not (tmp_path / "data").exists()

    def test_a_model_that_only_lacks_a_key_is_named(self, tmp_path: Path) -> None:
        with a_server(tmp_path, "--model", "anthropic/claude-x") as server:
            assert "Set ANTHROPIC_API_KEY" in server.printed
            assert httpx.get(f"{server.url}/healthz", trust_env=False, timeout=120).status_code == 200

    def test_every_setting_is_a_flag(self, tmp_path: Path) -> None:
        printed = run(tmp_path, "serve", "--help").stdout
        assert [variable.flag for variable in VARIABLES if variable.flag not in printed] == []


class TestWorkers:
    def test_several_processes_share_one_address(self, tmp_path: Path) -> None:
        uri = a_database("workers")
        with a_server(tmp_path, "--workers", "2", TURNKEEP_DATABASE_URL=uri, TURNKEEP_BOOTSTRAP_KEY="boot") as server:
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
        with a_server(tmp_path) as server:
            key = self.check(tmp_path)
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.get(f"{server.url}/v1/usage", headers=headers, timeout=120, trust_env=False)
            assert answer.status_code == 200

    def check(self, folder: Path) -> str:
        made = run(folder, "orgs", "create", "acme")
        found = re.search(r"tk_\S+", made.stdout)
        assert found is not None, made.stderr
        listed = lines(run(folder, "orgs", "list", "--json").stdout)
        assert [org["name"] for org in listed] == ["default", "acme"]
        key = json.loads(run(folder, "keys", "create", "web", "--org", "acme", "--json").stdout)
        assert run(folder, "keys", "revoke", key["id"], "--org", "acme", "--keep-made").returncode == 0
        assert run(folder, "keys", "revoke", key["id"], "--org", "acme").returncode == 0
        scoped = json.loads(run(folder, "keys", "create", "w", "--feature", "files", "--model", "m", "--json").stdout)
        assert scoped["scopes"] == {"agents": "*", "models": ["m"], "features": ["files"]}
        refused = run(folder, "keys", "create", "w", "--feature", "fights")
        assert refused.returncode == 2
        assert "files, runs, knowledge, export" in refused.stderr
        keys = lines(run(folder, "keys", "list", "--org", "acme", "--json").stdout)
        assert {one["name"]: one["revoked_at"] is None for one in keys} == {"first key": True, "web": False}
        assert run(folder, "keys", "list", "--org", "nobody").returncode == 1
        return found[0]

    def test_the_list_of_keys_tells_which_are_pinned_to_a_workspace(self, tmp_path: Path) -> None:
        async def make() -> tuple[str, str]:
            store = await open_store(Settings(data_dir=tmp_path / "data"))
            try:
                org, workspace, _ = await make_org(store, "acme")
                key, _ = await make_key(store, org.id, NewKey(name="own page"), workspace_id=workspace.id)
                return key.id, workspace.id
            finally:
                await store.close()

        key_id, workspace_id = asyncio.run(make())
        listed = run(tmp_path, "keys", "list", "--org", "acme").stdout
        rows = {name: rest for *rest, name in (line.split("\t") for line in listed.splitlines())}
        assert rows["own page"] == [key_id, "valid", workspace_id]
        assert rows["first key"][1:] == ["valid", "all"]


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
