"""Filters and order as callers write them → as the store takes them, with values of the columns' own types."""

from typing import Annotated

from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.knowledge.cells import cell_of
from turnkeep.model.knowledge import Cell, Column, Filter, KnowledgeTable, Operator, RowQuery, Sort
from turnkeep_client.wire.blocks import JsonValue

MAX_FILTERS = 10
MAX_CHOICES = 100

_ORDERED = frozenset({"lt", "le", "gt", "ge"})


class Condition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`{"column": "Price", "op": "ge", "value": 10}`. `in` takes a list; `empty` and `not_empty` take no value."""

    column: Annotated[str, Meta(max_length=200, description="The name of a column")]
    op: Annotated[Operator, Meta(description="eq is the usual one; contains looks for a part of a text")] = "eq"
    value: JsonValue = None


def row_query(
    table: KnowledgeTable, *, text: str = "", filters: list[Condition] | None = None, sort: str | None = None
) -> RowQuery:
    """`sort` is the name of a column, with `-` before it for the greatest first."""
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
