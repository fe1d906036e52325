"""Erasures on PostgreSQL: jobs and their steps."""

from collections.abc import Sequence

from turnkeep.ids import ConversationId, ErasureId, FileId, TurnId, UserId, check_id, new_erasure_id, new_user_id
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ErasureJob
from turnkeep.store.postgres.conversations import PURGED
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.leases import cancel_waiting
from turnkeep.store.rows import json_text, to_counts, to_erasure
from turnkeep.store.rules.conversations import no_conversation
from turnkeep.store.rules.directory import no_user
from turnkeep.store.rules.erasures import KEPT_MS, LEASE_MS, counted, erased_thing, no_erasure, size_counts
from turnkeep_client.wire.account import ErasedCounts


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

    async def postpone_erasure(self, erasure_id: ErasureId, *, seconds: float) -> None:
        await self._database.write("postpone_erasure", erasure_id, int(seconds * 1000))

    async def conversations_to_erase(self, job: ErasureJob, *, limit: int = 1_000) -> list[ConversationId]:
        return [row[0] for row in await self._database.read("conversations_to_erase", *_of(job), limit)]

    async def hide_conversations(self, conversation_ids: Sequence[ConversationId]) -> list[TurnId]:
        ids = list(conversation_ids)

        async def work(statements: Statements) -> list[TurnId]:
            now = (await statements.fetch("now"))[0][0]
            running = [turn_id for (turn_id,) in await statements.fetch("hide_conversations", ids, now)]
            waiting = [turn_id for (turn_id,) in await statements.fetch("waiting_turns_of", ids)]
            await cancel_waiting(statements, waiting, now)
            return running

        return await self._database.transact(work)

    async def files_to_erase(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId] = (), *, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        rows = await self._database.read("files_to_erase", list(conversation_ids), job.user_id, limit)
        return [(file_id, key) for file_id, key in rows]

    async def erase_files(self, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
        async def work(statements: Statements) -> None:
            erased = await statements.fetch("erase_files", sorted(file_ids))
            await _count(statements, job, files=len(erased), bytes=sum(size for _, size in erased))

        await self._database.transact(work)

    async def erase_conversations(self, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> list[str]:
        async def work(statements: Statements) -> list[str]:
            locked = [id_ for (id_,) in await statements.fetch("lock_erasable", sorted(conversation_ids))]
            [size] = await statements.fetch("size_of_conversations", locked)
            keys = [key for _, key in await statements.fetch("files_to_erase", locked, None, 2**31 - 1)]
            for name in PURGED:
                await statements.fetch(name, locked)
            await _count(statements, job, **size_counts(len(locked), size))
            return keys

        return await self._database.transact(work)

    async def erase_knowledge(self, job: ErasureJob) -> None:
        if job.user_id is None:
            return
        whose = (job.org_id, job.workspace_id, job.user_id)

        async def work(statements: Statements) -> None:
            pages = await statements.fetch("erase_pages", *whose)
            tables = await statements.fetch("hide_tables", *whose)
            await statements.fetch("abandon_imports_of", *whose)
            [(rows,)] = await statements.fetch("erase_rows_of_user", job.org_id, job.user_id)
            rows += sum(count for (count,) in tables)
            await _count(statements, job, pages=len(pages), tables=len(tables), table_rows=rows)

        await self._database.transact(work)

    async def close_erasure(self, job: ErasureJob) -> bool:
        org_id, workspace_id, user_id, _ = _of(job)

        async def work(statements: Statements) -> bool:
            if user_id is not None:
                await statements.fetch("lock_counters_of_user", org_id, user_id)
            [(is_left,)] = await statements.fetch("left_to_erase", *_of(job))
            if not is_left:
                if user_id is not None:
                    anonymous = new_user_id()
                    await statements.fetch("anonymous_usage", org_id, user_id, anonymous)
                    await statements.fetch("anonymous_days", org_id, workspace_id, user_id, anonymous)
                    await statements.fetch("forget_importer", user_id)
                    await statements.fetch("erase_outbox_of_user", org_id, user_id)
                    await statements.fetch("erase_user", org_id, workspace_id, user_id)
                await statements.fetch("close_erasure", job.id)
            return not is_left

        return await self._database.transact(work)

    async def finish_erasures(self, erasure_ids: Sequence[ErasureId]) -> None:
        await self._database.write("finish_erasures", sorted(erasure_ids))
        await self._database.write("drop_old_erasures", KEPT_MS)

    async def scrub(self, *, most_bytes: int | None = None) -> bool:
        return True


def _of(job: ErasureJob) -> tuple[str, str, str | None, str | None]:
    return job.org_id, job.workspace_id, job.user_id, job.conversation_id


async def _count(statements: Statements, job: ErasureJob, **more: int) -> None:
    [(counts,)] = await statements.fetch("erased_counts", job.id)
    await statements.fetch("count_erased", job.id, json_text(counted(to_counts(counts), **more)), LEASE_MS)
