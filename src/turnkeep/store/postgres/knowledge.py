"""Knowledge on PostgreSQL: pages, the text of files, the passages by which both are found, and tables with their rows.

A search for rows chooses them on the engine's path. What the rows hold is then read on the client path.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import asyncpg

from turnkeep.ids import OrgId, PageId, TableId, check_id, new_page_id, new_table_id
from turnkeep.model.knowledge import (
    Cell,
    Column,
    FileText,
    Found,
    KnowledgePage,
    KnowledgeTable,
    PageHit,
    PageSummary,
    Row,
    RowHit,
    RowQuery,
    TextHit,
)
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.fulltext import (
    CANDIDATES,
    FILTERED,
    RANKED,
    Indexed,
    PassageMatch,
    best_of_each,
    index_of,
    joined,
    loose,
    tokens_of_row,
    tsquery_text,
    tsvector_text,
)
from turnkeep.store.postgres.directory import check_user
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.row_filters import conditions, numbered, ordering
from turnkeep.store.rows import to_page, to_row, to_summary, to_table
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.knowledge import (
    MAX_ROWS,
    Batch,
    Reserved,
    TableForWrite,
    begun_import,
    changed_page,
    changed_table,
    check_batch,
    check_cells,
    check_import_size,
    check_page,
    check_row_limit,
    check_row_search,
    check_search,
    check_table,
    import_lost,
    imported_batch,
    known_rows,
    name_taken,
    no_page,
    no_row,
    no_table,
    page_hits,
    part_of,
    table_for_write,
    table_record,
    text_hits,
)

AFTER_EVERY_PAGE = "page_g"


class PostgresKnowledge:
    """Pages and the text of files. Promises are those of `ports.KnowledgeStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage:
        check_page(title, content)
        page_id = new_page_id()
        index = _arrays(index_of(title, content), scope=principal.workspace_id)
        whose = (principal.org_id, principal.workspace_id)

        async def work(statements: Statements) -> None:
            await check_user(statements, principal)
            values = (page_id, *index, title, content, principal.user_id)
            if not await statements.fetch("insert_page", *whose, *values):
                raise no_workspace()

        await self._database.transact(work)
        return await self.page(principal, page_id)

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage:
        rows = await self._database.read_as(principal, "my_page", check_id(page_id, "page"))
        if not rows:
            raise no_page()
        return to_page(rows[0])

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        check_limit(limit)
        before = AFTER_EVERY_PAGE if cursor is None else decode_cursor(cursor, "pages", tuple[str])[0]
        rows = await self._database.read_as(principal, "my_pages", before, limit + 1)
        return page_of(
            [to_summary(row) for row in rows], limit=limit, cursor_of=lambda page: encode_cursor("pages", page.id)
        )

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        check_page(title, content)
        check_id(page_id, "page")

        async def work(statements: Statements) -> None:
            whose = (principal.org_id, principal.workspace_id, page_id)
            rows = await statements.fetch("page_for_write", *whose)
            new_title, new_content = changed_page(rows[0] if rows else None, title, content)
            await statements.fetch("update_page", page_id, new_title, new_content)
            await statements.fetch("drop_passages", principal.org_id, page_id)
            index = _arrays(index_of(new_title, new_content), scope=principal.workspace_id)
            await statements.fetch("add_passages", *whose, *index)

        await self._database.transact(work)
        return await self.page(principal, page_id)

    async def delete_page(self, principal: Principal, page_id: PageId) -> None:
        check_id(page_id, "page")
        if not await self._database.write("delete_page", principal.org_id, principal.workspace_id, page_id):
            raise no_page()

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty:
            return Found()
        scope = principal.workspace_id
        whose = (principal.org_id, principal.workspace_id)
        matches = await self._matches("search_pages", scope, wanted, *whose)
        if looser := loose(wanted, len(best_of_each(matches))):
            matches = joined(matches, await self._matches("search_pages", scope, looser, *whose, any_word=True))
        shown, next_offset = part_of(best_of_each(matches), limit=limit, offset=offset)
        if not shown:
            return Found()
        rows = await self._database.read_as(principal, "my_page_texts", [match.owner for match in shown])
        texts = {page_id: (title, content) for page_id, title, content in rows}
        return Found(hits=page_hits(shown, texts, wanted, chars), next_offset=next_offset)

    async def file_texts(self, org_id: OrgId, keys: Sequence[str]) -> dict[str, FileText]:
        rows = await self._database.read("file_texts", org_id, list(keys))
        return {key: FileText(key=key, text=text, problem=problem) for key, text, problem in rows}

    async def save_file_text(self, org_id: OrgId, text: FileText, *, unit: str) -> None:
        index = _arrays([] if text.problem else index_of("", text.text, unit=unit), scope=org_id)

        async def work(statements: Statements) -> None:
            if not await statements.fetch("lock_file_of_text", org_id, text.key):
                return
            await statements.fetch("save_file_text", org_id, text.key, text.text, text.problem)
            await statements.fetch("drop_passages", org_id, text.key)
            await statements.fetch("add_passages", org_id, None, text.key, *index)

        await self._database.transact(work)

    async def search_file_texts(
        self, org_id: OrgId, keys: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty or not keys:
            return Found()
        whose = (org_id, list(keys))
        matches = await self._matches("search_file_texts", org_id, wanted, *whose)
        if looser := loose(wanted, len(matches)):
            matches = joined(matches, await self._matches("search_file_texts", org_id, looser, *whose, any_word=True))
        shown, next_offset = part_of(matches, limit=limit, offset=offset)
        texts = await self.file_texts(org_id, list({match.owner for match in shown}))
        return Found(hits=text_hits(shown, texts, wanted, chars), next_offset=next_offset)

    async def _matches(
        self, name: str, scope: str, query: SearchQuery, *whose: Any, any_word: bool = False
    ) -> list[PassageMatch]:
        words = tsquery_text(query, any_word=any_word)
        rows = await self._database.read(name, *whose, f"'@{scope}' & ({words})", words, CANDIDATES, RANKED)
        return [PassageMatch(*row) for row in rows]


def _arrays(index: Sequence[Indexed], *, scope: str) -> tuple[list[int], list[int], list[str | None], list[str]]:
    """Passages as they travel: starts, stops, places, tokens."""
    return (
        [each.start for each in index],
        [each.stop for each in index],
        [each.place for each in index],
        [tsvector_text(((each.title, "A"), (each.body, "D")), (scope,)) for each in index],
    )


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
        record = table_record(name.strip(), description, columns)
        whose = (principal.org_id, principal.workspace_id)
        table_id = new_table_id()

        async def work(statements: Statements) -> KnowledgeTable:
            await check_user(statements, principal)
            with _unique_names(record):
                rows = await statements.fetch("insert_table", *whose, table_id, *record.values(), principal.user_id)
            if not rows:
                raise no_workspace()
            return to_table(rows[0])

        return await self._database.transact(work)

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
            found = await _for_write(statements, principal, table_id)
            record = changed_table(found.table, found.reserved, name=name, description=description, columns=columns)
            with _unique_names(record):
                return to_table((await statements.fetch("update_table", table_id, *record.values()))[0])

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

        async def work(statements: Statements) -> list[int]:
            found = await _for_write(statements, principal, table_id)
            known = await statements.fetch("batch_of_rows", table_id, batch)
            if known:
                return list(known_rows(Batch(*known[0]), digest))
            added = Batch(found.last_row + 1, len(rows), digest)
            await check_user(statements, principal)
            values = (principal.org_id, table_id, batch, digest, added.first, added.count)
            await statements.fetch("add_rows", *values, cells, tokens, principal.user_id)
            return list(known_rows(added, digest))

        return await self._database.transact(work)

    async def added_rows(
        self, principal: Principal, table_id: TableId, *, batch: str, digest: str | None = None
    ) -> range | None:
        check_id(table_id, "table")
        whose = (principal.org_id, principal.workspace_id, table_id)
        if not await self._database.read("table_exists", *whose):
            raise no_table()
        known = await self._database.read("batch_of_rows", table_id, batch)
        return known_rows(Batch(*known[0]), digest) if known else None

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        check_row_limit(limit)
        check_id(table_id, "table")
        place = min(max(0, after), MAX_ROWS)
        found = await self._database.read_as(principal, "my_table_rows", table_id, place, limit)
        if not found:
            await self.table(principal, table_id)  # raises NotFound if there is none to be seen
        return [to_row(row) for row in found]

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
        if not await self._database.write("delete_row", principal.org_id, principal.workspace_id, table_id, number):
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
            principal, "my_found_rows", [table_id for table_id, _ in places], [number for _, number in places]
        )
        rows = {(table_id, number): to_row((number, *rest)) for table_id, number, *rest in found}
        tables: dict[str, KnowledgeTable] = {} if table is None else {table.id: table}
        if {table_id for table_id, _ in rows} - tables.keys():
            known = await self._database.read_as(principal, "my_tables", AFTER_EVERY_TABLE, TABLES_SEARCHED)
            tables |= {each.id: each for each in map(to_table, known)}
        return tuple(
            RowHit(table=tables[table_id], row=rows[table_id, number])
            for table_id, number in places
            if (table_id, number) in rows and table_id in tables
        )

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        check_id(table_id, "table")
        check_import_size(count)

        async def work(statements: Statements) -> int:
            found = await _for_write(statements, principal, table_id)
            begun = begun_import(found.reserved, import_id)
            if begun is None:
                begun = found.last_row + 1
                await check_user(statements, principal)
                await statements.fetch("begin_import", table_id, import_id, count, principal.user_id)
            return begun

        return await self._database.transact(work)

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        cells, tokens = await asyncio.to_thread(_written, rows, table.id, table.workspace_id)
        # One statement: the rows are written only if their numbers are still reserved for this import.
        if not await self._database.write("import_rows", table.id, import_id, first, cells, tokens):
            raise import_lost()

    async def finish_import(
        self, table: KnowledgeTable, *, import_id: str, batch: str | None = None, digest: str | None = None
    ) -> KnowledgeTable:
        async def work(statements: Statements, is_repeat: bool) -> KnowledgeTable:
            found = await statements.fetch("import_under_way", table.id, import_id, batch)
            if not found and is_repeat:  # an earlier try was committed, and its answer lost
                found_table = await statements.fetch("table_by_id", table.id)
                if found_table:
                    return to_table(found_table[0])
            *reserved, has_batch = found[0] if found else (None, None, None, False)
            imported = imported_batch(Reserved(*reserved), digest, has_batch=has_batch)
            if batch is not None:
                await statements.fetch("add_batch_of_rows", table.id, batch, digest, imported.first, imported.count)
            return to_table((await statements.fetch("finish_import", table.id))[0])

        return await self._database.run(work, in_transaction=True)

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        await self._database.write("abandon_import", table.id, import_id)
        while await self._erase_rows(1, 500):
            pass

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        await self._database.write("erase_old_batches", before)
        texts = len(await self._database.write("drop_lost_texts", 50))
        silent = before if silent_before is None else silent_before
        return texts + await self._erase_rows(silent, limit)

    async def _erase_rows(self, before: int, limit: int) -> int:
        """Erase up to `limit` rows that no reader can see any more; return how many there were."""

        async def work(statements: Statements) -> int:
            erased = 0
            for table_id, is_deleted, first, last in await statements.fetch("tables_to_erase", before):
                numbers = (0, MAX_ROWS) if is_deleted else (first, last)
                erased += len(await statements.fetch("erase_rows", table_id, *numbers, limit - erased))
                if erased >= limit:
                    break
                await statements.fetch("erase_table" if is_deleted else "end_import", table_id)
            return erased

        return await self._database.transact(work)


async def _for_write(statements: Statements, principal: Principal, table_id: TableId) -> TableForWrite:
    """The table, which stays locked until the transaction ends."""
    rows = await statements.fetch("table_for_write", principal.org_id, principal.workspace_id, table_id)
    return table_for_write(rows[0] if rows else None)


@contextmanager
def _unique_names(record: dict[str, str]) -> Iterator[None]:
    """The unique index decides who was first with a name, also when two come at once."""
    try:
        yield
    except asyncpg.UniqueViolationError as exc:
        if exc.constraint_name != "tables_names":
            raise
        raise name_taken(record["name"]) from exc


def _written(rows: Sequence[Sequence[Cell]], *scopes: str) -> tuple[list[str], list[str]]:
    """The cells of each row as JSON, and its tokens."""
    return check_cells(rows), [tsvector_text([(tokens_of_row(row), "D")], scopes) for row in rows]
