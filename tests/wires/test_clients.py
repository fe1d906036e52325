"""Our client and those of other makers, in Node, against a real server: tests/wires/node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import clean_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("client", ["client", "deno", "ai-sdk", "ag-ui", "openai", "manual"])
def test_the_client_has_what_the_server_has(client: str) -> None:
    run_tests(f"{client}.test.mjs")


@pytest.mark.nightly
@pytest.mark.parametrize("client, turns", [("ag-ui", 1000), ("ai-sdk", 400)])
def test_other_random_turns_are_the_same_for_the_client(client: str, turns: int) -> None:
    seed = str(int.from_bytes(os.urandom(4)))
    run_tests(f"{client}.test.mjs", TURNKEEP_RANDOM_TURNS=str(turns), TURNKEEP_RANDOM_SEED=seed)


def run_tests(file: str, **variables: str) -> None:
    """Run one file of tests with the Node that has the clients."""
    command = [str(ROOT / "scripts" / "web"), "clients-test", file]
    env = clean_environment(PYTHON=sys.executable, **variables)
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=env)
    assert run.returncode == 0, f"{variables}\n{run.stdout[-20_000:]}\n{run.stderr[-20_000:]}"
