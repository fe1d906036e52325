"""Erasures on PostgreSQL: jobs and their steps."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from turnkeep.ids import ConversationId, ErasureId, FileId, UserId, check_id, new_erasure_id, new_user_id
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ErasureJob, HiddenTurns
from turnkeep.store.postgres.conversations import purge_rows
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.leases import cancel_waiting
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
from turnkeep.store.rules.knowledge import MAX_ROWS
from turnkeep.store.rules.turns import CANCELLED_EVENT
from turnkeep_client.wire.account import ErasedCounts
from turnkeep_client.wire.events import Recorded


class PostgresErasures:
    """The verbs of erasures."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_erasure(
        self,
        principal: Principal,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
        lease_seconds: float,
    ) -> ErasureJob:
        org_id, workspace_id, user, conversation = erased_thing(principal, user_id, conversation_id).values()
        erasure_id = new_erasure_id()

        async def work(statements: Statements) -> ErasureJob:
            await statements.fetch("lock_erasures", workspace_id)
            if conversation is not None:
                if not await statements.fetch("restorable_conversation", *owner_of(principal), conversation):
                    raise no_conversation()
            elif not await statements.fetch("disable_user", org_id, workspace_id, user):
                raise no_user()
            known = await statements.fetch("open_erasure", org_id, workspace_id, user, conversation)
            if known:
                return to_erasure(known[0])
            what = (org_id, workspace_id, user, conversation, json_text(ErasedCounts()))
            rows = await statements.fetch("insert_erasure", erasure_id, *what, int(lease_seconds * 1000))
            return to_erasure(rows[0])

        return await self._database.transact(work)

    async def erasure(self, principal: Principal, erasure_id: ErasureId) -> ErasureJob:
        check_id(erasure_id, "erasure")
        rows = await self._database.read("erasure", erasure_id, principal.org_id, principal.workspace_id)
        if not rows:
            raise no_erasure()
        return to_erasure(rows[0])

    async def take_erasures(self, *, lease_seconds: float, limit: int = 10) -> list[ErasureJob]:
        rows = await self._database.write("take_erasures", int(lease_seconds * 1000), limit)
        return [to_erasure(row) for row in rows]

    async def postpone_erasure(self, erasure_id: ErasureId, *, seconds: float, problem: str | None = None) -> None:
        await self._database.write("postpone_erasure", erasure_id, int(seconds * 1000), problem)

    async def conversations_to_erase(self, job: ErasureJob, *, limit: int = 1_000) -> list[ConversationId]:
        where = (job.org_id, job.workspace_id)
        if job.user_id is None:
            rows = await self._database.read("conversation_to_erase", *where, job.conversation_id)
        else:
            rows = await self._database.read("conversations_to_erase", *where, job.user_id, limit)
        return [row[0] for row in rows]

    async def hide_conversations(self, conversation_ids: Sequence[ConversationId]) -> HiddenTurns:
        ids = list(conversation_ids)

        async def work(statements: Statements) -> HiddenTurns:
            now = (await statements.fetch("now"))[0][0]
            running = [turn_id for (turn_id,) in await statements.fetch("hide_conversations", ids, now)]
            waiting = await statements.fetch("waiting_turns_of", ids)
            await cancel_waiting(statements, [turn_id for turn_id, _ in waiting], now)
            return HiddenTurns(
                running=tuple(running),
                ended=tuple((turn_id, Recorded(seq=last + 1, event=CANCELLED_EVENT)) for turn_id, last in waiting),
            )

        return await self._database.transact(work)

    async def files_to_erase(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId] = (), *, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        rows = await self._database.read("files_to_erase", list(conversation_ids), job.user_id, limit)
        return [(file_id, key) for file_id, key in rows]

    async def erase_files(self, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
        async def work(statements: Statements) -> None:
            bytes_ = await _lock_copies(statements, job, file_ids)
            erased = await statements.fetch("erase_files", sorted(file_ids))
            await statements.fetch("erase_texts", job.org_id, bytes_)
            await _count(statements, job, files=len(erased), bytes=sum(size for _, size in erased))

        await self._database.transact(work)

    async def erase_conversations(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId]
    ) -> AsyncIterator[Sequence[str]]:
        sizes = await self._database.read("conversation_sizes", list(conversation_ids))
        for some in in_steps([tuple(row) for row in sizes]):
            yield await self._erase_some(job, some)

    async def _erase_some(self, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> list[str]:
        async def work(statements: Statements) -> list[str]:
            locked = [id_ for (id_,) in await statements.fetch("lock_erasable", conversation_ids)]
            [size] = await statements.fetch("size_of_conversations", locked)
            files = await statements.fetch("files_to_erase", locked, None, 2**31 - 1)
            bytes_ = await _lock_copies(statements, job, [file_id for file_id, _ in files])
            await purge_rows(statements, locked)
            await statements.fetch("erase_texts", job.org_id, bytes_)
            await _count(statements, job, **size_counts(len(locked), size))
            return [key for _, key in files]

        return await self._database.transact(work)

    async def erase_knowledge(self, job: ErasureJob) -> None:
        if job.user_id is None:
            return
        await self._database.transact(lambda statements: _hide_tables(statements, job))
        for step in (_erase_pages, _erase_table, _erase_rows):
            await self._repeat(step, job)
        while await self._database.write("erase_lost_texts", job.org_id, TEXTS_AT_ONCE):
            pass

    async def erase_decisions(self, job: ErasureJob) -> None:
        after = "" if job.user_id is not None else None
        while after is not None:
            after = await self._database.transact(partial(_erase_decisions, job=job, after=after))

    async def _repeat(self, step: Callable[[Statements, ErasureJob], Awaitable[int]], job: ErasureJob) -> None:
        """Repeat the step, each time in a transaction of its own, until it finds nothing."""
        while await self._database.transact(lambda statements: step(statements, job)):
            pass

    async def close_erasure(self, job: ErasureJob) -> bool:
        org_id, workspace_id, user_id = job.org_id, job.workspace_id, job.user_id

        async def work(statements: Statements) -> bool:
            if user_id is None:
                if await statements.fetch("conversation_to_erase", org_id, workspace_id, job.conversation_id):
                    return False
            else:
                await statements.fetch("lock_counters_of_user", org_id, user_id)
                [(is_left,)] = await statements.fetch("left_to_erase", org_id, workspace_id, user_id)
                if is_left:
                    return False
                anonymous = new_user_id()
                await statements.fetch("anonymous_usage", org_id, user_id, anonymous)
                await statements.fetch("anonymous_days", org_id, workspace_id, user_id, anonymous)
                await statements.fetch("forget_importer", user_id)
                await statements.fetch("erase_outbox_of_user", org_id, user_id)
                await statements.fetch("erase_user", org_id, workspace_id, user_id)
            await statements.fetch("close_erasure", job.id)
            return True

        return await self._database.transact(work)

    async def finish_erasures(self, erasure_ids: Sequence[ErasureId]) -> None:
        await self._database.write("finish_erasures", sorted(erasure_ids))
        await self._database.write("drop_old_erasures", KEPT_MS)

    async def scrub(self, *, most_bytes: int | None = None) -> bool:
        return True


async def _lock_copies(statements: Statements, job: ErasureJob, file_ids: Sequence[FileId]) -> list[str]:
    """The bytes of these files, whose other files cannot be erased before the transaction ends."""
    if not file_ids:
        return []
    return sorted({sha256 for (sha256,) in await statements.fetch("lock_copies", job.org_id, sorted(file_ids))})


async def _hide_tables(statements: Statements, job: ErasureJob) -> None:
    """No request sees the user's tables from now on, and imports of the user end."""
    whose = (job.org_id, job.workspace_id, job.user_id)
    tables = await statements.fetch("hide_tables", *whose)
    await statements.fetch("abandon_imports_of", *whose)
    await statements.fetch("erase_batches_of_user", job.user_id)
    await _count(statements, job, tables=len(tables), table_rows=sum(rows for (rows,) in tables))


async def _erase_pages(statements: Statements, job: ErasureJob) -> int:
    pages = await statements.fetch("erase_pages", job.org_id, job.workspace_id, job.user_id, PAGES_AT_ONCE)
    await _count(statements, job, pages=len(pages))
    return len(pages)


async def _erase_table(statements: Statements, job: ErasureJob) -> int:
    """Some rows of a table of the user, which are counted already, or the table itself."""
    tables = await statements.fetch("hidden_table_of", job.org_id, job.workspace_id, job.user_id)
    for (table_id,) in tables:
        if len(await statements.fetch("erase_rows", table_id, 0, MAX_ROWS, ROWS_AT_ONCE)) < ROWS_AT_ONCE:
            await statements.fetch("erase_table", table_id)
    await _count(statements, job)
    return len(tables)


async def _erase_rows(statements: Statements, job: ErasureJob) -> int:
    [(rows,)] = await statements.fetch("erase_rows_of_user", job.org_id, job.user_id, ROWS_AT_ONCE)
    await _count(statements, job, table_rows=rows)
    return int(rows)


async def _erase_decisions(statements: Statements, job: ErasureJob, after: str) -> str | None:
    """Forget what the user decided about calls of others, in some turns after this one. The last of them; None if
    there are no more."""
    assert job.user_id is not None
    turns = await statements.fetch("turns_decided_by", job.workspace_id, job.user_id, after, DECISIONS_AT_ONCE)
    for turn_id, waiting in turns:
        for old, new in forgotten_words(to_wait(waiting), job.user_id):
            for name in ("replace_in_messages", "replace_in_events", "replace_in_old_events", "replace_in_wait"):
                await statements.fetch(name, [turn_id], old, new)
    await _count(statements, job)
    return turns[-1][0] if turns else None


async def _count(statements: Statements, job: ErasureJob, **more: int) -> None:
    """Count what this step has erased. The worker goes on with the job."""
    [(counts,)] = await statements.fetch("erased_counts", job.id)
    await statements.fetch("count_erased", job.id, json_text(counted(to_counts(counts), **more)), LEASE_MS)
