"""The pages name every command, option and verb; every command's help teaches by example."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from turnkeep.cli.main import COMMANDS, build
from turnkeep_client import sync

PAGES = Path(__file__).parents[2] / "docs" / "reference"
SHARED = {"--help", "-h"}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with what typer made of it."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
            return
        for word, each in inner.items():
            yield from walk(f"{name} {word}".strip(), each)

    yield from walk("", typer.main.get_command(build([command.name for command in COMMANDS])))


ALL = dict(commands())


def section(name: str) -> str:
    page = (PAGES / "cli.md").read_text("utf-8")
    found = re.search(rf"^##+ turnkeep {name}\n(.*?)(?=^## |^### |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/reference/cli.md has no section about `turnkeep {name}`"
    return found[1]


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_on_the_page_with_its_options(name: str) -> None:
    text = section(name)
    for parameter in ALL[name].params:
        if getattr(parameter, "rich_help_panel", None) == "Settings":
            continue  # those stand in the reference of settings, which has a test of its own
        for option in set(parameter.opts) - SHARED if parameter.param_type_name == "option" else ():
            assert f"`{option}`" in text, f"{option} of `turnkeep {name}` is not in docs/reference/cli.md"


@pytest.mark.parametrize("name", ALL)
def test_every_command_teaches_by_example(name: str) -> None:
    told = ALL[name].help
    assert re.search(rf"\*\*Examples?\*\*.*`[^`]*turnkeep {name}", told, re.DOTALL), told


def test_every_verb_of_the_client_is_on_the_page() -> None:
    page = (PAGES / "client.md").read_text("utf-8")
    faces = [face for face in vars(sync).values() if isinstance(face, type) and issubclass(face, sync.SyncResource)]
    verbs = {verb for face in faces for verb in vars(face) if not verb.startswith("_")}
    assert len(verbs) > 25
    assert sorted(verb for verb in verbs if not re.search(rf"`(\w+\.)?{verb}[`(]", page)) == []
