"""`turnkeep orgs`: tenants. They share a server and nothing else."""

from typing import Annotated, Any

import msgspec
import typer

from turnkeep.cli.operating import AsJson, DatabaseUrl, DataDir, ask_server, either, list_from_server, settings_of
from turnkeep.cli.printing import print_json, print_table, say
from turnkeep.store.ports import Store

orgs = typer.Typer(no_args_is_help=True, help="Make and list tenants.")


@orgs.command()
def create(
    name: Annotated[str, typer.Argument(help="A name for people.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a tenant, and print its first service key. The key is shown only this once.

    **Example**

    - `turnkeep orgs create acme`
    """
    from turnkeep.api.identity.service_keys import make_org
    from turnkeep.api.showing import org_of

    settings = settings_of(data_dir, database_url)

    async def direct(store: Store) -> Any:
        org, _, secret = await make_org(store, name)
        return msgspec.to_builtins(org_of(org, secret=secret))

    made = either(settings, direct, lambda: ask_server(settings, "POST", "/v1/orgs", {"name": name}))
    if as_json:
        print_json(made)
        return
    say(f"org  {made['id']}  {made['name']}")
    say(f"key  {made['key']}")


@orgs.command("list")
def list_orgs(data_dir: DataDir = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List all tenants.

    **Example**

    - `turnkeep orgs list --json | jq -r '.[].name'`
    """
    from turnkeep.api.showing import org_of

    settings = settings_of(data_dir, database_url)

    async def direct(store: Store) -> Any:
        return [msgspec.to_builtins(org_of(org)) for org in await store.orgs()]

    found = either(settings, direct, lambda: list_from_server(settings, "/v1/orgs"))
    if as_json:
        print_json(found)
        return
    print_table(["id", "name"], [[org["id"], org["name"]] for org in found], nothing="There is no tenant yet.")
