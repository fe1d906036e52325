"""`read_file` and `search_files`: text of files, extracted in a process whose crash affects nothing else."""

import asyncio
import io
import os
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import pytest
from docx import Document
from openpyxl import Workbook  # type: ignore[import-untyped]
from pptx import Presentation
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from tests.knowledge.conftest import Library, on_sqlite
from tests.knowledge.test_tools import told
from tests.store.factories import a_conversation, a_tenant
from turnkeep.knowledge import file_texts, tools

OFFICE = "application/vnd.openxmlformats-officedocument."
DOCX = f"{OFFICE}wordprocessingml.document"
XLSX = f"{OFFICE}spreadsheetml.sheet"
PPTX = f"{OFFICE}presentationml.presentation"
PDF = "application/pdf"


def a_pdf(*pages: str) -> bytes:
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(width=300, height=300)
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(stream)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def a_docx(text: str) -> bytes:
    document = Document()
    document.add_heading("Delivery", level=1)
    document.add_paragraph(text)
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Fee", "12 euros"
    return saved(document)


def an_xlsx(text: str) -> bytes:
    book = Workbook()
    book.active.append(["Name", "Price"])
    book.active.append([text, 9.5])
    book.create_sheet("Second").append(["turmeric"])
    return saved(book)


def a_pptx(text: str) -> bytes:
    slides = Presentation()
    for title in ("First", text):
        slide = slides.slides.add_slide(slides.slide_layouts[5])
        slide.shapes.title.text = title
    return saved(slides)


def saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def zipped(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def with_part(document: bytes, name: str, content: bytes) -> bytes:
    """The document with one of its parts replaced."""
    with zipfile.ZipFile(io.BytesIO(document)) as archive:
        return zipped({each: archive.read(each) for each in archive.namelist()} | {name: content})


ENTITY_LOOP = b"""<?xml version="1.0"?><!DOCTYPE w [<!ENTITY a "aaaaaaaaaaaaaaaaaaaa">%s]>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>&z;</w:t>
</w:r></w:p></w:body></w:document>""" % b"".join(
    b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 20) for n in range(25)
)
EXTERNAL = b"""<?xml version="1.0"?><!DOCTYPE w [<!ENTITY z SYSTEM "file:///etc/passwd">]>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r>
<w:t>start &z; end</w:t></w:r></w:p></w:body></w:document>"""
DEEP = b"<w:p>" * 200_000


async def text_of(kind: str, content: bytes, tmp_path: Path, **options: float) -> dict[str, str]:
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as file:
        return await file_texts.run_worker(kind, file, **options)


@on_sqlite
class TestReading:
    async def test_every_kind_gives_its_text_and_its_place(self, library: Library) -> None:
        await library.add_file("notes.md", b"# Spices\n\nSaffron in Markdown.", "text/markdown", saved=True)
        await library.add_file("data.csv", "name,price\nSaffron in CSV,9\n".encode("utf-16"), "text/csv")
        await library.add_file("report.pdf", a_pdf("Nothing here.", "Saffron in a PDF."), PDF)
        await library.add_file("letter.docx", a_docx("Saffron in Word."), DOCX)
        await library.add_file("prices.xlsx", an_xlsx("Saffron in Excel"), XLSX)
        await library.add_file("talk.pptx", a_pptx("Saffron on a slide"), PPTX)
        await library.add_file("old.txt", b"caf\xe9 saffron", "text/plain")
        found: dict[str, str | None] = {}
        for offset in (0, 5):
            outcome = await library.call("search_files", {"query": "saffron", "offset": offset})
            found |= {passage.source.title: passage.source.place for passage in outcome.passages}
        assert found == {
            "notes.md": "Spices",
            "data.csv": None,
            "report.pdf": "page 2",
            "letter.docx": "Delivery",
            "prices.xlsx": "sheet 1",
            "talk.pptx": "slide 2",
            "old.txt": None,
        }
        word = told(await library.call("read_file", {"file": "letter.docx"}))
        assert "# Delivery" in word
        assert "Fee\t12 euros" in word
        reads = library.bag.reads
        await library.call("search_files", {"query": "turmeric"})
        assert library.bag.reads == reads

    async def test_a_long_file_is_read_part_by_part_without_a_gap(self, library: Library) -> None:
        text = "\n".join(f"line {number} of the file" for number in range(1_000))
        file = await library.add_file("long.txt", text.encode())
        parts: list[str] = []
        offset: int | None = 0
        while offset is not None:
            outcome = await library.call("read_file", {"file": file.id, "offset": offset})
            assert len(told(outcome)) <= 4_000
            [passage] = outcome.passages
            assert passage.source.file_id == file.id
            parts.append(passage.text)
            heading = str(outcome.result)
            offset = int(heading.rpartition("offset ")[2].partition(".")[0]) if "offset" in heading else None
        assert "".join(parts) == text

    async def test_a_missing_file_is_an_error_that_lists_the_others(self, library: Library) -> None:
        await library.add_file("notes.txt", b"text")
        outcome = await library.call("read_file", {"file": "nope.txt"})
        assert outcome.error == "There is no file 'nope.txt' here. There are: notes.txt."
        beyond = await library.call("read_file", {"file": "notes.txt", "offset": 99})
        assert "behind its end" in (beyond.error or "")


