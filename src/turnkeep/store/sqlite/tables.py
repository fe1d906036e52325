"""Tables and their rows, inside one session."""

from collections.abc import Sequence

from turnkeep.ids import TableId
from turnkeep.model.knowledge import Column, KnowledgeTable, Row
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.knowing import (
    check_columns_stay,
    import_lost,
    import_repeated,
    import_runs,
    known_rows,
    name_taken,
    no_row,
    no_table,
    to_row,
    to_table,
)
from turnkeep.store.naming import name_key
from turnkeep.store.rows import json_text
from turnkeep.store.sqlite import directory
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import in_workspace

BITS = 32
LAST = 2**BITS - 1

Written = tuple[str, str]
"""A row as it is stored: the JSON of its cells, and its tokens."""


def place_of(serial: int, number: int) -> int:
    """The rowid of a row."""
    return serial << BITS | number


def create(
    session: Session, principal: Principal, table_id: TableId, name: str, description: str, columns: Sequence[Column]
) -> KnowledgeTable:
    directory.workspace(session, principal.org_id, principal.workspace_id)
    _check_name(session, principal, table_id, name)
    values = in_workspace(principal) | {
        "id": table_id,
        "name": name,
        "key": name_key(name),
        "description": description,
        "columns": json_text(columns),
        "now": session.now,
    }
    return to_table(session.rows("insert_table", values)[0])


def change(
    session: Session,
    principal: Principal,
    table_id: TableId,
    name: str | None,
    description: str | None,
    columns: Sequence[Column] | None,
) -> KnowledgeTable:
    before, _, import_id = _for_write(session, principal, table_id)
    if name is not None:
        _check_name(session, principal, table_id, name)
    if columns is not None:
        if import_id is not None:
            raise import_runs()
        check_columns_stay(before, columns)
    values = {
        "table": table_id,
        "name": name or before.name,
        "key": name_key(name or before.name),
        "description": before.description if description is None else description,
        "columns": json_text(before.columns if columns is None else columns),
        "now": session.now,
    }
    return to_table(session.rows("update_table", values)[0])


def delete(session: Session, principal: Principal, table_id: TableId) -> None:
    _for_write(session, principal, table_id)
    session.run("delete_table", {"table": table_id, "now": session.now})


def my_table(session: Session, table_id: TableId) -> KnowledgeTable:
    row = session.row("my_table", {"table": table_id})
    if row is None:
        raise no_table()
    return to_table(row)


def my_tables(session: Session, limit: int, cursor: str | None) -> Page[KnowledgeTable]:
    before = None if cursor is None else decode_cursor(cursor, "tables", tuple[str])[0]
    rows = session.rows("my_tables_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_table(row) for row in rows], limit=limit, cursor_of=lambda table: encode_cursor("tables", table.id)
    )


def add(
    session: Session,
    principal: Principal,
    table_id: TableId,
    written: Sequence[Written],
    batch: str,
    digest: str | None,
) -> list[int]:
    table, last, _ = _for_write(session, principal, table_id)
    known = session.row("batch_of_rows", {"serial": table.serial, "batch": batch})
    if known is not None:
        return list(known_rows(known, digest))
    first, count = last + 1, len(written)
    _keep_batch(session, table.serial, batch, digest, first, count)
    _insert(session, principal.org_id, table.serial, first, written)
    _count(session, table.serial, count, last=first + count - 1)
    return list(range(first, first + count))


def added(session: Session, principal: Principal, table_id: TableId, batch: str, digest: str | None) -> range | None:
    table, _, _ = _for_write(session, principal, table_id)
    known = session.row("batch_of_rows", {"serial": table.serial, "batch": batch})
    return None if known is None else known_rows(known, digest)


def my_rows(session: Session, table_id: TableId, after: int, limit: int) -> list[Row]:
    with session.snapshot():
        serial = my_table(session, table_id).serial
        which = {"after": place_of(serial, min(after, LAST)), "last": place_of(serial, LAST), "limit": limit}
        return [to_row(row) for row in session.rows("my_rows_after", which)]


def my_row(session: Session, table_id: TableId, number: int) -> Row:
    found = my_rows(session, table_id, number - 1, 1) if 1 <= number <= LAST else []
    if not found or found[0].number != number:
        raise no_row(number)
    return found[0]


def change_row(session: Session, principal: Principal, table_id: TableId, number: int, written: Written) -> Row:
    place = _place_for_write(session, principal, table_id, number)
    row = session.rows("update_row", {"n": place, "cells": written[0], "now": session.now})[0]
    session.run("add_row_tokens", {"n": place, "tokens": written[1]})
    return to_row(row)


