"""Erasures on SQLite: jobs and their steps, and the scrubbing of the file."""

import math
from collections.abc import Sequence
from pathlib import Path

import apsw

from turnkeep.ids import ConversationId, ErasureId, FileId, TurnId, UserId, check_id, new_erasure_id, new_user_id
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ErasureJob
from turnkeep.store.rows import json_text, to_counts, to_erasure
from turnkeep.store.rules.conversations import no_conversation
from turnkeep.store.rules.directory import no_user
from turnkeep.store.rules.erasures import (
    KEPT_MS,
    LEASE_MS,
    ROWS_AT_ONCE,
    counted,
    erased_thing,
    no_erasure,
    size_counts,
)
from turnkeep.store.sqlite.conversations import PURGED
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import BUSY_SECONDS, Session, owner_of
from turnkeep.store.sqlite.knowledge import BITS, drop_passages
from turnkeep.store.sqlite.leases import cancel_all_waiting
from turnkeep_client.wire.account import ErasedCounts

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

    async def postpone_erasure(self, erasure_id: ErasureId, *, seconds: float) -> None:
        await self._write(_postpone, erasure_id, int(seconds * 1000))

    async def conversations_to_erase(self, job: ErasureJob, *, limit: int = 1_000) -> list[ConversationId]:
        which = _of(job) | {"limit": limit}
        return [row[0] for row in await self._read(lambda session: session.rows("conversations_to_erase", which))]

    async def hide_conversations(self, conversation_ids: Sequence[ConversationId]) -> list[TurnId]:
        return await self._write(_hide, list(conversation_ids))

    async def files_to_erase(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId] = (), *, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        which = {"conversations": json_text(list(conversation_ids)), "user": job.user_id, "limit": limit}
        return [(row[0], row[1]) for row in await self._read(lambda session: session.rows("files_to_erase", which))]

    async def erase_files(self, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
        await self._write(_erase_files, job, list(file_ids))

    async def erase_conversations(self, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> list[str]:
        return await self._write(_erase_conversations, job, list(conversation_ids))

    async def erase_knowledge(self, job: ErasureJob) -> None:
        if job.user_id is None:
            return
        await self._write(_erase_pages, job)
        last = 0
        while found := await self._read(_rows_of_user, job, last):
            last = found[-1]
            await self._write(_erase_rows, job, found)

    async def close_erasure(self, job: ErasureJob) -> bool:
        return await self._write(_close, job)

    async def finish_erasures(self, erasure_ids: Sequence[ErasureId]) -> None:
        await self._write(_finish, list(erasure_ids))

    async def scrub(self, *, most_bytes: int | None = None) -> bool:
        if most_bytes is not None and await self._read(_file_bytes) > most_bytes:
            return False
        await self._writer.ask_bare(lambda session: _scrub(session, None if self._is_alone else self._path))
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


def _postpone(session: Session, erasure_id: ErasureId, ms: int) -> None:
    session.run("postpone_erasure", {"id": erasure_id, "until": session.now + ms})


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


def _hide(session: Session, conversation_ids: Sequence[ConversationId]) -> list[TurnId]:
    running: list[TurnId] = []
    for conversation_id in conversation_ids:
        which = {"conversation": conversation_id, "now": session.now}
        session.run("hidden_conversation", which)
        session.run("delete_files_with", which)
        cancel_all_waiting(session, conversation_id)
        for (turn_id,) in session.rows("running_turn_of", {"conversation": conversation_id}):
            session.run("request_cancel", {"turn": turn_id, "now": session.now})
            running.append(turn_id)
    return running


def _erase_files(session: Session, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
    sizes = [size for file_id in file_ids for _, size in session.rows("erase_file", {"file": file_id})]
    _count(session, job, files=len(sizes), bytes=sum(sizes))


def _erase_conversations(session: Session, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> list[str]:
    keys: list[str] = []
    for conversation_id in conversation_ids:
        which = {"conversation": conversation_id}
        if session.row("running_turn_of", which) is not None:
            continue
        size = session.rows("size_of_conversation", which)[0]
        keys.extend(key for (key,) in session.rows("storage_keys", which))
        erased = [session.run(name, which) for name in PURGED]
        _count(session, job, **size_counts(erased[-1], size))
    return keys


def _erase_pages(session: Session, job: ErasureJob) -> None:
    which = _of(job)
    pages = [page_id for (page_id,) in session.rows("pages_to_erase", which)]
    for page_id in pages:
        drop_passages(session, job.org_id, page_id)
        session.run("delete_page", {"page": page_id})
    tables = session.rows("hide_tables", which | {"now": session.now})
    session.run("abandon_imports_of", which)
    session.run("erase_batches_of_user", {"user": job.user_id})
    _count(session, job, pages=len(pages), tables=len(tables), table_rows=sum(rows for (rows,) in tables))


def _rows_of_user(session: Session, job: ErasureJob, after: int) -> list[int]:
    """The next places of rows that the user added to tables of others."""
    which = {"org": job.org_id, "user": job.user_id, "after": after, "limit": ROWS_AT_ONCE}
    return [place for (place,) in session.rows("rows_of_user", which)]


def _erase_rows(session: Session, job: ErasureJob, places: Sequence[int]) -> None:
    erased = 0
    for place in places:
        if session.run("delete_row", {"n": place}):
            erased += 1
            session.run("drop_row_tokens", {"n": place})
            session.run("uncount_row", {"serial": place >> BITS, "number": place & (1 << BITS) - 1})
    _count(session, job, table_rows=erased)


def _close(session: Session, job: ErasureJob) -> bool:
    which = _of(job)
    if session.rows("left_to_erase", which)[0][0]:
        return False
    if job.user_id is not None:
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
    return math.prod(int(str(session.connection.pragma(name))) for name in ("page_count", "page_size"))


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
        for index in INDEXES:
            connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
        connection.execute("VACUUM")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        if path is not None:
            connection.close()
