"""The first line that says something, as titles and previews have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.model.conversations import first_line


class TestTheFirstLine:
    @pytest.mark.parametrize(
        "text, expected",
        [
            ("Hello", "Hello"),
            ("\n \n\tHello \t you\nmore", "Hello you"),
            ("a\r\nb", "a"),
            ("a\u2028b", "a"),
            ("", None),
            (" \n\t\n", None),
            ("x" * 10, "x" * 10),
            ("x" * 11, "x" * 9 + "…"),
            ("one two three", "one two t…"),
            ("one twox  three", "one twox…"),
        ],
    )
    def test_it_is_trimmed_and_cut(self, text: str, expected: str | None) -> None:
        assert first_line(text, limit=10) == expected

    @given(st.text(), st.integers(2, 50))
    def test_it_is_one_short_line_or_nothing(self, text: str, limit: int) -> None:
        line = first_line(text, limit=limit)
        if line is None:
            assert not text.split()
        else:
            assert 0 < len(line) <= limit
            assert line == " ".join(line.split())
            assert len(line.splitlines()) == 1
