"""One database as the verbs see it: an engine path, a client path, and writes that end once they have begun.

Group commit: writes that arrive while others are under way go out together, in one statement and one commit. A single
write goes out at once and does not wait for others. If a group takes long, the next one goes out beside it. One group
holds at most one write for each key (a conversation, a turn), and a key is never in two groups at a time. A write that
has begun ends even if its caller has gone. If a group fails because of one of its writes, each is tried alone, so that
only that write fails.

Decision: docs/decisions/0103
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from turnkeep.errors import TurnkeepError, WorldError
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ConnectionUse
from turnkeep.store.postgres.io.pool import Connection, Isolation, Pool, Rows
from turnkeep.store.postgres.io.statements import in_this_release, statements

T = TypeVar("T")
Job = TypeVar("Job")
Answer = TypeVar("Answer")

LANES = 4
"""Groups in flight at most. As a rule it is one: more would only make groups smaller."""
SLOW_SECONDS = 0.05
"""A group that takes longer may wait for a lock. Then another one goes out beside it."""
GROUP_JOBS = 64
GROUP_BYTES = 8 * 1024 * 1024

EVERY_USER = "*"
"""The user of an identity that sees its whole workspace."""
NO_USER = "none"
"""A user that owns nothing: no id equals it."""


class Database:
    """The two pools of one database. `name` everywhere is that of a query in `sql/postgres/*.sql`."""

    def __init__(self, engine: Pool, client: Pool) -> None:
        self._engine = engine
        self._client = client
        self._statements = statements()
        self._writes: set[asyncio.Task[Any]] = set()

    def connection_use(self) -> ConnectionUse:
        """Of both pools together."""
        engine, client = self._engine.use, self._client.use
        return ConnectionUse(
            open=engine.open + client.open,
            waiting=engine.waiting + client.waiting,
            waited=engine.waited + client.waited,
            waited_seconds=engine.waited_seconds + client.waited_seconds,
        )

    async def read(self, name: str, *values: Any) -> Rows:
        """Rows that the engine sees."""
        return await self._engine.fetch(self._statements[name], *values)

    async def read_text(self, sql: str, *values: Any) -> Rows:
        """Rows that the engine sees, by a query that was built for this call."""

        async def on(connection: Connection, _: bool) -> Rows:
            return await connection.fetch_once(sql, *values)

        return await self._engine.run(on)

    async def read_as(self, principal: Principal, name: str, *values: Any) -> Rows:
        """Rows that this principal sees, through the client path."""
        return await self._client.fetch(self._statements[name], *identity_of(principal), *values)

    async def write(self, name: str, *values: Any) -> Rows:
        """The answer of a statement that writes. It is finished even if the caller is cancelled."""
        return await self._finish(self._engine.fetch(self._statements[name], *values))

    async def write_group(self, name: str, *values: Any) -> Rows:
        """The same without that promise, for callers that prevent a cancellation themselves."""
        return await self._engine.fetch(self._statements[name], *values)

    async def run(self, work: Callable[["Statements", bool], Awaitable[T]], *, in_transaction: bool = False) -> T:
        """The same for work on one connection, with a flag that says whether it is a repeat (see `Pool.run`)."""
        return await self._finish(self.run_group(work, in_transaction=in_transaction))

    async def run_group(self, work: Callable[["Statements", bool], Awaitable[T]], *, in_transaction: bool = False) -> T:
        """The same without the promise that it is finished, for callers that prevent a cancellation themselves."""

        async def on(connection: Connection, is_repeat: bool) -> T:
            statements = Statements(connection, self._statements)
            if not in_transaction:
                return await work(statements, is_repeat)
            async with connection.transaction():
                return await work(statements, is_repeat)

        return await self._engine.run(on)

    async def transact(
        self, work: Callable[["Statements"], Awaitable[T]], *, isolation: Isolation = "read_committed"
    ) -> T:
        """The same, in one transaction."""

        async def on(connection: Connection, _: bool) -> T:
            async with connection.transaction(isolation):
                return await work(Statements(connection, self._statements))

        return await self._finish(self._engine.run(on))

    async def client_query(self, principal: Principal, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Any SQL, as this principal on the client path. For tests and for operators who doubt the boundary.

        The policies decide by an identity that is set for this transaction. SQL that sets another one is not refused
        here: SQL of a caller could choose any identity, so no verb passes on SQL from outside.
        """

        async def on(connection: Connection, _: bool) -> list[tuple[Any, ...]]:
            async with connection.transaction():
                await connection.fetch(in_this_release("SELECT turnkeep.become($1, $2, $3)"), *identity_of(principal))
                return [tuple(row) for row in await connection.raw.fetch(sql, *values)]

        return await self._client.run(on)

    async def close(self) -> None:
        if self._writes:
            await asyncio.wait(self._writes)
        await self._client.close()
        await self._engine.close()

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the caller has gone


class Statements:
    """The named queries on one connection."""

    def __init__(self, connection: Connection, texts: dict[str, str]) -> None:
        self._connection = connection
        self._texts = texts

    async def fetch(self, name: str, *values: Any) -> Rows:
        return await self._connection.fetch(self._texts[name], *values)


def identity_of(principal: Principal) -> tuple[str, str, str]:
    """The caller whose rows the client path shows. Only a service without a user sees a whole workspace. For other
    callers a missing user means the empty user, which owns nothing."""
    user = principal.user_id or (EVERY_USER if principal.role == "service" else "")
    return principal.org_id, principal.workspace_id, user


def owner_of(principal: Principal) -> tuple[str, str, str | None]:
    """The same for writes on the engine's path: NULL means every user; a missing user has a name that no id has."""
    org_id, workspace_id, user = identity_of(principal)
    return org_id, workspace_id, None if user == EVERY_USER else user or NO_USER


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
        self._taken = 0
        self._relief: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, key: str, job: Job, *, size: int = 0) -> Answer:
        """The outcome of this job, once it is committed."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append(_Asked(key, job, size, future))
        if not self._busy:
            self._open_lane()
        elif self._relief is None:
            self._await_relief()
        return await future

    async def close(self) -> None:
        """Let what has begun, and what waits, end."""
        while self._running:
            await asyncio.wait(self._running)

    def _open_lane(self) -> None:
        self._busy += 1
        lane = asyncio.create_task(self._run_lane())
        self._running.add(lane)
        lane.add_done_callback(self._running.discard)

    def _await_relief(self) -> None:
        self._relief = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._relieve, self._taken)

    def _relieve(self, taken: int) -> None:
        """Open another lane, if jobs wait and no group has gone out since `taken` had."""
        self._relief = None
        if not self._pending or self._busy >= self._lanes:
            return
        if self._taken == taken:
            self._open_lane()
        self._await_relief()

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
        """The jobs that go out next: the oldest ones whose key is not under way. Without waiting jobs: none."""
        group: list[_Asked[Job, Answer]] = []
        passed: list[_Asked[Job, Answer]] = []
        size = 0
        while self._pending and len(group) < GROUP_JOBS and (size < GROUP_BYTES or not group):
            asked = self._pending.popleft()
            if asked.key in self._keys:
                passed.append(asked)
                continue
            self._keys.add(asked.key)
            group.append(asked)
            size += asked.size
        self._pending.extendleft(reversed(passed))
        self._taken += bool(group)
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
