"""One database as the verbs see it: an engine path, a client path, and writes that end once they have begun."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from turnkeep.model.principals import Principal
from turnkeep.store.postgres.io.pool import Connection, Isolation, Pool, Rows
from turnkeep.store.postgres.io.statements import statements
from turnkeep.store.rules.refusals import check_service

__all__ = ["EVERY_USER", "NO_USER", "Database", "Statements", "check_service", "identity_of", "owner_of"]

T = TypeVar("T")

EVERY_USER = "*"
"""The user of an identity that sees its whole workspace."""
NO_USER = "nobody"
"""The owner of nothing: no id is like it."""


class Database:
    """The two pools of one database. `name` everywhere is that of a query in `sql/postgres/*.sql`."""

    def __init__(self, engine: Pool, client: Pool) -> None:
        self._engine = engine
        self._client = client
        self._statements = statements()
        self._writes: set[asyncio.Task[Any]] = set()

    async def read(self, name: str, *values: Any) -> Rows:
        """Rows that the engine sees."""
        return await self._engine.fetch(self._statements[name], *values)

    async def read_text(self, sql: str, *values: Any) -> Rows:
        """Rows that the engine sees, by a query that was put together for the occasion."""

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
        """The same for work on one connection, which is told whether it is a repeat (see `Pool.run`)."""

        async def on(connection: Connection, is_repeat: bool) -> T:
            statements = Statements(connection, self._statements)
            if not in_transaction:
                return await work(statements, is_repeat)
            async with connection.transaction():
                return await work(statements, is_repeat)

        return await self._finish(self._engine.run(on))

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
                await connection.fetch("SELECT turnkeep.become($1, $2, $3)", *identity_of(principal))
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
