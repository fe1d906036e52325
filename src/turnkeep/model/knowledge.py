"""Knowledge: the pages and tables of a workspace, and what a search finds in them.

A table has typed columns; a row holds one cell for each, in the order of the columns' `key`, which never changes and
is never given to another column. So a column is renamed or added without touching a row.
"""

from typing import Generic, Literal, TypeVar

from msgspec import Struct

from turnkeep.ids import PageId, TableId, WorkspaceId
from turnkeep_client.wire.knowledge import Cell, ColumnType

__all__ = [
    "CELL_CHARS",
    "Cell",
    "Column",
    "ColumnType",
    "FileText",
    "Filter",
    "Found",
    "Hit",
    "KnowledgePage",
    "KnowledgeTable",
    "Operator",
    "PageHit",
    "PageSummary",
    "Row",
    "RowHit",
    "RowQuery",
    "Sort",
    "TextHit",
]

CELL_CHARS = 32_768
"""The longest text of a cell."""
Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "contains", "in", "empty", "not_empty"]


class PageSummary(Struct, frozen=True, kw_only=True):
    """A page as lists show it."""

    id: PageId
    workspace_id: WorkspaceId
    title: str
    size: int
    """In characters."""
    created_at: int
    updated_at: int


class KnowledgePage(PageSummary, frozen=True, kw_only=True):
    """A Markdown document with a title."""

    content: str


class Column(Struct, frozen=True, kw_only=True):
    """One column. Its cells stand at `key` in every row."""

    key: int
    name: str
    type: ColumnType


class KnowledgeTable(Struct, frozen=True, kw_only=True):
    """A table without its rows. `serial` is a small number of its own, for the store."""

    id: TableId
    workspace_id: WorkspaceId
    name: str
    description: str
    columns: tuple[Column, ...]
    row_count: int
    created_at: int
    updated_at: int
    serial: int = 0

    def column(self, name: str) -> Column | None:
        """The column of that name, or of the only one that differs from it in case alone."""
        folded = name.strip().casefold()
        exact = [column for column in self.columns if column.name == name]
        alike = [column for column in self.columns if column.name.casefold() == folded]
        return exact[0] if exact else alike[0] if len(alike) == 1 else None


class Row(Struct, frozen=True, kw_only=True):
    """One row of a table. `number` counts from 1 and is never used again."""

    number: int
    cells: tuple[Cell, ...]
    created_at: int
    updated_at: int

    def cell(self, column: Column) -> Cell:
        """Rows that were written before the column was there end before it."""
        return self.cells[column.key] if column.key < len(self.cells) else None


class Filter(Struct, frozen=True, kw_only=True):
    """A condition on one column, whose value is of the column's type already."""

    column: Column
    op: Operator
    value: Cell | tuple[Cell, ...] = None


class Sort(Struct, frozen=True, kw_only=True):
    """By one column; rows without a value come last, either way."""

    column: Column
    is_descending: bool = False


class RowQuery(Struct, frozen=True, kw_only=True):
    """Rows that hold these words and fit every filter; by rank, or as `sort` says."""

    text: str = ""
    filters: tuple[Filter, ...] = ()
    sort: Sort | None = None


class PageHit(Struct, frozen=True, kw_only=True):
    """A page that matches: the place in it that matches best, and an excerpt from there."""

    page_id: PageId
    title: str
    place: str | None
    excerpt: str


class RowHit(Struct, frozen=True, kw_only=True):
    """A row that matches, with its table."""

    table: KnowledgeTable
    row: Row


class TextHit(Struct, frozen=True, kw_only=True):
    """A place in the text of a file that matches."""

    key: str
    place: str | None
    excerpt: str


class FileText(Struct, frozen=True, kw_only=True):
    """The text of a file's bytes as a kind reads them, or why there is none. `key` names both (`text_key`)."""

    key: str
    text: str
    problem: str | None = None


Hit = TypeVar("Hit")


class Found(Struct, Generic[Hit], frozen=True, kw_only=True):
    """A part of what a search found. `next_offset` is None at the end."""

    hits: tuple[Hit, ...] = ()
    next_offset: int | None = None
