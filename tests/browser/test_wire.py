"""The page's types are those of this server: the build makes them from the OpenAPI document."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.browser.harness import ROOT


def make_types(file: Path) -> None:
    subprocess.run(
        [ROOT / "scripts" / "web", "wire"], check=True, env=os.environ | {"TURNKEEP_WIRE": str(file)}, cwd=ROOT
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Types that were of another API, and were made anew."""
    file = tmp_path_factory.mktemp("wire") / "schema.ts"
    file.write_text("// Made from another API\n", encoding="utf-8")
    make_types(file)
    return file


def test_the_types_of_the_page_are_made_from_the_current_api(made: Path) -> None:
    types = made.read_text(encoding="utf-8")
    assert "export interface components" in types
    assert "NewTurn: {" in types


def test_types_that_are_current_are_left_alone(made: Path) -> None:
    before = made.stat().st_mtime_ns
    make_types(made)
    assert made.stat().st_mtime_ns == before
