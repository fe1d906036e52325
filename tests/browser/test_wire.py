"""The page's types are those of this server."""

import os
import subprocess
from pathlib import Path

from tests.browser.harness import ROOT


def test_the_types_of_the_page_are_made_from_the_current_api(tmp_path: Path) -> None:
    made = tmp_path / "schema.ts"
    subprocess.run(
        [ROOT / "scripts" / "web", "wire"], check=True, env=os.environ | {"TURNKEEP_WIRE": str(made)}, cwd=ROOT
    )
    kept = ROOT / "web" / "src" / "wire" / "schema.ts"
    assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), "run `scripts/web wire`"
