"""Tables and their rows on PostgreSQL."""

import asyncio
from collections.abc import Sequence
from typing import Any

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import TableId, check_id, new_table_id
from turnkeep.model.knowledge import Cell, Column, Found, KnowledgeTable, Row, RowHit, RowQuery
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.filtering import conditions, numbered, ordering
from turnkeep.store.fulltext import CANDIDATES, FILTERED, RANKED, loose, tokens_of_row, tsquery_text, tsvector_text
from turnkeep.store.knowing import (
    MAX_ROWS,
    check_batch,
    check_cells,
    check_columns_stay,
    check_row_limit,
    check_row_search,
    check_table,
    import_lost,
    import_runs,
    known_rows,
    no_row,
    no_table,
    part_of,
    to_row,
    to_table,
)
from turnkeep.store.naming import name_key
from turnkeep.store.postgres.database import Database, Statements
from turnkeep.store.rows import json_text

AFTER_EVERY_TABLE = "table_g"
TABLES_SEARCHED = 200

Where = tuple[str, int]
"""A row: its table and its number."""

_SEEN = """
t.org_id = $1 AND t.workspace_id = $2 AND t.deleted_at IS NULL
AND (t.import_first IS NULL OR r.number NOT BETWEEN t.import_first AND t.import_last)
"""


