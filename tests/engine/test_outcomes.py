"""What comes from outside, made fit to be kept, whatever it is."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from turnkeep.engine.outcomes import clean_json
from turnkeep.model.truncation import MAX_DEPTH, is_too_deep


def nested(levels: int, innermost: Any = 1) -> Any:
    value = innermost
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


class TestJson:
    @pytest.mark.parametrize("value", [UNSET, None, 1.5, "text", [], {}, {"a": [1, {"b": None}]}, nested(MAX_DEPTH)])
    def test_that_is_fit_stays_as_it_is(self, value: Any) -> None:
        assert clean_json(value) == value

    def test_is_made_fit_down_to_its_names(self) -> None:
        assert clean_json({"a\0": ["\ud800", ("\ud83d\ude00",)]}) == {"a\ufffd": ["\ufffd", ["😀"]]}

    @pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 900])
    def test_that_is_nested_too_deeply_becomes_its_text(self, levels: int) -> None:
        value = nested(levels)
        assert clean_json(value) == msgspec.json.encode(value).decode()
        assert clean_json([0, {"b": value}]).startswith("[0,")

    @pytest.mark.parametrize("value", [nested(100_000), nested(500, "\ud800")], ids=["deep", "half a character"])
    def test_that_cannot_be_written_either_is_only_described(self, value: Any) -> None:
        assert clean_json(value) == "(nested more than 100 levels deep, not shown)"

    def test_that_holds_itself_is_too_deep(self) -> None:
        ring: list[Any] = ["\ud800"]
        ring += [ring, ring]
        assert is_too_deep(ring)
        assert isinstance(clean_json(ring), str)
