"""Rows of a table: listed, searched, filtered and sorted; added as JSON or CSV; handed out as CSV."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.csv_imports import CSV, NDJSON, import_into
from turnkeep.api.http.downloads import SAFE_HEADERS, disposition
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.idempotency import idempotency_key, request_hash
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.knowledge_wire import Added, CsvQuery, NewRows, Row, RowsQuery, RowValues, Table
from turnkeep.api.native.tables import table_id_of
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.knowledge.cells import cells_of, values_of
from turnkeep.knowledge.csv_files import csv_lines
from turnkeep.knowledge.filters import row_query
from turnkeep.model.knowledge import KnowledgeTable
from turnkeep.model.principals import Principal
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.ports import KnowledgeStore

EXPORTED_AT_ONCE = 500

endpoints = Endpoints("knowledge")

ROW = Reply(status=200, meaning="The row", type=Row)
ALL = "/v1/tables/{table_id}/rows"
ONE = "/v1/tables/{table_id}/rows/{row}"


@endpoints.add(
    "GET",
    ALL,
    policy=Policy.MEMBER,
    query=RowsQuery,
    replies=(
        Reply(status=200, meaning="Rows by their number, by rank, or as `sort` says", type=wire.Page[Row]),
        Reply(status=200, meaning="All rows as CSV", type=str, media_type=CSV),
    ),
)
async def list_rows(call: Call[Nothing, RowsQuery]) -> ASGIApp:
    """Rows of a table; with `from_row` from that number on, whether or not there is a row of it. With
    `Accept: text/csv` or `format=csv` all of them, as a file."""
    store, query = call.runtime.store, call.query
    table = await store.table(call.principal, table_id_of(call))
    wants_csv = query.format == "csv" or (query.format is None and CSV in call.headers.get("accept", "").lower())
    if wants_csv:
        if query.q or query.filter or query.sort or query.from_row:
            raise InvalidRequest("CSV is handed out whole: leave out `q`, `filter`, `sort` and `from_row`.")
        return _csv_download(store, call.principal, table)
    if query.q or query.filter or query.sort:
        if query.from_row:
            raise InvalidRequest("`from_row` begins a list by number: leave it out, or `q`, `filter` and `sort`.")
        return json_response(await _found(call, table))
    of = f"rows of {table.id}"
    after = decode_cursor(query.cursor, of, tuple[int])[0] if query.cursor else (query.from_row or 1) - 1
    rows = await store.rows(call.principal, table.id, after=after, limit=query.limit + 1)
    shown = rows[: query.limit]
    more = encode_cursor(of, shown[-1].number) if len(rows) > query.limit else None
    return json_response(wire.Page(data=[Row.of(table, row) for row in shown], next_cursor=more))


@endpoints.add(
    "POST",
    ALL,
    policy=Policy.ADMIN,
    body=NewRows,
    raw_body=CSV,
    query=CsvQuery,
    headers=("Idempotency-Key",),
    replies=(
        Reply(status=201, meaning="What was added", type=Added),
        Reply(status=200, meaning="How the import goes on, line by line", type=str, media_type=NDJSON),
    ),
    errors=(409, 413, 507),
)
async def add_rows(call: Call[NewRows | Nothing, CsvQuery]) -> ASGIApp:
    """Add rows, all or none: up to 1,000 as JSON, or any number as `text/csv`, whose first line names the columns. The
    same `Idempotency-Key` with the same body again adds nothing and answers what was added, also for CSV."""
    table_id = table_id_of(call)
    key = idempotency_key(call)
    batch = secrets.token_hex(16) if key is None else f"{call.principal.ref}:{key}"
    if isinstance(call.body, Nothing):
        return await import_into(call, table_id, batch=None if key is None else batch)
    store, digest = call.runtime.store, request_hash(call)
    table = await store.table(call.principal, table_id)
    numbers: Sequence[int] | None = None
    if key is not None:  # looked at before the rows, which may not fit the columns of today
        numbers = await store.added_rows(call.principal, table_id, batch=batch, digest=digest)
    if numbers is None:
        rows = [cells_of(table, row) for row in call.body.rows]
        numbers = await store.add_rows(call.principal, table_id, rows, batch=batch, digest=digest)
    now = Table.of(await store.table(call.principal, table_id))
    return json_response(Added(rows=len(numbers), first_row=numbers[0], table=now), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(ROW,))
async def read_row(call: Call[Nothing, Nothing]) -> ASGIApp:
    """One row."""
    table, number = await _named(call)
    return json_response(Row.of(table, await call.runtime.store.row(call.principal, table.id, number)))


@endpoints.add("PUT", ONE, policy=Policy.ADMIN, body=RowValues, replies=(ROW,), errors=(507,))
async def replace_row(call: Call[RowValues, Nothing]) -> ASGIApp:
    """Write a row anew; what is not given is empty."""
    table, number = await _named(call)
    cells = cells_of(table, call.body.values)
    return json_response(Row.of(table, await call.runtime.store.change_row(call.principal, table.id, number, cells)))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=RowValues, replies=(ROW,), errors=(507,))
async def change_row(call: Call[RowValues, Nothing]) -> ASGIApp:
    """Change some cells of a row."""
    table, number = await _named(call)
    before = values_of(table, (await call.runtime.store.row(call.principal, table.id, number)).cells)
    given = {_spelled(table, name): value for name, value in call.body.values.items()}
    cells = cells_of(table, before | given)
    return json_response(Row.of(table, await call.runtime.store.change_row(call.principal, table.id, number, cells)))


@endpoints.add("DELETE", ONE, policy=Policy.ADMIN, replies=(Reply(status=204, meaning="The row is gone"),))
async def delete_row(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete a row for good."""
    table, number = await _named(call)
    await call.runtime.store.delete_row(call.principal, table.id, number)
    return no_content()


async def _found(call: Call[Nothing, RowsQuery], table: KnowledgeTable) -> wire.Page[Row]:
    asked = call.query
    query = row_query(table, text=asked.q or "", filters=asked.conditions(), sort=asked.sort)
    of = f"rows of {table.id} that have {asked.q}, {asked.filter}, by {asked.sort}"
    offset = decode_cursor(asked.cursor, of, tuple[int])[0] if asked.cursor else 0
    found = await call.runtime.store.find_rows(call.principal, query, table=table, limit=asked.limit, offset=offset)
    more = None if found.next_offset is None else encode_cursor(of, found.next_offset)
    return wire.Page(data=[Row.of(table, hit.row) for hit in found.hits], next_cursor=more)


async def _named(call: Call[Any, Any]) -> tuple[KnowledgeTable, int]:
    table = await call.runtime.store.table(call.principal, table_id_of(call))
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
