"""Import of a CSV file into a table: all rows or none.

The whole file is checked before its first row is written, and readers see no row before the last is written. The upload
is spooled to the disk and read twice; memory holds one batch. Rows are parsed in threads and written in small batches,
so that turns go on meanwhile.

Decision: docs/decisions/0802
"""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import BinaryIO, TypeVar

from turnkeep.errors import FileTooLarge, InvalidRequest, TurnkeepError
from turnkeep.knowledge.csv_files import CsvFile, CsvRows, Inference
from turnkeep.model.knowledge import Cell, Column, KnowledgeTable
from turnkeep.model.principals import Principal
from turnkeep.store.ports import KnowledgeStore

CHECKED_AT_ONCE = 1_000
WRITTEN_AT_ONCE = 200

T = TypeVar("T")
Progress = Callable[[str, int, int | None], Awaitable[None]]
"""Called with the stage (`checked`, `imported`), the rows so far, and the total if it is known."""


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
