"""Pages, tables and rows on the wire."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep_client.wire.base import Name, RequestBody, known_words
from turnkeep_client.wire.blocks import JsonValue

Cell = str | int | float | bool | None
"""Dates are `2026-11-15`, moments `2026-11-15T08:30:00.000Z`: as texts they sort by time."""
ColumnType = Literal["text", "number", "date", "datetime", "boolean"]

Title = Name
Content = Annotated[str, Meta(max_length=1_000_000)]
Description = Annotated[str, Meta(max_length=2_000)]
Words = Annotated[str, Meta(max_length=500)]


class NewPage(RequestBody, frozen=True, kw_only=True):
    title: Title
    content: Content = ""


class PageChange(RequestBody, frozen=True, kw_only=True):
    title: Title | UnsetType = UNSET
    content: Content | UnsetType = UNSET


class PageItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page in a list. `snippet` and `place` tell where it matches, in a search."""

    id: str
    workspace_id: str
    title: str
    size: int
    created_at: int
    updated_at: int
    snippet: str | None = None
    place: str | None = None


class KnowledgePage(Struct, frozen=True, kw_only=True):
    """A page with its Markdown."""

    id: str
    workspace_id: str
    title: str
    content: str
    size: int
    created_at: int
    updated_at: int


class NewColumn(RequestBody, frozen=True, kw_only=True):
    name: Name
    type: ColumnType = "text"


class ChangedColumn(NewColumn, frozen=True, kw_only=True):
    """A column after the change. `was` is its present name, if the name changes."""

    was: Name | None = None


class NewTable(RequestBody, frozen=True, kw_only=True):
    name: Name
    columns: Annotated[list[NewColumn], Meta(min_length=1, max_length=100)]
    description: Description = ""


class TableChange(RequestBody, frozen=True, kw_only=True):
    """What is given changes. `columns` is the whole list: it may add and rename; it drops only from an empty table."""

    name: Name | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    columns: Annotated[list[ChangedColumn], Meta(min_length=1, max_length=100)] | UnsetType = UNSET


class TableColumn(Struct, frozen=True, kw_only=True):
    name: str
    type: Annotated[str, known_words(ColumnType)]


class Table(Struct, frozen=True, kw_only=True):
    """A table without its rows."""

    id: str
    workspace_id: str
    name: str
    description: str
    columns: Sequence[TableColumn]
    row_count: int
    created_at: int
    updated_at: int


class NewRows(RequestBody, frozen=True, kw_only=True):
    """Rows by the names of their columns."""

    rows: Annotated[list[dict[str, JsonValue]], Meta(min_length=1, max_length=1_000)]


class RowValues(RequestBody, frozen=True, kw_only=True):
    values: dict[str, JsonValue]


class Row(Struct, frozen=True, kw_only=True):
    """A row. `row` is its number, which no other row of the table ever gets."""

    row: int
    values: dict[str, Cell]
    created_at: int
    updated_at: int


class Added(Struct, frozen=True, kw_only=True):
    """How many rows were added, and the table as it is now."""

    rows: int
    table: Table
    first_row: int | None = None
