"""CSV files: read row by row, written so that a spreadsheet runs no formula in them, and imported into tables.

A cell that a spreadsheet would take for a formula is written with a `'` before it, and read back without it.

An import adds all rows of a file or none. The whole file is checked before its first row is written, and readers see no
row before the last is written. The upload is spooled to the disk and read twice; memory holds one batch. Rows are
parsed in threads and written in small batches, so that turns go on meanwhile.

Decision: docs/decisions/0802
"""

import asyncio
import codecs
import csv
import io
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import BinaryIO, TypeVar

from turnkeep.errors import FileTooLarge, InvalidRequest, TurnkeepError
from turnkeep.knowledge.table_rows import cell_of_text, narrowed
from turnkeep.model.knowledge import Cell, Column, ColumnType, KnowledgeTable
from turnkeep.model.principals import Principal
from turnkeep.store.ports import KnowledgeStore

MAX_LINE_CHARS = 1024 * 1024
DECODED_AT_ONCE = 65_536
MAX_COLUMNS = 100
DELIMITERS = ",;\t|"
CHECKED_AT_ONCE = 1_000
WRITTEN_AT_ONCE = 200

T = TypeVar("T")
Progress = Callable[[str, int, int | None], Awaitable[None]]
"""Called with the stage (`checked`, `imported`), the rows so far, and the total if it is known."""

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")
_CHARSETS = {"utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso8859-1", "iso8859-15", "cp1250", "cp1251", "cp1252"} | {
    "ascii",
    "shift_jis",
    "cp932",
    "euc_jp",
    "euc_kr",
    "gb18030",
    "gbk",
    "big5",
    "koi8-r",
}


