"""Connections: a pool that replaces broken connections, and one rule for what is tried again.

A connection carries no state of its own from one call to the next (identities live inside one call, see
`functions/60_client.sql`), so it goes back to the pool as it is, without a round trip to reset it. One that broke is
dropped, and the call is repeated on another until the deadline. Verbs are made so that a repeat is safe: a write whose
commit happened and whose answer was lost is recognised by the database.

A connection that is silent, or whose server takes no writes any more, tells something about the others: they go to the
same host. So all idle connections are dropped with it, and the repeat connects anew. But if the host has answered
others meanwhile, only the statement is slow, and only its connection is dropped.

Decision: docs/decisions/0104
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

import asyncpg
from msgspec import Struct

from turnkeep.errors import TurnkeepError, Unavailable
from turnkeep.store.commands import ConnectionUse
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.errors import is_of_whole_host, is_overtaken, is_read_only, is_retried, translated
from turnkeep.store.queries import is_slow

T = TypeVar("T")
Rows = list[Any]
Isolation = Literal["read_committed", "repeatable_read"]

SLOW_SECONDS = 60.0
"""The time limit of a statement that may read or write very much."""
CLOSE_SECONDS = 3.0
IDLE_SECONDS = 60.0
"""A connection that was not used for this long is closed, unless it is the last one."""
TRANSACTION_SECONDS = 10
"""The database ends a transaction whose client has been silent for this long. Its locks would keep others waiting."""
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
QUEUE_SECONDS = 60.0
"""How long a caller waits for a connection at most, while others get theirs."""
LAST_LOOKS = 3
LOOK_SECONDS = 0.1
"""How often, and how far apart, the event loop looks for answers before a caller in the queue gives up."""
OVERTAKEN_LIMIT = 20
"""How often a write may lose a race against another writer. More often is a bug, and is reported as one."""

_NOTHING = "SELECT 1"
_PERHAPS_WRITTEN = (
    "If it was to write something, that may have happened or not: look before you send it again, "
    "or send it with the Idempotency-Key that it had."
)


class PoolSettings(Struct, frozen=True, kw_only=True):
    """How the connections of a pool are used."""

    size: int
    """Maximum number of connections."""
    prepared: bool
    """Whether statements stay prepared."""
    retry_seconds: float
    """How long a call is repeated while the database is away."""
    command_seconds: float
    """How long one statement may take. Those that are marked as slow may take longer."""


class Connection:
    """One connection with its prepared statements."""

    def __init__(self, raw: "asyncpg.Connection[asyncpg.Record]", *, prepared: bool) -> None:
        self.raw = raw
        self.idle_since = 0.0
        self._prepared = prepared
        self._statements: dict[str, tuple[Any, float | None]] = {}

    async def fetch(self, query: str, *values: Any) -> Rows:
        """Rows of one statement, in a transaction of its own unless one is open."""
        if self._prepared:
            known = self._statements.get(query)
            if known is None:
                known = self._statements[query] = (await self.raw.prepare(query), _limit_of(query))
            statement, seconds = known
            rows: Rows = await statement.fetch(*values, timeout=seconds)
            return rows
        if self.raw.is_in_transaction():
            return await self.raw.fetch(query, *values, timeout=_limit_of(query))
        # Without named statements asyncpg parses and runs in two steps; a transaction keeps a pooler such as PgBouncer
        # from giving them to two servers.
        async with self.raw.transaction():
            return await self.raw.fetch(query, *values, timeout=_limit_of(query))

    async def fetch_once(self, query: str, *values: Any) -> Rows:
        """The same for a text that is made for the occasion: it is not kept prepared for good, and may be slow."""
        if self._prepared:
            return await self.raw.fetch(query, *values, timeout=SLOW_SECONDS)
        return await self.fetch(query, *values)

    async def close(self) -> None:
        """Say goodbye to the server, but do not wait long for it."""
        try:
            await self.raw.close(timeout=CLOSE_SECONDS)
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            self.raw.terminate()

    @asynccontextmanager
    async def transaction(self, isolation: Isolation = "read_committed") -> AsyncIterator["Connection"]:
        level = isolation.replace("_", " ").upper()
        # Set for this transaction alone, so that a pooler may stand in between, and in the round trip of BEGIN.
        await self.raw.execute(
            f"BEGIN ISOLATION LEVEL {level}; SET LOCAL idle_in_transaction_session_timeout = '{TRANSACTION_SECONDS}s'"
        )
        try:
            yield self
        except (TurnkeepError, asyncpg.PostgresError):
            with suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                await self.raw.execute("ROLLBACK")
            raise  # after anything else the pool drops the connection, which ends the transaction too
        await self.raw.execute("COMMIT")


class Pool:
    """At most `settings.size` connections to one address, opened when needed and closed when they are not.

    Callers that find none free wait in a queue, the first first. A long queue is not a database that is away: a caller
    gives up when no connection has come back for `settings.retry_seconds`, or after `QUEUE_SECONDS`.
    """

    def __init__(self, address: DatabaseAddress, settings: PoolSettings) -> None:
        self._address = address
        self._settings = settings
        self._retry_seconds = settings.retry_seconds
        self._idle: list[Connection] = []
        """The one that was used last is the last."""
        self._open = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._moved_at = 0.0
        """When a waiting caller last got the connection of another."""
        self._answered_at = 0.0
        """When a connection last came back from a call that the database answered."""
        self._waited, self._waited_seconds = 0, 0.0
        self._is_closed = False
        self._shrinks: asyncio.TimerHandle | None = None
        self._farewells: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        """How many connections are open."""
        return self._open

    @property
    def use(self) -> ConnectionUse:
        return ConnectionUse(
            open=self._open,
            waiting=len(self._waiting),
            waited=self._waited,
            waited_seconds=self._waited_seconds,
        )

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
                    did = "took no writes" if is_read_only(exc) else "did not answer"
                    raise Unavailable(
                        f"The database {did} within {self._retry_seconds:g} s. {_PERHAPS_WRITTEN}"
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

    async def check_statements(self) -> None:
        """Raise Defect if a pooler in front of the database loses prepared statements.

        Such a pooler gives the connection on which a statement was prepared to the next transaction of another client.
        While that transaction is open, the statement is not found. This cannot be tried with a single connection.
        """
        if not self._settings.prepared or self._settings.size < 2:
            return

        async def work(first: Connection, _: bool) -> None:
            await first.fetch(_NOTHING)
            await self.run(lambda second, _: run_beside(first, second))

        async def run_beside(first: Connection, second: Connection) -> None:
            async with second.transaction():
                await second.raw.execute(_NOTHING)
                await first.fetch(_NOTHING)

        await self.run(work)

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._is_closed = True
        if self._shrinks is not None:
            self._shrinks.cancel()
        for waiter in self._waiting:
            waiter.cancel()
        self._say_goodbye(self._idle)
        self._idle = []
        if self._farewells:
            await asyncio.wait(self._farewells)

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
            if self._open < self._settings.size:
                return await self._connect(), waited
            waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            self._waited += 1
            waits_since = now()
            try:
                handed = await self._handed(waiter, deadline, began + QUEUE_SECONDS)
            except BaseException:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not waiter.cancelled() and waiter.done() and (late := waiter.result()) is not None:
                    self._release(late)  # it came in the moment in which we gave up
                raise
            finally:
                self._waited_seconds += now() - waits_since
            waited = now() - began
            if handed is not None:
                return handed, waited

    async def _handed(
        self, waiter: "asyncio.Future[Connection | None]", deadline: float, latest: float
    ) -> Connection | None:
        """What the waiter is handed. Raises TimeoutError at `latest`, or at the deadline if the queue stands still.

        If this process was busy or paused until then, the database may have answered without being heard. So the loop
        looks a few times more before the waiter gives up.
        """
        now = asyncio.get_running_loop().time
        late = 0
        while not waiter.done():
            seconds = min(max(deadline, self._moved_at + self._retry_seconds), latest) - now()
            late = late + 1 if seconds <= 0 else 0
            if late > LAST_LOOKS:
                raise TimeoutError
            await asyncio.wait([waiter], timeout=seconds if seconds > 0 else LOOK_SECONDS)
        return waiter.result()

    async def _connect(self) -> Connection:
        self._open += 1
        prepared = self._settings.prepared
        try:
            raw = await self._address.connect(
                command_timeout=self._settings.command_seconds, statement_cache_size=100 if prepared else 0
            )
        except BaseException:
            self._drop_place()
            raise
        return Connection(raw, prepared=prepared)

    def _release(self, connection: Connection) -> None:
        if self._is_closed or connection.raw.is_closed():
            self._drop(connection)
            return
        now = self._answered_at = asyncio.get_running_loop().time()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._moved_at = now
                waiter.set_result(connection)
                return
        connection.idle_since = now
        self._idle.append(connection)
        if self._shrinks is None and len(self._idle) > 1:
            self._shrink_later()

    def _drop_or_release(self, connection: Connection | None, exc: Exception) -> None:
        """A refusal, by the server or by a rule, leaves the connection as good as before; anything else does not."""
        if connection is None:
            return
        is_refusal = isinstance(exc, TurnkeepError | asyncpg.PostgresError) and not isinstance(
            exc, asyncpg.InvalidCachedStatementError
        )
        if is_of_whole_host(exc):
            if is_read_only(exc) or not self._has_answered_lately():
                self._drop_idle()
            self._drop(connection)
        elif is_refusal and not connection.raw.is_in_transaction():
            self._release(connection)
        else:
            self._drop(connection)

    def _has_answered_lately(self) -> bool:
        """Whether the host answered another call while a statement waited in vain. An answer from just after the
        statement was sent does not count: the host may have fallen silent then."""
        return asyncio.get_running_loop().time() - self._answered_at < self._settings.command_seconds / 2

    def _drop_idle(self) -> None:
        """Drop the connections that go to the same host as one that is silent."""
        idle, self._idle = self._idle, []
        for connection in idle:
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

    def _shrink_later(self) -> None:
        self._shrinks = asyncio.get_running_loop().call_later(IDLE_SECONDS / 2, self._shrink)

    def _shrink(self) -> None:
        """Close the connections that were not needed for a while. The one that was used last stays open."""
        self._shrinks = None
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        unused = [connection for connection in self._idle[:-1] if connection.idle_since <= before]
        self._idle = self._idle[len(unused) :]
        self._say_goodbye(unused)
        if len(self._idle) > 1:
            self._shrink_later()

    def _say_goodbye(self, connections: list[Connection]) -> None:
        for connection in connections:
            farewell = asyncio.create_task(connection.close())
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)
            self._drop_place()


def _limit_of(query: str) -> float | None:
    """The time limit of a statement; None is that of the connection."""
    return SLOW_SECONDS if is_slow(query) else None


def _ours(exc: Exception) -> Exception:
    return exc if isinstance(exc, TurnkeepError) else translated(exc)
