"""The text of one file, in a process of its own: `python -I -m turnkeep.knowledge.extraction KIND < file`.

It prints one line of JSON: `{"text": …}`, or `{"problem": …}`, with `"extra"` if only an extra is not installed. Files
are not trusted, so this process has little memory and time, no secrets in its environment, no network, and no way to
write files or to start programs. A crash ends only this process.
"""

import io
import json
import re
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import import_module
from typing import Any, BinaryIO, Final

EXTRA: Final = "documents"
"""The extra that brings the parsers of PDF and Office files. A server runs without it."""
MEMORY_BYTES: Final = 1024 * 1024 * 1024
CPU_SECONDS: Final = 60
TEXT_CHARS: Final = 1_000_000
MAX_PAGES: Final = 2_000
UNPACKED_BYTES: Final = 200 * 1024 * 1024
MAX_ENTRIES: Final = 5_000

PARSERS: Final = {"pdf": "pypdf", "docx": "docx", "xlsx": "openpyxl", "pptx": "pptx"}
_REFUSED: Final = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "shutil.", "ftplib.")
_WRITING: Final = frozenset("wax+")
_SPACES: Final = re.compile(r"\s+")
_HIDDEN_TAGS: Final = frozenset({"script", "style", "template", "noscript", "svg"})
_CELL_TAGS: Final = frozenset({"td", "th"})
# fmt: off
_INLINE_TAGS: Final = frozenset({
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins", "kbd", "label",
    "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
})
# fmt: on


class Unreadable(Exception):
    """The file has no text that can be read; the message says why."""


class MissingExtra(Unreadable):
    """The parser of this kind is not installed. The file may be read once it is."""


def main() -> None:
    confine()
    kind = sys.argv[1]
    try:
        answer = {"text": text_of(kind, sys.stdin.buffer)}
    except MissingExtra as exc:
        answer = {"problem": str(exc), "extra": EXTRA}
    except Unreadable as exc:
        answer = {"problem": str(exc)}
    except MemoryError:
        answer = {"problem": "it needs too much memory"}
    except RecursionError:
        answer = {"problem": "it is nested too deeply"}
    except Exception as exc:  # parsers raise errors of any type
        answer = {"problem": f"it is damaged ({type(exc).__name__})"}
    sys.stdout.write(json.dumps(answer))


