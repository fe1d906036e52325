"""The reference pages name what there is."""

import re
from pathlib import Path

from tests.api.test_errors import every_error
from tests.api.test_matrix import ENDPOINTS
from turnkeep.api.errors import status_of

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_every_route_is_on_the_page_with_its_policy() -> None:
    page = (PAGES / "http.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+ \S+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {(f"{one.method} {one.path}", one.policy.value) for one in ENDPOINTS}


def test_every_code_that_can_reach_a_caller_is_on_the_page() -> None:
    page = (PAGES / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE))
    ours = {
        error.code: str(status_of(error))
        for error in every_error()
        if error.__module__ in {"turnkeep.errors", "turnkeep.api.errors"} and status_of(error) != 500
    }
    assert rows == ours | {"internal": "500"}
