"""The table of fields in the manual is what the code honours and refuses."""

import re
from pathlib import Path

from turnkeep.api.openai import completions, responses

PAGE = Path(__file__).parents[2] / "docs/howto/use-the-openai-sdk.md"


def table() -> dict[str, list[list[str]]]:
    """The fields of each route: honoured, refused, without effect."""
    rows = re.findall(r"^\| `POST (/openai/\S+)` \|(.+)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {route: [re.findall(r"`(\w+)`", cell) for cell in cells.split("|")] for route, cells in rows}


def test_the_table_lists_the_fields_of_the_code() -> None:
    assert table() == {
        f"/openai/v1/{route}": [list(module.HONOURED), list(module.REFUSED), list(module.IGNORED)]
        for route, module in (("chat/completions", completions), ("responses", responses))
    }


def test_a_field_is_in_one_column() -> None:
    for columns in table().values():
        fields = [field for column in columns for field in column]
        assert len(fields) == len(set(fields))
