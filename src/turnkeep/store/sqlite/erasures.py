"""Erasures on SQLite: jobs and their steps, and the scrubbing of the file."""

import math
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw

from turnkeep.errors import StorageFull
from turnkeep.ids import ConversationId, ErasureId, FileId, TurnId, UserId, check_id, new_erasure_id, new_user_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import ErasureJob, HiddenTurns
from turnkeep.store.rows import json_text, to_counts, to_erasure, to_wait
from turnkeep.store.rules.conversations import no_conversation
from turnkeep.store.rules.directory import no_user
from turnkeep.store.rules.erasures import (
    DECISIONS_AT_ONCE,
    KEPT_MS,
    LEASE_MS,
    PAGES_AT_ONCE,
    ROWS_AT_ONCE,
    TEXTS_AT_ONCE,
    counted,
    erased_thing,
    forgotten_words,
    in_steps,
    no_erasure,
    size_counts,
)
from turnkeep.store.rules.turns import CANCELLED_EVENT
from turnkeep.store.sqlite.conversations import PURGED
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import BUSY_SECONDS, Session, owner_of
from turnkeep.store.sqlite.knowledge import BITS, LAST, drop_passages, erase_places, erase_table, place_of
from turnkeep.store.sqlite.leases import cancel_all_waiting
from turnkeep_client.wire.account import ErasedCounts
from turnkeep_client.wire.events import Recorded

INDEXES = ("search_tokens", "passage_tokens", "row_tokens")


class SqliteErasures(StoreThreads):
    """The verbs of erasures. Promises are those of `ports.ErasureStore`."""

    _path: Path
    _is_alone: bool

    async def begin_erasure(
        self,
        principal: Principal,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
        lease_seconds: float,
    ) -> ErasureJob:
        what = erased_thing(principal, user_id, conversation_id)
        return await self._write(_begin, principal, what, int(lease_seconds * 1000))

    async def erasure(self, principal: Principal, erasure_id: ErasureId) -> ErasureJob:
        which = {"id": check_id(erasure_id, "erasure"), "org": principal.org_id, "workspace": principal.workspace_id}
        row = await self._read(lambda session: session.row("erasure", which))
        if row is None:
            raise no_erasure()
        return to_erasure(row)

    async def take_erasures(self, *, lease_seconds: float, limit: int = 10) -> list[ErasureJob]:
        return await self._write(_take, int(lease_seconds * 1000), limit)

    async def postpone_erasure(self, erasure_id: ErasureId, *, seconds: float, problem: str | None = None) -> None:
        await self._write(_postpone, erasure_id, int(seconds * 1000), problem)

    async def conversations_to_erase(self, job: ErasureJob, *, limit: int = 1_000) -> list[ConversationId]:
        name = "conversation_to_erase" if job.user_id is None else "conversations_to_erase"
        which = _of(job) | {"limit": limit}
        return [row[0] for row in await self._read(lambda session: session.rows(name, which))]

    async def hide_conversations(self, conversation_ids: Sequence[ConversationId]) -> HiddenTurns:
        return await self._write(_hide, list(conversation_ids))

    async def files_to_erase(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId] = (), *, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        which = {"conversations": json_text(list(conversation_ids)), "user": job.user_id, "limit": limit}
        return [(row[0], row[1]) for row in await self._read(lambda session: session.rows("files_to_erase", which))]

    async def erase_files(self, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
        await self._write(_erase_files, job, list(file_ids))

    async def erase_conversations(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId]
    ) -> AsyncIterator[Sequence[str]]:
        which = {"conversations": json_text(list(conversation_ids))}
        sizes = await self._read(lambda session: session.rows("conversation_sizes", which))
        for some in in_steps([(row[0], row[1]) for row in sizes]):
            yield await self._write(_erase_conversations, job, some)

    async def erase_knowledge(self, job: ErasureJob) -> None:
        if job.user_id is None:
            return
        await self._write(_hide_tables, job)
        for step in (_erase_pages, _erase_table, _erase_rows, _erase_lost_texts):
            while await self._write(step, job):
                pass

    async def erase_decisions(self, job: ErasureJob) -> None:
        after = "" if job.user_id is not None else None
        while after is not None:
            after = await self._write(_erase_decisions, job, after)

    async def close_erasure(self, job: ErasureJob) -> bool:
        return await self._write(_close, job)

    async def finish_erasures(self, erasure_ids: Sequence[ErasureId]) -> None:
        await self._write(_finish, list(erasure_ids))

    async def scrub(self, *, most_bytes: int | None = None) -> bool:
        if most_bytes is not None and await self._read(_file_bytes) > most_bytes:
            return False
        path = None if self._is_alone else self._path
        await self._writer.ask_bare(lambda session: _scrub(session, path))
        return True


