"""`turnkeep orgs` and `turnkeep keys`: tenants, which share a server and nothing else, and their service keys."""

from typing import Annotated, Any, get_args

import msgspec
import typer

from turnkeep.cli.database import AsJson, DatabaseUrl, DataDir, ask_server, either, list_from_server, settings_of
from turnkeep.cli.output import print_json, print_lines, print_table, say
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import KeyId, OrgId, check_id
from turnkeep.store.ports import Store
from turnkeep_client.wire.account import Feature, Scopes

orgs = typer.Typer(no_args_is_help=True, help="Make and list tenants.")
keys = typer.Typer(no_args_is_help=True, help="Make, list and revoke service keys.")
Org = Annotated[str | None, typer.Option("--org", help="The org's id or name; by default the first one.")]


@orgs.command("create")
def create_org(
    name: Annotated[str, typer.Argument(help="A name for people.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a tenant, and print its first service key. The key is shown only once.

    **Example**

    - `turnkeep orgs create acme`
    """
    from turnkeep.api.identity.service_keys import make_org
    from turnkeep.api.views import org_of

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

    - `turnkeep orgs list --json | jq -r .name`
    """
    from turnkeep.api.views import org_of

    settings = settings_of(data_dir, database_url)

    async def direct(store: Store) -> Any:
        return [msgspec.to_builtins(org_of(org)) for org in await store.orgs()]

    found = either(settings, direct, lambda: list_from_server(settings, "/v1/orgs"))
    if as_json:
        print_lines(found)
        return
    print_table(["id", "name"], [[org["id"], org["name"]] for org in found], nothing="There is no tenant yet.")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    org: Org = None,
    monthly_message_limit: Annotated[int | None, typer.Option(min=0, help="Messages a month.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests a minute, on each worker.")] = None,
    allowed_tool: Annotated[list[str] | None, typer.Option(help="A tool it may use; repeat for more.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Scope: an agent it reaches; repeat for more.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Scope: a model it may name; repeat for more.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Scope: a feature it may use; repeat for more. Without: all.")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a service key, and print it. It is shown only once.

    **Examples**

    - `turnkeep keys create web`

    - `turnkeep keys create batch --org acme --monthly-message-limit 10000 --json | jq -r .key`

    - `turnkeep keys create widget --agent agent_… --feature files`
    """
    from turnkeep.api.identity.service_keys import make_key
    from turnkeep.api.views import key_of
    from turnkeep_client import wire

    settings = settings_of(data_dir, database_url)
    asked = wire.NewKey(
        name=name,
        monthly_message_limit=monthly_message_limit,
        requests_per_minute=requests_per_minute,
        allowed_tools=allowed_tool or None,
        scopes=_scopes(agent, model, feature),
    )

    async def direct(store: Store) -> Any:
        key, secret = await make_key(store, await _org(store, org), asked)
        return msgspec.to_builtins(key_of(key, secret=secret))

    def ask() -> Any:
        return ask_server(settings, "POST", _path(settings, org), msgspec.to_builtins(asked))

    made = either(settings, direct, ask)
    if as_json:
        print_json(made)
        return
    say(f"id   {made['id']}  {made['name']}")
    say(f"key  {made['key']}")


@keys.command("list")
def list_keys(
    org: Org = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """List the service keys of a tenant, revoked ones included, and the workspace to which a key is pinned.

    **Example**

    - `turnkeep keys list --org acme`
    """
    from turnkeep.api.views import key_of

    settings = settings_of(data_dir, database_url)

    async def direct(store: Store) -> Any:
        return [msgspec.to_builtins(key_of(key)) for key in await store.keys(await _org(store, org))]

    found = either(settings, direct, lambda: list_from_server(settings, _path(settings, org)))
    if as_json:
        print_lines(found)
        return
    rows = [
        [key["id"], "revoked" if key["revoked_at"] else "valid", key["workspace_id"] or "all", key["name"]]
        for key in found
    ]
    print_table(["id", "state", "workspace", "name"], rows, nothing="The org has no keys.")


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="key_…, as `turnkeep keys list` shows it.")],
    keep_made: Annotated[
        bool, typer.Option("--keep-made", help="The keys that it made stay valid, such as the one that replaces it.")
    ] = False,
    org: Org = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a service key. The key, its tokens and all keys that it made are invalid from now on.

    **Example**

    - `turnkeep keys revoke key_…`
    """
    settings = settings_of(data_dir, database_url)
    check_id(key_id, "key")

    async def direct(store: Store) -> None:
        await store.revoke_key(await _org(store, org), KeyId(key_id), keeps_made=keep_made)

    query = "?keep_made=true" if keep_made else ""
    either(settings, direct, lambda: ask_server(settings, "DELETE", f"{_path(settings, org)}/{key_id}{query}"))
    say(f"{key_id} is revoked.")


def _scopes(agents: list[str] | None, models: list[str] | None, features: list[str] | None) -> Scopes | None:
    """The scopes that the options name; None if they name none. Raises InvalidRequest for an unknown feature."""
    if not (agents or models or features):
        return None
    named = {"agents": agents or "*", "models": models or "*", "features": features or "*"}
    try:
        return msgspec.convert(named, Scopes)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"{exc}. Features are: {', '.join(get_args(Feature))}.") from exc


async def _org(store: Store, wanted: str | None) -> OrgId:
    from turnkeep.runtime import home_org

    if wanted is None:
        return await home_org(store)
    return _named([(org.id, org.name) for org in await store.orgs()], wanted)


def _path(settings: Settings, wanted: str | None) -> str:
    found = list_from_server(settings, "/v1/orgs")
    if wanted is None:
        org_id = min(found, key=lambda org: (org["created_at"], org["id"]))["id"]
    else:
        org_id = _named([(org["id"], org["name"]) for org in found], wanted)
    return f"/v1/orgs/{org_id}/keys"


def _named(orgs: list[tuple[Any, str]], wanted: str) -> OrgId:
    matching = [org_id for org_id, name in orgs if wanted in {org_id, name}]
    if len(matching) != 1:
        raise NotFound(f"{'No' if not matching else 'More than one'} org is called {wanted!r}. Use its id.")
    return OrgId(matching[0])
