"""`turnkeep status`: create the database where there is none, and report on it."""

from importlib.metadata import version
from typing import Any

from turnkeep.cli.operating import AsJson, DatabaseUrl, DataDir, either, list_from_server, running_server, settings_of
from turnkeep.cli.printing import print_json, say
from turnkeep.config import mask_url
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