def confine() -> None:
    """Give up every right that a parser does not need, before the file is read."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(event)
    if event == "open" and isinstance(arguments[1], str) and _WRITING & set(arguments[1]):
        raise PermissionError("nothing may be written")


def text_of(kind: str, file: BinaryIO) -> str:
    """The text of a file of that kind; pages, slides and sheets are separated by form feeds.

    Raises Unreadable, and MissingExtra where the parser is not installed.
    """
    if (parser := PARSERS.get(kind)) is not None:
        try:
            import_module(parser)
        except ImportError as exc:
            raise MissingExtra(f"it is not readable: install turnkeep[{EXTRA}]") from exc
    pieces: list[str] = []
    size = 0
    for piece in _READERS[kind](file):
        pieces.append(piece[: TEXT_CHARS - size])
        size += len(pieces[-1])
        if size >= TEXT_CHARS:
            break
    text = "".join(pieces).replace("\0", "").encode("utf-8", "replace").decode()
    if not text.strip():
        raise Unreadable("it holds no text (a scan or a picture, perhaps)")
    return text


def _pdf(file: BinaryIO) -> Iterator[str]:
    from pypdf import PdfReader
    from pypdf.errors import PdfReadError

    try:
        reader = PdfReader(file, strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("it is encrypted")
        for number, page in enumerate(reader.pages):
            if number >= MAX_PAGES:
                return
            yield ("\f" if number else "") + page.extract_text()
    except PdfReadError as exc:
        raise Unreadable(f"it is no proper PDF ({exc})") from exc


def _docx(file: BinaryIO) -> Iterator[str]:
    from docx import Document
    from docx.table import Table

    for block in Document(_checked_zip(file)).iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                yield "\t".join(cell.text for cell in row.cells) + "\n"
            continue
        style = (block.style.name if block.style is not None else "") or ""
        heading = "# " if style == "Title" else "#" * int(style[8:9]) + " " if _is_heading(style) else ""
        yield f"{heading}{block.text}\n\n"


def _is_heading(style: str) -> bool:
    return style.startswith("Heading ") and style[8:9] in set("123456")


def _xlsx(file: BinaryIO) -> Iterator[str]:
    from openpyxl import load_workbook  # type: ignore[import-untyped]

    book = load_workbook(_checked_zip(file), read_only=True, data_only=True, keep_links=False)
    for number, sheet in enumerate(book.worksheets):
        yield ("\f" if number else "") + f"{sheet.title}\n\n"
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if cell is None else str(cell) for cell in row]
            if any(cells):
                yield "\t".join(cells).rstrip("\t") + "\n"


def _pptx(file: BinaryIO) -> Iterator[str]:
    from pptx import Presentation

    for number, slide in enumerate(Presentation(_checked_zip(file)).slides):
        yield "\f" if number else ""
        for shape in slide.shapes:
            if shape.has_text_frame:
                yield shape.text_frame.text + "\n\n"
            if getattr(shape, "has_table", False):
                for row in shape.table.rows:
                    yield "\t".join(cell.text for cell in row.cells) + "\n"
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            yield slide.notes_slide.notes_text_frame.text + "\n"


class _PageText(HTMLParser):
    """Collects the words of a web page: without its markup, scripts and styles, a line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN_TAGS:
            self._hidden += 1
        elif tag in _CELL_TAGS:
            self.pieces.append("\t")
        elif tag not in _INLINE_TAGS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN_TAGS:
            self._hidden = max(0, self._hidden - 1)
        elif tag not in _INLINE_TAGS and tag not in _CELL_TAGS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(_SPACES.sub(" ", data))


def _html(file: BinaryIO) -> Iterator[str]:
    page = _PageText()
    for text in _plain(file):
        page.feed(text)
    page.close()
    for line in "".join(page.pieces).split("\n"):
        if words := line.strip():
            yield f"{words}\n"


def _plain(file: BinaryIO) -> Iterator[str]:
    """UTF-8 or UTF-16; anything else is read as Latin-1, which accepts every byte."""
    raw = file.read(TEXT_CHARS * 4)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        yield raw.decode("utf-16", "replace")
        return
    cut = raw[-3:] if len(raw) == TEXT_CHARS * 4 else b""
    try:
        yield raw[: len(raw) - len(cut)].decode("utf-8-sig", "strict" if not cut else "ignore")
    except UnicodeDecodeError:
        if b"\0" in raw[:4096]:
            raise Unreadable("it is no text") from None
        yield raw.decode("latin-1")


def _checked_zip(file: BinaryIO) -> BinaryIO:
    """The same file, unless it is too large when it is unpacked. Raises Unreadable."""
    whole = file.read()
    raw = io.BytesIO(whole)
    if whole.startswith(b"\xd0\xcf\x11\xe0"):
        raise Unreadable("it is encrypted, or of an Office before 2007; save it again in today's format")
    try:
        with zipfile.ZipFile(raw) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as exc:
        raise Unreadable("it is no proper Office file") from exc
    if len(entries) > MAX_ENTRIES or sum(entry.file_size for entry in entries) > UNPACKED_BYTES:
        raise Unreadable("it unpacks to more than can be read")
    raw.seek(0)
    return raw


_READERS: Final[dict[str, Callable[[BinaryIO], Iterator[str]]]] = {
    "pdf": _pdf,
    "docx": _docx,
    "xlsx": _xlsx,
    "pptx": _pptx,
    "html": _html,
    "text": _plain,
}

if __name__ == "__main__":
    main()
