"""Filters and sorting of table rows, as SQL of either database.

Values are always bound, and of a column only its number goes into the text. So nothing that a caller wrote becomes SQL.
"""

from collections.abc import Callable
from typing import Any, Literal

from turnkeep.model.knowledge import Cell, Column, Filter, RowQuery, Sort
from turnkeep.store.queries import Dialect

Bind = Callable[[Any], str]
"""Takes a value, answers the text that stands for it."""

_COMPARED = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_POSTGRES_TYPES: dict[str, Literal["float8", "boolean", "text"]] = {"number": "float8", "boolean": "boolean"}


def conditions(dialect: Dialect, query: RowQuery, bind: Bind) -> str:
    """` AND …` for each filter, on rows called `r`."""
    return "".join(f" AND {_condition(dialect, each, bind)}" for each in query.filters)


def ordering(dialect: Dialect, sort: Sort) -> str:
    """What follows ORDER BY. Rows without a value come last either way."""
    cell = _cell(dialect, sort.column)
    direction = "DESC" if sort.is_descending else "ASC"
    return f"{cell} {direction} NULLS LAST"


def _condition(dialect: Dialect, each: Filter, bind: Bind) -> str:
    cell = _cell(dialect, each.column)
    match each.op:
        case "empty":
            return _is_empty(cell, each.column)
        case "not_empty":
            return f"NOT {_is_empty(cell, each.column)}"
        case "in":
            values = each.value if isinstance(each.value, tuple) else (each.value,)
            return f"{cell} IN ({', '.join(_bound(dialect, each.column, value, bind) for value in values)})"
        case "ne":
            return f"{cell} IS DISTINCT FROM {_single(dialect, each, bind)}"
        case "contains":
            # Both databases fold only A-Z here, and so find the same.
            place = "instr" if dialect == "sqlite" else "strpos"
            return f"{place}(lower({cell}), lower({_single(dialect, each, bind)})) > 0"
        case _:
            return f"{cell} {_COMPARED[each.op]} {_single(dialect, each, bind)}"


def _single(dialect: Dialect, each: Filter, bind: Bind) -> str:
    assert not isinstance(each.value, tuple)
    return _bound(dialect, each.column, each.value, bind)


def _bound(dialect: Dialect, column: Column, value: Cell, bind: Bind) -> str:
    if dialect == "sqlite":
        return bind(int(value) if isinstance(value, bool) else value)
    kind = _POSTGRES_TYPES.get(column.type, "text")
    text = bind(float(value) if kind == "float8" and value is not None else value)
    return f'({text}::text COLLATE "C")' if kind == "text" else f"{text}::{kind}"


def _cell(dialect: Dialect, column: Column) -> str:
    key = int(column.key)
    if dialect == "sqlite":
        return f"json_extract(r.cells, '$[{key}]')"
    kind = _POSTGRES_TYPES.get(column.type)
    return f"(r.cells ->> {key})::{kind}" if kind else f'((r.cells ->> {key}) COLLATE "C")'


def _is_empty(cell: str, column: Column) -> str:
    return f"({cell} IS NULL OR {cell} = '')" if column.type == "text" else f"({cell} IS NULL)"


def numbered(values: list[Any]) -> Bind:
    """Binds as `$1`, `$2`, … behind what is in the list already."""

    def bind(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    return bind


def named(values: dict[str, Any], *, prefix: str = "f") -> Bind:
    """Binds as `:f0`, `:f1`, …"""

    def bind(value: Any) -> str:
        name = f"{prefix}{len(values)}"
        values[name] = value
        return f":{name}"

    return bind
