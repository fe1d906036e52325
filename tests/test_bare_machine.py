"""`make run`, `turnkeep doctor` and the README on a machine that has Python, make and curl, and nothing else."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare_machine import SECONDS, USER, BareMachine
from tests.test_readme import ADDRESS, EXPECTED, examples

pytestmark = [pytest.mark.nightly, pytest.mark.alone]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    made = BareMachine(tmp_path_factory.mktemp("machines") / "bare")
    try:
        yield made
    finally:
        made.remove()


class Reader:
    """A person who has just cloned the repository, and started the server with `make run`."""

    def __init__(self, machine: BareMachine, checkout: Path, user: int) -> None:
        self.machine, self.checkout, self.user = machine, checkout, user
        self.process = subprocess.Popen(
            machine.command("make", "-C", str(checkout), "run", "ARGS=--port 0", user=user),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.printed = ""
        for line in self.process.stdout:
            self.printed += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"running at (http://\S+)", self.printed)
        assert found is not None, self.printed
        self.url = found[1]

    def types(self, text: str, *, language: str = "sh") -> str:
        """What an example prints, with the commands of the checkout on the path."""
        shell = "exec python -" if language == "python" else "exec bash -eu -o pipefail"
        command = f'cd "{self.checkout}" && . .venv/bin/activate && {shell}'
        done = subprocess.run(
            self.machine.command(
                "bash", "-c", command, user=self.user, env={"COLUMNS": "200"}, beside=self.process.pid
            ),
            input=text.replace(ADDRESS, self.url),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def leave(self) -> None:
        self.machine.end(self.process)


@pytest.fixture(scope="module", params=["root", "a normal user"])
def reader(request: pytest.FixtureRequest, machine: BareMachine) -> Iterator[Reader]:
    home, user = ("/root", 0) if request.param == "root" else ("/home/reader", USER)
    one = Reader(machine, machine.put_checkout(home, owner=user), user)
    try:
        yield one
    finally:
        one.leave()


def test_there_is_a_sandbox_and_a_page(reader: Reader) -> None:
    assert re.search(r"^  sandbox +http://127\.0\.0\.1:", reader.printed, re.MULTILINE), reader.printed
    assert "could not be built" not in reader.printed
    assert "<!doctype html>" in reader.types(f"curl -s {reader.url}/").lower()


def test_the_doctor_finds_nothing_wrong(reader: Reader) -> None:
    """Only the model is worth a word: the demo model."""
    lines = re.findall(r"^(ok|warn|fail|skip) +(\w+)", reader.types("turnkeep doctor"), re.MULTILINE)
    assert ("ok", "runner") in lines
    assert [line for line in lines if line[0] == "fail"] == []
    assert [name for state, name in lines if state == "warn"] == ["models"]


@pytest.mark.parametrize("place", range(len(examples())))
def test_an_example_of_the_readme_works_as_it_stands(place: int, reader: Reader) -> None:
    language, text = examples()[place]
    [wanted] = [words for name, words in EXPECTED.items() if name in text]
    if place:
        reader.types("test -e notes.txt || echo 'buy milk' > notes.txt")
    printed = reader.types(text, language=language)
    assert [words for words in wanted if words not in printed] == [], printed
