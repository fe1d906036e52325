"""Tables of a workspace. Everyone in it reads them, admins write them."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from starlette.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.csv_imports import CSV, NDJSON, import_as_new
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.knowledge_wire import ChangedColumn, CsvQuery, NewTable, Table, TableChange
from turnkeep.api.native.queries import PageQuery
from turnkeep.errors import InvalidRequest
from turnkeep.ids import TableId
from turnkeep.model.knowledge import Column, KnowledgeTable

endpoints = Endpoints("knowledge")

TABLE = Reply(status=200, meaning="The table", type=Table)
ONE = "/v1/tables/{table_id}"


@endpoints.add(
    "GET",
    "/v1/tables",
    policy=Policy.MEMBER,
    query=PageQuery,
    replies=(Reply(status=200, meaning="Tables, newest first", type=wire.Page[Table]),),
)
async def list_tables(call: Call[Nothing, PageQuery]) -> ASGIApp:
    """The tables of the workspace, without their rows."""
    page = await call.runtime.store.tables(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    return json_response(wire.Page(data=[Table.of(each) for each in page.data], next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/tables",
    policy=Policy.ADMIN,
    body=NewTable,
    raw_body=CSV,
    query=CsvQuery,
    replies=(
        Reply(status=201, meaning="The new table", type=Table),
        Reply(status=200, meaning="How the import goes on, line by line", type=str, media_type=NDJSON),
    ),
    errors=(409, 413, 507),
)
async def create_table(call: Call[NewTable | Nothing, CsvQuery]) -> ASGIApp:
    """Make a table from its columns, or (as `text/csv`, with `?name=`) from a file whose columns are found out."""
    body = call.body
    if isinstance(body, Nothing):
        return await import_as_new(call)
    columns = [Column(key=key, name=column.name.strip(), type=column.type) for key, column in enumerate(body.columns)]
    table = await call.runtime.store.create_table(
        call.principal, name=body.name, columns=columns, description=body.description
    )
    return json_response(Table.of(table), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(TABLE,))
async def read_table(call: Call[Nothing, Nothing]) -> ASGIApp:
    """A table without its rows."""
    return json_response(Table.of(await call.runtime.store.table(call.principal, table_id_of(call))))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=TableChange, replies=(TABLE,), errors=(409, 507))
async def change_table(call: Call[TableChange, Nothing]) -> ASGIApp:
    """Rename a table or describe it, add columns or rename them. A column goes only while there are no rows."""
    body, table_id = call.body, table_id_of(call)
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
    return json_response(Table.of(table))


@endpoints.add("DELETE", ONE, policy=Policy.ADMIN, replies=(Reply(status=204, meaning="The table is gone"),))
async def delete_table(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete a table with all its rows, for good."""
    await call.runtime.store.delete_table(call.principal, table_id_of(call))
    return no_content()


def table_id_of(call: Call[Any, Any]) -> TableId:
    return TableId(call.id("table_id", "table"))


def _changed(table: KnowledgeTable, wanted: Sequence[ChangedColumn]) -> list[Column]:
    """The columns under the keys that they have already; new ones get the next."""
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
