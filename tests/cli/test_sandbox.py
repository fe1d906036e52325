"""`turnkeep sandbox` on the command line."""

import os
import socket
import subprocess
from pathlib import Path

from tests.server_process import clean_environment, run_turnkeep


def run(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return run_turnkeep("sandbox", *arguments, env=clean_environment(**{"COLUMNS": "200"} | changes))


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
