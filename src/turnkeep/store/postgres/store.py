"""One PostgreSQL database as a store: opened, migrated, its boundary checked, and closed in order."""

from typing import Any, Self

import asyncpg
from msgspec import structs

from turnkeep.errors import Defect, TurnkeepError, Unavailable
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ConnectionUse
from turnkeep.store.postgres.conversations import PostgresConversations
from turnkeep.store.postgres.directory import PostgresDirectory, PostgresSessions
from turnkeep.store.postgres.erasures import PostgresErasures
from turnkeep.store.postgres.feedback import PostgresFeedback
from turnkeep.store.postgres.files import PostgresFiles
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.database import Database
from turnkeep.store.postgres.io.migrate import check_schema, judge_readiness, migrate, renew_login
from turnkeep.store.postgres.io.pool import Pool, PoolSettings
from turnkeep.store.postgres.io.roles import check_boundary, client_login
from turnkeep.store.postgres.io.statements import functions, statements
from turnkeep.store.postgres.knowledge import PostgresKnowledge, PostgresTables
from turnkeep.store.postgres.leases import PostgresLeases
from turnkeep.store.postgres.outbox import PostgresOutbox, PostgresWebhooks
from turnkeep.store.postgres.shares import PostgresShares
from turnkeep.store.postgres.turns import PostgresTurns
from turnkeep.store.postgres.waits import PostgresWaits

POOL_SIZE = 10
RETRY_SECONDS = 10.0
COMMAND_SECONDS = 4.0


class PostgresStore(
    PostgresTurns,
    PostgresLeases,
    PostgresWaits,
    PostgresConversations,
    PostgresShares,
    PostgresFeedback,
    PostgresDirectory,
    PostgresSessions,
    PostgresFiles,
    PostgresKnowledge,
    PostgresTables,
    PostgresOutbox,
    PostgresWebhooks,
    PostgresErasures,
):
    """A `Store` on one database. Make it with `open`, and close it: closing finishes what has begun."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        client_url: str | None = None,
        client_password: str | None = None,
        pool_size: int = POOL_SIZE,
        client_pool_size: int | None = None,
        prepared_statements: bool = True,
        retry_seconds: float = RETRY_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        auto_migrate: bool = True,
    ) -> Self:
        """Open the database, migrated as needed (without `auto_migrate`: SchemaMismatch if it is not).

        The client path logs in at `client_url`, or at `url` as the role `turnkeep_client_<database>` with
        `client_password`, which is made if it is not there. Raises BoundaryBroken if that login could see more than its
        users may. Each path has at most so many connections as its pool size says. Without `prepared_statements` the
        store works behind a PgBouncer older than 1.21; with them, Defect is raised there. A statement without an answer
        for `command_seconds` counts as lost. While the database is away each verb tries again for `retry_seconds`, then
        raises Unavailable.
        """
        if auto_migrate:
            await migrate(url, client_password=client_password, make_login=client_url is None)
        else:
            await check_schema(url)
        common = PoolSettings(
            size=pool_size,
            prepared=prepared_statements,
            retry_seconds=retry_seconds,
            command_seconds=command_seconds,
        )
        engine = Pool(DatabaseAddress(url), common)
        options: dict[str, Any] = {}
        if client_url is None:
            _, name = (await engine.fetch(statements()["who_am_i"]))[0]
            options = {"user": client_login(name)}
            if client_password is not None:
                options["password"] = client_password
        client = Pool(
            DatabaseAddress(client_url or url, **options), structs.replace(common, size=client_pool_size or pool_size)
        )
        store = cls(Database(engine, client))
        try:
            await engine.check_statements()
            try:
                await check_boundary(engine, client)
            except Unavailable as exc:
                if client_url is not None or not auto_migrate or not _is_wrong_password(exc):
                    raise
                await renew_login(url, client_password)
                await check_boundary(engine, client)
        except TurnkeepError:
            await store.close()
            raise
        return store

    def __init__(self, database: Database) -> None:
        for part in type(self).__bases__:
            part.__init__(self, database)  # type: ignore[misc]

    async def client_query(self, principal: Principal, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Any SQL on the client path, as that principal: the boundary holds whatever it says (see `Database`)."""
        return await self._database.client_query(principal, sql, *values)

    async def check_ready(self) -> str | None:
        try:
            [(is_read_only, *schema)] = await self._database.read("readiness", functions().schema)
        except Defect as exc:
            if not isinstance(exc.__cause__, asyncpg.UndefinedTableError):
                raise
            schema = [None, None, False]  # a backup of an older release was restored
        else:
            if is_read_only:
                raise Unavailable("The database takes no writes just now; reads go on.")
        return judge_readiness(*schema)

    def connection_use(self) -> ConnectionUse:
        return self._database.connection_use()

    async def close(self) -> None:
        """Finish what has begun, then let the connections go. It may be called twice."""
        await self.finish_writes()
        await self._database.close()


def _is_wrong_password(exc: Unavailable) -> bool:
    return isinstance(exc.__cause__, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError)
