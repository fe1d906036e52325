"""`turnkeep serve` as users run it: the bundled runner, real boxes, the demo model; and what a kill leaves behind."""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from msgspec import structs

from tests.api.harness import OPERATOR_KEY, Client, data_of, fake_id, names, read_events, settings_for
from tests.faults.processes import clean_environment
from tests.sandbox_runner.box_processes import processes_called
from turnkeep.api.app import bind
from turnkeep.cli.serve import RunnerProcess, has_guessable_key, is_in_the_open, runner_environment, start_runner
from turnkeep.sandbox.boxes.ports import BoxUnavailable

Json = Any

PATIENCE_SECONDS = 40.0


class Serving:
    """The command, running."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, said: str, errors: Path) -> None:
        self.process = process
        self.url = url
        self.said = said
        self._errors = errors

    def runner(self) -> psutil.Process | None:
        """The runner beside it, if it lives."""
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return next((each for each in children if is_called(each, "sandbox")), None)

    async def runner_answers(self) -> psutil.Process:
        """Wait until a turn would be taken."""
        port = int(re.search(r"sandbox +http://127.0.0.1:(\d+)", self.said)[1])  # type: ignore[index]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                runner = self.runner()
                assert runner is not None, self._errors.read_text()
                return runner

    def client(self) -> Client:
        return Client(self.url, OPERATOR_KEY)


@asynccontextmanager
async def serving(folder: Path, *arguments: str, **settings: str) -> AsyncIterator[Serving]:
    environment = {
        "TURNKEEP_DATA_DIR": str(folder / "data"),
        "TURNKEEP_PORT": "0",
        "TURNKEEP_BOOTSTRAP_KEY": OPERATOR_KEY,
        "TURNKEEP_LEASE_SECONDS": "1",
        "TURNKEEP_DRAIN_SECONDS": "2",
        **settings,
    }
    errors = folder / "errors.log"
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("turnkeep")), "serve", *arguments),
            cwd=folder,
            env=clean_environment() | environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            said = b""
            while b"Stop it" not in said:
                line = await process.stdout.readline()
                assert line, errors.read_text()
                said += line
        url = re.search(r"running at (\S+)", said.decode())[1]  # type: ignore[index]
        yield Serving(process, url, said.decode(), errors)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()


def is_called(process: psutil.Process, word: str) -> bool:
    """Whether it lives and has this word in its command line; it may die while it is looked at."""
    try:
        return word in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_asleep(mark: str) -> bool:
    """Whether the command itself runs, and not only what prepares its box."""
    for pid in processes_called(mark):
        try:
            if psutil.Process(pid).cmdline() == ["sleep", mark]:
                return True
        except psutil.NoSuchProcess:
            continue
    return False


async def gone(what: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while what():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)


async def started(what: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def database_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    return {"TURNKEEP_DATABASE_URL": request.getfixturevalue("sandbox_database")}


class TestASandboxOutOfTheBox:
    async def test_the_demo_model_writes_runs_and_reads_and_files_come_back(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as server, server.client() as client:
            # The runner may still be starting: whoever asks as soon as the server answers is not refused for it.
            conversation = (await client.post("/v1/conversations", json={"kind": "sandbox"})).json()["id"]
            files = {"file": ("data.csv", b"name,age\nAda,36\n")}
            sent = (await client.post(f"/v1/conversations/{conversation}/files", files=files)).json()["data"][0]
            asked = 'Write a file notes.txt with "Hello box"; run `wc -c assets/notes.txt`; then read data.csv'
            body = {"message": asked, "conversation_id": conversation, "attachment_ids": [sent["id"]]}
            headers = {"accept": "text/event-stream"}
            async with client.stream("POST", "/v1/turns", json=body, headers=headers, timeout=60) as response:
                events = await read_events(response)
            assert names(events) == ["turn", *["tool_calls", "step", "step"] * 3, "files", "result"]
            steps = [data_of(event) for event in events if event.event == "step"]
            assert [(one["name"], one["status"]) for one in steps[1::2]] == [
                ("write_file", "succeeded"),
                ("shell", "succeeded"),
                ("read_file", "succeeded"),
            ]
            assert steps[3]["result"] == "10 assets/notes.txt"
            assert "Ada,36" in steps[5]["result"]
            last = data_of(events[-1])
            assert last["usage"]["input_tokens"] > 0
            [written] = data_of(events[-2])["files"]
            assert (written["name"], written["source"]) == ("notes.txt", "sandbox")
            content = await client.get(f"/v1/files/{written['id']}/content")
            assert content.content == b"Hello box\n"
            page = await client.read(f"/v1/conversations/{conversation}/messages")
            assert page["data"][-1]["content"] == last["content"]
            # The next turn finds the file again.
            again = await client.ask("read notes.txt", conversation_id=conversation)
            assert "Hello box" in again["turn"]["response"]

    @pytest.mark.nightly
    async def test_twenty_turns_at_once(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as server, server.client() as client:
            await server.runner_answers()
            client.timeout = httpx.Timeout(PATIENCE_SECONDS)
            answers = await asyncio.gather(*(client.ask(f"run `echo word{n}`", kind="sandbox") for n in range(20)))
            for n, answer in enumerate(answers):
                assert answer["turn"]["status"] == "succeeded", answer["turn"]["error"]
                assert f"word{n}" in answer["turn"]["response"]

    @pytest.mark.nightly
    async def test_several_workers_share_one_runner_and_count_together(
        self, tmp_path: Path, sandbox_database: str
    ) -> None:
        """Model calls of a turn may come to any worker, not only to the one that runs it."""
        async with (
            serving(tmp_path, "--workers", "2", TURNKEEP_DATABASE_URL=sandbox_database) as server,
            server.client() as client,
        ):
            await server.runner_answers()
            client.timeout = httpx.Timeout(PATIENCE_SECONDS)
            asked = "; ".join(f"run `echo word{n}`" for n in range(4))
            answers = await asyncio.gather(*(client.ask(asked, kind="sandbox") for _ in range(4)))
            assert [answer["turn"]["status"] for answer in answers] == ["succeeded"] * 4
            assert len({answer["turn"]["usage"]["input_tokens"] for answer in answers}) == 1
            assert answers[0]["turn"]["usage"]["input_tokens"] > 0


class TestWhenSomethingDies:
    @pytest.mark.nightly
    async def test_stopping_the_turn_kills_its_processes(self, tmp_path: Path) -> None:
        mark = str(10**9 + secrets.randbelow(10**9))
        async with serving(tmp_path) as server, server.client() as client:
            await server.runner_answers()
            turn = (await client.ask(f"run `sleep {mark}`", kind="sandbox", background=True))["turn_id"]
            await started(lambda: is_asleep(mark))
            began = time.monotonic()
            stopped = (await client.post(f"/v1/turns/{turn}/cancel")).json()
            await gone(lambda: processes_called(mark))
            assert stopped["status"] == "cancelled"
            assert time.monotonic() - began < 10  # a second, on a machine that does nothing else

    async def test_a_killed_runner_fails_its_turn_and_comes_back(self, tmp_path: Path) -> None:
        mark = str(10**9 + secrets.randbelow(10**9))
        async with serving(tmp_path) as server, server.client() as client:
            runner = await server.runner_answers()
            turn = (await client.ask(f"run `sleep {mark}`", kind="sandbox", background=True))["turn_id"]
            await started(lambda: is_asleep(mark))
            runner.kill()
            async with asyncio.timeout(PATIENCE_SECONDS):
                async with client.stream("GET", f"/v1/turns/{turn}/events", timeout=60) as response:
                    events = await read_events(response)
            assert data_of(events[-1])["code"] == "sandbox_lost"
            assert [data_of(one)["status"] for one in events if one.event == "step"] == ["running", "failed"]
            await gone(lambda: processes_called(mark))
            await started(lambda: server.runner() is not None)
            await server.runner_answers()
            answer = await client.ask("run `echo back`", kind="sandbox")
            assert "back" in answer["turn"]["response"]

    async def test_a_killed_server_ends_runner_and_boxes_and_the_turn_is_lost(self, tmp_path: Path) -> None:
        mark = str(10**9 + secrets.randbelow(10**9))
        async with serving(tmp_path) as server, server.client() as client:
            runner = await server.runner_answers()
            turn = (await client.ask(f"run `sleep {mark}`", kind="sandbox", background=True))["turn_id"]
            await started(lambda: is_asleep(mark))
            server.process.kill()
            await server.process.wait()
            await gone(lambda: is_called(runner, "sandbox"))
            await gone(lambda: processes_called(mark))
        async with serving(tmp_path, TURNKEEP_SANDBOX_URL="off") as again, again.client() as client:
            assert "sandbox    off" in again.said
            async with client.stream("GET", f"/v1/turns/{turn}/events", timeout=60) as response:
                events = await read_events(response)
            assert data_of(events[-1])["code"] == "sandbox_lost"
            refused = await client.post("/v1/turns", json={"message": "Go.", "kind": "sandbox"})
            assert refused.status_code == 503

    @pytest.mark.parametrize("killed", ["runner", "server"])
    async def test_a_box_that_waits_for_a_decision_is_lost_with_it_and_the_call_never_runs(
        self, tmp_path: Path, database_settings: dict[str, str], killed: str
    ) -> None:
        settings = database_settings
        async with serving(tmp_path, **settings) as server, server.client() as client:
            runner = await server.runner_answers()
            rule = {"type": "sandbox", "name": "shell", "approval": "always"}
            made = await client.post("/v1/agents", json={"name": fake_id("agent"), "sandbox": True, "tools": [rule]})
            assert made.status_code == 201, made.text
            asked = await client.ask("run `echo ran > assets/ran`", agent_id=made.json()["id"])
            turn = asked["turn"]
            assert turn["status"] == "waiting", turn
            (runner if killed == "runner" else server.process).kill()
            if killed == "server":
                await server.process.wait()
                await gone(lambda: is_called(runner, "sandbox"))
                async with serving(tmp_path, **settings) as again, again.client() as other:
                    await self._is_lost(other, turn)
            else:
                await self._is_lost(client, turn)

    async def _is_lost(self, client: Client, turn: Json) -> None:
        async with client.stream("GET", f"/v1/turns/{turn['id']}/events", timeout=60) as response:
            events = await read_events(response)
        assert data_of(events[-1])["code"] == "sandbox_lost"
        assert [data_of(one)["status"] for one in events if one.event == "step"] == ["failed"]
        after = await client.read(f"/v1/turns/{turn['id']}")
        assert (after["status"], after["files"]) == ("failed", [])
        decision = {"call_id": turn["waiting_for"]["calls"][0]["id"], "decision": "allow"}
        late = await client.post(f"/v1/turns/{turn['id']}/approvals", json={"decisions": [decision]})
        assert (late.status_code, late.json()["code"]) == (409, "already_decided")
        conversation = await client.read(f"/v1/conversations/{turn['conversation_id']}")
        assert conversation["running_turn"] is None


def test_without_boxes_the_server_logs_the_reason_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        async def check(self) -> None:
            raise BoxUnavailable("bubblewrap is not installed. Install the package `bubblewrap`.")

    monkeypatch.setattr("turnkeep.sandbox.server.make_driver", lambda settings: Broken())
    settings = settings_for(tmp_path)
    with bind(settings) as listener:
        found = start_runner(settings, listener, {})
    assert found == "none: bubblewrap is not installed. Install the package `bubblewrap`."


def test_a_server_that_others_reach_needs_a_cgroup_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeep.sandbox.boxes.limits.Cgroups.find", lambda: None)
    monkeypatch.setattr("turnkeep.sandbox.boxes.limits.scope_command", lambda environ: None)
    settings = structs.replace(settings_for(tmp_path), host="0.0.0.0")
    with bind(settings) as listener:
        refused = start_runner(settings, listener, {})
        assert isinstance(refused, str)
        assert "TURNKEEP_SANDBOX_MEMORY_GUARD=watchdog" in refused
        told = start_runner(settings, listener, {"TURNKEEP_SANDBOX_MEMORY_GUARD": "watchdog", **os.environ})
        assert isinstance(told, RunnerProcess)
        told.close()
    local = settings_for(tmp_path)
    with bind(local) as listener:
        easy = start_runner(local, listener, os.environ)
        assert isinstance(easy, RunnerProcess)
        assert easy.access.secret
        assert not easy.has_cgroups, "which is printed"
        easy.close()


def test_a_server_in_the_open_without_tls_is_warned_of(tmp_path: Path) -> None:
    local = settings_for(tmp_path)
    assert not is_in_the_open(local)
    exposed = structs.replace(local, host="0.0.0.0")
    assert is_in_the_open(exposed)
    assert is_in_the_open(structs.replace(exposed, public_url="http://chat.example.com"))
    assert not is_in_the_open(structs.replace(exposed, public_url="https://chat.example.com"))


def test_a_key_that_other_machines_can_guess_is_warned_of(tmp_path: Path) -> None:
    local = settings_for(tmp_path, bootstrap_key="k" * 31)
    assert not has_guessable_key(local)
    exposed = structs.replace(local, host="0.0.0.0")
    assert has_guessable_key(exposed)
    assert not has_guessable_key(structs.replace(exposed, bootstrap_key="k" * 32))
    assert not has_guessable_key(structs.replace(exposed, bootstrap_key=None))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_the_warnings_are_printed_at_the_start(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path, "--host", host, TURNKEEP_SANDBOX_URL="off", TURNKEEP_BOOTSTRAP_KEY="k" * 31) as server:
        assert ("plain text" in server.said) == (host == "0.0.0.0")
        assert ("can guess" in server.said) == (host == "0.0.0.0")


def test_no_key_of_a_provider_reaches_the_runner() -> None:
    given = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "a",
        "OPENAI_API_KEY": "b",
        "TURNKEEP_SECRET_KEYS": "c",
        "TURNKEEP_BOOTSTRAP_KEY": "d",
        "TURNKEEP_SANDBOX_URL": "off",
        "TURNKEEP_SANDBOX_SECRET": "e",
        "TURNKEEP_SANDBOX_TURNS": "3",
    }
    assert runner_environment(given) == {"PATH": "/bin", "TURNKEEP_SANDBOX_TURNS": "3"}