class CsvFile:
    """An open CSV file. Its rows can be read more than once, each time in order, with their line numbers."""

    def __init__(self, file: BinaryIO, *, charset: str | None = None, delimiter: str | None = None) -> None:
        self._file = file
        self._encoding = _encoding(file, charset)
        first = next(self._lines(), None)
        if first is None or not first.strip():
            raise InvalidRequest("The file is empty. Its first line must name the columns.")
        self._delimiter = delimiter or max(DELIMITERS, key=_unquoted(first).count)
        self.header = [unescaped(name).strip() for name in next(row for _, row in self._all())]
        _check_header(self.header)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """`(line, cells)`. Raises InvalidRequest, which names the line, if a row does not fit the header."""
        rows = self._all()
        next(rows)
        for line, cells in rows:
            if len(cells) != len(self.header):
                raise InvalidRequest(
                    f"Line {line} has {len(cells)} cells, and the header has {len(self.header)}. Nothing was imported."
                )
            yield line, cells

    def _all(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(self._lines(), delimiter=self._delimiter, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except csv.Error as exc:
            raise InvalidRequest(f"Line {reader.line_num} is no CSV: {_reason(exc)}. Nothing was imported.") from exc

    def _lines(self) -> Iterator[str]:
        self._file.seek(0)
        text = io.TextIOWrapper(self._file, encoding=self._encoding, errors="strict", newline="")
        line = 0
        try:
            while piece := text.readline(MAX_LINE_CHARS + 1):
                line += 1
                if len(piece) > MAX_LINE_CHARS:
                    raise InvalidRequest(f"Line {line} has over {MAX_LINE_CHARS:,} characters. Nothing was imported.")
                if "\0" in piece:
                    raise InvalidRequest(f"Line {line} holds a NUL character: this is no CSV. Nothing was imported.")
                yield piece
        except UnicodeError as exc:
            raise InvalidRequest(
                f"Line {self._unreadable_line()} of the file is not {self._encoding}. Save it as CSV UTF-8, or name "
                "its encoding as charset. Nothing was imported."
            ) from exc
        finally:
            with suppress(ValueError):  # the file was closed before all of it was read
                text.detach()

    def _unreadable_line(self) -> int:
        """The first line that the encoding cannot decode. TextIOWrapper reports only the block that contains it."""
        self._file.seek(0)
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(self._encoding)(), translate=True)
        line = 1
        while block := self._file.read(DECODED_AT_ONCE):
            before = decoder.getstate()
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeError:
                decoder.setstate(before)
                with suppress(UnicodeError):
                    for place in range(len(block)):
                        line += decoder.decode(block[place : place + 1]).count("\n")
                return line
        return line


class CsvRows:
    """The rows of a file as cells of a table."""

    def __init__(self, file: CsvFile, table: KnowledgeTable) -> None:
        self._file = file
        self._columns = [_column(table, name) for name in file.header]
        self._width = max(column.key for column in table.columns) + 1

    def __iter__(self) -> Iterator[list[Cell]]:
        for line, texts in self._file.rows():
            cells: list[Cell] = [None] * self._width
            try:
                for column, text in zip(self._columns, texts, strict=True):
                    cells[column.key] = cell_of_text(column, unescaped(text))
            except InvalidRequest as exc:
                raise InvalidRequest(f"Line {line}: {exc.detail} Nothing was imported.") from exc
            yield cells


class Inference:
    """Infers the columns of a file from all of its rows."""

    def __init__(self, header: Sequence[str]) -> None:
        self._header = header
        self._kinds: list[list[ColumnType]] = [["boolean", "number", "date", "datetime"] for _ in header]
        self._empty = [True] * len(header)

    def learn(self, texts: Sequence[str]) -> None:
        for place, text in enumerate(texts):
            if text.strip():
                self._empty[place] = False
                self._kinds[place] = narrowed(self._kinds[place], text)

    def columns(self) -> list[Column]:
        return [
            Column(key=key, name=name, type="text" if self._empty[key] or not kinds else kinds[0])
            for key, (name, kinds) in enumerate(zip(self._header, self._kinds, strict=True))
        ]


def csv_lines(rows: Iterable[Sequence[Cell]]) -> str:
    """These rows as CSV by RFC 4180, which every spreadsheet reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerows([_text(cell) for cell in row] for row in rows)
    return out.getvalue()


def escaped(text: str) -> str:
    """The text, marked so that a spreadsheet shows it instead of running it."""
    return f"'{text}" if _FORMULA.match(text) else text


def unescaped(text: str) -> str:
    return text[1:] if _ESCAPED.match(text) else text


def _text(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case str():
            return escaped(cell)
        case _:
            return repr(cell)


def _column(table: KnowledgeTable, name: str) -> Column:
    column = table.column(name)
    if column is None:
        known = ", ".join(each.name for each in table.columns)
        raise InvalidRequest(f"The table has no column {name[:60]!r}. It has: {known}. Nothing was imported.")
    return column


def _check_header(header: Sequence[str]) -> None:
    if len(header) > MAX_COLUMNS:
        raise InvalidRequest(f"The first line names {len(header)} columns; at most {MAX_COLUMNS} are allowed.")
    if not all(header):
        raise InvalidRequest("A column in the first line has no name.")
    folded = [name.casefold() for name in header]
    if twice := sorted({name for name in folded if folded.count(name) > 1}):
        raise InvalidRequest(f"The first line names a column twice: {', '.join(twice)[:200]}.")


def _encoding(file: BinaryIO, charset: str | None) -> str:
    file.seek(0)
    start = file.read(4)
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.startswith(b"PK\x03\x04"):
        raise InvalidRequest("This is a spreadsheet, not CSV. Save it as CSV first.")
    try:
        name = codecs.lookup(charset or "utf-8").name
    except LookupError:
        name = ""
    if name not in _CHARSETS:
        raise InvalidRequest(f"The charset {str(charset)[:40]!r} is not known. Save the file as CSV UTF-8.")
    return name


def _unquoted(line: str) -> str:
    return re.sub(r'"[^"]*"', "", line)


def _reason(exc: csv.Error) -> str:
    words = str(exc)
    if "field larger" in words:
        return f"a cell has over {csv.field_size_limit():,} characters"
    if "unexpected end" in words:
        return "a quoted cell does not end"
    return words


async def unheard(stage: str, rows: int, total: int | None) -> None:
    """The default: progress is not reported."""


@asynccontextmanager
async def spooled(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[BinaryIO]:
    """The stream as a temporary file, until the end of the block. Raises FileTooLarge."""
    with tempfile.TemporaryFile() as file:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise FileTooLarge(f"The file is over {limit:,} bytes. Split it.")
            await asyncio.to_thread(file.write, chunk)
        yield file


class Importer:
    """Imports CSV files into tables of a workspace."""

    def __init__(self, store: KnowledgeStore) -> None:
        self._store = store

    async def open(self, file: BinaryIO, *, charset: str | None, delimiter: str | None) -> CsvFile:
        """Read the header of the file. Raises InvalidRequest if it is not CSV."""
        return await asyncio.to_thread(CsvFile, file, charset=charset, delimiter=delimiter)

    async def columns(self, csv: CsvFile, progress: Progress = unheard) -> list[Column]:
        """The columns, with types that fit every row of the file."""
        inference = Inference(csv.header)

        def learn(rows: list[tuple[int, list[str]]]) -> None:
            for _, texts in rows:
                inference.learn(texts)

        rows = csv.rows()
        count = 0
        while some := await _some(rows, CHECKED_AT_ONCE):
            await asyncio.to_thread(learn, some)
            count += len(some)
            await progress("checked", count, None)
        return inference.columns()

    async def fill(
        self,
        principal: Principal,
        table: KnowledgeTable,
        csv: CsvFile,
        progress: Progress = unheard,
        *,
        batch: str | None = None,
        digest: str | None = None,
    ) -> KnowledgeTable:
        """Add all rows of the file, or none, and record them as this batch.

        Raises InvalidRequest, which names the line, if a row does not fit the table.
        """
        rows = CsvRows(csv, table)
        total = await self._check(rows, progress)
        if not total:
            return table
        import_id = secrets.token_hex(16)
        first = await self._store.begin_import(principal, table.id, import_id=import_id, count=total)
        try:
            await self._write(table, import_id, first, iter(rows), total, progress)
            return await self._store.finish_import(table, import_id=import_id, batch=batch, digest=digest)
        except BaseException:
            # If this fails too, the rows stay hidden, and a sweep removes them later.
            with suppress(TurnkeepError):
                await asyncio.shield(self._store.abandon_import(table, import_id=import_id))
            raise

    async def _check(self, rows: CsvRows, progress: Progress) -> int:
        count = 0
        checked = iter(rows)
        while some := await _some(checked, CHECKED_AT_ONCE):
            count += len(some)
            await progress("checked", count, None)
        return count

    async def _write(
        self,
        table: KnowledgeTable,
        import_id: str,
        first: int,
        rows: Iterator[list[Cell]],
        total: int,
        progress: Progress,
    ) -> None:
        done = 0
        while some := await _some(rows, WRITTEN_AT_ONCE):
            await self._store.import_rows(table, import_id=import_id, first=first + done, rows=some)
            done += len(some)
            await progress("imported", done, total)
        if done != total:
            raise InvalidRequest("The file changed while it was read. Nothing was imported.")


async def _some(items: Iterator[T], count: int) -> list[T]:
    """The next items, read in a thread; empty at the end."""
    return await asyncio.to_thread(lambda: list(islice(items, count)))