class PostgresTables:
    """Tables and rows. Promises are those of `ports.KnowledgeStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_table(
        self, principal: Principal, *, name: str, columns: Sequence[Column], description: str = ""
    ) -> KnowledgeTable:
        check_table(name, description, columns)
        name = name.strip()
        rows = await self._database.write(
            "create_table",
            principal.org_id,
            principal.workspace_id,
            new_table_id(),
            name,
            name_key(name),
            description,
            json_text(columns),
        )
        if not rows:
            raise NotFound("No such workspace.")
        return to_table(rows[0])

    async def table(self, principal: Principal, table_id: TableId) -> KnowledgeTable:
        rows = await self._database.read_as(principal, "my_table", check_id(table_id, "table"))
        if not rows:
            raise no_table()
        return to_table(rows[0])

    async def tables(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[KnowledgeTable]:
        check_limit(limit)
        before = AFTER_EVERY_TABLE if cursor is None else decode_cursor(cursor, "tables", tuple[str])[0]
        rows = await self._database.read_as(principal, "my_tables", before, limit + 1)
        return page_of(
            [to_table(row) for row in rows], limit=limit, cursor_of=lambda table: encode_cursor("tables", table.id)
        )

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

        async def work(statements: Statements) -> KnowledgeTable:
            rows = await statements.fetch("table_for_write", principal.org_id, principal.workspace_id, table_id)
            if not rows:
                raise no_table()
            before = to_table(rows[0][:8])
            if columns is not None:
                if rows[0][8] is not None:
                    raise import_runs()
                check_columns_stay(before, columns)
            new_name = before.name if name is None else name.strip()
            changed = await statements.fetch(
                "update_table",
                table_id,
                new_name,
                name_key(new_name),
                before.description if description is None else description,
                json_text(before.columns if columns is None else columns),
            )
            return to_table(changed[0])

        return await self._database.transact(work)

    async def delete_table(self, principal: Principal, table_id: TableId) -> None:
        check_id(table_id, "table")
        if not await self._database.write("delete_table", principal.org_id, principal.workspace_id, table_id):
            raise no_table()

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
        check_id(table_id, "table")
        cells, tokens = _written(rows, table_id, principal.workspace_id)
        answer = await self._database.write(
            "add_rows", principal.org_id, principal.workspace_id, table_id, batch, digest, cells, tokens
        )
        return list(known_rows(answer[0], digest))

    async def added_rows(
        self, principal: Principal, table_id: TableId, *, batch: str, digest: str | None = None
    ) -> range | None:
        check_id(table_id, "table")
        known = await self._database.read("batch_of_rows", principal.org_id, principal.workspace_id, table_id, batch)
        return known_rows(known[0], digest) if known else None

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        check_row_limit(limit)
        check_id(table_id, "table")
        place = min(max(0, after), MAX_ROWS)
        return [to_row(row) for row in await self._database.read_as(principal, "my_table_rows", table_id, place, limit)]

    async def row(self, principal: Principal, table_id: TableId, number: int) -> Row:
        found = await self.rows(principal, table_id, after=number - 1, limit=1) if number >= 1 else []
        if not found or found[0].number != number:
            raise no_row(number)
        return found[0]

    async def change_row(self, principal: Principal, table_id: TableId, number: int, cells: Sequence[Cell]) -> Row:
        await self.row(principal, table_id, number)
        [written], [tokens] = _written([cells], table_id, principal.workspace_id)
        rows = await self._database.write(
            "change_row", principal.org_id, principal.workspace_id, table_id, number, written, tokens
        )
        if not rows:
            raise no_row(number)
        return to_row(rows[0])

    async def delete_row(self, principal: Principal, table_id: TableId, number: int) -> None:
        await self.row(principal, table_id, number)
        rows = await self._database.write("delete_row", principal.org_id, principal.workspace_id, table_id, number)
        if not rows[0][0]:
            raise no_row(number)

    async def find_rows(
        self, principal: Principal, query: RowQuery, *, table: KnowledgeTable | None, limit: int = 10, offset: int = 0
    ) -> Found[RowHit]:
        words = check_row_search(query, table, limit, offset)
        if words is None:
            return Found()
        places = dict.fromkeys(await self._find(principal, table, query, words))
        looser = loose(words, len(places))
        if looser is not None:
            places |= dict.fromkeys(await self._find(principal, table, query, looser, any_word=True))
        shown, next_offset = part_of(list(places), limit=limit, offset=offset)
        if not shown:
            return Found()
        return Found(hits=await self._seen(principal, shown, table), next_offset=next_offset)

    async def _find(
        self,
        principal: Principal,
        table: KnowledgeTable | None,
        query: RowQuery,
        words: SearchQuery,
        *,
        any_word: bool = False,
    ) -> list[Where]:
        values: list[Any] = [principal.org_id, principal.workspace_id]
        bind = numbered(values)
        sort = f"{ordering('postgres', query.sort)}, " if query.sort else ""
        if words.is_empty:
            assert table is not None
            which = f"r.table_id = {bind(table.id)}"
            sql = (
                "SELECT r.table_id, r.number FROM turnkeep.tables t JOIN turnkeep.table_rows r ON r.table_id = t.id "
                f"WHERE {which} AND {_SEEN}{conditions('postgres', query, bind)} "
                f"ORDER BY {sort}r.number LIMIT {RANKED}"
            )
            return [tuple(row) for row in await self._database.read_text(sql, *values)]
        text = tsquery_text(words, any_word=any_word)
        scope = principal.workspace_id if table is None else table.id
        found, ranked = bind(f"'@{scope}' & ({text})"), bind(text)
        narrow = bool(query.filters or query.sort)
        sql = (
            "SELECT r.table_id, r.number FROM (SELECT * FROM turnkeep.table_rows r "
            f"WHERE r.tokens @@ {found}::text::tsquery LIMIT {FILTERED if narrow else CANDIDATES}) r "
            f"JOIN turnkeep.tables t ON t.id = r.table_id WHERE {_SEEN}{conditions('postgres', query, bind)} "
            f"ORDER BY {sort}ts_rank(r.tokens, {ranked}::text::tsquery, 1) DESC, r.table_id, r.number LIMIT {RANKED}"
        )
        return [tuple(row) for row in await self._database.read_text(sql, *values)]

    async def _seen(
        self, principal: Principal, places: Sequence[Where], table: KnowledgeTable | None
    ) -> tuple[RowHit, ...]:
        """These rows as their reader sees them."""
        found = await self._database.read_as(
            principal, "my_found_rows", [place[0] for place in places], [place[1] for place in places]
        )
        rows = {(row[0], row[1]): to_row(row[1:]) for row in found}
        tables: dict[str, KnowledgeTable] = {} if table is None else {table.id: table}
        if {table_id for table_id, _ in rows} - tables.keys():
            known = await self._database.read_as(principal, "my_tables", AFTER_EVERY_TABLE, TABLES_SEARCHED)
            tables |= {row[0]: to_table(row) for row in known}
        return tuple(
            RowHit(table=tables[place[0]], row=rows[place]) for place in places if place in rows and place[0] in tables
        )

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        check_id(table_id, "table")
        if not 1 <= count < MAX_ROWS:
            raise InvalidRequest("An import needs at least one row.")
        rows = await self._database.write(
            "begin_import", principal.org_id, principal.workspace_id, table_id, import_id, count
        )
        first: int = rows[0][0]
        return first

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        cells, tokens = await asyncio.to_thread(_written, rows, table.id, table.workspace_id)
        answer = await self._database.write("import_rows", table.id, import_id, first, cells, tokens)
        if not answer[0][0]:
            raise import_lost()

    async def finish_import(
        self, table: KnowledgeTable, *, import_id: str, batch: str | None = None, digest: str | None = None
    ) -> KnowledgeTable:
        async def work(statements: Statements, is_repeat: bool) -> KnowledgeTable:
            rows = await statements.fetch("finish_import", table.id, import_id, batch, digest)
            if not rows and is_repeat:  # an earlier try was committed, and its answer lost
                rows = await statements.fetch("table_by_id", table.id)
            if not rows:
                raise import_lost()
            return to_table(rows[0])

        return await self._database.run(work)

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        await self._database.write("doom_import", table.id, import_id)
        while (await self._database.write("erase_rows", 1, 500))[0][0]:
            pass

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        await self._database.write("erase_old_batches", before)
        texts: int = (await self._database.write("erase_texts", 50))[0][0]
        silent = before if silent_before is None else silent_before
        rows: int = (await self._database.write("erase_rows", silent, limit))[0][0]
        return texts + rows


def _written(rows: Sequence[Sequence[Cell]], *scopes: str) -> tuple[list[str], list[str]]:
    """The cells of each row as JSON, and its tokens."""
    return check_cells(rows), [tsvector_text([(tokens_of_row(row), "D")], scopes) for row in rows]
