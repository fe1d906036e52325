"""The threads of a SQLite store: one that writes, with group commit, some that read, and one for checkpoints.

The writer runs all jobs that wait in one transaction. With many callers it waits a moment for more of them. A caller
gets the result of its job only after COMMIT has returned, which is one flush of the disk for all of them. A job looks
first and writes then, so one that is refused has changed nothing, and the others go on. If one fails after it has
written, the transaction is rolled back and each job runs again in a transaction of its own. A savepoint for each job
would cost every job a copy of each page that it changes. Once handed over, a job is done even if its caller has been
cancelled.

A read never waits for the writer. No cursor outlives its job, so that no reader holds back a checkpoint.

A checkpoint moves what the log holds into the database file, beside the writes and not inside them. Whenever the log
has grown by a thousand pages, a thread with a connection of its own moves them. Writes go on meanwhile, so a few pages
are left over; the writer moves those between two commits, and the log starts again. That keeps it short, and commits
that overwrite it are quicker than commits that make it longer.

Decision: docs/decisions/0103
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import sleep
from typing import Any, Protocol, TypeVar

import apsw
from msgspec import Struct

from turnkeep.errors import Unavailable
from turnkeep.model.principals import Principal
from turnkeep.store.sqlite.io.session import BUSY_SECONDS, Session, translated

T = TypeVar("T")
Job = Callable[[Session], T]

GROUP_LIMIT = 64
"""More jobs than this do not share a transaction, so that the first of them need not wait for ever."""

GATHER_SECONDS = 0.0001
"""How long the writer waits for more jobs while there are many callers. Without this pause it begins with the first of
several that the event loop is about to hand over, and both threads take the interpreter from each other: an eighth of
the processor time of a turn. A caller that is alone does not wait."""


class Executor(Protocol):
    """Runs jobs on threads of its own."""

    def ask(self, job: Job[T]) -> "asyncio.Future[T]": ...

    async def close(self) -> None: ...


class PendingJob(Struct, eq=False):
    """A job, the caller's future, and the outcome."""

    job: Job[Any]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None
    is_bare: bool = False
    """It runs outside of a transaction."""


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
        self._queue: SimpleQueue[PendingJob | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="turnkeep-writer", daemon=True)
        self._thread.start()

    def ask(self, job: Job[T]) -> "asyncio.Future[T]":
        """Hand a job over; the future tells its result once it is committed."""
        if self._is_closed:
            raise Unavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(PendingJob(job, future))
        return future

    def ask_bare(self, job: Job[T]) -> "asyncio.Future[T]":
        """The same for a job that cannot run in a transaction. No other write runs meanwhile."""
        if self._is_closed:
            raise Unavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(PendingJob(job, future, is_bare=True))
        return future

    async def close(self) -> None:
        """Finish what was handed over, then stop."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        queue = self._queue
        held: list[PendingJob | None] = []
        has_many_callers = False
        while (asked := held.pop() if held else queue.get()) is not None:
            if has_many_callers and not asked.is_bare:
                sleep(GATHER_SECONDS)
            group = [asked]
            # A bare job may take long, and no other caller waits for it with an answer that is known already.
            while not asked.is_bare and len(group) < GROUP_LIMIT and not queue.empty():
                following = queue.get()
                if following is None or following.is_bare:
                    held.append(following)
                    break
                group.append(following)
            has_many_callers = len(group) > 1
            self._run(group)
            answer(group)
            self._after_commit()

    def _run(self, group: list[PendingJob]) -> None:
        self.statistics.jobs += len(group)
        self.statistics.largest_group = max(self.statistics.largest_group, len(group))
        if group[0].is_bare:
            self._run_bare(group[0])
        elif len(group) == 1 or not self._run_together(group):
            for asked in group:
                self._run_alone(asked)

    def _run_bare(self, asked: PendingJob) -> None:
        try:
            asked.result = asked.job(self._session)
        except Exception as exc:
            asked.error = exc

    def _run_alone(self, asked: PendingJob) -> None:
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

    def _run_together(self, group: Sequence[PendingJob]) -> bool:
        """Run them in one transaction. False if it was lost as a whole, so that each must be run again alone."""
        try:
            self._execute("BEGIN IMMEDIATE")
            if all(self._leaves_transaction(asked) for asked in group):
                self._execute("COMMIT")
                self.statistics.commits += 1
                return True
        except Exception:  # the commit failed; each job will say what is wrong
            pass
        self._roll_back()
        self.statistics.groups_abandoned += 1
        return False

    def _leaves_transaction(self, asked: PendingJob) -> bool:
        """Run the job. False if it has failed and the transaction is spoilt: it has changed something before, or SQLite
        has ended the transaction by itself (a full disk does that)."""
        changes = self._connection.total_changes()
        try:
            self._session.now = self._session.clock()
            asked.result = asked.job(self._session)
        except Exception as exc:
            asked.error = exc
            return self._connection.in_transaction and self._connection.total_changes() == changes
        return True

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            # An error here means that SQLite was quicker and has rolled back by itself.
            with suppress(apsw.Error):
                self._execute("ROLLBACK")


class Readers:
    """`count` threads at most; another one starts only while all of them are busy."""

    def __init__(self, name: str, count: int, open_session: Callable[[], Session]) -> None:
        self._name = name
        self._count = count
        self._open_session = open_session
        self._queue: SimpleQueue[PendingJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def ask(self, job: Job[T]) -> "asyncio.Future[T]":
        """Hand a job over; the future tells its result."""
        if self._is_closed:
            raise Unavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(PendingJob(job, future))
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


class StoreThreads:
    """Where the work of a verb runs: on the writer, on a reader, or (for a principal) on one behind the boundary.

    The classes with the verbs inherit from this one.
    """

    def __init__(self, writer: Writer, engine: Executor, client: Executor) -> None:
        self._writer = writer
        self._engine = engine
        self._client = client

    def _write(self, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it in a transaction; done means committed and flushed."""
        return self._writer.ask(lambda session: job(session, *values))

    def _read(self, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it on the engine's path, which sees everything."""
        return self._engine.ask(lambda session: job(session, *values))

    def _see(self, principal: Principal, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it on the client path, as this principal."""
        return self._client.ask(as_principal(principal, job, *values))


def as_principal(principal: Principal, job: Callable[..., T], *values: Any) -> Job[T]:
    """The job as that principal. The principal is unset again after it."""

    def seen(session: Session) -> T:
        current = session.current_principal
        current.set(principal)
        try:
            return job(session, *values)
        finally:
            current.unset()

    return seen


def answer(asked: Sequence[PendingJob]) -> None:
    """Tell the callers, with one call for each event loop among them."""
    waiting: dict[asyncio.AbstractEventLoop, list[PendingJob]] = {}
    for each in asked:
        waiting.setdefault(each.future.get_loop(), []).append(each)
    for loop, those in waiting.items():
        try:
            loop.call_soon_threadsafe(_resolve, those)
        except RuntimeError:  # the loop was closed, and its callers with it
            continue


def _resolve(asked: Sequence[PendingJob]) -> None:
    for each in asked:
        if each.future.done():  # its caller was cancelled
            continue
        if each.error is None:
            each.future.set_result(each.result)
        else:
            each.future.set_exception(ours(each.error))


def ours(exc: Exception) -> Exception:
    """Our error, with what SQLite said as its cause."""
    ours = translated(exc)
    if ours is not exc:
        ours.__cause__ = exc
    return ours


BESIDE_PAGES = 1_000
"""Four megabytes: SQLite's own default."""
LOG_BYTES = 64 * 1024 * 1024
"""A log that was longer is cut to this size when it starts again."""


class Checkpoints:
    """Watches the log of one writing connection. Without a path there is no second connection, only the writer."""

    def __init__(self, connection: apsw.Connection, path: str | None) -> None:
        self._connection = connection
        self._path = path
        self._pages = 0
        self._next = BESIDE_PAGES
        self._is_closed = False
        self._wanted = threading.Event()
        self._moved = threading.Event()
        self._thread: threading.Thread | None = None
        connection.pragma("journal_size_limit", LOG_BYTES)
        connection.set_wal_hook(self._committed)

    def after_commit(self) -> None:
        """Called by the writer's thread when its callers have been answered."""
        if self._moved.is_set():
            self._moved.clear()
            _move(self._connection)
        elif self._pages >= self._next:
            self._next = self._pages + BESIDE_PAGES
            if self._path is None:
                _move(self._connection)
                return
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="turnkeep-checkpoint", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread. SQLite moves the rest when the last connection closes."""
        self._is_closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:  # the log started again
            self._next = BESIDE_PAGES
        self._pages = pages
        return apsw.SQLITE_OK

    def _work(self) -> None:
        assert self._path is not None
        connection = apsw.Connection(self._path)
        connection.set_busy_timeout(BUSY_SECONDS * 1000)
        connection.pragma("synchronous", "FULL")
        try:
            while self._wanted.wait() and not self._is_closed:
                self._wanted.clear()
                _move(connection)
                self._moved.set()
        finally:
            connection.close()


def _move(connection: apsw.Connection) -> None:
    """Move what can be moved without waiting. What could not be moved now is moved the next time."""
    with suppress(apsw.Error):
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
