"""Cursors: which texts are valid, and which are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.errors import InvalidRequest
from turnkeep.streaming.frames import Cursor, parse_cursor

numbers = st.integers(0, 999_999_999)


class TestParsing:
    @pytest.mark.parametrize(
        "text, cursor",
        [
            ("0", Cursor()),
            ("12", Cursor(12)),
            ("12.345", Cursor(12, 345)),
            ("12.0", Cursor(12)),
            ("12~1.0.2.1", Cursor(12, 0, "1.0.2.1")),
            ("12.345~300.45", Cursor(12, 345, "300.45")),
        ],
    )
    def test_a_cursor_is_read(self, text: str, cursor: Cursor) -> None:
        assert parse_cursor(text) == cursor

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "",
                " 12",
                "12 ",
                "-1",
                "+1",
                "012",
                "1.",
                ".5",
                "1.05",
                "1.2.3",
                "0.5",
                "1~",
                "1~A",
                "1e3",
                "１２",
                "1\n",
            ),
            *("1000000000", "1.1000000000", "1~" + "1" * 49, "x" * 10_000),
        ],
    )
    def test_anything_else_is_refused_with_a_short_message(self, text: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_cursor(text)
        assert len(refused.value.detail) < 200

    @given(numbers.filter(bool), numbers, st.sampled_from(["", "1.2", "1.2.3.0"]))
    def test_what_is_written_is_read_again(self, seq: int, offset: int, state: str) -> None:
        cursor = Cursor(seq, offset, state)
        assert parse_cursor(str(cursor)) == cursor
