"""Names of files: kept if possible, cleaned if that is harmless, refused if they look like an attack."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.errors import InvalidRequest
from turnkeep.files.names import clean_name, extension_of
from turnkeep.model.files import NAME_BYTES


class TestKept:
    @pytest.mark.parametrize(
        "name",
        [
            "report.pdf",
            "Bericht über Größe.docx",
            "資料 2026.xlsx",
            "تقرير.txt",
            "family 👨\u200d👩\u200d👧.png",
            ".env",
            "no extension",
            "a.tar.gz",
            "--help",
            "100% done & signed (v2) [final].txt",
            "console.log",
            "nullable.py",
            "~notes.txt",
            "~$report.docx",
            "~",
        ],
    )
    def test_as_it_is(self, name: str) -> None:
        assert clean_name(name) == unicodedata.normalize("NFC", name)


class TestCleaned:
    @pytest.mark.parametrize(
        "name, expected",
        [
            ("a\tb\r\nc.txt", "abc.txt"),
            ("docs/report.pdf", "docs_report.pdf"),
            ("docs\\report.pdf", "docs_report.pdf"),
            ('what? "this": a<b>|c*.txt', "what_ _this__ a_b__c_.txt"),
            ("  spaces.txt  ", "spaces.txt"),
            ("dots.txt...", "dots.txt"),
            ("cafe\u0301.txt", "caf\u00e9.txt"),
            ("zero\u200bwidth\ufeff.txt", "zerowidth.txt"),
            ("line\u2028separator.txt", "lineseparator.txt"),
            ("bell\x07\x7f\x9b.txt", "bell.txt"),
        ],
    )
    def test_of_control_and_path_characters(self, name: str, expected: str) -> None:
        assert clean_name(name) == expected


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        [
            "../../etc/passwd",
            "..\\..\\windows\\system32",
            "~bob/notes.txt",
            "~bob\\notes.txt",
            "a/../../b",
            "a/..",
            "..",
            ".",
            "\uff0e\uff0e\uff0fetc",  # full-width dots and slash
            "\u2025/etc",  # two-dot leader
            "/etc/passwd",
            "\\\\server\\share",
            "C:\\autoexec.bat",
            "c:/windows",
            "~/.ssh/authorized_keys",
            "/dev/null",
            "CON",
            "nul",
            "NUL.txt",
            "com1.tar.gz",
            "LPT9",
            "aux .txt",
            "\uff23\uff2f\uff2e.txt",  # full-width CON
            "COM\u00b9.txt",  # superscript one
            "nul\0.txt",
            "a\0",
            "invoice\u202efdp.exe",  # reads as invoiceexe.pdf
            "a\u2066b.txt",
            "a\u200fb.txt",
            "n" * 300,
            "n" * 300 + ".txt",
            "é" * 121,
            "",
            "   ",
            "...",
            "\t\r\n",
            "\ud800.txt",
        ],
    )
    def test_with_a_reason(self, name: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            clean_name(name)
        assert refused.value.detail.endswith(".")

    def test_the_longest_accepted_name_leaves_room_for_a_number(self) -> None:
        assert len(clean_name("n" * NAME_BYTES).encode()) == NAME_BYTES
        assert NAME_BYTES + len("-99999") <= 255


class TestAnyName:
    @given(st.text(max_size=300))
    def test_an_accepted_name_is_safe_on_every_system(self, name: str) -> None:
        try:
            cleaned = clean_name(name)
        except InvalidRequest:
            return
        assert cleaned
        assert cleaned == cleaned.strip()
        assert len(cleaned.encode()) <= NAME_BYTES
        assert not set(cleaned) & set('/\\:*?"<>|\0')
        assert all(unicodedata.category(character) != "Cc" for character in cleaned)
        assert not cleaned.endswith(".")
        assert cleaned not in {".", ".."}

    @given(st.text(max_size=300))
    def test_a_clean_name_stays_the_same(self, name: str) -> None:
        try:
            cleaned = clean_name(name)
        except InvalidRequest:
            return
        assert clean_name(cleaned) == cleaned


@pytest.mark.parametrize("name, expected", [("a.PDF", "pdf"), ("a.tar.gz", "gz"), (".env", ""), ("a", ""), ("a.", "")])
def test_extensions(name: str, expected: str) -> None:
    assert extension_of(name) == expected
