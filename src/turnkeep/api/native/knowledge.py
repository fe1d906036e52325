"""The knowledge of a workspace: pages (Markdown documents), and tables with their rows, as JSON and as CSV.

Everyone in the workspace reads and searches them, admins write them. A CSV file is imported whole or not at all. A
client that accepts NDJSON gets a line for each step of the import.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
from msgspec import UNSET, structs
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api import views
from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.downloads import SAFE_HEADERS, disposition
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.idempotency import StreamHash, idempotency_key, request_hash
from turnkeep.api.http.problem_details import translated
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.query_parameters import CsvQuery, PageQuery, PagesQuery, RowsQuery
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import PageId, TableId
from turnkeep.knowledge.csv_files import CsvFile, Importer, Progress, csv_lines, spooled, unheard
from turnkeep.knowledge.table_rows import cells_of, row_query, values_of
from turnkeep.model.knowledge import Column, KnowledgePage, KnowledgeTable
from turnkeep.model.principals import Principal
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.ports import KnowledgeStore
from turnkeep_client import wire
from turnkeep_client.wire.knowledge import (
    Added,
    ChangedColumn,
    NewPage,
    NewRows,
    NewTable,
    PageChange,
    PageItem,
    Row,
    RowValues,
    Table,
    TableChange,
)

NDJSON = "application/x-ndjson"
CSV = "text/csv"
SNIPPET_CHARS = 200
EXPORTED_AT_ONCE = 500
"""Rows of one piece of a CSV download."""

Import = Callable[[CsvFile, Progress], Awaitable[Added | Table]]

endpoints = Endpoints("knowledge", feature="knowledge")

PAGE = ResponseSpec(status=200, meaning="The page", type=wire.KnowledgePage)
TABLE = ResponseSpec(status=200, meaning="The table", type=Table)
ROW = ResponseSpec(status=200, meaning="The row", type=Row)
PAGE_PATH = "/v1/pages/{page_id}"
TABLE_PATH = "/v1/tables/{table_id}"
ROWS_PATH = "/v1/tables/{table_id}/rows"
ROW_PATH = "/v1/tables/{table_id}/rows/{row}"


@endpoints.add(
    "GET",
    "/v1/pages",
    policy=Policy.MEMBER,
    query=PagesQuery,
    responses=(
        ResponseSpec(status=200, meaning="Pages, newest first, or best first in a search", type=wire.Page[PageItem]),
    ),
)
async def list_pages(call: ApiCall[Nothing, PagesQuery]) -> ASGIApp:
    """The pages of the workspace, without their content; with `q` those that match, each with a snippet."""
    if call.query.q is not None and call.query.q.strip():
        return json_response(await _found_pages(call, call.query.q))
    page = await call.runtime.store.pages(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    return json_response(wire.Page(data=[views.page_item_of(each) for each in page.data], next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/pages",
    policy=Policy.ADMIN,
    body=NewPage,
    responses=(ResponseSpec(status=201, meaning="The new page", type=wire.KnowledgePage),),
    errors=(507,),
)
async def create_page(call: ApiCall[NewPage, Nothing]) -> ASGIApp:
    """Write a page. It can be found at once."""
    page = await call.runtime.store.create_page(call.principal, title=call.body.title, content=call.body.content)
    return _page_response(page, status=201)


@endpoints.add("GET", PAGE_PATH, policy=Policy.MEMBER, responses=(PAGE,))
async def read_page(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """A page with its Markdown."""
    return _page_response(await call.runtime.store.page(call.principal, _page_id(call)))


@endpoints.add("PUT", PAGE_PATH, policy=Policy.ADMIN, body=NewPage, responses=(PAGE,), errors=(507,))
async def replace_page(call: ApiCall[NewPage, Nothing]) -> ASGIApp:
    """Replace a page."""
    title, content = call.body.title, call.body.content
    return _page_response(
        await call.runtime.store.change_page(call.principal, _page_id(call), title=title, content=content)
    )


@endpoints.add("PATCH", PAGE_PATH, policy=Policy.ADMIN, body=PageChange, responses=(PAGE,), errors=(507,))
async def change_page(call: ApiCall[PageChange, Nothing]) -> ASGIApp:
    """Change the title or the content; what is not given stays."""
    title = None if call.body.title is UNSET else call.body.title
    content = None if call.body.content is UNSET else call.body.content
    return _page_response(
        await call.runtime.store.change_page(call.principal, _page_id(call), title=title, content=content)
    )


@endpoints.add(
    "DELETE", PAGE_PATH, policy=Policy.ADMIN, responses=(ResponseSpec(status=204, meaning="The page is gone"),)
)
async def delete_page(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a page for good."""
    await call.runtime.store.delete_page(call.principal, _page_id(call))
    return no_content()


