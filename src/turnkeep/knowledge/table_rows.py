"""Rows, filters and sort order as callers and CSV files write them → as the store keeps them.

Each value is converted to the type of its column. A value that does not fit is an InvalidRequest that names the column.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated

from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.model.knowledge import (
    CELL_CHARS,
    Cell,
    Column,
    ColumnType,
    Filter,
    KnowledgeTable,
    Operator,
    RowQuery,
    Sort,
)
from turnkeep_client.wire.blocks import JsonValue

MAX_FILTERS = 10
MAX_CHOICES = 100
MAX_NUMBER = 2**53
SHOWN_CHARS = 60

_ORDERED = frozenset({"lt", "le", "gt", "ge"})
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_PLAIN_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?")
_YES = frozenset({"true", "yes", "y", "1"})
_NO = frozenset({"false", "no", "n", "0"})
_HINTS: Mapping[ColumnType, str] = {
    "text": "text",
    "number": "a number, such as 12.5",
    "date": "a date, such as 2026-11-15",
    "datetime": "a moment, such as 2026-11-15T08:30:00Z",
    "boolean": "true or false",
}


def cells_of(table: KnowledgeTable, values: Mapping[str, JsonValue]) -> list[Cell]:
    """The cells of a row, given by column names. Columns that are not named are empty."""
    cells: list[Cell] = [None] * (max(column.key for column in table.columns) + 1)
    for name, value in values.items():
        column = table.column(name)
        if column is None:
            known = ", ".join(each.name for each in table.columns)
            raise InvalidRequest(f"The table {table.name!r} has no column {name[:SHOWN_CHARS]!r}. It has: {known}.")
        cells[column.key] = cell_of(column, value)
    return cells


def values_of(table: KnowledgeTable, cells: Sequence[Cell]) -> dict[str, Cell]:
    """The row as callers see it, by column name, in the order of the columns."""
    return {column.name: cells[column.key] if column.key < len(cells) else None for column in table.columns}


def cell_of(column: Column, value: JsonValue) -> Cell:
    """The value in the type of the column. Raises InvalidRequest, which names the column, if it does not fit."""
    if value is None or (value == "" and column.type != "text"):
        return None
    cell = _converted(column.type, value)
    if cell is None:
        raise InvalidRequest(f"{_shown(value)} in the column {column.name!r} is not {_HINTS[column.type]}.")
    if isinstance(cell, str) and len(cell) > CELL_CHARS:
        raise InvalidRequest(
            f"A cell in the column {column.name!r} has {len(cell):,} characters; at most {CELL_CHARS:,} are allowed."
        )
    return cell


def cell_of_text(column: Column, text: str) -> Cell:
    """The same for a cell of a CSV file, in which an empty text means no value."""
    if not text or (column.type != "text" and not text.strip()):
        return None
    return cell_of(column, text)


def narrowed(kinds: list[ColumnType], text: str) -> list[ColumnType]:
    """Those of these types that fit the cell too. A number with leading zeros is a name, and fits only text."""
    text = text.strip()
    return kinds if not text else [kind for kind in kinds if _looks_like(kind, text)]


def _looks_like(kind: ColumnType, text: str) -> bool:
    match kind:
        case "boolean":
            return text.lower() in {"true", "false", "yes", "no"}
        case "number":
            return _PLAIN_NUMBER.fullmatch(text) is not None and len(text) <= 16 and _number(text) is not None
        case "date":
            return _date(text) is not None
        case "datetime":
            return _moment(text) is not None
        case _:
            return True


def _converted(kind: ColumnType, value: JsonValue) -> Cell:
    match kind:
        case "text":
            return value if isinstance(value, str) else str(value) if _is_number(value) else None
        case "number":
            return _number(value)
        case "date":
            return _date(value)
        case "datetime":
            return _moment(value)
        case "boolean":
            return _boolean(value)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: JsonValue) -> int | float | None:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            return None
        number = float(value)
        value = int(number) if number.is_integer() and abs(number) <= MAX_NUMBER else number
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        return None
    return value if isinstance(value, float) or abs(value) <= MAX_NUMBER else None


def _date(value: JsonValue) -> str | None:
    if not isinstance(value, str) or not _DATE.fullmatch(value.strip()):
        return None
    try:
        return date.fromisoformat(value.strip()).isoformat()
    except ValueError:
        return None


def _moment(value: JsonValue) -> str | None:
    """In UTC, with milliseconds, so that it sorts as text. A time without a zone is read as UTC."""
    try:
        if _is_number(value):
            moment = datetime.fromtimestamp(float(str(value)) / 1000, tz=UTC)
        elif isinstance(value, str) and _MOMENT.fullmatch(value.strip()):
            moment = datetime.fromisoformat(value.strip())
        else:
            return None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").rjust(20, "0") + f"{moment.microsecond // 1000:03}Z"


def _boolean(value: JsonValue) -> bool | None:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    return True if word in _YES else False if word in _NO else None


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


class Condition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`{"column": "Price", "op": "ge", "value": 10}`. `in` takes a list; `empty` and `not_empty` take no value."""

    column: Annotated[str, Meta(max_length=200, description="The name of a column")]
    op: Annotated[Operator, Meta(description="eq is the usual one; contains looks for a part of a text")] = "eq"
    value: JsonValue = None


def row_query(
    table: KnowledgeTable, *, text: str = "", filters: list[Condition] | None = None, sort: str | None = None
) -> RowQuery:
    """The query for the store. `sort` is the name of a column; `-` before it sorts in descending order."""
    filters = filters or []
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"At most {MAX_FILTERS} filters may be given, not {len(filters)}.")
    return RowQuery(
        text=text,
        filters=tuple(_filter(table, each) for each in filters),
        sort=None if not sort else _sort(table, sort),
    )


def _filter(table: KnowledgeTable, condition: Condition) -> Filter:
    column = column_of(table, condition.column)
    return Filter(column=column, op=condition.op, value=_value(column, condition))


def _value(column: Column, condition: Condition) -> Cell | tuple[Cell, ...]:
    op, value = condition.op, condition.value
    if op in {"empty", "not_empty"}:
        return None
    if op == "contains" and (column.type != "text" or not isinstance(value, str) or not value):
        raise InvalidRequest(f"`contains` looks for a part of a text, and {column.name!r} is of type {column.type}.")
    if op in _ORDERED and column.type == "boolean":
        raise InvalidRequest(f"`{op}` needs an order, and {column.name!r} is true or false. Use `eq`.")
    if op == "in":
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
            raise InvalidRequest(f"`in` takes a list of 1 to {MAX_CHOICES} values.")
        return tuple(_given(column, op, each) for each in value)
    return _given(column, op, value)


def _given(column: Column, op: str, value: JsonValue) -> Cell:
    cell = cell_of(column, value)
    if cell is None:
        raise InvalidRequest(f"`{op}` on {column.name!r} needs a value. To find rows without one use `empty`.")
    return cell


def _sort(table: KnowledgeTable, sort: str) -> Sort:
    if table.column(sort) is None and sort.startswith("-"):
        return Sort(column=column_of(table, sort[1:]), is_descending=True)
    return Sort(column=column_of(table, sort))


def column_of(table: KnowledgeTable, name: str) -> Column:
    column = table.column(name)
    if column is None:
        known = ", ".join(f"{each.name} ({each.type})" for each in table.columns)
        raise InvalidRequest(f"The table {table.name!r} has no column {name[:60]!r}. It has: {known}.")
    return column
