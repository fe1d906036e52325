"""The writer: one thread that writes, with group commit.

All jobs that wait are run in one transaction, each in a savepoint of its own; a caller hears of its job only after
COMMIT has returned, which is one flush of the disk for all of them. A job that fails takes only its own changes with
it. Once handed over, a job is done whether or not its caller still waits.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

import apsw
from msgspec import Struct

from turnkeep.errors import Unavailable
from turnkeep.store.sqlite.jobs import Asked, Job, answer
from turnkeep.store.sqlite.session import Session

T = TypeVar("T")

GROUP_LIMIT = 64
"""More jobs than this do not share a transaction, so that the first of them need not wait for ever."""


class Statistics(Struct):
    """What the writer has done since it started."""

    jobs: int = 0
    commits: int = 0
    largest_group: int = 0
    groups_abandoned: int = 0


class Writer:
    """Runs jobs on its own thread. `after_commit` is called there when callers have been answered."""

    def __init__(self, session: Session, after_commit: Callable[[], None]) -> None:
        self.statistics = Statistics()
        self._session = session
        self._connection = session.connection
        self._execute = session.connection.execute
        self._after_commit = after_commit
        self._queue: SimpleQueue[Asked | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="turnkeep-writer", daemon=True)
        self._thread.start()

    def ask(self, job: Job[T]) -> "asyncio.Future[T]":
        """Hand a job over; the future tells its result once it is committed."""
        if self._is_closed:
            raise Unavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(Asked(job, future))
        return future

    async def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        queue = self._queue
        while (asked := queue.get()) is not None:
            group = [asked]
            is_last = False
            while len(group) < GROUP_LIMIT and not queue.empty():
                following = queue.get()
                if following is None:
                    is_last = True
                    break
                group.append(following)
            self._run(group)
            answer(group)
            self._after_commit()
            if is_last:
                break

    def _run(self, group: list[Asked]) -> None:
        self.statistics.jobs += len(group)
        self.statistics.largest_group = max(self.statistics.largest_group, len(group))
        if len(group) > 1 and self._run_together(group):
            return
        for asked in group:
            self._run_alone(asked)

    def _run_alone(self, asked: Asked) -> None:
        asked.error = None
        try:
            self._session.now = self._session.clock()
            self._execute("BEGIN IMMEDIATE")
            asked.result = asked.job(self._session)
            self._execute("COMMIT")
            self.statistics.commits += 1
        except Exception as exc:
            asked.error = exc
            self._roll_back()

    def _run_together(self, group: Sequence[Asked]) -> bool:
        """Run them in one transaction. False if it was lost as a whole, so that each must be run again alone.

        SQLite may end a transaction by itself (a full disk does), and then a savepoint protects nobody.
        """
        try:
            self._execute("BEGIN IMMEDIATE")
            for asked in group:
                if not self._run_in_savepoint(asked):
                    self.statistics.groups_abandoned += 1
                    return False
            self._execute("COMMIT")
        except Exception:
            self._roll_back()
            self.statistics.groups_abandoned += 1
            return False
        self.statistics.commits += 1
        return True

    def _run_in_savepoint(self, asked: Asked) -> bool:
        """False if the whole transaction is gone."""
        self._execute("SAVEPOINT job")
        try:
            self._session.now = self._session.clock()
            asked.result = asked.job(self._session)
        except Exception as exc:
            if not self._connection.in_transaction:
                return False
            asked.error = exc
            self._execute("ROLLBACK TO job")
        self._execute("RELEASE job")
        return True

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            # An error here means that SQLite was quicker and has rolled back by itself.
            with suppress(apsw.Error):
                self._execute("ROLLBACK")
