"""What both stores know of pages and tables: limits and checks, and how rows become values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from turnkeep.errors import Conflict, IdempotencyConflict, InvalidRequest, NotFound
from turnkeep.model.knowledge import (
    CELL_CHARS,
    Cell,
    Column,
    FileText,
    Hit,
    KnowledgePage,
    KnowledgeTable,
    PageHit,
    PageSummary,
    Row,
    RowQuery,
    TextHit,
)
from turnkeep.model.text_search import SearchQuery, excerpt, parse_query
from turnkeep.store.checks import NAME_CHARS, check_limit, check_text
from turnkeep.store.fulltext import Place

CONTENT_CHARS = 1_000_000
DESCRIPTION_CHARS = 2_000
QUERY_CHARS = 1_000
MAX_COLUMNS = 100
ROW_BYTES = 256 * 1024
ROWS_AT_ONCE = 1_000
BATCH_CHARS = 400
"""Of the name of a batch: an id and an idempotency key."""
MAX_ROWS = 2**31 - 1
_columns = msgspec.json.Decoder(tuple[Column, ...]).decode
_cells = msgspec.json.Decoder(tuple[Cell, ...]).decode


def check_page(title: str | None, content: str | None) -> None:
    if title is not None:
        check_text(title, "title", limit=NAME_CHARS)
    if content is not None:
        check_text(content, "content", limit=CONTENT_CHARS, allow_empty=True)


def check_table(name: str | None, description: str | None, columns: Sequence[Column] | None) -> None:
    if name is not None:
        check_text(name, "name", limit=NAME_CHARS)
    if description is not None:
        check_text(description, "description", limit=DESCRIPTION_CHARS, allow_empty=True)
    if columns is None:
        return
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise InvalidRequest(f"A table has 1 to {MAX_COLUMNS} columns, not {len(columns)}.")
    for column in columns:
        check_text(column.name, "the name of a column", limit=NAME_CHARS)
    _check_distinct([column.name.strip().casefold() for column in columns])
    if len({column.key for column in columns}) != len(columns):
        raise InvalidRequest("Two columns have the same key.")


def _check_distinct(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"Two columns have the same name: {', '.join(twice)[:200]}.")


def check_columns_stay(before: KnowledgeTable, columns: Sequence[Column]) -> None:
    """Rows hold what their columns once were; what no longer fits must not be left behind unseen."""
    if not before.row_count:
        return
    kept = {column.key: column for column in columns}
    for column in before.columns:
        if column.key not in kept:
            raise Conflict(f"The column {column.name!r} cannot go while the table has rows. Make a new table.")
        if kept[column.key].type != column.type:
            raise Conflict(f"The column {column.name!r} cannot change its type while the table has rows. Add another.")


def check_cells(rows: Iterable[Sequence[Cell]]) -> list[str]:
    """The JSON of each row, if all of them can be kept."""
    written = []
    for cells in rows:
        for cell in cells:
            if isinstance(cell, str):
                if len(cell) > CELL_CHARS:
                    raise InvalidRequest(f"A cell has {len(cell):,} characters; at most {CELL_CHARS:,} are allowed.")
                check_text(cell, "A cell", limit=CELL_CHARS, allow_empty=True)
            elif isinstance(cell, float) and not math.isfinite(cell):
                raise InvalidRequest("A number must be finite.")
            elif isinstance(cell, int) and abs(cell) > 2**53:
                raise InvalidRequest("A number has more than 15 digits. Keep it as text.")
            elif cell is not None and not isinstance(cell, bool | int | float):
                raise InvalidRequest("A cell is text, a number, true, false or empty.")
        encoded = msgspec.json.encode(list(cells))
        if len(encoded) > ROW_BYTES:
            raise InvalidRequest(f"A row takes {len(encoded):,} bytes; at most {ROW_BYTES:,} are allowed.")
        written.append(encoded.decode())
    return written


def check_batch(rows: Sequence[object], batch: str) -> None:
    if not 1 <= len(rows) <= ROWS_AT_ONCE:
        raise InvalidRequest(f"Add 1 to {ROWS_AT_ONCE:,} rows at a time, or send them as CSV.")
    check_text(batch, "batch", limit=BATCH_CHARS)


def known_rows(batch: Sequence[Any], digest: str | None) -> range:
    """The numbers of a batch that is there, from `first, count, digest`. One that nobody kept a digest of, or that is
    asked for without one, is known by its name alone."""
    first, count, known = batch
    if known is not None and digest is not None and known != digest:
        raise IdempotencyConflict()
    return range(first, first + count)


def check_row_limit(limit: int) -> int:
    if not 1 <= limit <= ROWS_AT_ONCE:
        raise InvalidRequest(f"limit must be a whole number from 1 to {ROWS_AT_ONCE:,}.")
    return limit


def check_search(query: str, limit: int, offset: int) -> SearchQuery:
    check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
    check_limit(limit)
    if offset < 0:
        raise InvalidRequest("offset must be a whole number that is not negative.")
    return parse_query(query)


def check_row_search(query: RowQuery, table: KnowledgeTable | None, limit: int, offset: int) -> SearchQuery | None:
    """The words to look for in this table, or in all of them; None where nothing can be found."""
    words = check_search(query.text, limit, offset)
    if (query.text.strip() or table is None) and words.is_empty:
        return None
    if table is None and (query.filters or query.sort):
        raise InvalidRequest("Filters and sorting need a table: say which one.")
    return words


def part_of(items: Sequence[Hit], *, limit: int, offset: int) -> tuple[Sequence[Hit], int | None]:
    """The items from `offset` on, and where the next part begins."""
    end = offset + limit
    return items[offset:end], end if end < len(items) else None


def page_hits(
    places: Sequence[Place], texts: dict[str, tuple[str, str]], query: SearchQuery, chars: int
) -> tuple[PageHit, ...]:
    """The pages as their reader sees them; `texts` are their titles and contents. Those not seen are left out."""
    return tuple(
        PageHit(
            page_id=place.owner,  # type: ignore[arg-type]
            title=texts[place.owner][0],
            place=place.place,
            excerpt=excerpt(texts[place.owner][1][place.start : place.stop], query, chars=chars),
        )
        for place in places
        if place.owner in texts
    )


def text_hits(
    places: Sequence[Place], texts: Mapping[str, FileText], query: SearchQuery, chars: int
) -> tuple[TextHit, ...]:
    return tuple(
        TextHit(
            sha256=place.owner,
            place=place.place,
            excerpt=excerpt(texts[place.owner].text[place.start : place.stop], query, chars=chars),
        )
        for place in places
        if place.owner in texts
    )


def to_summary(row: Sequence[Any]) -> PageSummary:
    return PageSummary(id=row[0], workspace_id=row[1], title=row[2], size=row[3], created_at=row[4], updated_at=row[5])


def to_page(row: Sequence[Any]) -> KnowledgePage:
    return KnowledgePage(
        id=row[0],
        workspace_id=row[1],
        title=row[2],
        size=row[3],
        created_at=row[4],
        updated_at=row[5],
        content=row[6],
    )


def to_table(row: Sequence[Any]) -> KnowledgeTable:
    """From `id, workspace_id, name, description, columns, row_count, created_at, updated_at` and perhaps `serial`."""
    return KnowledgeTable(
        id=row[0],
        workspace_id=row[1],
        name=row[2],
        description=row[3],
        columns=_columns(row[4]),
        row_count=row[5],
        created_at=row[6],
        updated_at=row[7],
        serial=row[8] if len(row) > 8 else 0,
    )


def to_row(row: Sequence[Any]) -> Row:
    """From `number, cells, created_at, updated_at`."""
    return Row(number=row[0], cells=_cells(row[1]), created_at=row[2], updated_at=row[3])


def no_page() -> NotFound:
    return NotFound("No such page.")


def no_table() -> NotFound:
    return NotFound("No such table.")


def no_row(number: int) -> NotFound:
    return NotFound(f"The table has no row {number}.")


def name_taken(name: str) -> Conflict:
    return Conflict(f"There is a table called {name!r} already. Choose another name.")


def import_lost() -> Conflict:
    return Conflict("This import was given up, or the table was deleted. Start it again.")


def import_repeated() -> Conflict:
    return Conflict("Rows were added under this Idempotency-Key meanwhile. Nothing was imported; send it again to see.")


def import_runs() -> Conflict:
    return Conflict("Another import into this table is under way. Wait until it has ended.")
