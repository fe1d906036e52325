"""Migrating a PostgreSQL database while servers of the release before work on it.

Tables are changed by numbered files, each in one transaction with its record (or in steps, see `migrations.py`), and
only by additions. The functions of
this release are then placed into a schema of their own, beside those of the release before (see `statements.py`).
Functions of triggers belong to their tables, and come with migrations. Policies and rights on tables are those of the
newest release.

A migration waits for a lock only for a moment, as the requests of running servers wait behind it; then it lets them go
first and tries again. An index on a large table is made without a lock (`CREATE INDEX CONCURRENTLY`), after the
transaction of its file.

Releases up to migration 0013 had their functions in the schema `turnkeep`, and read `turnkeep.migrations` and
`turnkeep.migrations_of_functions`. As long as their servers may work, these three stay as they were.

Decision: docs/decisions/0109
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import asyncpg
from msgspec import Struct

from turnkeep.clock import system_clock
from turnkeep.errors import SchemaMismatch, TurnkeepError, Unavailable
from turnkeep.store.migrations import OLDEST_SERVED, AppliedMigration, load_migrations, names_of, pending
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.errors import is_retried, translated
from turnkeep.store.postgres.io.partitions import make_partitions
from turnkeep.store.postgres.io.roles import client_login, ensure_groups, ensure_login
from turnkeep.store.postgres.io.statements import functions, statements

_LOCK = 0x7475726E6B656570
"""`turnkeep`, as the number of an advisory lock: one migration at a time in each database."""
_TAKE_LOCK = f"""
DO $$
BEGIN
    IF NOT pg_try_advisory_xact_lock({_LOCK}) THEN
        RAISE object_in_use;
    END IF;
END $$
"""
_TRIES = 20
LOCK_SECONDS = 1.0
LOCK_TRIES = 40
LONGEST_PAUSE_SECONDS = 5.0

_LAST_IN_TURNKEEP = 13
"""The last migration of the releases that have their functions in the schema `turnkeep`."""

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

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
CREATE TABLE turnkeep.schema_migrations (LIKE turnkeep.migrations INCLUDING ALL);
INSERT INTO turnkeep.schema_migrations SELECT * FROM turnkeep.migrations;
-- The functions of each release that may work on this database. `migration` is its last one, `oldest` that of the
-- oldest release with which it works side by side, `boundary` a hash of its policies and rights.
CREATE TABLE turnkeep.schema_migrations_of_functions (
    schema_name text PRIMARY KEY,
    migration   integer NOT NULL,
    oldest      integer NOT NULL,
    boundary    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
_OLD_FUNCTIONS = """
SELECT p.oid::regprocedure::text FROM pg_proc p
 WHERE p.pronamespace = 'turnkeep'::regnamespace AND p.proname <> ALL ($1::text[])
"""


class _Schema(Struct, frozen=True):
    """What a database has. `oldest` is the last migration of the oldest release that may work on it."""

    applied: list[AppliedMigration]
    oldest: int
    has_functions: bool

    def lacks(self) -> str | None:
        """What this release misses, in words. Raises SchemaMismatch if the database is of no use to it."""
        missing = pending(load_migrations("postgres"), self.applied, oldest=self.oldest)
        if missing:
            return f"the migrations {names_of(missing)}"
        return None if self.has_functions else "the functions of this release"


class _Progress(Struct):
    """How many steps of a migration are done."""

    version: int = 0
    steps: int = 0


async def migrate(url: str, *, client_password: str | None = None, make_login: bool = True) -> None:
    """Bring the database to this release; the same again changes nothing.

    Makes the roles that are missing, and (with `make_login`) the client's login. Raises SchemaMismatch if the database
    is of a release that does not work with this one, and a Defect that tells an administrator what to run if the user
    may not make roles. Raises Unavailable if other transactions keep a table locked for minutes.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            connection = await _connect(url)
            try:
                await _migrate(connection, url, client_password, make_login=make_login)
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
    """Raise SchemaMismatch unless this release can work on the database as it is."""
    try:
        connection = await _connect(url)
    except (OSError, asyncpg.InternalClientError, asyncpg.PostgresError) as exc:
        raise translated(exc) from exc
    try:
        async with connection.transaction():
            lacks = (await _schema(connection)).lacks() or await _lacking_indexes(connection)
        if lacks:
            raise SchemaMismatch(f"The database lacks {lacks}. Run `turnkeep migrate`.")
    finally:
        await connection.close()


