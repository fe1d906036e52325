"""Rows by words, filters and order. Which rows is decided on the engine's path; what they hold is read as a client."""

from typing import Any

from turnkeep.model.knowledge import KnowledgeTable, Row, RowQuery
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery
from turnkeep.store.filtering import conditions, named, ordering
from turnkeep.store.fulltext import CANDIDATES, FILTERED, RANKED, fts_text
from turnkeep.store.knowing import to_row
from turnkeep.store.rows import json_text
from turnkeep.store.sqlite.owning import in_workspace
from turnkeep.store.sqlite.session import Session
from turnkeep.store.sqlite.tables import BITS, LAST, my_tables, place_of

TABLES_SEARCHED = 200

_MATCHES = """
SELECT s.rowid AS n, bm25(row_tokens) AS rank FROM row_tokens s
 WHERE s.row_tokens MATCH :query AND s.rowid BETWEEN :first AND :last ORDER BY s.rowid DESC LIMIT :candidates
"""
_SEEN = """
t.serial = :serial AND t.org_id = :org AND t.workspace_id = :workspace AND t.deleted_at IS NULL
AND (t.import_first IS NULL OR ({0}.n & 4294967295) NOT BETWEEN t.import_first AND t.import_last)
"""


def serials(session: Session, principal: Principal) -> list[int]:
    """All tables of the workspace, newest first."""
    which = in_workspace(principal) | {"limit": TABLES_SEARCHED}
    return [serial for _, serial in session.rows("tables_to_search", which)]


def find(
    session: Session, principal: Principal, serial: int, query: RowQuery, words: SearchQuery, any_word: bool
) -> list[tuple[float, int]]:
    """`(rank, rowid)` of the rows of one table that fit, in their order; a smaller rank is a better one."""
    values: dict[str, Any] = {
        "serial": serial,
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "first": place_of(serial, 0),
        "last": place_of(serial, LAST),
        "limit": RANKED,
    }
    given: dict[str, Any] = {}
    fitting = conditions("sqlite", query, named(given))
    if words.is_empty:
        order = f"{ordering('sqlite', query.sort)}, r.n" if query.sort else "r.n"
        sql = (
            "SELECT 0.0, r.n FROM tables t CROSS JOIN table_rows r ON r.n BETWEEN :first AND :last "
            f"WHERE {_SEEN.format('r')}{fitting} ORDER BY {order} LIMIT :limit"
        )
    elif not (query.filters or query.sort):
        # Which rows there are is in the index; none of them is read before the best are known.
        values |= {"query": fts_text(words, any_word=any_word), "candidates": CANDIDATES}
        sql = (
            f"SELECT f.rank, f.n FROM tables t CROSS JOIN ({_MATCHES}) f "
            f"WHERE {_SEEN.format('f')} ORDER BY f.rank, f.n LIMIT :limit"
        )
    else:
        values |= {"query": fts_text(words, any_word=any_word), "candidates": FILTERED}
        order = f"{ordering('sqlite', query.sort)}, f.rank" if query.sort else "f.rank"
        sql = (
            f"SELECT f.rank, r.n FROM ({_MATCHES}) f CROSS JOIN table_rows r ON r.n = f.n CROSS JOIN tables t "
            f"WHERE {_SEEN.format('r')}{fitting} ORDER BY {order}, r.n LIMIT :limit"
        )
    return session.connection.execute(sql, values | given).fetchall()  # type: ignore[return-value]


def my_hits(session: Session, places: list[int]) -> dict[int, Row]:
    """These rows as their reader sees them, by rowid."""
    rows = session.rows("my_rows_by_n", {"ns": json_text(places)})
    return {row[0]: to_row((row[0] & LAST, *row[1:])) for row in rows}


def tables_of(session: Session, places: list[int], known: dict[int, KnowledgeTable]) -> dict[int, KnowledgeTable]:
    """The tables in which these rows stand, by serial."""
    if {place >> BITS for place in places} <= known.keys():
        return known
    return known | {table.serial: table for table in my_tables(session, TABLES_SEARCHED, None).data}
