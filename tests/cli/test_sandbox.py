"""`turnkeep sandbox` on the command line."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import clean_environment, run_turnkeep
from turnkeep.cli.sandbox import _enter_scope
from turnkeep.sandbox.boxes.limits import Cgroups
from turnkeep.sandbox.settings import RunnerSettings

SERVER = {"COLUMNS": "200", "TURNKEEP_SANDBOX_SERVER": "http://127.0.0.1:8787"}


def run(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return run_turnkeep("sandbox", *arguments, env=clean_environment(**SERVER | changes))


def test_its_help_names_every_setting() -> None:
    shown = run("--help").stdout
    for flag in ("--host", "--driver", "--memory-mib", "--until-eof", "--docker-runtime"):
        assert flag in shown


def test_a_setting_that_makes_no_sense_is_one_line() -> None:
    ended = run("--driver", "none")
    assert ended.returncode == 2
    assert ended.stderr == "turnkeep: --driver must be one of bubblewrap, docker, not 'none'.\n"


def test_it_does_not_start_without_boxes(tmp_path: Path) -> None:
    """The docker client is there, an engine is not."""
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon.' >&2; exit 1\n")
    client.chmod(0o755)
    ended = run("--port", "0", "--driver", "docker", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.returncode != 0
    assert ended.stderr.startswith("turnkeep: No box can be started: Cannot connect to the Docker daemon.")


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("--port", str(taken.getsockname()[1]))
    assert ended.returncode != 0
    assert "choose another --port" in ended.stderr


def test_it_must_be_told_whose_turns_to_run() -> None:
    ended = run(TURNKEEP_SANDBOX_SERVER="")
    assert ended.returncode == 2
    assert ended.stderr.startswith("turnkeep: Say whose turns to run: TURNKEEP_SANDBOX_SERVER")


def test_on_an_open_address_there_must_be_a_secret() -> None:
    ended = run("--host", "0.0.0.0")
    assert ended.returncode == 2
    assert "TURNKEEP_SANDBOX_SECRET" in ended.stderr


def test_where_only_systemd_can_limit_memory_it_starts_again_in_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(Cgroups, "find", lambda: None)
    monkeypatch.setattr("turnkeep.sandbox.boxes.limits.scope_command", lambda environ: ["/bin/systemd-run", "--scope"])
    monkeypatch.setattr(os, "execv", lambda program, arguments: became.append(arguments))
    monkeypatch.setattr(sys, "argv", ["turnkeep", "sandbox", "--port", "0"])
    monkeypatch.delenv("TURNKEEP_IN_SCOPE", raising=False)
    _enter_scope(RunnerSettings())
    assert [each[:2] + each[-3:] for each in became] == [["/bin/systemd-run", "--scope", "sandbox", "--port", "0"]]
    _enter_scope(RunnerSettings())
    assert len(became) == 1, "once"
    monkeypatch.delenv("TURNKEEP_IN_SCOPE")
    _enter_scope(RunnerSettings(driver="docker"))
    assert len(became) == 1
