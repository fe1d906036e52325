"""Pages, tables and rows as the wire shows them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep.api.native.queries import PageQuery
from turnkeep.api.wire import Asked, Name
from turnkeep.errors import InvalidRequest
from turnkeep.knowledge.cells import values_of
from turnkeep.knowledge.filters import Condition
from turnkeep.model import knowledge
from turnkeep.model.blocks import JsonValue
from turnkeep.model.knowledge import Cell, ColumnType, KnowledgeTable, PageSummary

Title = Name
Content = Annotated[str, Meta(max_length=1_000_000)]
Description = Annotated[str, Meta(max_length=2_000)]
Words = Annotated[str, Meta(max_length=500)]


class PagesQuery(PageQuery, frozen=True, kw_only=True):
    q: Words | None = None


class RowsQuery(PageQuery, frozen=True, kw_only=True):
    """`filter` is a JSON list of conditions; `sort` a column, with `-` before it for the greatest first. `from_row`
    is the number at which a list by number begins."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    from_row: Annotated[int, Meta(ge=1, le=999_999_999)] | None = None
    q: Words | None = None
    filter: Annotated[str, Meta(max_length=2_000)] | None = None
    sort: Annotated[str, Meta(max_length=201)] | None = None
    format: Annotated[str, Meta(pattern="^(json|csv)$")] | None = None

    def conditions(self) -> list[Condition]:
        if not self.filter:
            return []
        try:
            return msgspec.json.decode(self.filter, type=list[Condition])
        except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
            raise InvalidRequest(
                f'`filter` must be a JSON list such as [{{"column": "Price", "op": "ge", "value": 10}}]: {exc}.'
            ) from exc


class CsvQuery(Struct, frozen=True, kw_only=True):
    """For a body of CSV: the name of a new table, and what separates its cells (else it is found out)."""

    name: Annotated[str, Meta(max_length=200)] | None = None
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] | None = None


class NewPage(Asked, frozen=True, kw_only=True):
    title: Title
    content: Content = ""


class PageChange(Asked, frozen=True, kw_only=True):
    title: Title | UnsetType = UNSET
    content: Content | UnsetType = UNSET


class PageItem(Struct, frozen=True, kw_only=True):
    """A page in a list. `snippet` and `place` tell where it matches, in a search."""

    id: str
    workspace_id: str
    title: str
    size: int
    created_at: int
    updated_at: int
    snippet: str | UnsetType = UNSET
    place: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, page: PageSummary) -> "PageItem":
        return cls(
            id=page.id,
            workspace_id=page.workspace_id,
            title=page.title,
            size=page.size,
            created_at=page.created_at,
            updated_at=page.updated_at,
        )


class KnowledgePage(Struct, frozen=True, kw_only=True):
    """A page with its Markdown."""

    id: str
    workspace_id: str
    title: str
    content: str
    size: int
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, page: knowledge.KnowledgePage) -> "KnowledgePage":
        return cls(
            id=page.id,
            workspace_id=page.workspace_id,
            title=page.title,
            content=page.content,
            size=page.size,
            created_at=page.created_at,
            updated_at=page.updated_at,
        )


class NewColumn(Asked, frozen=True, kw_only=True):
    name: Name
    type: ColumnType = "text"


class ChangedColumn(NewColumn, frozen=True, kw_only=True):
    """A column as it shall be. `was` is the name that it has now, if that changes."""

    was: Name | None = None


class NewTable(Asked, frozen=True, kw_only=True):
    name: Name
    columns: Annotated[list[NewColumn], Meta(min_length=1, max_length=100)]
    description: Description = ""


class TableChange(Asked, frozen=True, kw_only=True):
    """What is given changes. `columns` is the whole list: it may add and rename; it drops only from an empty table."""

    name: Name | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    columns: Annotated[list[ChangedColumn], Meta(min_length=1, max_length=100)] | UnsetType = UNSET


class TableColumn(Struct, frozen=True, kw_only=True):
    name: str
    type: ColumnType


class Table(Struct, frozen=True, kw_only=True):
    """A table without its rows."""

    id: str
    workspace_id: str
    name: str
    description: str
    columns: list[TableColumn]
    row_count: int
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, table: KnowledgeTable) -> "Table":
        return cls(
            id=table.id,
            workspace_id=table.workspace_id,
            name=table.name,
            description=table.description,
            columns=[TableColumn(name=column.name, type=column.type) for column in table.columns],
            row_count=table.row_count,
            created_at=table.created_at,
            updated_at=table.updated_at,
        )


class NewRows(Asked, frozen=True, kw_only=True):
    """Rows by the names of their columns."""

    rows: Annotated[list[dict[str, JsonValue]], Meta(min_length=1, max_length=1_000)]


class RowValues(Asked, frozen=True, kw_only=True):
    values: dict[str, JsonValue]


class Row(Struct, frozen=True, kw_only=True):
    """A row. `row` is its number, which no other row of the table ever gets."""

    row: int
    values: dict[str, Cell]
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, table: KnowledgeTable, row: knowledge.Row) -> "Row":
        values = values_of(table, row.cells)
        return cls(row=row.number, values=values, created_at=row.created_at, updated_at=row.updated_at)


class Added(Struct, frozen=True, kw_only=True):
    """How many rows were added, and the table as it is now."""

    rows: int
    table: Table
    first_row: int | None = None
