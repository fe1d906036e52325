"""The page's own unit tests: its decoder on the golden streams, its state, its markdown."""

import subprocess

from tests.browser.harness import ROOT


def test_they_pass() -> None:
    run = subprocess.run([ROOT / "scripts" / "web", "test"], check=False, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
