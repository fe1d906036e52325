"""`search_user_tables` and `save_to_table`: find rows by words, filters and sort order, and add rows."""

from typing import Annotated

from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.knowledge.table_rows import Condition, cells_of, row_query, values_of
from turnkeep.knowledge.tool_base import SNIPPET_CHARS, KnowledgeTool, Offset, cut, fitted, nothing, room_for
from turnkeep.model.knowledge import Found, KnowledgeTable, RowHit, RowQuery
from turnkeep.model.principals import Principal
from turnkeep.store.ports import KnowledgeStore
from turnkeep.tools.ports import CallContext, Outcome, Passage, Tool
from turnkeep_client.wire.blocks import JsonValue
from turnkeep_client.wire.events import Source

AT_ONCE = 10
TABLES_LOOKED_AT = 1_000
SAVED_AT_ONCE = 100
CELL_CHARS = 300

TableName = Annotated[str, Meta(max_length=200, description="The table's name or id")]


class TableSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(max_length=500, description="Words to look for in any column; may be empty")] = ""
    table: TableName | None = None
    filters: Annotated[list[Condition], Meta(max_length=10, description="Conditions; all of them hold")] = []
    sort: Annotated[str, Meta(max_length=201, description="A column to sort by; -Column: greatest first")] | None = None
    offset: Offset = 0


class NewRows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table: TableName
    rows: Annotated[
        list[dict[str, JsonValue]],
        Meta(min_length=1, max_length=SAVED_AT_ONCE, description="Each row as an object: column name to value"),
    ]


def search_user_tables(store: KnowledgeStore) -> Tool:
    async def run(asked: TableSearch, context: CallContext) -> Outcome:
        if not asked.query.strip() and asked.table is None:
            tables = await _tables(store, context.principal)
            return Outcome(result=_described(tables, context.result_chars, asked.offset))
        found = await _found(store, context.principal, asked)
        if not found.hits:
            return nothing(asked.query or "these filters")
        chars = room_for(context, 1)
        passages = [_passage(hit, chars) for hit in found.hits]
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset)

    return KnowledgeTool(
        "search_user_tables",
        """Search the rows of this workspace's tables: by words, by filters on columns, in the order of a column.
        Numbers and dates compare as such; dates are written 2026-11-15. Call it without arguments to see which tables
        and columns there are.""",
        TableSearch,
        run,
    )


def save_to_table(store: KnowledgeStore) -> Tool:
    async def run(asked: NewRows, context: CallContext) -> Outcome:
        table = await _table(store, context.principal, asked.table)
        rows = [cells_of(table, row) for row in asked.rows]
        numbers = await store.add_rows(context.principal, table.id, rows, batch=context.call_id)
        which = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        return Outcome(result=f"Saved to the table {table.name!r} as {which}.")

    return KnowledgeTool(
        "save_to_table",
        """Add rows to a table of this workspace. It cannot change or remove rows. See the tables and their columns
        with search_user_tables.""",
        NewRows,
        run,
    )


async def _found(store: KnowledgeStore, principal: Principal, asked: TableSearch) -> Found[RowHit]:
    table: KnowledgeTable | None = None
    if asked.table is not None:
        table = await _table(store, principal, asked.table)
    elif asked.filters or asked.sort:
        tables = await _tables(store, principal)
        if len(tables) != 1:
            raise InvalidRequest(f"Filters and sorting need a `table`. There are: {_names(tables)}.")
        table = tables[0]
    query = RowQuery(text=asked.query)
    if table is not None:
        query = row_query(table, text=asked.query, filters=asked.filters, sort=asked.sort)
    return await store.find_rows(principal, query, table=table, limit=AT_ONCE, offset=asked.offset)


async def _table(store: KnowledgeStore, principal: Principal, name: str) -> KnowledgeTable:
    tables = await _tables(store, principal)
    folded = name.strip().casefold()
    for table in tables:
        if table.id == name or table.name.casefold() == folded:
            return table
    raise InvalidRequest(f"There is no table {name[:60]!r}. There are: {_names(tables)}.")


async def _tables(store: KnowledgeStore, principal: Principal) -> list[KnowledgeTable]:
    tables: list[KnowledgeTable] = []
    cursor: str | None = None
    while len(tables) < TABLES_LOOKED_AT:
        page = await store.tables(principal, limit=100, cursor=cursor)
        tables.extend(page.data)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tables


def _names(tables: list[KnowledgeTable]) -> str:
    return cut(", ".join(table.name for table in tables) or "none", 1_000)


def _described(tables: list[KnowledgeTable], chars: int, offset: int) -> str:
    """Tables with their columns, from `offset` on, as many whole lines as fit, and how to get the rest."""
    if not tables:
        return "This workspace has no tables."
    shown: list[str] = []
    left = chars - 200
    for table in tables[offset:]:
        columns = ", ".join(f"{column.name} ({column.type})" for column in table.columns)
        about = f" {table.description}" if table.description else ""
        line = cut(f"- {table.name}: {table.row_count} rows; {columns}.{about}", 1_000)
        left -= len(line) + 1
        if left < 0 and shown:
            break
        shown.append(line)
    if not shown:
        raise InvalidRequest(f"This workspace has {len(tables)} tables; offset {offset} is behind the last one.")
    end = offset + len(shown)
    more = f" For the next ones call again with offset {end}." if end < len(tables) else ""
    return "\n".join([f"Tables {offset + 1} to {end} of the {len(tables)} of this workspace.{more}", *shown])


def _passage(hit: RowHit, chars: int) -> Passage:
    text = _row_text(hit, chars)
    source = Source(
        title=hit.table.name,
        snippet=cut(text, SNIPPET_CHARS),
        table_id=hit.table.id,
        row=hit.row.number,
        place=f"row {hit.row.number}",
    )
    return Passage(source=source, text=text)


def _row_text(hit: RowHit, chars: int) -> str:
    """`Name: Saffron; Price: 9.5`, without empty cells. Only whole cells, and the number of columns left out."""
    parts: list[str] = []
    size = 0
    values = {name: value for name, value in values_of(hit.table, hit.row.cells).items() if value is not None}
    for name, value in values.items():
        said = str(value).lower() if isinstance(value, bool) else str(value)
        part = f"{name}: {cut(said, CELL_CHARS)}"
        size += len(part) + 2
        if size > chars - 40 and parts:
            parts.append(f"({len(values) - len(parts)} more columns)")
            break
        parts.append(part)
    return "; ".join(parts) or "(empty)"
