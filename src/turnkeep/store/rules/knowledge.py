"""Rules of pages, of the text of files and of tables: limits, checks, what a search shows, and every refusal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnkeep.errors import Conflict, IdempotencyConflict, InvalidRequest, NotFound
from turnkeep.model.knowledge import (
    CELL_CHARS,
    Cell,
    Column,
    FileText,
    Hit,
    KnowledgeTable,
    PageHit,
    RowQuery,
    TextHit,
)
from turnkeep.model.text_search import SearchQuery, excerpt, parse_query
from turnkeep.store.checks import NAME_CHARS, check_limit, check_text
from turnkeep.store.fulltext import PassageMatch
from turnkeep.store.rows import json_text, to_table
from turnkeep.store.rules.files import name_key

CONTENT_CHARS = 1_000_000
QUERY_CHARS = 1_000


def check_page(title: str | None, content: str | None) -> None:
    if title is not None:
        check_text(title, "title", limit=NAME_CHARS)
    if content is not None:
        check_text(content, "content", limit=CONTENT_CHARS, allow_empty=True)


def changed_page(before: Sequence[str] | None, title: str | None, content: str | None) -> tuple[str, str]:
    """Title and content after a change; None leaves one as it is. Raises NotFound if there was no page."""
    if before is None:
        raise no_page()
    old_title, old_content = before
    return old_title if title is None else title, old_content if content is None else content


def check_search(query: str, limit: int, offset: int) -> SearchQuery:
    check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
    check_limit(limit)
    if offset < 0:
        raise InvalidRequest("offset must be a whole number that is not negative.")
    return parse_query(query)


def part_of(items: Sequence[Hit], *, limit: int, offset: int) -> tuple[Sequence[Hit], int | None]:
    """The items from `offset` on, and where the next part begins."""
    end = offset + limit
    return items[offset:end], end if end < len(items) else None


def page_hits(
    matches: Sequence[PassageMatch], texts: dict[str, tuple[str, str]], query: SearchQuery, chars: int
) -> tuple[PageHit, ...]:
    """The pages as their reader sees them; `texts` are their titles and contents. Those not seen are left out."""
    return tuple(
        PageHit(
            page_id=match.owner,  # type: ignore[arg-type]
            title=texts[match.owner][0],
            place=match.place,
            excerpt=excerpt(texts[match.owner][1][match.start : match.stop], query, chars=chars),
        )
        for match in matches
        if match.owner in texts
    )


def text_hits(
    matches: Sequence[PassageMatch], texts: Mapping[str, FileText], query: SearchQuery, chars: int
) -> tuple[TextHit, ...]:
    return tuple(
        TextHit(
            key=match.owner,
            place=match.place,
            excerpt=excerpt(texts[match.owner].text[match.start : match.stop], query, chars=chars),
        )
        for match in matches
        if match.owner in texts
    )


def no_page() -> NotFound:
    return NotFound("No such page.")


DESCRIPTION_CHARS = 2_000
MAX_COLUMNS = 100
ROW_BYTES = 256 * 1024
ROWS_AT_ONCE = 1_000
BATCH_CHARS = 400
"""Of the name of a batch: an id and an idempotency key."""
MAX_ROWS = 2**31 - 1


class Batch(Struct, frozen=True):
    """Rows that were added together, under a name of the caller's."""

    first: int
    count: int
    digest: str | None


class Reserved(Struct, frozen=True):
    """The import that is under way in a table, and the numbers of its rows. All None: there is none."""

    import_id: str | None
    first: int | None
    last: int | None


class TableForWrite(Struct, frozen=True):
    """A table as a write finds it."""

    table: KnowledgeTable
    last_row: int
    reserved: Reserved


def table_for_write(row: Sequence[Any] | None) -> TableForWrite:
    """From the query `table_for_write`. Raises NotFound if it found none."""
    if row is None:
        raise no_table()
    *_, last_row, import_id, first, last = row
    return TableForWrite(to_table(row), last_row, Reserved(import_id, first, last))


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
    """Rows hold cells of their former columns. A cell that no longer fits must not stay in a row unseen."""
    if not before.row_count:
        return
    kept = {column.key: column for column in columns}
    for column in before.columns:
        if column.key not in kept:
            raise Conflict(f"The column {column.name!r} cannot go while the table has rows. Make a new table.")
        if kept[column.key].type != column.type:
            raise Conflict(f"The column {column.name!r} cannot change its type while the table has rows. Add another.")


def changed_table(
    before: KnowledgeTable,
    reserved: Reserved,
    *,
    name: str | None,
    description: str | None,
    columns: Sequence[Column] | None,
) -> dict[str, str]:
    """The columns of a table after a change; None leaves a field as it is. Raises Conflict for columns that cannot
    change now."""
    if columns is not None:
        if reserved.import_id is not None:
            raise import_runs()
        check_columns_stay(before, columns)
    return table_record(
        before.name if name is None else name.strip(),
        before.description if description is None else description,
        before.columns if columns is None else columns,
    )


def table_record(name: str, description: str, columns: Sequence[Column]) -> dict[str, str]:
    return {
        "name": name,
        "name_key": name_key(name),
        "description": description,
        "columns": json_text(columns),
    }


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


def known_rows(batch: Batch, digest: str | None) -> range:
    """The numbers of a batch that is there. A batch that was stored without a digest, or that is asked for without one,
    is known by its name alone. Raises IdempotencyConflict for another digest."""
    if batch.digest is not None and digest is not None and batch.digest != digest:
        raise IdempotencyConflict()
    return range(batch.first, batch.first + batch.count)


def check_row_limit(limit: int) -> int:
    if not 1 <= limit <= ROWS_AT_ONCE:
        raise InvalidRequest(f"limit must be a whole number from 1 to {ROWS_AT_ONCE:,}.")
    return limit


def check_import_size(count: int) -> None:
    if not 1 <= count < MAX_ROWS:
        raise InvalidRequest("An import needs at least one row.")


def begun_import(reserved: Reserved, import_id: str) -> int | None:
    """The first number of this import if it has begun already, None if it may begin. Raises Conflict while another one
    is under way."""
    if reserved.import_id is None:
        return None
    if reserved.import_id != import_id:
        raise import_runs()
    return reserved.first


def check_reserved(reserved: Reserved | None, first: int, count: int) -> None:
    """Raises Conflict unless this import may write rows with these numbers."""
    if reserved is None or reserved.first is None or reserved.last is None:
        raise import_lost()
    if not reserved.first <= first <= first + count - 1 <= reserved.last:
        raise import_lost()


def imported_batch(reserved: Reserved | None, digest: str | None, *, has_batch: bool) -> Batch:
    """The rows of an import that ends now. Raises Conflict if it was given up, or if a batch of its name is there."""
    if reserved is None or reserved.first is None or reserved.last is None:
        raise import_lost()
    if has_batch:
        raise import_repeated()
    return Batch(reserved.first, reserved.last - reserved.first + 1, digest)


def check_row_search(query: RowQuery, table: KnowledgeTable | None, limit: int, offset: int) -> SearchQuery | None:
    """The words to look for in this table, or in all of them; None where nothing can be found."""
    words = check_search(query.text, limit, offset)
    if (query.text.strip() or table is None) and words.is_empty:
        return None
    if table is None and (query.filters or query.sort):
        raise InvalidRequest("Filters and sorting need a table: say which one.")
    return words


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
