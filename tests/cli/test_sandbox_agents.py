"""Agents in a sandbox, from the command line and from Python: a whole `turnkeep serve`, with its own runner."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import environment, run_turnkeep, serving
from turnkeep.client import Step, Turnkeep
from turnkeep_client.agents import RunFailed, RunResult

DO = 'use shell {"command": "cd assets; cat notes.txt; echo done > report.txt"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a server runs."""
    folder = tmp_path_factory.mktemp("sandboxed")
    (folder / "notes.txt").write_text("buy milk\n")
    with serving(folder, environment(folder)):
        with Turnkeep(data_dir=folder / "data") as turnkeep:
            turnkeep.agents.create("Clerk", model="demo", sandbox=True)
        yield folder


def run(folder: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return run_turnkeep(*arguments, env=environment(folder))


class TestAChat:
    def test_in_a_pipe_has_every_word_and_names_the_files(self, folder: Path) -> None:
        do = 'use shell {"command": "echo forty-two | tee assets/answer.txt"}'
        done = run(folder, "chat", "--agent", "Clerk", do)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("I will use `shell`.\n\n")
        assert "> forty-two" in done.stdout
        assert re.search(r"▪ answer\.txt \(10 bytes\) file_[0-9a-f]{32}", done.stderr)


class TestARun:
    def test_prints_the_result_shows_steps_and_brings_the_files(self, folder: Path) -> None:
        done = run(folder, "agents", "run", "Clerk", DO, "-f", folder / "notes.txt", "-o", folder / "out")
        assert done.returncode == 0, done.stderr
        assert "buy milk" in done.stdout
        assert "✓ shell" in done.stderr
        assert (folder / "out" / "report.txt").read_text() == "done\n"

    def test_prints_its_lines_as_json(self, folder: Path) -> None:
        done = run(folder, "agents", "run", "clerk", "hello", "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert {line["type"] for line in lines} >= {"delta", "result"}
        assert lines[-1]["type"] == "result"

    def test_is_typed_lines_in_python(self, folder: Path) -> None:
        with Turnkeep(data_dir=folder / "data") as turnkeep:
            clerk = next(iter(turnkeep.agents.list()))
            running = turnkeep.agents.run(clerk.id, 'use shell {"command": "echo hi"}')
            lines = list(running)
            assert [line.status for line in lines if isinstance(line, Step)] == ["running", "succeeded"]
            assert isinstance(lines[-1], RunResult)
            assert turnkeep.turns.get(running.turn_id or "").response == lines[-1].message
            assert "Hello" in turnkeep.agents.run(clerk.id, "hello").result()

    def test_that_fails_is_an_error(self, folder: Path) -> None:
        with Turnkeep(data_dir=folder / "data") as turnkeep:
            broken = turnkeep.agents.create(
                "Broken", model="demo", sandbox=True, environment={"setup_script": "exit 3"}
            )
            with pytest.raises(RunFailed):
                turnkeep.agents.run(broken.id, "hello").result()
        done = run(folder, "agents", "run", "Broken", "hello")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("turnkeep: The run failed")


class TestASandboxConversation:
    def test_streams_like_any_other_and_shows_its_files(self, folder: Path) -> None:
        arguments = ("chat", DO, "--sandbox", "--agent", "Clerk", "-f", folder / "notes.txt", "--json")
        done = run(folder, *arguments)
        answer = json.loads(done.stdout)
        assert (answer["status"], "buy milk" in answer["text"]) == ("succeeded", True), done.stderr
        assert [file["name"] for file in answer["files"]] == ["report.txt"]
        with Turnkeep(data_dir=folder / "data") as turnkeep:
            assert turnkeep.files.read(answer["files"][0]["id"]) == b"done\n"
