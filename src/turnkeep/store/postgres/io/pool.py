"""Connections: a pool that replaces broken connections, and one rule for what is tried again.

A connection carries no state of its own from one call to the next (identities live inside one call, see
`functions/60_client.sql`), so it goes back to the pool as it is, without a round trip to reset it. One that broke is
dropped, and the call is repeated on another until the deadline. Verbs are made so that a repeat is safe: a write whose
commit happened and whose answer was lost is recognised by the database.

Decision: docs/decisions/0104
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import asyncpg

from turnkeep.errors import TurnkeepError, Unavailable
from turnkeep.store.postgres.io.errors import is_overtaken, is_retried, translated

T = TypeVar("T")
Rows = list[Any]
Isolation = Literal["read_committed", "repeatable_read"]

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
QUEUE_SECONDS = 60.0
"""How long a caller waits for a connection at most, while others get theirs."""
OVERTAKEN_LIMIT = 20
"""How often a write may lose a race against another writer. More often is a bug, and is reported as one."""

_PERHAPS_WRITTEN = (
    "If it was to write something, that may have happened or not: look before you send it again, "
    "or send it with the Idempotency-Key that it had."
)


class Connection:
    """One connection with its prepared statements."""

    def __init__(self, raw: "asyncpg.Connection[asyncpg.Record]", *, prepared: bool) -> None:
        self.raw = raw
        self._prepared = prepared
        self._statements: dict[str, Any] = {}

    async def fetch(self, query: str, *values: Any) -> Rows:
        """Rows of one statement, in a transaction of its own unless one is open."""
        if self._prepared:
            statement = self._statements.get(query)
            if statement is None:
                statement = self._statements[query] = await self.raw.prepare(query)
            rows: Rows = await statement.fetch(*values)
            return rows
        if self.raw.is_in_transaction():
            return await self.raw.fetch(query, *values)
        # Without named statements asyncpg parses and runs in two steps; a transaction keeps a pooler such as PgBouncer
        # from giving them to two servers.
        async with self.raw.transaction():
            return await self.raw.fetch(query, *values)

    async def fetch_once(self, query: str, *values: Any) -> Rows:
        """The same for a text that is made for the occasion: it is not kept prepared for good."""
        if self._prepared:
            return await self.raw.fetch(query, *values)
        return await self.fetch(query, *values)

    @asynccontextmanager
    async def transaction(self, isolation: Isolation = "read_committed") -> AsyncIterator["Connection"]:
        async with self.raw.transaction(isolation=isolation):
            yield self


class Pool:
    """At most `size` connections to one address, opened when needed.

    Callers that find none free wait in a queue, the first first. A long queue is not a database that is away: a caller
    gives up when no connection has come back for `retry_seconds`, or after `QUEUE_SECONDS`.
    """

    def __init__(self, url: str, *, size: int, prepared: bool, retry_seconds: float, **options: Any) -> None:
        self._url = url
        self._size = size
        self._prepared = prepared
        self._retry_seconds = retry_seconds
        self._options = options
        self._idle: list[Connection] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._moved_at = 0.0
        """When a connection last came back from a call that the database answered."""
        self._is_closed = False

    async def fetch(self, query: str, *values: Any) -> Rows:
        """Rows of one statement. Repeated until the deadline while the database is away."""
        if self._idle and not self._is_closed:  # the usual case, without the bookkeeping of repeats
            connection = self._idle.pop()
            try:
                rows = await connection.fetch(query, *values)
            except Exception as exc:
                self._drop_or_release(connection, exc)
                if not is_retried(exc):
                    raise _ours(exc) from exc
            except BaseException:
                self._drop(connection)
                raise
            else:
                self._release(connection)
                return rows

        async def work(connection: Connection, _: bool) -> Rows:
            return await connection.fetch(query, *values)

        return await self.run(work)

    async def run(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        """What `work` returns. `work` gets a flag that says whether an earlier try may have been committed.

        Raises our own errors only; Unavailable once the deadline has passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_seconds
        pause = FIRST_PAUSE_SECONDS
        is_repeat = False
        overtaken = 0
        while True:
            connection: Connection | None = None
            try:
                connection, waited = await self._acquire(deadline)
                deadline += waited  # the time in the queue is not the database's
                answer = await work(connection, is_repeat)
            except Exception as exc:
                self._drop_or_release(connection, exc)
                overtaken += is_overtaken(exc)
                if not is_retried(exc) or overtaken > OVERTAKEN_LIMIT:
                    raise _ours(exc) from exc
                if loop.time() + pause > deadline:
                    raise Unavailable(
                        f"The database did not answer within {self._retry_seconds:g} s. {_PERHAPS_WRITTEN}"
                    ) from exc
                is_repeat = is_repeat or connection is not None
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            except BaseException:
                # Cancelled in the middle of a command: the state of the connection is unknown.
                self._drop(connection)
                raise
            else:
                self._release(connection)
                return answer

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._is_closed = True
        for waiter in self._waiting:
            waiter.cancel()
        idle, self._idle = self._idle, []
        for connection in idle:
            self._open -= 1
            try:
                await connection.raw.close(timeout=CONNECT_SECONDS)
            except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                connection.raw.terminate()

    async def _acquire(self, deadline: float) -> tuple[Connection, float]:
        """A connection, and how many seconds the caller waited in the queue for it."""
        now = asyncio.get_running_loop().time
        began = now()
        waited = 0.0
        while True:
            if self._is_closed:
                raise Unavailable("The store is closed.")
            while self._idle:
                connection = self._idle.pop()
                if not connection.raw.is_closed():
                    return connection, waited
                self._open -= 1
            if self._open < self._size:
                return await self._connect(), waited
            waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                handed = await self._handed(waiter, deadline, began + QUEUE_SECONDS)
            except BaseException:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not waiter.cancelled() and waiter.done() and (late := waiter.result()) is not None:
                    self._release(late)  # it came in the moment in which we gave up
                raise
            waited = now() - began
            if handed is not None:
                return handed, waited

    async def _handed(
        self, waiter: "asyncio.Future[Connection | None]", deadline: float, latest: float
    ) -> Connection | None:
        """What the waiter is handed. Raises TimeoutError at `latest`, or at the deadline if the queue stands still."""
        now = asyncio.get_running_loop().time
        while not waiter.done():
            seconds = min(max(deadline, self._moved_at + self._retry_seconds), latest) - now()
            if seconds <= 0:
                raise TimeoutError
            await asyncio.wait([waiter], timeout=seconds)
        return waiter.result()

    async def _connect(self) -> Connection:
        self._open += 1
        try:
            raw = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                statement_cache_size=100 if self._prepared else 0,
                **self._options,
            )
        except BaseException:
            self._drop_place()
            raise
        return Connection(raw, prepared=self._prepared)

    def _release(self, connection: Connection) -> None:
        if self._is_closed or connection.raw.is_closed():
            self._drop(connection)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._moved_at = asyncio.get_running_loop().time()
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def _drop_or_release(self, connection: Connection | None, exc: Exception) -> None:
        """A refusal, by the server or by a rule, leaves the connection as good as before; anything else does not."""
        if connection is None:
            return
        is_refusal = isinstance(exc, TurnkeepError | asyncpg.PostgresError) and not isinstance(
            exc, asyncpg.InvalidCachedStatementError
        )
        if is_refusal and not connection.raw.is_in_transaction():
            self._release(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.raw.terminate()
            self._drop_place()

    def _drop_place(self) -> None:
        """The pool may open one more connection; a waiting caller opens it."""
        self._open -= 1
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def _ours(exc: Exception) -> Exception:
    return exc if isinstance(exc, TurnkeepError) else translated(exc)
