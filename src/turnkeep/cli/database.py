"""The database: `turnkeep status` and `turnkeep migrate`, and the access of operator commands to it.

A command works on the database directly, or through the server that owns it. A SQLite file belongs to one process.
While a server uses it, commands ask that server, with the local key.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import structs

from turnkeep.cli.output import print_json, say
from turnkeep.config import Settings, find_config_file, mask_url, read_settings
from turnkeep.errors import Conflict, Forbidden, InvalidRequest, NotFound, TurnkeepError, Unavailable
from turnkeep.http_server.sockets import http_address
from turnkeep.store.migrations import load_migrations
from turnkeep.store.ports import Store
from turnkeep_client import discovery
from turnkeep_client.discovery import SERVER_FILE, RunningServer

Outcome = TypeVar("Outcome")

ASK_SECONDS = 30.0

DataDir = Annotated[str | None, typer.Option("--data-dir", help="The data directory (TURNKEEP_DATA_DIR).")]
DatabaseUrl = Annotated[str | None, typer.Option("--database-url", help="The database (TURNKEEP_DATABASE_URL).")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON, for scripts.")]


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
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a migration is needed.")] = False,
    roles: Annotated[
        bool, typer.Option("--roles", help="Only make the roles of PostgreSQL that a backup needs to be restored.")
    ] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Bring the database to this release. `turnkeep serve` does the same when it starts, with TURNKEEP_AUTO_MIGRATE.

    Servers of the release before may run meanwhile, and work on the migrated database until they are replaced.

    **Examples**

    - `turnkeep migrate`

    - `turnkeep migrate --check --database-url postgresql://localhost/turnkeep`
    """
    settings = settings_of(data_dir, database_url)
    if roles:
        _make_roles(settings)
        return
    if check:
        asyncio.run(check_schema(settings))
    else:
        with_store(structs.replace(settings, auto_migrate=True), _nothing)
    say(f"{mask_url(settings.database_url)} is ready for this release.")


def _make_roles(settings: Settings) -> None:
    from turnkeep.runtime import client_password

    if settings.is_sqlite:
        raise InvalidRequest("--roles is for PostgreSQL: SQLite has no roles.")
    from turnkeep.store.postgres.io.migrate import make_roles

    asyncio.run(
        make_roles(
            settings.database_url,
            client_password=client_password(settings.database_url),
            make_login=settings.database_client_url is None,
        )
    )
    say(f"{mask_url(settings.database_url)} has the roles of Turnkeep. Restore the backup into it now.")


async def check_schema(settings: Settings) -> None:
    """Raise SchemaMismatch unless this release can work on the database as it is."""
    if settings.is_sqlite:
        from turnkeep.store.sqlite.io.migrate import check_schema as check_sqlite

        check_sqlite(settings.sqlite_path)
        return
    from turnkeep.store.postgres.io.migrate import check_schema as check_postgres

    await check_postgres(settings.database_url)


async def _nothing(store: Store) -> None:
    """Nothing to do: opening the store migrates it."""


def settings_of(data_dir: str | None, database_url: str | None) -> Settings:
    """The settings of the server that is started here: flags, environment, file."""
    flags = {"data_dir": data_dir, "database_url": database_url}
    return read_settings(os.environ, flags, find_config_file(os.environ))


def with_store(settings: Settings, work: Callable[[Store], Awaitable[Outcome]]) -> Outcome:
    """Open the database, do this work, and close it. Raises Conflict while a server owns the file."""
    from turnkeep.runtime import home_org, open_store

    async def run() -> Outcome:
        store = await open_store(settings)
        try:
            await home_org(store)  # first, because the first org is the operator's own
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def ask_server(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """The response of the server that owns the database, decoded."""
    server = running_server(settings)
    if server is None:
        raise Unavailable("Another process has the database open, and it is not a server that can be asked. Stop it.")
    discovery.check_may_get_keys(server, settings.data_dir, os.environ)
    return asyncio.run(_ask(settings, method, server.url, path, body))


async def _ask(settings: Settings, method: str, url: str, path: str, body: Any) -> Any:
    import aiohttp

    from turnkeep.api.identity.service_keys import local_key

    headers = {"authorization": f"Bearer {local_key(settings.data_dir)}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_SECONDS)) as http,
            http.request(method, url + path, json=body, headers=headers, allow_redirects=False) as response,
        ):
            raw = await response.read()
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise Unavailable(f"The server at {url} does not answer: {str(exc) or type(exc).__name__}.") from exc
    if response.status >= 400:
        raise _refused(response.status, raw)
    return msgspec.json.decode(raw) if raw else None


def list_from_server(settings: Settings, path: str) -> list[Any]:
    """All items of a list, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = ask_server(settings, "GET", path if cursor is None else f"{path}?cursor={cursor}")
        found += page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def either(settings: Settings, direct: Callable[[Store], Awaitable[Outcome]], ask: Callable[[], Outcome]) -> Outcome:
    """Work on the database itself, or ask the server that owns it."""
    try:
        return with_store(settings, direct)
    except Conflict:
        if running_server(settings) is None:
            raise
        return ask()


def remember_server(settings: Settings, port: int) -> None:
    """Write the address of the server of this data directory to a file."""
    url = http_address(settings.host, port)
    _server_file(settings).write_bytes(msgspec.json.encode(RunningServer(url=url, pid=os.getpid())))


def forget_server(settings: Settings) -> None:
    """Remove that file, if this process wrote it."""
    server = running_server(settings)
    if server is not None and server.pid == os.getpid():
        _server_file(settings).unlink(missing_ok=True)


def running_server(settings: Settings) -> RunningServer | None:
    """The server in that file, if its process is alive."""
    return discovery.running_server(settings.data_dir)


def _server_file(settings: Settings) -> Path:
    return settings.data_dir / SERVER_FILE


def _refused(status: int, raw: bytes) -> TurnkeepError:
    try:
        detail = str(msgspec.json.decode(raw)["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        detail = f"The server answered with status {status}."
    match status:
        case 404:
            return NotFound(detail)
        case 401 | 403:
            return Forbidden(detail)
        case _ if status >= 500:
            return Unavailable(detail)
        case _:
            return InvalidRequest(detail)
