"""The page's types are those of this server: the build makes them from the OpenAPI document."""

import os
import subprocess
from pathlib import Path

from tests.browser.harness import ROOT


def make_types(file: Path) -> None:
    subprocess.run(
        [ROOT / "scripts" / "web", "wire"], check=True, env=os.environ | {"TURNKEEP_WIRE": str(file)}, cwd=ROOT
    )


def test_the_types_of_the_page_are_made_from_the_current_api(tmp_path: Path) -> None:
    file = tmp_path / "schema.ts"
    file.write_text("// Made from another API\n", encoding="utf-8")
    make_types(file)
    made = file.read_text(encoding="utf-8")
    assert "export interface components" in made
    assert "NewTurn: {" in made


def test_types_that_are_current_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "schema.ts"
    make_types(file)
    before = file.stat().st_mtime_ns
    make_types(file)
    assert file.stat().st_mtime_ns == before
