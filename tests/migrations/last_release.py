"""The last release that landed, from the history of this repository, as a server process."""

import subprocess
import tarfile
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest

COMMIT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").strip()
SOURCES = ("src", "clients/python/src")
ROOT = Path(__file__).parents[2]


@cache
def _archive() -> bytes:
    """Its sources. Without them the test is skipped: a shallow clone has no history."""
    made = subprocess.run(
        ["git", "archive", "--format=tar", COMMIT, *SOURCES], cwd=ROOT, capture_output=True, check=False, timeout=120
    )
    if made.returncode:
        reason = made.stderr.decode(errors="replace").strip()
        pytest.skip(f"The sources of the last release ({COMMIT[:7]}) are not in this clone: {reason}")
    return made.stdout


def unpack(folder: Path) -> str:
    """Put its sources into a new folder; return what PYTHONPATH must be to run it."""
    with tarfile.open(fileobj=BytesIO(_archive())) as tar:
        tar.extractall(folder, filter="data")
    return ":".join(str(folder / each) for each in SOURCES)


def migrations(folder: Path) -> int:
    """How many migrations the unpacked release has."""
    return len(list((folder / "src/turnkeep/store/sql/postgres/migrations").glob("*.sql")))