def delete_row(session: Session, principal: Principal, table_id: TableId, number: int) -> None:
    place = _place_for_write(session, principal, table_id, number)
    session.run("delete_row", {"n": place})
    session.run("drop_row_tokens", {"n": place})
    _count(session, place >> BITS, -1, last=0)


def begin_import(session: Session, principal: Principal, table_id: TableId, import_id: str, count: int) -> int:
    table, _, running = _for_write(session, principal, table_id)
    if running is not None:
        raise import_runs()
    values = {"serial": table.serial, "import": import_id, "count": count, "now": session.now}
    first: int = session.rows("begin_import", values)[0][0]
    return first


def import_rows(session: Session, table_id: TableId, import_id: str, first: int, written: Sequence[Written]) -> None:
    row = session.row("import_under_way", {"table": table_id, "import": import_id})
    if row is None or not row[1] <= first <= first + len(written) - 1 <= row[2]:
        raise import_lost()
    _insert(session, row[3], row[0], first, written)
    session.run("touch_import", {"serial": row[0], "now": session.now})


def finish_import(
    session: Session, table_id: TableId, import_id: str, batch: str | None, digest: str | None
) -> KnowledgeTable:
    reserved = session.row("import_under_way", {"table": table_id, "import": import_id})
    if reserved is None:
        raise import_lost()
    serial, first, last, _ = reserved
    if batch is not None:
        if session.row("batch_of_rows", {"serial": serial, "batch": batch}) is not None:
            raise import_repeated()
        _keep_batch(session, serial, batch, digest, first, last - first + 1)
    return to_table(session.rows("finish_import", {"table": table_id, "import": import_id, "now": session.now})[0])


def doom_import(session: Session, table_id: TableId, import_id: str) -> None:
    session.run("doom_import", {"table": table_id, "import": import_id})


def erase_some(session: Session, before: int, limit: int) -> int:
    """Erase up to so many rows that nobody can see any more; return how many there were."""
    for serial, first, last in session.rows("silent_imports", {"before": before}):
        erased = _erase(session, place_of(serial, first), place_of(serial, last), limit)
        if erased == limit:
            return erased
        session.run("end_import", {"serial": serial})
        if erased:
            return erased
    for (serial,) in session.rows("deleted_tables"):
        erased = _erase(session, place_of(serial, 0), place_of(serial, LAST), limit)
        if erased == limit:
            return erased
        session.run("erase_batches_of_table", {"serial": serial})
        session.run("erase_table", {"serial": serial})
        if erased:
            return erased
    return 0


def erase_old_batches(session: Session, before: int) -> None:
    session.run("erase_old_batches", {"before": before})


def _erase(session: Session, first: int, last: int, limit: int) -> int:
    places = session.rows("rows_to_erase", {"first": first, "last": last, "limit": limit})
    which = [{"n": place} for (place,) in places]
    session.many("delete_row", which)
    session.many("drop_row_tokens", which)
    return len(which)


def _insert(session: Session, org_id: str, serial: int, first: int, written: Sequence[Written]) -> None:
    numbered = [(place_of(serial, number), row) for number, row in enumerate(written, start=first)]
    rows = [{"n": place, "org": org_id, "cells": row[0], "now": session.now} for place, row in numbered]
    session.many("insert_row", rows)
    session.many("add_row_tokens", [{"n": place, "tokens": row[1]} for place, row in numbered])


def _keep_batch(session: Session, serial: int, batch: str, digest: str | None, first: int, count: int) -> None:
    values = {"serial": serial, "batch": batch, "digest": digest, "first": first, "count": count, "now": session.now}
    session.run("add_batch_of_rows", values)


def _count(session: Session, serial: int, count: int, *, last: int) -> None:
    session.run("count_rows", {"serial": serial, "count": count, "last": last, "now": session.now})


def _place_for_write(session: Session, principal: Principal, table_id: TableId, number: int) -> int:
    my_place = place_of(_for_write(session, principal, table_id)[0].serial, number)
    hidden = session.row("row_for_write", {"n": my_place})
    if hidden is None or not 1 <= number <= LAST:
        raise no_row(number)
    return my_place


def _for_write(session: Session, principal: Principal, table_id: TableId) -> tuple[KnowledgeTable, int, str | None]:
    """The table, its last number, and the import that is under way."""
    row = session.row("table_for_write", in_workspace(principal) | {"table": table_id})
    if row is None:
        raise no_table()
    return to_table(row), row[9], row[10]


def _check_name(session: Session, principal: Principal, table_id: TableId, name: str) -> None:
    values = {"workspace": principal.workspace_id, "key": name_key(name), "id": table_id}
    if session.row("table_name_taken", values) is not None:
        raise name_taken(name)
