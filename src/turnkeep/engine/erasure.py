"""Erasure: a user, or one conversation, is taken out of the store, the bucket and the caches, for good.

An erasure is a job in the store. The worker that was asked begins it, and the sweeper of any worker continues it after
a crash: every step may be repeated. The order is: hide and stop, erase bytes, erase rows, look whether anything is
left, forget, scrub. Bytes go before their rows, so that a crash in between leaves the rows that name them.

Caches of this worker are emptied at once. Other workers notice the erasure with their next sweep, so a job that must be
certain of them waits for two sweeps.

A try that fails is repeated after a pause, which grows up to an hour. The job says why it waits, for `turnkeep doctor`.

Decision: docs/decisions/0108
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from turnkeep.engine.services import Services
from turnkeep.errors import NotFound, WorldError
from turnkeep.ids import ConversationId, ErasureId, TurnId, UserId
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ErasureJob

LEASE_SECONDS = 15.0
"""If the worker dies, another one goes on after this time. Two at once do no harm."""
HIDDEN_AT_ONCE = 100
ERASED_AT_ONCE = 20
STOP_SECONDS = 30.0
"""How long one round waits for a turn to end. A later round waits again."""
PASSES = 20
RETRY_SECONDS = 10.0
"""The pause after the first try that failed. It doubles with each one, up to …"""
LONGEST_PAUSE_SECONDS = 3600.0
SCRUBBED_AT_ONCE_BYTES = 128 * 1024 * 1024
"""A SQLite file up to this size is scrubbed before the request for one conversation is answered: about two seconds."""
SCRUB_LATER_SECONDS = 300.0
"""A larger one is scrubbed after this time, so that many erasures share one scrub."""

Item = TypeVar("Item")


class Eraser:
    """Runs erasures for one worker."""

    def __init__(
        self,
        services: Services,
        *,
        stop_turn: Callable[[TurnId], Awaitable[object]],
        forget: Callable[[], Awaitable[None]],
        forget_seconds: float,
    ) -> None:
        """`stop_turn` ends a turn wherever it runs; `forget` drops from this worker's caches what is not in the store.
        After `forget_seconds` all other workers have done so too."""
        self._store = services.store
        self._hub = services.hub
        self._files = services.file_cleanup
        self._observer = services.observer
        self._stop_turn = stop_turn
        self._forget = forget
        self._forget_seconds = forget_seconds
        self._running: set[asyncio.Task[None]] = set()
        self._held: set[ErasureId] = set()
        """The jobs of the running tasks."""
        self._scrubbing = asyncio.Lock()
        self._asked = 0
        self._scrubbed = 0

    async def erase_user(self, principal: Principal, user_id: UserId) -> ErasureJob:
        """Begin to erase a user of the principal's workspace, and return at once. The user is disabled by then."""
        job = await self._store.begin_erasure(principal, user_id=user_id, lease_seconds=LEASE_SECONDS)
        self._observer.erasure_reached("erasure_begun", job.id)
        if job.id not in self._held:
            self._start([job])
        return job

    async def erase_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        """Erase a conversation of the principal, deleted or not. Returns when it is gone.

        If that fails in the middle, the sweeper of any worker goes on with it.
        """
        job = await self._store.begin_erasure(principal, conversation_id=conversation_id, lease_seconds=LEASE_SECONDS)
        try:
            await self._erase(job)
            is_scrubbed = await self._is_scrubbed(most_bytes=SCRUBBED_AT_ONCE_BYTES)
        except WorldError as exc:
            await self._put_off(job, exc)
            raise
        if is_scrubbed:
            await self._store.finish_erasures([job.id])
        else:
            await self._store.postpone_erasure(job.id, seconds=SCRUB_LATER_SECONDS)

    async def continue_open(self) -> None:
        """Go on with erasures that no worker holds, in a task of their own."""
        if self._running:
            return
        jobs = await self._store.take_erasures(lease_seconds=LEASE_SECONDS)
        if jobs:
            self._start(jobs)

    async def close(self) -> None:
        """Stop. What is not finished is continued by another worker, or after the next start."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, jobs: Sequence[ErasureJob]) -> None:
        held = {job.id for job in jobs}
        self._held |= held
        task = asyncio.create_task(self._run(jobs), name="erase")
        self._running.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            self._held -= held

        task.add_done_callback(end)

    async def _run(self, jobs: Sequence[ErasureJob]) -> None:
        """Erase, and scrub once for all that are erased. What fails is tried again later."""
        erased: list[ErasureJob] = []
        for job in jobs:
            try:
                if job.erased_at is None:
                    await self._erase(job)
                erased.append(job)
            except Exception as exc:
                await self._put_off(job, exc)
        if not erased:
            return
        try:
            await asyncio.sleep(self._forget_seconds)
            await self._is_scrubbed()
            self._observer.erasure_reached("scrubbed", erased[-1].id)
            await self._store.finish_erasures([job.id for job in erased])
        except Exception as exc:
            for job in erased:
                await self._put_off(job, exc)

    async def _put_off(self, job: ErasureJob, reason: Exception) -> None:
        """Let a sweeper try again later. The reason is reported once, and again when it is another one."""
        if isinstance(reason, WorldError):
            problem = reason.detail
            if problem != job.problem:
                self._observer.erasure_delayed(job.id, problem)
        else:
            problem = f"It failed unexpectedly ({type(reason).__name__}). The server's log has the details."
            self._observer.defect(None, reason)
        seconds = min(RETRY_SECONDS * 2 ** min(job.failures, 10), LONGEST_PAUSE_SECONDS)
        with suppress(WorldError):  # the database is away; the lease ends, and a sweeper goes on
            await self._store.postpone_erasure(job.id, seconds=seconds, problem=problem)

    async def _erase(self, job: ErasureJob) -> None:
        """Everything up to `erased_at`. Raises WorldError if something outside is away, or a turn does not end."""
        for _ in range(PASSES):
            await self._erase_conversations(job)
            await self._erase_files(job, ())
            await self._store.erase_knowledge(job)
            await self._store.erase_decisions(job)
            if await self._store.close_erasure(job):
                self._observer.erasure_reached("closed", job.id)
                await self._forget()
                return
        raise WorldError("A turn that must end before the erasure does not end. The erasure goes on later.")

    async def _erase_conversations(self, job: ErasureJob) -> None:
        """Erase all of them, but for those whose turns do not end."""
        left: list[ConversationId] = []
        while (found := await self._store.conversations_to_erase(job)) and found != left:
            await self._erase_these(job, found)
            left = found

    async def _erase_these(self, job: ErasureJob, found: Sequence[ConversationId]) -> None:
        running: list[TurnId] = []
        for some in _parts(found, HIDDEN_AT_ONCE):
            hidden = await self._store.hide_conversations(some)
            running += hidden.running
            for turn_id, last in hidden.ended:
                self._hub.publish(turn_id, [last])
        for turn_id in running:
            await self._stop(turn_id)
        self._observer.erasure_reached("hidden", job.id)
        for some in _parts(found, ERASED_AT_ONCE):
            if self._files is not None:
                await self._files.erase(job.workspace_id, some, [])
            await self._erase_files(job, some)
            # An upload that was under way when the conversation was hidden may have added a file since.
            async for left in self._store.erase_conversations(job, some):
                if self._files is not None and left:
                    await self._files.delete(left)
            self._observer.erasure_reached("rows_erased", job.id)

    async def _erase_files(self, job: ErasureJob, conversation_ids: Sequence[ConversationId]) -> None:
        while files := await self._store.files_to_erase(job, conversation_ids):
            if self._files is not None:
                await self._files.erase(job.workspace_id, (), files)
            self._observer.erasure_reached("bytes_erased", job.id)
            await self._store.erase_files(job, [file_id for file_id, _ in files])

    async def _stop(self, turn_id: TurnId) -> None:
        with suppress(NotFound, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._stop_turn(turn_id)

    async def _is_scrubbed(self, *, most_bytes: int | None = None) -> bool:
        """Whether the database was scrubbed after this was called. Callers at the same time share one scrub."""
        self._asked += 1
        mine = self._asked
        async with self._scrubbing:
            if self._scrubbed < mine:
                covers = self._asked
                if not await self._store.scrub(most_bytes=most_bytes):
                    return False
                self._scrubbed = covers
        return True


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
