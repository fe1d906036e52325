"""The named queries and the functions of PostgreSQL, with the columns of `rows.py` written into them.

`{t.turn_columns}` stands for the columns of a turn from the table `t`, `{(c.turn).turn_columns}` for those of a row
that is a column of `c`, `{turn_columns}` for their names alone. So the order of columns is known in one place.
`{t.waiting_for}` is what the turn `t` waits for, or null.

The functions of a release, and the types of their parameters, are in a schema of their own, which is named after their
text. So servers of two releases work side by side on one database, each with its own functions. The files write
`turnkeep.settle` for such a function too. `{functions}` stands for the schema.

Decision: docs/decisions/0109
"""

import hashlib
import re
from functools import cache
from importlib.resources import files

from msgspec import Struct

from turnkeep.store import rows
from turnkeep.store.queries import load_queries

_PLACE = re.compile(r"\{(?:(\(\w+\.\w+\)|\w+)\.)?(\w+)_columns\}")
_WAIT = re.compile(r"\{(\w+)\.waiting_for\}")
_WAITING_FOR = (
    r"CASE WHEN \1.waiting_until > 0 OR (\1.status = 'running' AND \1.cancel_requested_at IS NULL "
    r"AND \1.waiting::json ->> 'held_by' = \1.attempt::text) THEN \1.waiting::json ->> 'reason' END"
)
_MADE = re.compile(r"^CREATE (?:FUNCTION|TYPE) turnkeep\.(\w+)", re.MULTILINE)
_NAMED = re.compile(r"\bturnkeep\.(\w+)")
_RUNNING = (
    "(SELECT r.id || coalesce(' ' || {{r.waiting_for}}, '') "
    "FROM turnkeep.turns r WHERE r.conversation_id = {0}.id AND r.status = 'running')"
)
_REPORT = "(SELECT r.report FROM turnkeep.turn_reports r WHERE r.turn_id = {0}.id)"
_BESIDE = {"running_turn_id": _RUNNING, "report": _REPORT}
"""What is no column of the table. It is looked up, or delivered beside the row (`(s.turn)`) by a function."""


_BOUNDARY = "10_boundary.sql"


class FunctionSet(Struct, frozen=True):
    """The functions of this release. `schema` is theirs alone, `texts` make them in it. `boundary` is what all releases
    share: policies and rights on tables."""

    schema: str
    texts: tuple[str, ...]
    boundary: str


@cache
def statements() -> dict[str, str]:
    """Every query by its name. Read once."""
    return {name: in_this_release(text) for name, text in load_queries("postgres").items()}


@cache
def functions() -> FunctionSet:
    """The texts of `functions/*.sql`, in the order of their names. Read once."""
    sources = _sources()
    texts = tuple(_placed(text) for name, text in sources.items() if name != _BOUNDARY)
    return FunctionSet(_schema(), texts, sources[_BOUNDARY])


def in_this_release(text: str) -> str:
    """SQL with lists of columns in their places, and with the functions of this release."""
    return _placed(with_columns(text))


def with_columns(text: str) -> str:
    """The text with lists of columns in their places."""
    return _WAIT.sub(_WAITING_FOR, _PLACE.sub(_columns, text))


@cache
def _sources() -> dict[str, str]:
    folder = files("turnkeep.store") / "sql" / "postgres" / "functions"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return {file.name: with_columns(file.read_text(encoding="utf-8")) for file in found}


@cache
def _schema() -> str:
    text = "\0".join(_sources().values())
    return f"turnkeep_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@cache
def _made() -> frozenset[str]:
    return frozenset(name for text in _sources().values() for name in _MADE.findall(text))


def _placed(text: str) -> str:
    """The text with the schema of this release for each of its functions and types."""
    schema, made = _schema(), _made()
    placed = _NAMED.sub(lambda name: f"{schema}.{name[1]}" if name[1] in made else name[0], text)
    return placed.replace("{functions}", schema)


def _columns(place: re.Match[str]) -> str:
    return ", ".join(_column(place[1], name) for name in rows.COLUMNS[place[2]].split(", "))


def _column(source: str | None, name: str) -> str:
    if source is None:
        return name
    if name not in _BESIDE:
        return f"{source}.{name}"
    if source.startswith("("):
        return f"{source[1:].partition('.')[0]}.{name}"
    return _BESIDE[name].format(source)
