"""`turnkeep workspaces` and `turnkeep tokens`: containers inside an org with limits of their own; tokens of users."""

from typing import Annotated, Literal, cast

import typer

from turnkeep.cli.output import moment, print_json, print_lines, print_table, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep_client.account import ScopeFields, WorkspaceFields
from turnkeep_client.wire import Feature, Workspace

workspaces = typer.Typer(no_args_is_help=True, help="List, show, create, change and delete workspaces.")
tokens = typer.Typer(no_args_is_help=True, help="Make short-lived tokens for users.")

Id = Annotated[str, typer.Argument(metavar="WORKSPACE", help="ws_…, as `turnkeep workspaces list` shows it.")]
Model = Annotated[str | None, typer.Option("--model", help="The model where nothing names one; `none`: the server's.")]
Limit = Annotated[
    str | None, typer.Option("--monthly-message-limit", help="Messages a month of the workspace, or `none`.")
]
UserLimit = Annotated[
    str | None, typer.Option("--user-monthly-message-limit", help="Messages a month of each user, or `none`.")
]


@workspaces.command("list")
@asks_a_server
def list_workspaces(server: ServerOptions, as_json: AsJson = False) -> None:
    """List the workspaces that the key can see.

    **Examples**

    - `turnkeep workspaces list`

    - `turnkeep workspaces list --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        found = turnkeep.workspaces.list()
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, "default" if one.is_default else "", one.model or "", one.name) for one in found]
    print_table(("id", "", "model", "name"), rows, nothing="There are no workspaces.")


@workspaces.command()
@asks_a_server
def show(server: ServerOptions, workspace_id: Id, as_json: AsJson = False) -> None:
    """Show a workspace, with its model and its limits.

    **Example**

    - `turnkeep workspaces show ws_…`
    """
    with server.connected() as turnkeep:
        _print(turnkeep.workspaces.get(workspace_id), as_json=as_json)


@workspaces.command()
@asks_a_server
def create(
    server: ServerOptions,
    name: Annotated[str, typer.Argument(help="A name for people.")],
    model: Model = None,
    monthly_message_limit: Limit = None,
    user_monthly_message_limit: UserLimit = None,
    as_json: AsJson = False,
) -> None:
    """Make a workspace.

    **Example**

    - `turnkeep workspaces create "Support team" --user-monthly-message-limit 500`
    """
    fields = _fields(model, monthly_message_limit, user_monthly_message_limit)
    with server.connected() as turnkeep:
        _print(turnkeep.workspaces.create(name, **fields), as_json=as_json)


@workspaces.command()
@asks_a_server
def update(
    server: ServerOptions,
    workspace_id: Id,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    model: Model = None,
    monthly_message_limit: Limit = None,
    user_monthly_message_limit: UserLimit = None,
    as_json: AsJson = False,
) -> None:
    """Change the name, the model or the limits of a workspace.

    **Examples**

    - `turnkeep workspaces update ws_… --model anthropic/claude-sonnet-4-5`

    - `turnkeep workspaces update ws_… --monthly-message-limit none`
    """
    fields = _fields(model, monthly_message_limit, user_monthly_message_limit)
    if name is None and not fields:
        raise InvalidRequest("Say what to change: `turnkeep workspaces update --help` lists it.")
    with server.connected() as turnkeep:
        if name is None:
            changed = turnkeep.workspaces.update(workspace_id, **fields)
        else:
            changed = turnkeep.workspaces.update(workspace_id, name=name, **fields)
    _print(changed, as_json=as_json)


@workspaces.command()
@asks_a_server
def delete(server: ServerOptions, workspace_id: Id, as_json: AsJson = False) -> None:
    """Delete a workspace that holds no conversations.

    **Example**

    - `turnkeep workspaces delete ws_…`
    """
    with server.connected() as turnkeep:
        turnkeep.workspaces.delete(workspace_id)
    print_json({"id": workspace_id, "deleted": True}) if as_json else say(f"{workspace_id} is deleted.")


@tokens.command("create")
@asks_a_server
def create_token(
    server: ServerOptions,
    who: Annotated[str, typer.Argument(metavar="USER", help="The id that your application gave to the user.")],
    ttl_seconds: Annotated[int, typer.Option("--ttl-seconds", min=1, help="How long it is valid.")] = 3_600,
    role: Annotated[Literal["member", "admin"] | None, typer.Option("--role", help="What the user may do.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Scope: an agent it reaches; repeat for more.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Scope: a model it may name; repeat for more.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Scope: a feature it may use; repeat for more. Without: all.")
    ] = None,
    source: Annotated[
        Literal["ui", "api"] | None, typer.Option("--source", help="For which count its messages are: ui or api.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for one user of one workspace, and print it. It needs a service key.

    **Examples**

    - `turnkeep tokens create ann@example.com --ttl-seconds 600`

    - `turnkeep tokens create ann@example.com --agent agent_… --feature files --json | jq -r .token`
    """
    scopes = ScopeFields()
    if agent:
        scopes["agents"] = agent
    if model:
        scopes["models"] = model
    if feature:
        scopes["features"] = cast(list[Feature], feature)
    with server.connected() as turnkeep:
        made = turnkeep.tokens.create(
            who,
            workspace_id=server.workspace,
            ttl_seconds=ttl_seconds,
            role=role,
            scopes=scopes or None,
            source=source,
        )
    if as_json:
        print_json(made)
        return
    say(f"user   {made.user.id}  {made.user.external_id}")
    say(f"until  {moment(made.expires_at)}")
    say(f"token  {made.token}")


def _fields(model: str | None, monthly: str | None, per_user: str | None) -> WorkspaceFields:
    fields = WorkspaceFields()
    if model is not None:
        fields["model"] = None if model == "none" else model
    if monthly is not None:
        fields["monthly_message_limit"] = _count(monthly)
    if per_user is not None:
        fields["user_monthly_message_limit"] = _count(per_user)
    return fields


def _count(text: str) -> int | None:
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{text!r} is neither a whole number nor `none`.")
    return None if text == "none" else int(text)


def _print(workspace: Workspace, *, as_json: bool) -> None:
    if as_json:
        print_json(workspace)
        return
    say(f"{workspace.id}  {workspace.name}")
    rows = [
        ("model", workspace.model or "the server's"),
        ("messages a month", _limit(workspace.monthly_message_limit)),
        ("of each user", _limit(workspace.user_monthly_message_limit)),
    ]
    print_table(("", ""), rows, nothing="")


def _limit(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"
