"""Migrating a PostgreSQL database: tables by numbered files; functions, policies and rights as this release has them.

Everything happens in one transaction, so that a worker sees the old release's database or the new one's. Functions
hold no data, so they are not migrated but replaced: if any of them changed, all are dropped and made again. That is
also done when a list of columns that is written into them has changed. Functions of triggers belong to their tables,
and come with migrations.
"""

import asyncio
import hashlib
from functools import cache

import asyncpg

from turnkeep.errors import SchemaMismatch, TurnkeepError
from turnkeep.store.migrations import AppliedMigration, load_migrations, pending
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.errors import is_retried, translated
from turnkeep.store.postgres.io.roles import client_login, ensure_groups, ensure_login
from turnkeep.store.postgres.io.statements import functions

_LOCK = 0x7475726E6B656570
"""`turnkeep`, as the number of an advisory lock: one migration at a time in each database."""
_TRIES = 20

_RECORDS = """
CREATE SCHEMA IF NOT EXISTS turnkeep;
CREATE TABLE IF NOT EXISTS turnkeep.migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS turnkeep.migrations_of_functions (
    checksum   text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""
_DROP_FUNCTIONS = """
DO $$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT p.oid FROM pg_proc p
         WHERE p.pronamespace = 'turnkeep'::regnamespace AND p.proname <> 'now_ms'
           AND p.prorettype <> 'trigger'::regtype
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_function;
    END LOOP;
END $$
"""


async def migrate(url: str, *, client_password: str | None = None, make_login: bool = True) -> None:
    """Bring the database to this release; the same again changes nothing.

    Makes the roles that are missing, and (with `make_login`) the client's login. Raises SchemaMismatch if the database
    was made by another release, and a Defect that tells an administrator what to run if the user may not make roles.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            connection = await _connect(url)
            try:
                await _migrate(connection, client_password, make_login=make_login)
                return
            finally:
                await connection.close()
        except TurnkeepError:
            raise
        except Exception as exc:
            if not tries_left or not (is_retried(exc) or _is_race(exc)):
                raise translated(exc) from exc
            await asyncio.sleep(0.1)


async def make_roles(url: str, *, client_password: str | None = None, make_login: bool = True) -> None:
    """Make the roles that are missing, and nothing else. A dump of a database names them, and does not contain them."""
    try:
        connection = await _connect(url)
    except (OSError, asyncpg.InternalClientError, asyncpg.PostgresError) as exc:
        raise translated(exc) from exc
    try:
        await _ensure_roles(connection, client_password, make_login=make_login)
    finally:
        await connection.close()


async def check_schema(url: str) -> None:
    """Raise SchemaMismatch unless the database is exactly at this release."""
    try:
        connection = await _connect(url)
    except (OSError, asyncpg.InternalClientError, asyncpg.PostgresError) as exc:
        raise translated(exc) from exc
    try:
        async with connection.transaction():
            is_current = await _is_current(connection)
        if not is_current:
            raise SchemaMismatch("The database is not at the version of this release. Run `turnkeep migrate`.")
    finally:
        await connection.close()


def check_version(migration: int, checksum: str) -> None:
    """Raise SchemaMismatch unless these are this release's last migration and functions."""
    if (migration, checksum) != _version():
        raise SchemaMismatch(
            "The database was migrated by another release while this server ran. Replace this server by that release."
        )


async def renew_login(url: str, password: str | None) -> None:
    """Give the client's login this password."""
    connection = await _connect(url)
    try:
        async with connection.transaction():
            login = client_login(await connection.fetchval("SELECT current_database()"))
            await ensure_login(connection, login, password, renew=True)
    finally:
        await connection.close()


async def _connect(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    """A connection on which nothing is prepared, and nothing asked outside of a transaction: a pooler such as
    PgBouncer, which gives each transaction another server, may stand in between."""
    return await DatabaseAddress(url).connect(statement_cache_size=0)


async def _migrate(
    connection: "asyncpg.Connection[asyncpg.Record]", client_password: str | None, *, make_login: bool
) -> None:
    async with connection.transaction():
        is_current = await _is_current(connection)
    await _ensure_roles(connection, client_password, make_login=make_login)
    if is_current:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(_RECORDS)
        for migration in pending(load_migrations("postgres"), await _applied(connection)):
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO turnkeep.migrations (version, name, checksum) VALUES ($1, $2, $3)",
                migration.version,
                migration.name,
                migration.checksum,
            )
        texts = functions()
        await connection.execute(_DROP_FUNCTIONS)
        for text in texts:
            await connection.execute(text)
        await connection.execute("DELETE FROM turnkeep.migrations_of_functions")
        await connection.execute(
            "INSERT INTO turnkeep.migrations_of_functions (checksum) VALUES ($1)", _checksum(texts)
        )


async def _ensure_roles(
    connection: "asyncpg.Connection[asyncpg.Record]", client_password: str | None, *, make_login: bool
) -> None:
    async with connection.transaction():
        await ensure_groups(connection)
        if make_login:
            login = client_login(await connection.fetchval("SELECT current_database()"))
            await ensure_login(connection, login, client_password)


async def _is_current(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    if not await connection.fetchval("SELECT to_regclass('turnkeep.migrations_of_functions')"):
        return False
    if pending(load_migrations("postgres"), await _applied(connection)):
        return False
    found = await connection.fetchval("SELECT checksum FROM turnkeep.migrations_of_functions")
    return bool(found == _checksum(functions()))


async def _applied(connection: "asyncpg.Connection[asyncpg.Record]") -> list[AppliedMigration]:
    rows = await connection.fetch("SELECT version, name, checksum FROM turnkeep.migrations ORDER BY version")
    return [AppliedMigration(version=row[0], name=row[1], checksum=row[2]) for row in rows]


@cache
def _version() -> tuple[int, str]:
    return load_migrations("postgres")[-1].version, _checksum(functions())


def _checksum(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _is_race(exc: Exception) -> bool:
    """Roles belong to the whole server: another database may be making the same ones in this moment."""
    return isinstance(exc, asyncpg.DuplicateObjectError | asyncpg.UniqueViolationError | asyncpg.InternalServerError)