def _begin(session: Session, principal: Principal, what: dict[str, str | None], lease_ms: int) -> ErasureJob:
    if what["conversation"] is not None:
        if session.row("erasable_conversation", owner_of(principal) | {"conversation": what["conversation"]}) is None:
            raise no_conversation()
    elif not session.run("disable_user", what):
        raise no_user()
    known = session.row("open_erasure", what)
    if known is not None:
        return to_erasure(known)
    values = {"id": new_erasure_id(), "counts": json_text(ErasedCounts())}
    return to_erasure(
        session.rows("insert_erasure", what | values | {"now": session.now, "until": session.now + lease_ms})[0]
    )


def _take(session: Session, lease_ms: int, limit: int) -> list[ErasureJob]:
    due = session.rows("due_erasures", {"now": session.now, "limit": limit})
    until = session.now + lease_ms
    return [to_erasure(row) for (id_,) in due for row in session.rows("take_erasure", {"id": id_, "until": until})]


def _postpone(session: Session, erasure_id: ErasureId, ms: int, problem: str | None) -> None:
    session.run("postpone_erasure", {"id": erasure_id, "until": session.now + ms, "problem": problem})


def _of(job: ErasureJob) -> dict[str, str | None]:
    return {
        "org": job.org_id,
        "workspace": job.workspace_id,
        "user": job.user_id,
        "conversation": job.conversation_id,
    }


def _count(session: Session, job: ErasureJob, **more: int) -> None:
    [(counts,)] = session.rows("erased_counts", {"id": job.id})
    values = {"id": job.id, "counts": json_text(counted(to_counts(counts), **more)), "until": session.now + LEASE_MS}
    session.run("count_erased", values)


def _hide(session: Session, conversation_ids: Sequence[ConversationId]) -> HiddenTurns:
    running: list[TurnId] = []
    ended: list[Turn] = []
    for conversation_id in conversation_ids:
        which = {"conversation": conversation_id, "now": session.now}
        session.run("hidden_conversation", which)
        session.run("delete_files_with", which)
        ended += cancel_all_waiting(session, conversation_id)
        for (turn_id,) in session.rows("running_turn_of", {"conversation": conversation_id}):
            session.run("request_cancel", {"turn": turn_id, "now": session.now})
            running.append(turn_id)
    return HiddenTurns(
        running=tuple(running),
        ended=tuple((turn.id, Recorded(seq=turn.last_seq, event=CANCELLED_EVENT)) for turn in ended),
    )


