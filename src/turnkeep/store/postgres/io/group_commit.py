"""Group commit: writes that arrive while others are under way go out together, in one statement and one commit.

A lone write goes out at once; nothing ever waits for company. One group holds at most one write for each key (a
conversation, a turn), and a key is never in two groups at a time. A write that has begun ends even if its caller has
gone. If a group fails because of one of its writes, each is tried alone, so that only the guilty one fails.

Decision: docs/decisions/0103
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Generic, TypeVar

from msgspec import Struct

from turnkeep.errors import TurnkeepError, WorldError

Job = TypeVar("Job")
Answer = TypeVar("Answer")

LANES = 2
"""Groups in flight at once: while one is being committed the next is computed. More only makes groups smaller."""
GROUP_JOBS = 64
GROUP_BYTES = 8 * 1024 * 1024


class _Asked(Struct, Generic[Job, Answer], eq=False):
    key: str
    job: Job
    size: int
    future: "asyncio.Future[Answer]"


class Groups(Generic[Job, Answer]):
    """Collects jobs of one kind. `flush` writes many at once and answers each with its outcome or its own error."""

    def __init__(
        self, flush: Callable[[Sequence[Job]], Awaitable[Sequence[Answer | TurnkeepError]]], *, lanes: int = LANES
    ) -> None:
        self._flush = flush
        self._lanes = lanes
        self._pending: deque[_Asked[Job, Answer]] = deque()
        self._keys: set[str] = set()
        self._busy = 0
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, key: str, job: Job, *, size: int = 0) -> Answer:
        """The outcome of this job, once it is committed."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append(_Asked(key, job, size, future))
        if self._busy < self._lanes:
            self._busy += 1
            lane = asyncio.create_task(self._run_lane())
            self._running.add(lane)
            lane.add_done_callback(self._running.discard)
        return await future

    async def close(self) -> None:
        """Let what has begun, and what waits, end."""
        while self._running:
            await asyncio.wait(self._running)

    async def _run_lane(self) -> None:
        try:
            while group := self._take():
                try:
                    await self._write(group)
                finally:
                    self._keys.difference_update(asked.key for asked in group)
        finally:
            # Here and not when the task is seen to be done: a job that comes in between must find a lane.
            self._busy -= 1

    def _take(self) -> list[_Asked[Job, Answer]]:
        """The jobs that go out next: the oldest ones whose key is not under way. Without waiting jobs: none.

        No lane takes more than its share. Else all writers come to march in step: they wait while one large group is
        written, and then the database waits while they prepare the next.
        """
        group: list[_Asked[Job, Answer]] = []
        passed: list[_Asked[Job, Answer]] = []
        size = 0
        share = min(GROUP_JOBS, ceil((len(self._pending) + len(self._keys)) / self._lanes))
        while self._pending and len(group) < share and (size < GROUP_BYTES or not group):
            asked = self._pending.popleft()
            if asked.key in self._keys:
                passed.append(asked)
                continue
            self._keys.add(asked.key)
            group.append(asked)
            size += asked.size
        self._pending.extendleft(reversed(passed))
        return group

    async def _write(self, group: list[_Asked[Job, Answer]]) -> None:
        try:
            answers = await self._flush([asked.job for asked in group])
        except (WorldError, asyncio.CancelledError) as exc:
            _fail(group, exc)
        except Exception as exc:
            if len(group) == 1:
                _fail(group, exc)
            else:
                for asked in group:
                    await self._write([asked])
        else:
            for asked, answer in zip(group, answers, strict=True):
                if isinstance(answer, TurnkeepError):
                    _fail([asked], answer)
                elif not asked.future.done():
                    asked.future.set_result(answer)


def _fail(group: Sequence[_Asked[Job, Answer]], exc: BaseException) -> None:
    for asked in group:
        if not asked.future.done():
            asked.future.set_exception(exc)
