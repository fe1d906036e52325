"""The named queries and the functions of PostgreSQL, with the columns of `rows.py` written into them.

`{t.turn_columns}` stands for the columns of a turn from the table `t`, `{(c.turn).turn_columns}` for those of a row
that is a column of `c`, `{turn_columns}` for their names alone. So the order of columns is known in one place.
"""

import re
from functools import cache
from importlib.resources import files

from turnkeep.store import rows
from turnkeep.store.queries import load_queries

_PLACE = re.compile(r"\{(?:(\(\w+\.\w+\)|\w+)\.)?(\w+)_columns\}")
_RUNNING = "(SELECT r.id FROM turnkeep.turns r WHERE r.conversation_id = {0}.id AND r.status = 'running')"


@cache
def statements() -> dict[str, str]:
    """Every query by its name. Read once."""
    return {name: with_columns(text) for name, text in load_queries("postgres").items()}


def functions() -> list[str]:
    """The texts of `functions/*.sql`, in the order of their names."""
    folder = files("turnkeep.store") / "sql" / "postgres" / "functions"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [with_columns(file.read_text(encoding="utf-8")) for file in found]


def with_columns(text: str) -> str:
    """The text with lists of columns in their places."""
    return _PLACE.sub(_columns, text)


def _columns(place: re.Match[str]) -> str:
    return ", ".join(_column(place[1], name) for name in rows.COLUMNS[place[2]].split(", "))


def _column(source: str | None, name: str) -> str:
    if source is None:
        return name
    if name != "running_turn_id":
        return f"{source}.{name}"
    # No column of the table: looked up by the engine, and delivered beside the row by the client's functions.
    return "c.running_turn_id" if source.startswith("(") else _RUNNING.format(source)
