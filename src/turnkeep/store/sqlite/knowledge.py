"""Knowledge on SQLite: pages, the text of files, the passages by which both are found, and tables with their rows.

A search for rows chooses them on the engine's path. What the rows hold is then read on the client path.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import structs

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
    ENOUGH,
    FILTERED,
    RANKED,
    TITLE_WEIGHT,
    Indexed,
    PassageMatch,
    best_of_each,
    fts_text,
    index_of,
    joined,
    loose,
    tokens_of_row,
)
from turnkeep.store.row_filters import conditions, named, ordering
from turnkeep.store.rows import json_text, to_page, to_row, to_summary, to_table
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.knowledge import (
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
    check_reserved,
    check_row_limit,
    check_row_search,
    check_search,
    check_table,
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
from turnkeep.store.sqlite.directory import check_user, has_workspace
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session, in_workspace


class SqliteKnowledge(StoreThreads):
    """Pages and the text of files. Promises are those of `ports.KnowledgeStore`."""

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage:
        check_page(title, content)
        page_id = new_page_id()
        await self._write(_create_page, principal, page_id, title, content, index_of(title, content))
        return await self.page(principal, page_id)

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage:
        return await self._see(principal, _my_page, check_id(page_id, "page"))

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        check_limit(limit)
        return await self._see(principal, _my_pages, limit, cursor)

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        check_page(title, content)
        await self._write(_change_page, principal, check_id(page_id, "page"), title, content)
        return await self.page(principal, page_id)

    async def delete_page(self, principal: Principal, page_id: PageId) -> None:
        await self._write(_delete_page, principal, check_id(page_id, "page"))

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty:
            return Found()
        matches = await self._read(_find_pages, principal, wanted, False)
        if looser := loose(wanted, len(best_of_each(matches))):
            matches = joined(matches, await self._read(_find_pages, principal, looser, True))
        shown, next_offset = part_of(best_of_each(matches), limit=limit, offset=offset)
        if not shown:
            return Found()
        hits = await self._see(principal, _my_hits, shown, wanted, chars)
        return Found(hits=hits, next_offset=next_offset)

    async def file_texts(self, org_id: OrgId, keys: Sequence[str]) -> dict[str, FileText]:
        return await self._read(_file_texts, org_id, keys)

    async def save_file_text(self, org_id: OrgId, text: FileText, *, unit: str) -> None:
        index = [] if text.problem else index_of("", text.text, unit=unit)
        await self._write(_save_file_text, org_id, text, index)

    async def search_file_texts(
        self, org_id: OrgId, keys: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty or not keys:
            return Found()
        matches: list[PassageMatch] = await self._read(_find_texts, org_id, keys, wanted, False)
        if looser := loose(wanted, len(matches)):
            matches = joined(matches, await self._read(_find_texts, org_id, keys, looser, True))
        shown, next_offset = part_of(matches, limit=limit, offset=offset)
        texts = await self.file_texts(org_id, list({match.owner for match in shown}))
        return Found(hits=text_hits(shown, texts, wanted, chars), next_offset=next_offset)


def _create_page(
    session: Session, principal: Principal, page_id: PageId, title: str, content: str, index: Sequence[Indexed]
) -> None:
    if not has_workspace(session, principal):
        raise no_workspace()
    check_user(session, principal)
    values = in_workspace(principal) | {"id": page_id, "title": title, "content": content, "now": session.now}
    session.run("insert_page", values | {"user": principal.user_id})
    _add_passages(session, principal.org_id, principal.workspace_id, page_id, index)


def _change_page(
    session: Session, principal: Principal, page_id: PageId, title: str | None, content: str | None
) -> None:
    row = session.row("page_for_write", in_workspace(principal) | {"page": page_id})
    title, content = changed_page(row, title, content)
    session.run("update_page", {"page": page_id, "title": title, "content": content, "now": session.now})
    drop_passages(session, principal.org_id, page_id)
    _add_passages(session, principal.org_id, principal.workspace_id, page_id, index_of(title, content))


def _delete_page(session: Session, principal: Principal, page_id: PageId) -> None:
    if session.row("page_for_write", in_workspace(principal) | {"page": page_id}) is None:
        raise no_page()
    drop_passages(session, principal.org_id, page_id)
    session.run("delete_page", {"page": page_id})


def _my_page(session: Session, page_id: PageId) -> KnowledgePage:
    row = session.row("my_page", {"page": page_id})
    if row is None:
        raise no_page()
    return to_page(row)


def _my_pages(session: Session, limit: int, cursor: str | None) -> Page[PageSummary]:
    before = None if cursor is None else decode_cursor(cursor, "pages", tuple[str])[0]
    rows = session.rows("my_pages_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_summary(row) for row in rows], limit=limit, cursor_of=lambda page: encode_cursor("pages", page.id)
    )


def _find_pages(session: Session, principal: Principal, query: SearchQuery, any_word: bool) -> list[PassageMatch]:
    return _matches(session, "search_pages", in_workspace(principal), query, any_word)


def _find_texts(
    session: Session, org_id: OrgId, keys: Sequence[str], query: SearchQuery, any_word: bool
) -> list[PassageMatch]:
    whose = {"org": org_id, "owners": json_text(list(keys))}
    return _matches(session, "search_file_texts", whose, query, any_word)


def _my_hits(session: Session, matches: Sequence[PassageMatch], query: SearchQuery, chars: int) -> tuple[PageHit, ...]:
    """What was found, as its reader sees it."""
    rows = session.rows("my_page_texts", {"ids": json_text([match.owner for match in matches])})
    return page_hits(matches, {page_id: (title, content) for page_id, title, content in rows}, query, chars)


def _file_texts(session: Session, org_id: OrgId, keys: Sequence[str]) -> dict[str, FileText]:
    rows = session.rows("file_texts", {"org": org_id, "owners": json_text(list(keys))})
    return {key: FileText(key=key, text=text, problem=problem) for key, text, problem in rows}


def _save_file_text(session: Session, org_id: OrgId, text: FileText, index: Sequence[Indexed]) -> None:
    if session.row("file_of_text", {"org": org_id, "owner": text.key}) is None:
        return
    values = {"org": org_id, "sha256": text.key, "text": text.text, "problem": text.problem, "now": session.now}
    session.run("save_file_text", values)
    drop_passages(session, org_id, text.key)
    _add_passages(session, org_id, None, text.key, index)


def drop_lost_texts(session: Session, limit: int) -> int:
    """Erase texts whose last file is gone; return at how many files that are gone it has looked."""
    freed = session.rows("freed_bytes", {"limit": limit})
    for org_id, sha256 in freed:
        for (key,) in session.rows("texts_without_file", {"org": org_id, "sha256": sha256}):
            drop_passages(session, org_id, key)
            session.run("drop_file_text", {"org": org_id, "owner": key})
        session.run("forget_freed_bytes", {"org": org_id, "sha256": sha256})
    return len(freed)


def _add_passages(
    session: Session, org_id: str, workspace_id: str | None, owner: str, index: Sequence[Indexed]
) -> None:
    """Passages of a page name its workspace. The text of a file belongs to everyone who has a file of these bytes."""
    whose = {"org": org_id, "workspace": workspace_id, "owner": owner}
    for each in index:
        values = whose | {"start": each.start, "stop": each.stop, "place": each.place}
        n = session.rows("add_passage", values)[0][0]
        session.run("add_passage_tokens", {"n": n, "title": " ".join(each.title), "body": " ".join(each.body)})


def drop_passages(session: Session, org_id: str, owner: str) -> None:
    session.run("drop_passage_tokens", {"org": org_id, "owner": owner})
    session.run("drop_passages", {"org": org_id, "owner": owner})


def _matches(
    session: Session, name: str, whose: dict[str, Any], query: SearchQuery, any_word: bool
) -> list[PassageMatch]:
    values = whose | {
        "query": fts_text(query, any_word=any_word),
        "title_weight": TITLE_WEIGHT,
        "candidates": CANDIDATES,
        "limit": RANKED,
    }
    return [PassageMatch(*row) for row in session.rows(name, values)]


BITS = 32
LAST = 2**BITS - 1

Written = tuple[str, str]
"""A row as it is stored: the JSON of its cells, and its tokens."""

RowOwner = tuple[str, str | None]
"""The org, and the user who adds the rows (None: a service)."""

TABLES_SEARCHED = 200

_MATCHES = """
SELECT s.rowid AS n, bm25(row_tokens) AS rank FROM row_tokens s
 WHERE s.row_tokens MATCH :query AND s.rowid BETWEEN :first AND :last ORDER BY s.rowid DESC LIMIT :candidates
