"""The examples of the README, run as they stand against a server as `turnkeep serve` starts it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import SECONDS, TURNKEEP, clean_environment, serving

README = Path(__file__).parents[1] / "README.md"
ADDRESS = "http://127.0.0.1:8787"

EXPECTED = {
    "turnkeep doctor\n": ["| Jupiter | 95 |", '"text":', "buy milk", "ok    server"],
    "turnkeep export --all": ["conv_", "From elsewhere"],
    "turnkeep pages write": ["“Returns”", "“Support”", "[1] Returns", "within 30 days"],
    "turnkeep agents run": ["“Coder”", "1\n2\n3\n"],
    'Turnkeep("https://': ["Every turn is kept"],
    "async for words in": ["Every turn is kept"],
    "turnkeep.files.upload": ["buy milk"],
    "@tool": [],
    '-d \'{"message": "show me a table"}\'': ["Jupiter", "event: turn", "event: delta", "event: result"],
    "Last-Event-ID": ["event: result", "id: 2"],
    "Idempotency-Key": ['"status":"succeeded"'],
    "/v1/tokens": ['"token":', '"expires_at":'],
    "doctor transcript.json": ["A provider would refuse", "Repaired: "],
}
"""For each example, named by words in it: what it must print. An example without a line here fails the test."""


def examples() -> list[tuple[str, str]]:
    """Language and text of every block in the section of examples."""
    text = README.read_text("utf-8")
    section = text[text.index("## Five lines each") :]
    section = section[: section.index("\n## ")]
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader sits: the examples are run in order and share what they write."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    kept = clean_environment()
    commands = folder / "bin"
    commands.mkdir()
    command = commands / "turnkeep"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(TURNKEEP)} "$@"\n')
    command.chmod(0o755)
    return kept | {"PATH": f"{commands}{os.pathsep}{kept['PATH']}", "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="module")
def address(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """`make run`, but for the port."""
    with serving(folder, environment) as server:
        yield server.url


def test_there_is_one_of_each_main_use() -> None:
    languages = [language for language, _ in examples()]
    assert languages.count("python") >= 3
    assert languages.count("sh") >= 5


@pytest.mark.parametrize("place", range(len(examples())))
def test_an_example_works_as_it_stands(place: int, folder: Path, environment: dict[str, str], address: str) -> None:
    if shutil.which("curl") is None:
        pytest.fail("curl is needed to run the examples with curl")
    if place and not (folder / "notes.txt").exists():
        (folder / "notes.txt").write_text("buy milk\n")
    language, text = examples()[place]
    wanted = [words for name, words in EXPECTED.items() if name in text]
    assert len(wanted) == 1, f"say in EXPECTED what this example prints:\n{text}"
    text = text.replace(ADDRESS, address)
    command = [sys.executable, "-"] if language == "python" else ["bash", "-eu", "-o", "pipefail"]
    done = subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [words for words in wanted[0] if words not in done.stdout] == [], done.stdout + done.stderr
