"""Media types: the bytes of a file decide, and a name that contradicts them is refused."""

import os

import pytest

from tests.files.samples import (
    DOCX,
    ELF,
    GIF_SCRIPT,
    HTML,
    MP4,
    ODT,
    OLE,
    PDF,
    PE,
    PNG,
    SVG,
    picture,
    tar_head,
    zip_of,
)
from turnkeep.errors import UnsupportedMediaType
from turnkeep.files.media_types import BY_EXTENSION, HEAD_BYTES, UNKNOWN, family_of, type_of, type_of_output

OFFICE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class TestAccepted:
    @pytest.mark.parametrize(
        "name, declared, head, expected",
        [
            ("a.png", "image/png", PNG, "image/png"),
            ("a.jpg", None, picture("JPEG"), "image/jpeg"),
            ("a.gif", None, picture("GIF"), "image/gif"),
            ("a.webp", None, picture("WEBP"), "image/webp"),
            ("a.bmp", None, picture("BMP"), "image/bmp"),
            ("a.tiff", None, picture("TIFF"), "image/tiff"),
            ("a.heic", None, b"\0\0\0\x18ftypheic" + bytes(20), "image/heic"),
            ("a.svg", "image/svg+xml", SVG, "image/svg+xml"),
            ("a.pdf", "application/pdf", PDF, "application/pdf"),
            ("a.txt", "text/plain", b"hello", "text/plain"),
            ("a.txt", "text/plain", "Grüße".encode("utf-16"), "text/plain"),
            ("a.txt", "text/plain", "Grüße aus Köln".encode("latin-1"), "text/plain"),
            ("a.md", "application/octet-stream", b"# Title", "text/markdown"),
            ("a.csv", "application/vnd.ms-excel", b"a,b\n1,2\n", "text/csv"),
            ("a.json", None, b"{}", "application/json"),
            ("a.py", None, b"#!/usr/bin/env python\n", "text/x-python"),
            ("a.html", "text/html", HTML, "text/html"),
            ("Makefile", None, b"all:\n\tcc\n", "text/plain"),
            ("notes", "text/x-unheard-of", b"words", "text/x-unheard-of"),
            # Browsers and command lines often declare a wrong type; an extension that is known outweighs it.
            ("t.txt", "image/png", b"words", "text/plain"),
            ("t.txt", "application/x-msdownload", b"words", "text/plain"),
            ("photo.png", "text/plain", PNG, "image/png"),
            ("a.docx", None, DOCX, OFFICE),
            ("a.odt", None, ODT, "application/vnd.oasis.opendocument.text"),
            ("a.xls", None, OLE, "application/vnd.ms-excel"),
            ("a.rtf", None, b"{\\rtf1\\ansi}", "application/rtf"),
            ("a.mp3", None, b"ID3\x04\0\0" + bytes(20), "audio/mpeg"),
            ("a.wav", None, b"RIFF\x24\0\0\0WAVEfmt ", "audio/wav"),
            ("a.ogg", None, b"OggS\0\2" + bytes(20), "audio/ogg"),
            ("a.m4a", None, b"\0\0\0\x20ftypM4A " + bytes(20), "audio/mp4"),
            ("a.mp4", None, MP4, "video/mp4"),
            ("a.webm", None, b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm", "video/webm"),
            ("a.zip", None, zip_of(a=b"x"), "application/zip"),
            ("a.tar", None, tar_head(), "application/x-tar"),
            ("a.tar.gz", None, b"\x1f\x8b\x08" + bytes(20), "application/gzip"),
            ("a.7z", None, b"7z\xbc\xaf\x27\x1c" + bytes(20), "application/x-7z-compressed"),
            ("photo", "application/octet-stream", PNG, "image/png"),
            ("photo.jpg", "image/jpeg", PNG, "image/png"),
            ("empty.txt", None, b"", "text/plain"),
            ("empty", None, b"", "text/plain"),
            ("mz.txt", None, b"MZ is how DOS programs begin", "text/plain"),
            ("id3.md", None, b"ID3 tags are old", "text/markdown"),
            ("pdf.md", None, b"A file that begins with %PDF- is a PDF", "text/markdown"),
            ("cut.txt", None, ("x" * (HEAD_BYTES - 1) + "é").encode()[:HEAD_BYTES], "text/plain"),
        ],
    )
    def test_a_file_is_stored_under_its_true_type(
        self, name: str, declared: str | None, head: bytes, expected: str
    ) -> None:
        assert type_of(name, declared, head) == expected

    def test_every_type_in_the_table_has_a_family(self) -> None:
        assert all(family_of(mime_type) is not None for mime_type in BY_EXTENSION.values())


class TestWhatIsNoType:
    @pytest.mark.parametrize(
        "declared",
        ["text/a b", "text/plain\r\nX-A: b", "text/", "text", "text/ä", "image/png,text/html", "text/\u2028"],
    )
    def test_is_not_kept(self, declared: str) -> None:
        assert family_of(declared) is None
        assert type_of("notes", declared, b"words") == "text/plain"


class TestRefused:
    @pytest.mark.parametrize(
        "name, declared, head",
        [
            ("setup.exe", None, PE),
            ("setup.exe", None, b"MZ, as words"),
            ("setup", "application/x-msdownload; x=y", b"just words"),
            ("setup.exe", "text/plain", b""),
            ("notes", "image/png", b"words"),
            ("notes.unknown", "image/png", b"words"),
            ("report.pdf", "application/pdf", PE),
            ("a", None, ELF),
            ("a.png", "image/png", ELF),
            ("a.class", None, b"\xca\xfe\xba\xbe\0\0\0\x34"),
            ("a.wasm", None, b"\0asm\1\0\0\0"),
            ("a.bin", None, os.urandom(16) + bytes(range(256))),
            ("a.png", "image/png", HTML),
            ("a.png", None, b"just words"),
            ("a.pdf", "application/pdf", HTML),
            ("a.jpg", "image/jpeg", PDF),
            ("a.txt", "text/plain", PNG),
            ("a.csv", None, zip_of(a=b"x")),
            ("a.mp3", None, PNG),
            ("a.zip", None, PDF),
            ("a.msi", None, OLE),
            ("a.docx", None, b"not an archive"),
        ],
    )
    def test_programs_noise_and_files_with_a_false_name(self, name: str, declared: str | None, head: bytes) -> None:
        with pytest.raises(UnsupportedMediaType) as refused:
            type_of(name, declared, head)
        assert name in refused.value.detail

    def test_a_polyglot_is_what_it_begins_with(self) -> None:
        assert type_of("a.gif", "image/gif", GIF_SCRIPT) == "image/gif"
        with pytest.raises(UnsupportedMediaType):
            type_of("a.js", "text/javascript", GIF_SCRIPT)


class TestOutputOfASandbox:
    def test_is_never_refused(self) -> None:
        assert type_of_output("model.bin", bytes(range(256))) == UNKNOWN
        assert type_of_output("a.out", ELF) == UNKNOWN
        assert type_of_output("a.png", PNG) == "image/png"
        assert type_of_output("fake.png", HTML) == UNKNOWN