"""

_SEEN = """
t.serial = :serial AND t.org_id = :org AND t.workspace_id = :workspace AND t.deleted_at IS NULL
AND (t.import_first IS NULL OR ({0}.n & 4294967295) NOT BETWEEN t.import_first AND t.import_last)
"""


class SqliteTables(StoreThreads):
    """Tables and rows. Promises are those of `ports.KnowledgeStore`."""

    async def create_table(
        self, principal: Principal, *, name: str, columns: Sequence[Column], description: str = ""
    ) -> KnowledgeTable:
        check_table(name, description, columns)
        record = table_record(name.strip(), description, columns)
        return await self._write(_create, principal, new_table_id(), record)

    async def table(self, principal: Principal, table_id: TableId) -> KnowledgeTable:
        return await self._see(principal, _my_table, check_id(table_id, "table"))

    async def tables(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[KnowledgeTable]:
        check_limit(limit)
        return await self._see(principal, _my_tables, limit, cursor)

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
        return await self._write(_change, principal, table_id, name, description, columns)

    async def delete_table(self, principal: Principal, table_id: TableId) -> None:
        await self._write(_delete, principal, check_id(table_id, "table"))

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
        return await self._write(_add, principal, check_id(table_id, "table"), _written(rows), batch, digest)

    async def added_rows(
        self, principal: Principal, table_id: TableId, *, batch: str, digest: str | None = None
    ) -> range | None:
        return await self._read(_added, principal, check_id(table_id, "table"), batch, digest)

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        check_row_limit(limit)
        return await self._see(principal, _my_rows, check_id(table_id, "table"), max(0, after), limit)

    async def row(self, principal: Principal, table_id: TableId, number: int) -> Row:
        return await self._see(principal, _my_row, check_id(table_id, "table"), number)

    async def change_row(self, principal: Principal, table_id: TableId, number: int, cells: Sequence[Cell]) -> Row:
        await self.row(principal, table_id, number)
        [written] = _written([cells])
        return await self._write(_change_row, principal, table_id, number, written)

    async def delete_row(self, principal: Principal, table_id: TableId, number: int) -> None:
        await self.row(principal, table_id, number)
        await self._write(_delete_row, principal, table_id, number)

    async def find_rows(
        self, principal: Principal, query: RowQuery, *, table: KnowledgeTable | None, limit: int = 10, offset: int = 0
    ) -> Found[RowHit]:
        words = check_row_search(query, table, limit, offset)
        if words is None:
            return Found()

        def found(session: Session) -> list[int]:
            serials = _table_serials(session, principal) if table is None else [table.serial]
            places: dict[int, None] = {}
            for wanted in (words, loose(words, 0)):
                if wanted is None or len(places) >= ENOUGH:
                    break
                hits = [
                    hit
                    for serial in serials
                    for hit in _find(session, principal, serial, query, wanted, wanted is not words)
                ]
                places |= dict.fromkeys(n for _, n in (sorted(hits) if table is None else hits))
            return list(places)

        shown, next_offset = part_of(await self._read(found), limit=limit, offset=offset)

        def seen(session: Session) -> tuple[RowHit, ...]:
            known = {} if table is None else {table.serial: table}
            with session.snapshot():
                rows = _my_found_rows(session, list(shown))
                of = _tables_of(session, list(rows), known)
            return tuple(
                RowHit(table=of[place >> BITS], row=rows[place])
                for place in shown
                if place in rows and place >> BITS in of
            )

        return Found(hits=await self._see(principal, seen), next_offset=next_offset)

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        check_import_size(count)
        return await self._write(_begin_import, principal, check_id(table_id, "table"), import_id, count)

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        written = await asyncio.to_thread(_written, rows)
        await self._write(_import_rows, table.id, import_id, first, written)

    async def finish_import(
        self, table: KnowledgeTable, *, import_id: str, batch: str | None = None, digest: str | None = None
    ) -> KnowledgeTable:
        return await self._write(_finish_import, table.id, import_id, batch, digest)

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        await self._write(_abandon_import, table.id, import_id)
        while await self._write(_erase_some, 1, 500):
            pass

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        await self._write(_erase_old_batches, before)
        texts = await self._write(drop_lost_texts, 50)
        silent = before if silent_before is None else silent_before
        return texts + await self._write(_erase_some, silent, limit)


def _written(rows: Sequence[Sequence[Cell]]) -> list[Written]:
    return [(cells, " ".join(tokens_of_row(row))) for cells, row in zip(check_cells(rows), rows, strict=True)]


def _table_serials(session: Session, principal: Principal) -> list[int]:
    """All tables of the workspace, newest first."""
    which = in_workspace(principal) | {"limit": TABLES_SEARCHED}
    return [serial for _, serial in session.rows("tables_to_search", which)]


def _find(
    session: Session, principal: Principal, serial: int, query: RowQuery, words: SearchQuery, any_word: bool
) -> list[tuple[float, int]]:
    """`(rank, rowid)` of the rows of one table that fit, in their order; a smaller rank is a better one."""
    values: dict[str, Any] = {
        "serial": serial,
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "first": place_of(serial, 0),
        "last": place_of(serial, LAST),
        "limit": RANKED,
    }
    given: dict[str, Any] = {}
    fitting = conditions("sqlite", query, named(given))
    if words.is_empty:
        order = f"{ordering('sqlite', query.sort)}, r.n" if query.sort else "r.n"
        sql = (
            "SELECT 0.0, r.n FROM tables t CROSS JOIN table_rows r ON r.n BETWEEN :first AND :last "
            f"WHERE {_SEEN.format('r')}{fitting} ORDER BY {order} LIMIT :limit"
        )
    elif not (query.filters or query.sort):
        # Which rows there are is in the index; none of them is read before the best are known.
        values |= {"query": fts_text(words, any_word=any_word), "candidates": CANDIDATES}
        sql = (
            f"SELECT f.rank, f.n FROM tables t CROSS JOIN ({_MATCHES}) f "
            f"WHERE {_SEEN.format('f')} ORDER BY f.rank, f.n LIMIT :limit"
        )
    else:
        values |= {"query": fts_text(words, any_word=any_word), "candidates": FILTERED}
        order = f"{ordering('sqlite', query.sort)}, f.rank" if query.sort else "f.rank"
        sql = (
            f"SELECT f.rank, r.n FROM ({_MATCHES}) f CROSS JOIN table_rows r ON r.n = f.n CROSS JOIN tables t "
            f"WHERE {_SEEN.format('r')}{fitting} ORDER BY {order}, r.n LIMIT :limit"
        )
    return session.connection.execute(sql, values | given).fetchall()  # type: ignore[return-value]


def _my_found_rows(session: Session, places: list[int]) -> dict[int, Row]:
    """These rows as their reader sees them, by rowid."""
    rows = session.rows("my_rows_by_n", {"ns": json_text(places)})
    return {place: to_row((place & LAST, *rest)) for place, *rest in rows}


def _tables_of(session: Session, places: list[int], known: dict[int, KnowledgeTable]) -> dict[int, KnowledgeTable]:
    """The tables in which these rows stand, by serial."""
    if {place >> BITS for place in places} <= known.keys():
        return known
    return known | {table.serial: table for table in _my_tables(session, TABLES_SEARCHED, None).data}


def place_of(serial: int, number: int) -> int:
    """The rowid of a row."""
    return serial << BITS | number


def _create(session: Session, principal: Principal, table_id: TableId, record: dict[str, str]) -> KnowledgeTable:
    if not has_workspace(session, principal):
        raise no_workspace()
    _check_name(session, principal, table_id, record)
    check_user(session, principal)
    values = in_workspace(principal) | record | {"id": table_id, "now": session.now, "user": principal.user_id}
    return to_table(session.rows("insert_table", values)[0])


def _change(
    session: Session,
    principal: Principal,
    table_id: TableId,
    name: str | None,
    description: str | None,
    columns: Sequence[Column] | None,
) -> KnowledgeTable:
    found = _for_write(session, principal, table_id)
    record = changed_table(found.table, found.reserved, name=name, description=description, columns=columns)
    _check_name(session, principal, table_id, record)
    return to_table(session.rows("update_table", record | {"table": table_id, "now": session.now})[0])


def _delete(session: Session, principal: Principal, table_id: TableId) -> None:
    _for_write(session, principal, table_id)
    session.run("delete_table", {"table": table_id, "now": session.now})


def _my_table(session: Session, table_id: TableId) -> KnowledgeTable:
    row = session.row("my_table", {"table": table_id})
    if row is None:
        raise no_table()
    return to_table(row)


def _my_tables(session: Session, limit: int, cursor: str | None) -> Page[KnowledgeTable]:
    before = None if cursor is None else decode_cursor(cursor, "tables", tuple[str])[0]
    rows = session.rows("my_tables_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_table(row) for row in rows], limit=limit, cursor_of=lambda table: encode_cursor("tables", table.id)
    )


def _add(
    session: Session,
    principal: Principal,
    table_id: TableId,
    written: Sequence[Written],
    batch: str,
    digest: str | None,
) -> list[int]:
    found = _for_write(session, principal, table_id)
    serial = found.table.serial
    known = _batch(session, serial, batch)
    if known is not None:
        return list(known_rows(known, digest))
    added = Batch(found.last_row + 1, len(written), digest)
    check_user(session, principal)
    _keep_batch(session, serial, batch, added, principal.user_id)
    _insert(session, (principal.org_id, principal.user_id), serial, added.first, written)
    _count(session, serial, added.count, last=found.last_row + added.count)
    return list(known_rows(added, digest))


def _added(session: Session, principal: Principal, table_id: TableId, batch: str, digest: str | None) -> range | None:
    known = _batch(session, _for_write(session, principal, table_id).table.serial, batch)
    return None if known is None else known_rows(known, digest)


def _my_rows(session: Session, table_id: TableId, after: int, limit: int) -> list[Row]:
    with session.snapshot():
        serial = _my_table(session, table_id).serial
        which = {"after": place_of(serial, min(after, LAST)), "last": place_of(serial, LAST), "limit": limit}
        return [to_row(row) for row in session.rows("my_rows_after", which)]


def _my_row(session: Session, table_id: TableId, number: int) -> Row:
    found = _my_rows(session, table_id, number - 1, 1) if 1 <= number <= LAST else []
    if not found or found[0].number != number:
        raise no_row(number)
    return found[0]


def _change_row(session: Session, principal: Principal, table_id: TableId, number: int, written: Written) -> Row:
    place = _place_for_write(session, principal, table_id, number)
    cells, tokens = written
    row = session.rows("update_row", {"n": place, "cells": cells, "now": session.now})[0]
    session.run("add_row_tokens", {"n": place, "tokens": tokens})
    return to_row(row)


def _delete_row(session: Session, principal: Principal, table_id: TableId, number: int) -> None:
    place = _place_for_write(session, principal, table_id, number)
    session.run("delete_row", {"n": place})
    session.run("drop_row_tokens", {"n": place})
    _count(session, place >> BITS, -1, last=0)


def _begin_import(session: Session, principal: Principal, table_id: TableId, import_id: str, count: int) -> int:
    found = _for_write(session, principal, table_id)
    begun = begun_import(found.reserved, import_id)
    if begun is not None:
        return begun
    check_user(session, principal)
    values = {"serial": found.table.serial, "import": import_id, "count": count, "now": session.now}
    values["user"] = principal.user_id
    first: int = session.rows("begin_import", values)[0][0]
    return first


def _import_rows(session: Session, table_id: TableId, import_id: str, first: int, written: Sequence[Written]) -> None:
    serial, owner, reserved = _import_under_way(session, table_id, import_id)
    check_reserved(reserved, first, len(written))
    _insert(session, owner, serial, first, written)
    session.run("touch_import", {"serial": serial, "now": session.now})


def _finish_import(
    session: Session, table_id: TableId, import_id: str, batch: str | None, digest: str | None
) -> KnowledgeTable:
    serial, (_, user_id), reserved = _import_under_way(session, table_id, import_id)
    has_batch = batch is not None and _batch(session, serial, batch) is not None
    imported = imported_batch(reserved, digest, has_batch=has_batch)
    if batch is not None:
        _keep_batch(session, serial, batch, imported, user_id)
    return to_table(session.rows("finish_import", {"table": table_id, "import": import_id, "now": session.now})[0])


def _import_under_way(session: Session, table_id: TableId, import_id: str) -> tuple[int, RowOwner, Reserved | None]:
    """The serial of the table, the owner of the rows, and the numbers that this import may write."""
    row = session.row("import_under_way", {"table": table_id, "import": import_id})
    if row is None:
        return 0, ("", None), None
    serial, org_id, user_id, *reserved = row
    return serial, (org_id, user_id), Reserved(*reserved)


def _abandon_import(session: Session, table_id: TableId, import_id: str) -> None:
    session.run("abandon_import", {"table": table_id, "import": import_id})


def _erase_some(session: Session, before: int, limit: int) -> int:
    """Erase up to `limit` rows that no reader can see any more; return how many there were."""
    for serial, first, last in session.rows("silent_imports", {"before": before}):
        erased = erase_places(session, place_of(serial, first), place_of(serial, last), limit)
        if erased == limit:
            return erased
        session.run("end_import", {"serial": serial})
        if erased:
            return erased
    for (serial,) in session.rows("deleted_tables"):
        erased = erase_places(session, place_of(serial, 0), place_of(serial, LAST), limit)
        if erased == limit:
            return erased
        erase_table(session, serial)
        if erased:
            return erased
    return 0


def erase_table(session: Session, serial: int) -> None:
    """A table that has no rows any more, with the names of its batches."""
    session.run("erase_batches_of_table", {"serial": serial})
    session.run("erase_table", {"serial": serial})


def _erase_old_batches(session: Session, before: int) -> None:
    session.run("erase_old_batches", {"before": before})


def erase_places(session: Session, first: int, last: int, limit: int) -> int:
    """Erase up to `limit` rows between these places; return how many there were."""
    places = session.rows("rows_to_erase", {"first": first, "last": last, "limit": limit})
    which = [{"n": place} for (place,) in places]
    session.many("delete_row", which)
    session.many("drop_row_tokens", which)
    return len(which)


def _insert(session: Session, owner: RowOwner, serial: int, first: int, written: Sequence[Written]) -> None:
    numbered = [(place_of(serial, number), row) for number, row in enumerate(written, start=first)]
    org_id, user_id = owner
    whose = {"org": org_id, "user": user_id, "now": session.now}
    rows = [whose | {"n": place, "cells": cells} for place, (cells, _) in numbered]
    session.many("insert_row", rows)
    session.many("add_row_tokens", [{"n": place, "tokens": tokens} for place, (_, tokens) in numbered])


def _batch(session: Session, serial: int, batch: str) -> Batch | None:
    row = session.row("batch_of_rows", {"serial": serial, "batch": batch})
    return None if row is None else Batch(*row)


def _keep_batch(session: Session, serial: int, name: str, batch: Batch, user_id: str | None) -> None:
    values = {"serial": serial, "batch": name, "now": session.now, "user": user_id} | structs.asdict(batch)
    session.run("add_batch_of_rows", values)


def _count(session: Session, serial: int, count: int, *, last: int) -> None:
    session.run("count_rows", {"serial": serial, "count": count, "last": last, "now": session.now})


def _place_for_write(session: Session, principal: Principal, table_id: TableId, number: int) -> int:
    place = place_of(_for_write(session, principal, table_id).table.serial, number)
    if not 1 <= number <= LAST or session.row("row_for_write", {"n": place}) is None:
        raise no_row(number)
    return place


def _for_write(session: Session, principal: Principal, table_id: TableId) -> TableForWrite:
    return table_for_write(session.row("table_for_write", in_workspace(principal) | {"table": table_id}))


def _check_name(session: Session, principal: Principal, table_id: TableId, record: dict[str, str]) -> None:
    values = {"workspace": principal.workspace_id, "key": record["name_key"], "id": table_id}
    if session.row("table_name_taken", values) is not None:
        raise name_taken(record["name"])
