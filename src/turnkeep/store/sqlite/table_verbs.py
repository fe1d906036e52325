"""The verbs of `KnowledgeStore` for tables: each checks what it is given, then runs as one job or a few."""

import asyncio
from collections.abc import Sequence

from turnkeep.errors import InvalidRequest
from turnkeep.ids import TableId, check_id, new_table_id
from turnkeep.model.knowledge import Cell, Column, Found, KnowledgeTable, Row, RowHit, RowQuery
from turnkeep.model.principals import Principal
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page
from turnkeep.store.fulltext import ENOUGH, loose, tokens_of_row
from turnkeep.store.knowing import (
    MAX_ROWS,
    check_batch,
    check_cells,
    check_row_limit,
    check_row_search,
    check_table,
    part_of,
)
from turnkeep.store.sqlite import knowledge, row_search, tables
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session


class TableVerbs(StoreThreads):
    """Tables and rows. Promises are those of `ports.KnowledgeStore`."""

    async def create_table(
        self, principal: Principal, *, name: str, columns: Sequence[Column], description: str = ""
    ) -> KnowledgeTable:
        check_table(name, description, columns)
        return await self._write(tables.create, principal, new_table_id(), name.strip(), description, columns)

    async def table(self, principal: Principal, table_id: TableId) -> KnowledgeTable:
        return await self._see(principal, tables.my_table, check_id(table_id, "table"))

    async def tables(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[KnowledgeTable]:
        check_limit(limit)
        return await self._see(principal, tables.my_tables, limit, cursor)

    async def change_table(
        self,
        principal: Principal,
        table_id: TableId,
        *,
        name: str | None = None,
        description: str | None = None,
        columns: Sequence[Column] | None = None,
    ) -> KnowledgeTable:
        check_table(name, description, columns)
        check_id(table_id, "table")
        return await self._write(tables.change, principal, table_id, name and name.strip(), description, columns)

    async def delete_table(self, principal: Principal, table_id: TableId) -> None:
        await self._write(tables.delete, principal, check_id(table_id, "table"))

    async def add_rows(
        self,
        principal: Principal,
        table_id: TableId,
        rows: Sequence[Sequence[Cell]],
        *,
        batch: str,
        digest: str | None = None,
    ) -> list[int]:
        check_batch(rows, batch)
        return await self._write(tables.add, principal, check_id(table_id, "table"), _written(rows), batch, digest)

    async def added_rows(
        self, principal: Principal, table_id: TableId, *, batch: str, digest: str | None = None
    ) -> range | None:
        return await self._read(tables.added, principal, check_id(table_id, "table"), batch, digest)

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        check_row_limit(limit)
        return await self._see(principal, tables.my_rows, check_id(table_id, "table"), max(0, after), limit)

    async def row(self, principal: Principal, table_id: TableId, number: int) -> Row:
        return await self._see(principal, tables.my_row, check_id(table_id, "table"), number)

    async def change_row(self, principal: Principal, table_id: TableId, number: int, cells: Sequence[Cell]) -> Row:
        await self.row(principal, table_id, number)
        [written] = _written([cells])
        return await self._write(tables.change_row, principal, table_id, number, written)

    async def delete_row(self, principal: Principal, table_id: TableId, number: int) -> None:
        await self.row(principal, table_id, number)
        await self._write(tables.delete_row, principal, table_id, number)

    async def find_rows(
        self, principal: Principal, query: RowQuery, *, table: KnowledgeTable | None, limit: int = 10, offset: int = 0
    ) -> Found[RowHit]:
        words = check_row_search(query, table, limit, offset)
        if words is None:
            return Found()

        def found(session: Session) -> list[int]:
            serials = row_search.serials(session, principal) if table is None else [table.serial]
            places: dict[int, None] = {}
            for wanted in (words, loose(words, 0)):
                if wanted is None or len(places) >= ENOUGH:
                    break
                hits = [
                    hit
                    for serial in serials
                    for hit in row_search.find(session, principal, serial, query, wanted, wanted is not words)
                ]
                places |= dict.fromkeys(n for _, n in (sorted(hits) if table is None else hits))
            return list(places)

        shown, next_offset = part_of(await self._read(found), limit=limit, offset=offset)

        def seen(session: Session) -> tuple[RowHit, ...]:
            known = {} if table is None else {table.serial: table}
            with session.snapshot():
                rows = row_search.my_hits(session, list(shown))
                of = row_search.tables_of(session, list(rows), known)
            return tuple(
                RowHit(table=of[place >> tables.BITS], row=rows[place])
                for place in shown
                if place in rows and place >> tables.BITS in of
            )

        return Found(hits=await self._see(principal, seen), next_offset=next_offset)

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        if not 1 <= count < MAX_ROWS:
            raise InvalidRequest("An import needs at least one row.")
        return await self._write(tables.begin_import, principal, check_id(table_id, "table"), import_id, count)

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        written = await asyncio.to_thread(_written, rows)
        await self._write(tables.import_rows, table.id, import_id, first, written)

    async def finish_import(
        self, table: KnowledgeTable, *, import_id: str, batch: str | None = None, digest: str | None = None
    ) -> KnowledgeTable:
        return await self._write(tables.finish_import, table.id, import_id, batch, digest)

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        await self._write(tables.doom_import, table.id, import_id)
        while await self._write(tables.erase_some, 1, 500):
            pass

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        await self._write(tables.erase_old_batches, before)
        texts = await self._write(knowledge.drop_lost_texts, 50)
        silent = before if silent_before is None else silent_before
        return texts + await self._write(tables.erase_some, silent, limit)


def _written(rows: Sequence[Sequence[Cell]]) -> list[tables.Written]:
    return [(cells, " ".join(tokens_of_row(row))) for cells, row in zip(check_cells(rows), rows, strict=True)]
