"""Tokens; and passages and excerpts: long texts in pieces that lose nothing, and the piece that a query is about."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.model import text_search
from turnkeep.model.text_search import all_tokens_of, excerpt, loosened, parse_query, snippet, split_passages, tokens_of

WORDS = st.text(alphabet=st.sampled_from("ab \n#\f東é"), max_size=400)


class TestTokens:
    @given(st.text(alphabet=st.characters(max_codepoint=127), max_size=400))
    def test_of_an_english_text_are_the_same_beside_a_foreign_word(self, text: str) -> None:
        assert all_tokens_of(text + " Straße") == [*all_tokens_of(text), "strasse"]

    def test_are_folded_and_cut(self) -> None:
        assert tokens_of("The e-mail of THE snake_case " + "x" * 100) == [
            *("the", "e", "mail", "of", "snake", "case"),
            "x" * 64,
        ]


class TestSplitting:
    def test_at_headings_which_name_the_place(self) -> None:
        text = "Intro.\n\n# One\n\nFirst.\n\n## Two ##\n\nSecond."
        found = [(text[each.start : each.stop].strip(), each.place) for each in split_passages(text)]
        assert found == [("Intro.", None), ("# One\n\nFirst.", "One"), ("## Two ##\n\nSecond.", "Two")]

    def test_at_pages_which_are_counted_also_where_one_is_empty(self) -> None:
        text = "one\f\fthree"
        assert [(each.place, text[each.start : each.stop]) for each in split_passages(text, unit="slide")] == [
            ("slide 1", "one"),
            ("slide 3", "three"),
        ]

    def test_at_paragraphs_where_a_section_is_long_and_at_spaces_where_a_paragraph_is(self) -> None:
        text = "a" * 30 + "\n\n" + "b" * 30 + "\n\n" + "c " * 40
        pieces = [text[each.start : each.stop] for each in split_passages(text, limit=50)]
        assert pieces[0].strip() == "a" * 30
        assert pieces[1].strip() == "b" * 30
        assert "".join(pieces) == text
        assert all(len(piece) <= 50 for piece in pieces)

    @given(WORDS, st.integers(min_value=1, max_value=60))
    def test_loses_nothing_but_space(self, text: str, limit: int) -> None:
        pieces = split_passages(text, limit=limit)
        kept = "".join(text[each.start : each.stop] for each in pieces)
        assert "".join(kept.split()) == "".join(text.split())
        assert all(each.stop - each.start <= limit for each in pieces)


class TestSnippets:
    def test_show_the_first_match_wherever_it_is(self) -> None:
        query = parse_query("saffron")
        for before in (0, 1, 1_999, 2_000, 2_001, 50_000):
            text = "x" * before + " Saffron grows. " + "y" * 3_000
            shown = snippet(text, query)
            assert shown is not None, before
            assert "**Saffron** grows." in shown
        assert snippet("unsaffron " * 5_000, query) is None
        assert snippet("xsaffron" * 500, query) is None

    def test_take_little_of_a_text_that_seems_to_match_everywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One search took 14 seconds: every word of every long message was folded."""
        folded = []

        def counted(token: str) -> str:
            folded.append(len(token))
            return unicodedata.normalize("NFKC", token).casefold()

        monkeypatch.setattr(text_search, "_folded", counted)
        for text in ("xfoo " * 20_000, "東京" * 50_000, "ﷺ " * 50_000, "a\u0301 " * 30_000):
            folded.clear()
            snippet(text, parse_query("foo"))
            assert sum(folded) < 200_000
            assert len(folded) < 15_000


class TestExcerpts:
    def test_show_where_most_of_the_words_are(self) -> None:
        text = "saffron " + "filler " * 200 + "saffron grows in Kashmir " + "filler " * 200
        shown = excerpt(text, parse_query("saffron kashmir"), chars=100)
        assert "saffron grows in Kashmir" in shown
        assert shown.startswith("… ")
        assert shown.endswith(" …")

    def test_of_folded_and_unspaced_scripts(self) -> None:
        text = "x " * 300 + "ＳＡＦＦＲＯＮ wächst " + "x " * 300 + "東京の渋谷 " + "x " * 300
        assert "ＳＡＦＦＲＯＮ" in excerpt(text, parse_query("saffron"), chars=60)
        assert "渋谷" in excerpt(text, parse_query("渋谷"), chars=60)
        assert "渋谷" in excerpt(text.replace("ＳＡＦＦＲＯＮ", "saffron"), parse_query("渋谷"), chars=60)

    @given(WORDS, WORDS, st.integers(min_value=60, max_value=200))
    def test_are_never_much_longer_than_asked(self, text: str, query: str, chars: int) -> None:
        assert len(excerpt(text * 5, parse_query(query), chars=chars)) <= chars + 4

    def test_loose_queries_leave_out_what_says_nothing(self) -> None:
        wanted = loosened(parse_query("what is the refund policy"))
        assert (wanted.words, wanted.prefixes) == (("refund",), ("policy",))
        assert not loosened(parse_query("what is the")).is_empty
