"""Readers: threads that read, each with a connection of its own, opened when the first read comes.

A read never waits for the writer. No cursor outlives its job, so that no reader holds back a checkpoint.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

from turnkeep.errors import Unavailable
from turnkeep.store.sqlite.jobs import Asked, Job, answer
from turnkeep.store.sqlite.session import Session

T = TypeVar("T")


class Lane(Protocol):
    """A place where jobs run."""

    def ask(self, job: Job[T]) -> "asyncio.Future[T]": ...

    async def close(self) -> None: ...


class Readers:
    """`count` threads at most; another one starts only while all of them are busy."""

    def __init__(self, name: str, count: int, open_session: Callable[[], Session]) -> None:
        self._name = name
        self._count = count
        self._open_session = open_session
        self._queue: SimpleQueue[Asked | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def ask(self, job: Job[T]) -> "asyncio.Future[T]":
        """Hand a job over; the future tells its result."""
        if self._is_closed:
            raise Unavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(Asked(job, future))
        if len(self._threads) < self._count and (not self._threads or self._queue.qsize() > 1):
            self._start()
        return future

    async def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"turnkeep-{self._name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        session: Session | None = None
        while (asked := self._queue.get()) is not None:
            try:
                session = session or self._open_session()
                asked.result = asked.job(session)
            except Exception as exc:
                asked.error = exc
            answer([asked])
        if session is not None:
            session.connection.close()
