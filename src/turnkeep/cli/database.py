"""`turnkeep status` and `turnkeep migrate`: create the database, report on it, and bring it to this release."""

import asyncio
from importlib.metadata import version
from typing import Annotated, Any

import typer

from turnkeep.cli.output import print_json, say
from turnkeep.cli.store_access import (
    AsJson,
    DatabaseUrl,
    DataDir,
    either,
    list_from_server,
    running_server,
    settings_of,
    with_store,
)
from turnkeep.config import Settings, mask_url
from turnkeep.errors import SchemaMismatch
from turnkeep.store.migrations import load_migrations
from turnkeep.store.ports import Store


def status(data_dir: DataDir = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Create the database where there is none, and report on it and on the server that uses it.

    **Example**

    - `turnkeep status --json | jq -r .server`
    """
    settings = settings_of(data_dir, database_url)

    async def direct(store: Store) -> int:
        return len(await store.orgs())

    orgs = either(settings, direct, lambda: len(list_from_server(settings, "/v1/orgs")))
    server = running_server(settings)
    report: dict[str, Any] = {
        "version": version("turnkeep"),
        "database": mask_url(settings.database_url),
        "schema": len(load_migrations("sqlite" if settings.is_sqlite else "postgres")),
        "orgs": orgs,
        "server": None if server is None else server.url,
    }
    if as_json:
        print_json(report)
        return
    say(f"turnkeep   {report['version']}")
    say(f"database   {report['database']}, schema {report['schema']}, {orgs} {'org' if orgs == 1 else 'orgs'}")
    say(f"server     {report['server'] or 'not running (start it with `turnkeep serve`)'}")


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if something is to do.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Bring the database to this release. `turnkeep serve` does the same when it starts.

    **Examples**

    - `turnkeep migrate`

    - `turnkeep migrate --check --database-url postgresql://localhost/turnkeep`
    """
    settings = settings_of(data_dir, database_url)
    if check:
        check_schema(settings)
    else:
        with_store(settings, _nothing)
    say(f"{mask_url(settings.database_url)} is at the version of this release.")


def check_schema(settings: Settings) -> None:
    """Raise SchemaMismatch unless the database is exactly at this release."""
    asyncio.run(check_schema_now(settings))


async def check_schema_now(settings: Settings) -> None:
    """The same, inside an event loop."""
    if settings.is_sqlite:
        _check_sqlite(settings)
        return
    from turnkeep.store.postgres.io.migrate import check_schema as check_postgres

    await check_postgres(settings.database_url)


def _check_sqlite(settings: Settings) -> None:
    import apsw

    from turnkeep.store.migrations import load_migrations, pending
    from turnkeep.store.sqlite.io.migrate import applied

    path = settings.sqlite_path
    if not path.exists():
        raise SchemaMismatch(f"There is no database at {path}. Run `turnkeep migrate`.")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        todo = pending(load_migrations("sqlite"), applied(connection))
    finally:
        connection.close()
    if todo:
        names = ", ".join(f"{migration.version:04}" for migration in todo)
        raise SchemaMismatch(f"The database lacks the migrations {names}. Run `turnkeep migrate`.")


async def _nothing(store: Store) -> None:
    """Nothing to do: opening the store migrates it."""
