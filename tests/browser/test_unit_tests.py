"""The unit tests of the page in web/test."""

import subprocess

from tests.browser.harness import ROOT


def test_the_unit_tests_of_the_page_pass() -> None:
    run = subprocess.run([ROOT / "scripts" / "web", "test"], check=False, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
