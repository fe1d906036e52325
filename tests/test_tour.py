"""The tour of the README: an animated SVG that a script records, from commands that are really run."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs/images/tour.svg"
MOST_BYTES = 1_500_000
SVG = "{http://www.w3.org/2000/svg}"


def lines_of(path: Path, kind: str) -> list[str]:
    """The lines of this kind that the tour shows. Ids differ from one recording to the next."""
    drawn = ElementTree.parse(path).getroot()
    found = [each for each in drawn.iter(f"{SVG}text") if each.get("class") == kind]
    return [re.sub(r"_[0-9a-f]{6}…|: 1\.\d+", "", "".join(each.itertext())) for each in found]


class TestTheTour:
    def test_is_small_and_loads_nothing(self) -> None:
        text = TOUR.read_text(encoding="utf-8")
        assert len(text.encode()) < MOST_BYTES
        assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[a-z]+:", text) == []
        assert "token=…" in text

    def test_is_shown_in_the_readme_and_in_the_manual(self) -> None:
        assert "(docs/images/tour.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
        assert "(images/tour.svg)" in (ROOT / "docs/README.md").read_text(encoding="utf-8")

    def test_can_be_recorded_again(self, tmp_path: Path) -> None:
        made = tmp_path / "tour.svg"
        script = [sys.executable, str(ROOT / "scripts/tour"), str(made)]
        ran = subprocess.run(script, capture_output=True, text=True, timeout=170, check=False)
        assert ran.returncode == 0, ran.stderr
        for kind in ("note", "command"):
            assert lines_of(made, kind) == lines_of(TOUR, kind)
        assert any('"attempt":2' in line for line in lines_of(made, "good"))