def _erase_files(session: Session, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
    erased = [row for file_id in file_ids for row in session.rows("erase_file", {"file": file_id})]
    _erase_texts(session, job, {sha256 for _, sha256 in erased if sha256 is not None})
    _count(session, job, files=len(erased), bytes=sum(size for size, _ in erased))


def _erase_conversations(session: Session, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> list[str]:
    keys: list[str] = []
    for conversation_id in conversation_ids:
        which = {"conversation": conversation_id}
        if session.row("running_turn_of", which) is not None:
            continue
        size = session.rows("size_of_conversation", which)[0]
        keys.extend(key for (key,) in session.rows("storage_keys", which))
        bytes_ = {sha256 for (sha256,) in session.rows("bytes_of_files", which)}
        erased = [session.run(name, which) for name in PURGED]
        _erase_texts(session, job, bytes_)
        _count(session, job, **size_counts(erased[-1], size))
    return keys


def _erase_texts(session: Session, job: ErasureJob, hashes: set[str]) -> None:
    """Texts of these bytes, unless another file has them."""
    for sha256 in hashes:
        lost = session.rows("texts_of_bytes", {"org": job.org_id, "sha256": sha256})
        _drop_texts(session, job, [owner for (owner,) in lost])


def _erase_lost_texts(session: Session, job: ErasureJob) -> int:
    """Some texts of the org whose last file is gone."""
    lost = session.rows("lost_texts_of_org", {"org": job.org_id, "limit": TEXTS_AT_ONCE})
    _drop_texts(session, job, [owner for (owner,) in lost])
    return len(lost)


def _drop_texts(session: Session, job: ErasureJob, owners: Sequence[str]) -> None:
    for owner in owners:
        drop_passages(session, job.org_id, owner)
        session.run("drop_file_text", {"org": job.org_id, "owner": owner})


def _hide_tables(session: Session, job: ErasureJob) -> None:
    """No request sees the user's tables from now on, and imports of the user end."""
    which = _of(job)
    tables = session.rows("hide_tables", which | {"now": session.now})
    session.run("abandon_imports_of", which)
    session.run("erase_batches_of_user", {"user": job.user_id})
    _count(session, job, tables=len(tables), table_rows=sum(rows for (rows,) in tables))


def _erase_pages(session: Session, job: ErasureJob) -> int:
    pages = session.rows("pages_to_erase", _of(job) | {"limit": PAGES_AT_ONCE})
    for (page_id,) in pages:
        drop_passages(session, job.org_id, page_id)
        session.run("delete_page", {"page": page_id})
    _count(session, job, pages=len(pages))
    return len(pages)


def _erase_table(session: Session, job: ErasureJob) -> int:
    """Some rows of a table of the user, which are counted already, or the table itself."""
    tables = session.rows("hidden_table_of", _of(job))
    for (serial,) in tables:
        if erase_places(session, place_of(serial, 0), place_of(serial, LAST), ROWS_AT_ONCE) < ROWS_AT_ONCE:
            erase_table(session, serial)
    _count(session, job)
    return len(tables)


def _erase_rows(session: Session, job: ErasureJob) -> int:
    """Some rows that the user added to tables of others."""
    which = {"org": job.org_id, "user": job.user_id, "limit": ROWS_AT_ONCE}
    places = [place for (place,) in session.rows("rows_of_user", which)]
    for place in places:
        session.run("delete_row", {"n": place})
        session.run("drop_row_tokens", {"n": place})
        session.run("uncount_row", {"serial": place >> BITS, "number": place & LAST})
    _count(session, job, table_rows=len(places))
    return len(places)


def _erase_decisions(session: Session, job: ErasureJob, after: str) -> str | None:
    """Forget what the user decided about calls of others, in some turns after this one. The last of them; None if
    there are no more."""
    assert job.user_id is not None
    which = {"workspace": job.workspace_id, "user": job.user_id, "after": after, "limit": DECISIONS_AT_ONCE}
    turns = session.rows("turns_decided_by", which)
    for turn_id, waiting in turns:
        for old, new in forgotten_words(to_wait(waiting), job.user_id):
            for name in ("replace_in_messages", "replace_in_events", "replace_in_wait"):
                session.run(name, {"turn": turn_id, "old": old, "new": new})
    _count(session, job)
    return turns[-1][0] if turns else None


def _close(session: Session, job: ErasureJob) -> bool:
    which = _of(job)
    if job.user_id is None:
        if session.row("conversation_to_erase", which) is not None:
            return False
    else:
        if session.rows("left_to_erase", which)[0][0]:
            return False
        anonymous = which | {"anonymous": new_user_id()}
        for name in ("anonymous_usage", "anonymous_days"):
            session.run(name, anonymous)
        session.run("forget_importer", {"user": job.user_id})
        for name in ("erase_outbox_of_user", "erase_user"):
            session.run(name, which)
    session.run("close_erasure", {"id": job.id, "now": session.now})
    return True


def _finish(session: Session, erasure_ids: Sequence[ErasureId]) -> None:
    session.many("finish_erasure", [{"id": erasure_id, "now": session.now} for erasure_id in erasure_ids])
    session.run("drop_old_erasures", {"before": session.now - KEPT_MS})


def _file_bytes(session: Session) -> int:
    return math.prod(_pragma(session.connection, name) for name in ("page_count", "page_size"))


def _pragma(connection: apsw.Connection, name: str) -> int:
    return int(str(connection.pragma(name)))


def _scrub(session: Session, path: Path | None) -> None:
    """Write the file anew, with nothing in it but what is there, and empty the log.

    A deleted row leaves its bytes on free pages, in the gaps of pages, in the log, and as tokens in segments of the
    full-text indexes. It is done on a connection of its own: the writer keeps temporary tables in memory, and VACUUM
    would keep the whole file there.
    """
    connection = session.connection if path is None else apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_SECONDS * 1000)
        connection.pragma("synchronous", "FULL")
        connection.pragma("wal_autocheckpoint", 0)
        if path is not None:
            _check_room(connection, path.parent)
        for index in INDEXES:
            connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
        connection.execute("VACUUM")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        if path is not None:
            connection.close()


def _check_room(connection: apsw.Connection, folder: Path) -> None:
    """Raise StorageFull unless VACUUM has room for its two copies of what is in the file: one among the temporary files
    of SQLite, and one in the log. Found out later, the disk would be full for everything else too."""
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    size = pages * _pragma(connection, "page_size")
    temporary = _temporary_folder(folder)
    is_one_disk = _device(folder) == _device(temporary)
    needed = [("beside the database", folder, 2 * size if is_one_disk else size)]
    if not is_one_disk:
        needed.append(("in the folder for temporary files", temporary, size))
    for where, place, bytes_ in needed:
        if shutil.disk_usage(place).free < bytes_:
            raise StorageFull(
                f"There is too little room {where} to write the database anew: it needs about "
                f"{math.ceil(bytes_ / 1e6):,} MB. Until then, bytes that were erased stay on free pages of its file."
            )


def _temporary_folder(folder: Path) -> Path:
    """Where SQLite makes temporary files: the first of these folders that can be written."""
    named = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp")
    usable = (Path(name) for name in named if name and os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK))
    return next(usable, folder)


def _device(folder: Path) -> int:
    return folder.stat().st_dev
