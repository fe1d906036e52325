"""SQL kept as SQL: named queries from files.

A file holds queries one after the other, each under a line `-- name: claim_turn`; the comment lines that follow say
what it is for. Parameters are those of the database's driver. A line `-- slow` marks a query that may read or write
very much, and so may take long.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from turnkeep.errors import Defect

Dialect = Literal["sqlite", "postgres"]

_SLOW = re.compile(r"^-- slow$", re.MULTILINE)
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Queries(Mapping[str, str]):
    """All named queries of one database."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def load_queries(dialect: Dialect) -> Queries:
    """Every query of `sql/{dialect}/*.sql`. A name that occurs twice is a Defect."""
    texts: dict[str, str] = {}
    for file in sorted((files("turnkeep.store") / "sql" / dialect).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        _, *named = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(named[::2], named[1::2], strict=True):
            if name in texts:
                raise Defect(f"Two queries of {dialect} are called {name}.")
            texts[name] = text.strip()
    return Queries(texts)


@cache
def is_slow(query: str) -> bool:
    """Whether this query of a file is marked as slow."""
    return _SLOW.search(query) is not None