async def _found_pages(call: ApiCall[Nothing, PagesQuery], query: str) -> wire.Page[PageItem]:
    store, limit = call.runtime.store, call.query.limit
    of = f"pages that have {query}"
    offset = decode_cursor(call.query.cursor, of, tuple[int])[0] if call.query.cursor else 0
    found = await store.search_pages(call.principal, query, limit=limit, offset=offset, chars=SNIPPET_CHARS)
    data = [
        structs.replace(
            views.page_item_of(await store.page(call.principal, hit.page_id)), snippet=hit.excerpt, place=hit.place
        )
        for hit in found.hits
    ]
    return wire.Page(data=data, next_cursor=None if found.next_offset is None else encode_cursor(of, found.next_offset))


def _page_id(call: ApiCall[Any, Any]) -> PageId:
    return PageId(call.id("page_id", "page"))


def _page_response(page: KnowledgePage, *, status: int = 200) -> ASGIApp:
    return json_response(views.page_of(page), status=status)


@endpoints.add(
    "GET",
    "/v1/tables",
    policy=Policy.MEMBER,
    query=PageQuery,
    responses=(ResponseSpec(status=200, meaning="Tables, newest first", type=wire.Page[Table]),),
)
async def list_tables(call: ApiCall[Nothing, PageQuery]) -> ASGIApp:
    """The tables of the workspace, without their rows."""
    page = await call.runtime.store.tables(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    return json_response(wire.Page(data=[views.table_of(each) for each in page.data], next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/tables",
    policy=Policy.ADMIN,
    body=NewTable,
    raw_body=CSV,
    query=CsvQuery,
    responses=(
        ResponseSpec(status=201, meaning="The new table", type=Table),
        ResponseSpec(status=200, meaning="How the import goes on, line by line", type=str, media_type=NDJSON),
    ),
    errors=(409, 413, 507),
)
async def create_table(call: ApiCall[NewTable | Nothing, CsvQuery]) -> ASGIApp:
    """Make a table from its columns, or (as `text/csv`, with `?name=`) from a file whose columns are detected."""
    body = call.body
    if isinstance(body, Nothing):
        return await _import_as_new(call)
    columns = [Column(key=key, name=column.name.strip(), type=column.type) for key, column in enumerate(body.columns)]
    table = await call.runtime.store.create_table(
        call.principal, name=body.name, columns=columns, description=body.description
    )
    return json_response(views.table_of(table), status=201)


@endpoints.add("GET", TABLE_PATH, policy=Policy.MEMBER, responses=(TABLE,))
async def read_table(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """A table without its rows."""
    return json_response(views.table_of(await call.runtime.store.table(call.principal, _table_id(call))))


@endpoints.add("PATCH", TABLE_PATH, policy=Policy.ADMIN, body=TableChange, responses=(TABLE,), errors=(409, 507))
async def change_table(call: ApiCall[TableChange, Nothing]) -> ASGIApp:
    """Rename a table or describe it, add columns or rename them. A column goes only while there are no rows."""
    body, table_id = call.body, _table_id(call)
    columns: list[Column] | None = None
    if body.columns is not UNSET:
        columns = _changed(await call.runtime.store.table(call.principal, table_id), body.columns)
    table = await call.runtime.store.change_table(
        call.principal,
        table_id,
        name=None if body.name is UNSET else body.name,
        description=None if body.description is UNSET else body.description,
        columns=columns,
    )
    return json_response(views.table_of(table))


@endpoints.add(
    "DELETE", TABLE_PATH, policy=Policy.ADMIN, responses=(ResponseSpec(status=204, meaning="The table is gone"),)
)
async def delete_table(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a table with all its rows, for good."""
    await call.runtime.store.delete_table(call.principal, _table_id(call))
    return no_content()


@endpoints.add(
    "GET",
    ROWS_PATH,
    policy=Policy.MEMBER,
    query=RowsQuery,
    responses=(
        ResponseSpec(status=200, meaning="Rows by their number, by rank, or as `sort` says", type=wire.Page[Row]),
        ResponseSpec(status=200, meaning="All rows as CSV", type=str, media_type=CSV),
    ),
)
async def list_rows(call: ApiCall[Nothing, RowsQuery]) -> ASGIApp:
    """Rows of a table; with `from_row` from that number on, whether or not there is a row of it. With
    `Accept: text/csv` or `format=csv` all of them, as a file."""
    store, query = call.runtime.store, call.query
    table = await store.table(call.principal, _table_id(call))
    wants_csv = query.format == "csv" or (query.format is None and CSV in call.headers.get("accept", "").lower())
    if wants_csv:
        if query.q or query.filter or query.sort or query.from_row:
            raise InvalidRequest("CSV is handed out whole: leave out `q`, `filter`, `sort` and `from_row`.")
        return _csv_download(store, call.principal, table)
    if query.q or query.filter or query.sort:
        if query.from_row:
            raise InvalidRequest("`from_row` begins a list by number: leave it out, or `q`, `filter` and `sort`.")
        return json_response(await _found_rows(call, table))
    of = f"rows of {table.id}"
    after = decode_cursor(query.cursor, of, tuple[int])[0] if query.cursor else (query.from_row or 1) - 1
    rows = await store.rows(call.principal, table.id, after=after, limit=query.limit + 1)
    shown = rows[: query.limit]
    more = encode_cursor(of, shown[-1].number) if len(rows) > query.limit else None
    return json_response(wire.Page(data=[views.table_row_of(table, row) for row in shown], next_cursor=more))


@endpoints.add(
    "POST",
    ROWS_PATH,
    policy=Policy.ADMIN,
    body=NewRows,
    raw_body=CSV,
    query=CsvQuery,
    headers=("Idempotency-Key",),
    responses=(
        ResponseSpec(status=201, meaning="What was added", type=Added),
        ResponseSpec(status=200, meaning="How the import goes on, line by line", type=str, media_type=NDJSON),
    ),
    errors=(409, 413, 507),
)
async def add_rows(call: ApiCall[NewRows | Nothing, CsvQuery]) -> ASGIApp:
    """Add rows, all or none: up to 1,000 as JSON, or any number as `text/csv`, whose first line names the columns. The
    same `Idempotency-Key` with the same body again adds nothing and answers what was added, also for CSV."""
    table_id = _table_id(call)
    key = idempotency_key(call)
    batch = secrets.token_hex(16) if key is None else f"{call.principal.ref}:{key}"
    if isinstance(call.body, Nothing):
        return await _import_into(call, table_id, batch=None if key is None else batch)
    store, digest = call.runtime.store, request_hash(call)
    table = await store.table(call.principal, table_id)
    numbers: Sequence[int] | None = None
    if key is not None:  # looked at before the rows, which may not fit the columns of today
        numbers = await store.added_rows(call.principal, table_id, batch=batch, digest=digest)
    if numbers is None:
        rows = [cells_of(table, row) for row in call.body.rows]
        numbers = await store.add_rows(call.principal, table_id, rows, batch=batch, digest=digest)
    now = views.table_of(await store.table(call.principal, table_id))
    return json_response(Added(rows=len(numbers), first_row=numbers[0], table=now), status=201)


@endpoints.add("GET", ROW_PATH, policy=Policy.MEMBER, responses=(ROW,))
async def read_row(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One row."""
    table, number = await _named(call)
    return json_response(views.table_row_of(table, await call.runtime.store.row(call.principal, table.id, number)))


@endpoints.add("PUT", ROW_PATH, policy=Policy.ADMIN, body=RowValues, responses=(ROW,), errors=(507,))
async def replace_row(call: ApiCall[RowValues, Nothing]) -> ASGIApp:
    """Replace a row; cells that are not given are empty."""
    table, number = await _named(call)
    cells = cells_of(table, call.body.values)
    return json_response(
        views.table_row_of(table, await call.runtime.store.change_row(call.principal, table.id, number, cells))
    )


@endpoints.add("PATCH", ROW_PATH, policy=Policy.ADMIN, body=RowValues, responses=(ROW,), errors=(507,))
async def change_row(call: ApiCall[RowValues, Nothing]) -> ASGIApp:
    """Change some cells of a row."""
    table, number = await _named(call)
    before = values_of(table, (await call.runtime.store.row(call.principal, table.id, number)).cells)
    given = {_spelled(table, name): value for name, value in call.body.values.items()}
    cells = cells_of(table, before | given)
    return json_response(
        views.table_row_of(table, await call.runtime.store.change_row(call.principal, table.id, number, cells))
    )


@endpoints.add(
    "DELETE", ROW_PATH, policy=Policy.ADMIN, responses=(ResponseSpec(status=204, meaning="The row is gone"),)
)
async def delete_row(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a row for good."""
    table, number = await _named(call)
    await call.runtime.store.delete_row(call.principal, table.id, number)
    return no_content()


def _table_id(call: ApiCall[Any, Any]) -> TableId:
    return TableId(call.id("table_id", "table"))


def _changed(table: KnowledgeTable, wanted: Sequence[ChangedColumn]) -> list[Column]:
    """The columns with the keys that they have already; a new column gets the next key."""
    known = {column.name: column for column in table.columns}
    next_key = max((column.key for column in table.columns), default=-1) + 1
    columns: list[Column] = []
    for each in wanted:
        name = each.name.strip()
        before = known.get(each.was or each.name)
        if before is None and each.was is not None:
            raise InvalidRequest(f"The table has no column {each.was!r} that could be renamed.")
        if before is None:
            before = Column(key=next_key, name=name, type=each.type)
            next_key += 1
        columns.append(Column(key=before.key, name=name, type=each.type))
    return columns


async def _found_rows(call: ApiCall[Nothing, RowsQuery], table: KnowledgeTable) -> wire.Page[Row]:
    asked = call.query
    query = row_query(table, text=asked.q or "", filters=asked.conditions(), sort=asked.sort)
    of = f"rows of {table.id} that have {asked.q}, {asked.filter}, by {asked.sort}"
    offset = decode_cursor(asked.cursor, of, tuple[int])[0] if asked.cursor else 0
    found = await call.runtime.store.find_rows(call.principal, query, table=table, limit=asked.limit, offset=offset)
    more = None if found.next_offset is None else encode_cursor(of, found.next_offset)
    return wire.Page(data=[views.table_row_of(table, hit.row) for hit in found.hits], next_cursor=more)


async def _named(call: ApiCall[Any, Any]) -> tuple[KnowledgeTable, int]:
    table = await call.runtime.store.table(call.principal, _table_id(call))
    text = call.path("row")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise NotFound(f"The table has no row {text[:40]!r}.")
    return table, int(text)


def _spelled(table: KnowledgeTable, name: str) -> str:
    """The column's own spelling of its name."""
    column = table.column(name)
    return name if column is None else column.name


def _csv_download(store: KnowledgeStore, principal: Principal, table: KnowledgeTable) -> Response:
    """The whole table as CSV, read and sent in pieces."""
    headers = {
        **SAFE_HEADERS,
        "content-type": "text/csv; charset=utf-8",
        "content-disposition": disposition(f"{table.name}.csv"),
        "cache-control": "no-store",
    }
    return StreamingResponse(_csv_pieces(store, principal, table), headers=headers)


async def _csv_pieces(store: KnowledgeStore, principal: Principal, table: KnowledgeTable) -> AsyncIterator[str]:
    yield csv_lines([[column.name for column in table.columns]])
    after = 0
    while rows := await store.rows(principal, table.id, after=after, limit=EXPORTED_AT_ONCE):
        yield csv_lines([row.cell(column) for column in table.columns] for row in rows)
        after = rows[-1].number


async def _import_into(call: ApiCall[Any, CsvQuery], table_id: TableId, *, batch: str | None) -> ASGIApp:
    """All rows of the body into this table, or none. The same body as the same batch is imported once."""
    store = call.runtime.store
    table = await store.table(call.principal, table_id)
    seen = StreamHash(call, _charset_of(call.headers), call.query.delimiter)

    async def run(csv: CsvFile, progress: Progress) -> Added:
        digest = seen.hexdigest()
        if batch is not None:
            known = await store.added_rows(call.principal, table.id, batch=batch, digest=digest)
            if known is not None:
                return Added(rows=len(known), table=views.table_of(table))
        filled = await Importer(store).fill(call.principal, table, csv, progress, batch=batch, digest=digest)
        return Added(rows=filled.row_count - table.row_count, table=views.table_of(filled))

    return await _answered(call, seen.passing(body_chunks(call.receive)), run)


async def _import_as_new(call: ApiCall[Any, CsvQuery]) -> ASGIApp:
    """A new table with the columns and rows of the body, or nothing at all."""
    store, name = call.runtime.store, call.query.name
    if not name or not name.strip():
        raise InvalidRequest("Say how the new table is called: ?name=…")

    async def run(csv: CsvFile, progress: Progress) -> Table:
        importer = Importer(store)
        columns = await importer.columns(csv, progress)
        table = await store.create_table(call.principal, name=name, columns=columns)
        try:
            return views.table_of(await importer.fill(call.principal, table, csv, progress))
        except BaseException:
            await asyncio.shield(store.delete_table(call.principal, table.id))
            raise

    return await _answered(call, body_chunks(call.receive), run)


async def _answered(call: ApiCall[Any, CsvQuery], chunks: AsyncIterator[bytes], run: Import) -> ASGIApp:
    async with AsyncExitStack() as stack:
        limit = call.runtime.settings.max_file_bytes
        file = await stack.enter_async_context(spooled(chunks, limit=limit))
        importer = Importer(call.runtime.store)
        csv = await importer.open(file, charset=_charset_of(call.headers), delimiter=call.query.delimiter)
        if NDJSON in call.headers.get("accept", "").lower():
            return ImportStream(stack.pop_all(), lambda progress: run(csv, progress))
        return json_response(await run(csv, unheard), status=201)


class ImportStream:
    """The response to an import, line by line: `progress`, then one `result` or `error`. The import is undone if the
    client disconnects."""

    def __init__(self, stack: AsyncExitStack, run: Callable[[Progress], Awaitable[Added | Table]]) -> None:
        self._stack = stack
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_line(line: dict[str, Any], *, more: bool = True) -> None:
            body = msgspec.json.encode(line) + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": more})

        async def progress(stage: str, rows: int, total: int | None) -> None:
            await send_line({"type": "progress", "stage": stage, "rows": rows, "total": total})

        headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        async with self._stack:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with suppress(ClientDisconnected):
                await send_line(await while_connected(receive, self._last_line(progress)), more=False)

    async def _last_line(self, progress: Progress) -> dict[str, Any]:
        """The result of the import, or its error."""
        try:
            shown = await self._run(progress)
        except Exception as exc:
            error = translated(exc)
            return {"type": "error", "code": error.code, "message": error.detail}
        return {"type": "result", **msgspec.to_builtins(shown)}


def _charset_of(headers: Headers) -> str | None:
    """The `charset` parameter of the content type."""
    _, *parameters = headers.get("content-type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"') or None
    return None