def judge_readiness(version: int | None, oldest: int | None, has_functions: bool) -> str | None:
    """What an operator should know of a schema on which this release works. Raises SchemaMismatch on any other."""
    known = len(load_migrations("postgres"))
    if (version or 0) < known:
        raise SchemaMismatch(
            f"The schema of the database is too old: it is at migration {version or 0:04}, this release needs "
            f"{known:04}. Run `turnkeep migrate`."
        )
    if known < (oldest or 0) or (not has_functions and version != known):
        raise SchemaMismatch(
            f"The schema of the database is too new: it is at migration {version:04} and works with releases from "
            f"{oldest or 0:04} on. This one has {known:04}. Replace this server by the newer release."
        )
    if not has_functions:
        raise SchemaMismatch("The database lacks the functions of this release. Run `turnkeep migrate`.")
    if version == known:
        return None
    return (
        f"The database is at migration {version:04} of a newer release. This release, which has {known:04}, works with "
        "it until it is replaced."
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


async def _connect(url: str) -> Connection:
    """A connection on which nothing is prepared, and nothing asked outside of a transaction: a pooler such as
    PgBouncer, which gives each transaction another server, may stand in between."""
    return await DatabaseAddress(url).connect(statement_cache_size=0)


async def _migrate(connection: Connection, url: str, client_password: str | None, *, make_login: bool) -> None:
    async with connection.transaction():
        lacks = (await _schema(connection)).lacks() or await _lacking_indexes(connection)
    await _ensure_roles(connection, client_password, make_login=make_login)
    if lacks:
        await _apply(connection, url)
    await _make_partitions(connection)


async def _apply(connection: Connection, url: str) -> None:
    progress = _Progress()
    while await _step(connection, partial(_apply_next, progress=progress)):
        pass
    await _make_indexes(connection, url)
    await _step(connection, _place_functions)


async def _step(connection: Connection, work: Callable[[Connection], Awaitable[bool]]) -> bool:
    """Do this work in a transaction of its own, while no other migration is under way."""
    tries, pause = 0, 0.1
    while True:
        try:
            async with _lone_transaction(connection):
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'")
                return await work(connection)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as exc:
            tries += 1
            if tries >= LOCK_TRIES:
                raise Unavailable(
                    "The migration could not lock its tables, because other transactions kept them locked for minutes. "
                    "Nothing of this step was changed. End old transactions (see pg_stat_activity), and run "
                    "`turnkeep migrate` again."
                ) from exc
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


@asynccontextmanager
async def _lone_transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction that begins when no other migration is under way, and keeps others from beginning.

    It tries again and again, and does not wait in the database: an index that is made concurrently waits for every
    statement that is under way, also for one that waits for the maker of the index.
    """
    while True:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(_TAKE_LOCK)
            break
        except asyncpg.ObjectInUseError:
            await transaction.rollback()
            await asyncio.sleep(random.uniform(0.1, 0.3))
    try:
        yield
    except BaseException:
        await transaction.rollback()
        raise
    await transaction.commit()


async def _apply_next(connection: Connection, *, progress: _Progress) -> bool:
    """Apply the next step of the first migration that is missing. False if there is none."""
    if not await connection.fetchval("SELECT to_regclass('turnkeep.schema_migrations')"):
        await connection.execute(_RECORDS)
        if len(await _applied(connection, "schema_migrations")) == _LAST_IN_TURNKEEP:
            await _record_functions(connection, "turnkeep", _LAST_IN_TURNKEEP, "")
    schema = await _schema(connection)
    missing = pending(load_migrations("postgres"), schema.applied, oldest=schema.oldest)
    if not missing:
        return False
    migration = missing[0]
    if progress.version != migration.version:
        progress.version, progress.steps = migration.version, 0
    steps = migration.steps
    await connection.execute(steps[progress.steps])
    progress.steps += 1
    if progress.steps == len(steps):
        await connection.execute(
            "INSERT INTO turnkeep.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
            migration.version,
            migration.name,
            migration.checksum,
        )
    return True


async def _place_functions(connection: Connection) -> bool:
    """Make the functions of this release, and drop those of releases that it does not work with."""
    schema, placed = await _schema(connection), functions()
    if schema.has_functions:
        return False
    known = len(load_migrations("postgres"))
    boundary = hashlib.sha256(placed.boundary.encode()).hexdigest()
    last = await connection.fetchrow(
        "SELECT migration, boundary FROM turnkeep.schema_migrations_of_functions ORDER BY applied_at DESC LIMIT 1"
    )
    # The policies of a newer release stay. Those that are in place are not made again: that would lock every table.
    if len(schema.applied) == known and (last is None or tuple(last) != (known, boundary)):
        await connection.execute(placed.boundary)
    await connection.execute(f"DROP SCHEMA IF EXISTS {placed.schema} CASCADE; CREATE SCHEMA {placed.schema}")
    for text in placed.texts:
        await connection.execute(text)
    await _record_functions(connection, placed.schema, known, boundary)
    await _drop_functions_before(connection, max(OLDEST_SERVED, schema.oldest))
    return True


async def _make_partitions(connection: Connection) -> None:
    """Make the partitions of the present, if no server ran for long. The sweeper makes those of the future."""

    async def fetch(name: str, *values: Any) -> list[Any]:
        async with connection.transaction():
            return await connection.fetch(statements()[name], *values)

    await make_partitions(fetch, system_clock(), ahead_ms=0)


async def _record_functions(connection: Connection, schema: str, migration: int, boundary: str) -> None:
    await connection.execute(
        "INSERT INTO turnkeep.schema_migrations_of_functions (schema_name, migration, oldest, boundary) "
        "VALUES ($1, $2, $3, $4)",
        schema,
        migration,
        min(OLDEST_SERVED, migration),
        boundary,
    )


async def _drop_functions_before(connection: Connection, oldest: int) -> None:
    """Drop the functions of releases whose last migration is before `oldest`."""
    dropped = await connection.fetch(
        "DELETE FROM turnkeep.schema_migrations_of_functions WHERE migration < $1 RETURNING schema_name", oldest
    )
    for (name,) in dropped:
        if name != "turnkeep":
            await connection.execute(f"DROP SCHEMA {name} CASCADE")
    if not await connection.fetchval(
        "SELECT 1 FROM turnkeep.schema_migrations_of_functions WHERE schema_name = 'turnkeep'"
    ):
        kept = [name for migration in load_migrations("postgres") for name in migration.functions]
        for (function,) in await connection.fetch(_OLD_FUNCTIONS, kept):
            await connection.execute(f"DROP FUNCTION {function}")
        # Now the releases that read this table refuse the database, as one that is newer.
        await connection.execute(
            "INSERT INTO turnkeep.migrations SELECT * FROM turnkeep.schema_migrations ON CONFLICT DO NOTHING"
        )


async def _make_indexes(connection: Connection, url: str) -> None:
    """Make the indexes that are made without a lock, if they are missing or an earlier try left them incomplete."""
    async with connection.transaction():
        missing = await _missing_indexes(connection)
    if not missing:
        return
    guard = await _connect(url)  # CREATE INDEX CONCURRENTLY takes no transaction, and so holds no lock of its own
    try:
        async with _lone_transaction(guard):
            async with connection.transaction():
                missing = await _missing_indexes(connection)
            for name, statement in missing.items():
                await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS turnkeep.{name}")
                await connection.execute(statement)
    finally:
        await guard.close()


async def _missing_indexes(connection: Connection) -> dict[str, str]:
    wanted = {
        name: text for migration in load_migrations("postgres") for name, text in migration.concurrent_indexes.items()
    }
    if not wanted:
        return {}
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE c.relnamespace = 'turnkeep'::regnamespace AND i.indisvalid AND c.relname = ANY ($1::text[])",
        list(wanted),
    )
    found = {row[0] for row in rows}
    return {name: text for name, text in wanted.items() if name not in found}


async def _lacking_indexes(connection: Connection) -> str | None:
    missing = await _missing_indexes(connection)
    return f"the indexes {', '.join(missing)}" if missing else None


async def _ensure_roles(connection: Connection, client_password: str | None, *, make_login: bool) -> None:
    async with connection.transaction():
        await ensure_groups(connection)
        if make_login:
            login = client_login(await connection.fetchval("SELECT current_database()"))
            await ensure_login(connection, login, client_password)


async def _schema(connection: Connection) -> _Schema:
    if await connection.fetchval("SELECT to_regclass('turnkeep.schema_migrations')"):
        _, _, oldest, has_functions = await connection.fetchrow(statements()["readiness"], functions().schema)  # type: ignore[misc]
        return _Schema(await _applied(connection, "schema_migrations"), oldest or 0, has_functions)
    if await connection.fetchval("SELECT to_regclass('turnkeep.migrations')"):
        return _Schema(await _applied(connection, "migrations"), 0, has_functions=False)
    return _Schema([], 0, has_functions=False)


async def _applied(connection: Connection, table: str) -> list[AppliedMigration]:
    rows = await connection.fetch(f"SELECT version, name, checksum FROM turnkeep.{table} ORDER BY version")
    return [AppliedMigration(version=row[0], name=row[1], checksum=row[2]) for row in rows]


def _is_race(exc: Exception) -> bool:
    """Roles belong to the whole server: another database may be making the same ones in this moment."""
    return isinstance(exc, asyncpg.DuplicateObjectError | asyncpg.UniqueViolationError | asyncpg.InternalServerError)