@on_sqlite
class TestASlowFile:
    async def test_extraction_goes_on_after_the_search_timed_out(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_end = asyncio.Event()

        async def slow(kind: str, file: object) -> dict[str, str]:
            await may_end.wait()
            return {"text": "saffron at last"}

        monkeypatch.setattr(file_texts, "run_worker", slow)
        monkeypatch.setattr(tools, "PREPARED_SECONDS", 0.05)
        await library.add_file("slow.pdf", b"x", PDF)
        late = await library.call("search_files", {"query": "saffron"})
        assert "Not read yet, search again later: slow.pdf." in str(late.result)
        may_end.set()
        monkeypatch.setattr(tools, "PREPARED_SECONDS", 20.0)
        found = await library.call("search_files", {"query": "saffron"})
        assert [passage.source.title for passage in found.passages] == ["slow.pdf"]
        assert library.bag.reads == 1


@on_sqlite
class TestAMissingExtra:
    async def test_is_named_and_the_file_is_read_once_it_is_installed(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [{"problem": "it is not readable: install turnkeep[documents]", "extra": "documents"}]
        answers.append({"text": "saffron at last"})

        async def worker(kind: str, file: object) -> dict[str, str]:
            return answers.pop(0)

        monkeypatch.setattr(file_texts, "run_worker", worker)
        await library.add_file("report.pdf", b"x", PDF)
        without = await library.call("search_files", {"query": "saffron"})
        assert "report.pdf (it is not readable: install turnkeep[documents])" in str(without.result)
        found = await library.call("search_files", {"query": "saffron"})
        assert [passage.source.title for passage in found.passages] == ["report.pdf"]


class TestWhoMayRead:
    async def test_the_files_of_another_user_are_not_searched(self, library: Library) -> None:
        await library.add_file("mine.txt", b"my saffron")
        await library.add_file("open.txt", b"open saffron", saved=True, by=library.tenant.bob)
        outcome = await library.call("search_files", {"query": "saffron"})
        assert {passage.source.title for passage in outcome.passages} == {"mine.txt", "open.txt"}
        refused = await library.call("search_files", {"query": "saffron"}, by=library.tenant.bob)
        assert refused.error == "No such conversation."


class TestTextsThatTenantsShare:
    async def test_a_file_is_not_found_by_the_name_that_another_user_gave_it(self, library: Library) -> None:
        same = b"The same bytes."
        await library.add_file("layoffs-in-march.txt", same, by=library.tenant.ann)
        await library.call("search_files", {"query": "bytes"})
        bobs = await a_conversation(library.store, library.tenant.bob)
        await library.add_file("notes.txt", same, by=library.tenant.bob, conversation_id=bobs.id)
        for query, found in (("layoffs", []), ("march", []), ("bytes", ["notes.txt"]), ("notes", ["notes.txt"])):
            outcome = await library.call(
                "search_files", {"query": query}, by=library.tenant.bob, conversation_id=bobs.id
            )
            assert [passage.source.title for passage in outcome.passages] == found, query

    async def test_a_wrong_extension_does_not_spoil_the_text_for_others(self, library: Library) -> None:
        await library.add_file("spoiled.pdf", b"plain saffron", PDF)
        await library.call("search_files", {"query": "saffron"})
        await library.add_file("plain.txt", b"plain saffron")
        outcome = await library.call("search_files", {"query": "saffron"})
        assert [passage.source.title for passage in outcome.passages] == ["plain.txt"]
        assert "spoiled.pdf (it is no proper PDF" in str(outcome.result)

    @on_sqlite
    async def test_a_failure_is_remembered_for_a_while_and_then_tried_again(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [{"problem": "reading it took over 60 seconds"}] * 2 + [{"text": "saffron at last"}]

        async def worker(kind: str, file: object) -> dict[str, str]:
            return answers.pop(0)

        monkeypatch.setattr(file_texts, "run_worker", worker)
        await library.add_file("report.pdf", b"x", PDF)
        for _ in range(3):
            outcome = await library.call("search_files", {"query": "saffron"})
            assert "took over 60 seconds" in str(outcome.result)
        assert len(answers) == 2
        monkeypatch.setattr(file_texts, "FAILED_SECONDS", 0.0)
        await library.add_file("second.pdf", b"y", PDF)
        await library.call("search_files", {"query": "saffron"})
        outcome = await library.call("search_files", {"query": "saffron"})
        assert [passage.source.title for passage in outcome.passages] == ["second.pdf"]

    @on_sqlite
    async def test_files_of_one_org_do_not_keep_another_waiting(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_end = asyncio.Event()

        async def worker(kind: str, file: BinaryIO) -> dict[str, str]:
            if file.read().startswith(b"slow"):
                await may_end.wait()
            return {"text": "saffron"}

        monkeypatch.setattr(file_texts, "run_worker", worker)
        slow = [await library.add_file(f"slow{n}.txt", b"slow %d" % n) for n in range(5)]
        reading = [asyncio.create_task(library.texts.of(library.tenant.ann, [file])) for file in slow]
        other = await a_tenant(library.store, "Other")
        quick = await library.add_file("quick.txt", b"quick", saved=True, by=other.ann)
        async with asyncio.timeout(60):
            assert (await library.texts.of(other.ann, [quick]))[quick.id].text == "saffron"
        assert not any(task.done() for task in reading)
        may_end.set()
        await asyncio.gather(*reading)


@on_sqlite
class TestHostileFiles:
    async def test_are_left_out_by_name_and_the_others_are_found(self, library: Library) -> None:
        await library.add_file("good.txt", b"saffron")
        await library.add_file("broken.pdf", b"%PDF-1.7 nothing of the kind", PDF)
        await library.add_file("fake.docx", b"no zip at all", DOCX)
        await library.add_file("image.png", b"\x89PNG", "image/png")
        outcome = await library.call("search_files", {"query": "saffron"})
        assert [passage.source.title for passage in outcome.passages] == ["good.txt"]
        assert "broken.pdf" in str(outcome.result)
        assert "fake.docx (it is no proper Office file)" in str(outcome.result)
        unreadable = await library.call("read_file", {"file": "image.png"})
        assert unreadable.error == "image.png cannot be read: files of type image/png hold no text."


PAGE = b"""<!doctype html><html><head><title>Tides</title><style>p { color: red }</style></head>
<body><h1>High   water</h1><p>At <b>eight</b>,<br>or nine &amp; ten.</p><script>track("<p>not this</p>")</script>
<table><tr><th>Place</th><th>Time</th></tr><tr><td>Husum</td><td>8:10</td></tr></table></body></html>"""


class TestAWebPage:
    async def test_is_read_without_its_markup(self, tmp_path: Path) -> None:
        assert (await text_of("html", PAGE, tmp_path))["text"].splitlines() == [
            "Tides",
            "High water",
            "At eight,",
            "or nine & ten.",
            "Place\tTime",
            "Husum\t8:10",
        ]

    async def test_without_words_says_so(self, tmp_path: Path) -> None:
        assert "no text" in (await text_of("html", b"<html><script>x()</script></html>", tmp_path))["problem"]


class TestTheExtractionProcess:
    @pytest.mark.parametrize(
        "kind, content",
        [
            ("docx", with_part(a_docx("x"), "word/document.xml", ENTITY_LOOP)),
            ("docx", with_part(a_docx("x"), "word/document.xml", DEEP)),
            ("docx", zipped({"[Content_Types].xml": b"<x/>"})),
            ("docx", zipped({f"{n}": b"" for n in range(6_000)})),
            ("xlsx", with_part(an_xlsx("x"), "xl/workbook.xml", ENTITY_LOOP)),
            ("pptx", b"PK\x03\x04" + b"\0" * 1_000),
            ("docx", b"\xd0\xcf\x11\xe0" + b"\0" * 100),
            ("pdf", b""),
            ("pdf", a_pdf("x")[:200]),
            ("pdf", a_pdf("x").replace(b"/Kids [", b"/Kids [ 1 0 R 1 0 R ")),
            ("text", bytes(range(256)) * 10),
        ],
        ids=["entities", "deep", "empty", "entries", "sheet", "stub", "old", "nothing", "cut", "loop", "binary"],
    )
    async def test_answers_for_anything_with_a_problem_or_a_text(
        self, kind: str, content: bytes, tmp_path: Path
    ) -> None:
        answer = await text_of(kind, content, tmp_path)
        assert answer.keys() in ({"problem"}, {"text"})
        assert len(answer.get("text", "")) < 100

    async def test_a_bomb_is_refused_before_it_is_unpacked(self, tmp_path: Path) -> None:
        bomb = zipped({"word/document.xml": b"\0" * 250_000_000})
        assert len(bomb) < 1_000_000
        assert await text_of("docx", bomb, tmp_path) == {"problem": "it unpacks to more than can be read"}

    async def test_a_pdf_that_needs_too_much_memory_ends_only_its_process(self, tmp_path: Path) -> None:
        packed = zlib.compress(b" " * 300_000_000, 1)
        page = a_pdf("MARK").split(b"stream\n", 1)
        head = page[0].replace(b"/Length", b"/Filter /FlateDecode /Length")
        swollen = head + b"stream\n" + packed + b"\nendstream" + page[1].split(b"endstream", 1)[1]
        answer = await text_of("pdf", swollen, tmp_path)
        assert answer.keys() in ({"problem"}, {"text"})

    async def test_an_external_reference_is_not_followed(self, tmp_path: Path) -> None:
        answer = await text_of("docx", with_part(a_docx("x"), "word/document.xml", EXTERNAL), tmp_path)
        assert "root:" not in answer.get("text", "")

    async def test_is_killed_when_it_takes_too_long(self, tmp_path: Path) -> None:
        began = time.monotonic()
        answer = await text_of("pdf", a_pdf("x"), tmp_path, seconds=0.01)
        assert answer == {"problem": "reading it took over 0.01 seconds"}
        assert time.monotonic() - began < 10

    async def test_has_no_secrets_and_cannot_write_or_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TURNKEEP_BOOTSTRAP_KEY", "secret")
        script = (
            "import os, socket, subprocess\n"
            "from turnkeep.knowledge.extraction import confine\n"
            "confine()\n"
            "refused = 0\n"
            "for attempt in (\n"
            "    lambda: socket.create_connection(('127.0.0.1', 9)),\n"
            "    lambda: subprocess.run(['true']),\n"
            "    lambda: os.system('true'),\n"
            f"    lambda: open({str(tmp_path / 'made')!r}, 'w'),\n"
            "):\n"
            "    try:\n"
            "        attempt()\n"
            "    except PermissionError:\n"
            "        refused += 1\n"
            "print(refused, os.environ.get('TURNKEEP_BOOTSTRAP_KEY'))\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", script, stdout=asyncio.subprocess.PIPE, env={"PATH": os.defpath}
        )
        out, _ = await process.communicate()
        assert out.decode().split() == ["4", "None"]
        assert not (tmp_path / "made").exists()
