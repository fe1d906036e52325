"""`turnkeep users`: the users of a workspace, with their roles and limits, and invites to the page."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from turnkeep.cli.output import moment, print_json, print_lines, print_table, remark, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep.http_server.sockets import is_loopback
from turnkeep_client.account import UserChanges
from turnkeep_client.wire import User

users = typer.Typer(no_args_is_help=True, help="List, show, invite, limit and disable users.")

Named = Annotated[str, typer.Argument(metavar="USER", help="user_…, or the id that your application gave.")]
Limit = Annotated[str | None, typer.Option(help="A number, or `none`.")]


@users.command("list")
@asks_a_server
def list_users(
    server: ServerOptions,
    query: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="A part of the name or id.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the users of the workspace, or those whose name or id has this text in it.

    **Examples**

    - `turnkeep users list`

    - `turnkeep users list ann --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        found = turnkeep.users.list(query)
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, one.external_id, one.name or "", _state(one)) for one in found]
    print_table(("id", "external id", "name", "role"), rows, nothing="There are no such users.")


@users.command()
@asks_a_server
def show(server: ServerOptions, which: Named, as_json: AsJson = False) -> None:
    """Show a user, with their limits.

    **Example**

    - `turnkeep users show ann@example.com`
    """
    with server.connected() as turnkeep:
        _print(turnkeep.users.get(which), as_json=as_json)


@users.command()
@asks_a_server
def update(
    server: ServerOptions,
    which: Named,
    name: Annotated[str | None, typer.Option(help="A name for people; empty takes it away.")] = None,
    role: Annotated[Literal["member", "admin"] | None, typer.Option(help="What the user may do.")] = None,
    disable: Annotated[
        bool | None, typer.Option("--disable/--enable", help="A disabled user can do nothing; their turns are stopped.")
    ] = None,
    monthly_message_limit: Limit = None,
    monthly_token_limit: Limit = None,
    monthly_cost_limit: Limit = None,
    stored_byte_limit: Limit = None,
    parallel_turn_limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Change the name, the role or the limits of a user, or disable them.

    **Examples**

    - `turnkeep users update ann@example.com --disable`

    - `turnkeep users update ann@example.com --monthly-token-limit 2000000 --monthly-cost-limit none`
    """
    changes: UserChanges = {}
    if name is not None:
        changes["name"] = name or None
    if role is not None:
        changes["role"] = role
    if disable is not None:
        changes["is_disabled"] = disable
    if monthly_message_limit is not None:
        changes["monthly_message_limit"] = _count(monthly_message_limit)
    if monthly_token_limit is not None:
        changes["monthly_token_limit"] = _count(monthly_token_limit)
    if monthly_cost_limit is not None:
        changes["monthly_cost_limit"] = _amount(monthly_cost_limit)
    if stored_byte_limit is not None:
        changes["stored_byte_limit"] = _count(stored_byte_limit)
    if parallel_turn_limit is not None:
        changes["parallel_turn_limit"] = _count(parallel_turn_limit)
    if not changes:
        raise InvalidRequest("Say what to change: `turnkeep users update --help` lists it.")
    with server.connected() as turnkeep:
        _print(turnkeep.users.update(which, **changes), as_json=as_json)


@users.command()
@asks_a_server
def invite(
    server: ServerOptions,
    name: Annotated[
        str, typer.Argument(help="The id of the person, such as an e-mail address. A new id makes a user.")
    ],
    full_name: Annotated[str | None, typer.Option("--name", help="A name for people; by default the id.")] = None,
    role: Annotated[Literal["member", "admin"] | None, typer.Option(help="What the user may do.")] = None,
    hours: Annotated[float, typer.Option(min=0.02, max=720, help="How long the link is valid.")] = 72,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs a person in to the page, once. Send it to them; it is shown only now.

    Invite the same person again for another browser, or when their session has expired.

    **Examples**

    - `turnkeep users invite ann@example.com`

    - `turnkeep users invite ann@example.com --name Ann --role admin --hours 4`
    """
    with server.connected() as turnkeep:
        made = turnkeep.invites.create(name, name=full_name, role=role, ttl_seconds=round(hours * 3600))
    if as_json:
        print_json(made)
        return
    say(str(made.url))
    if is_loopback(urlsplit(str(made.url)).hostname or ""):
        remark("Only this machine can open it. Set TURNKEEP_PUBLIC_URL on the server for links that others can open.")
    remark(f"It signs {made.user.name or made.user.external_id} in, once, until {moment(made.expires_at)}.")


def _print(user: User, *, as_json: bool) -> None:
    if as_json:
        print_json(user)
        return
    say(f"{user.id}  {user.external_id}")
    rows = [
        ("name", user.name or ""),
        ("role", _state(user)),
        ("messages a month", _shown(user.monthly_message_limit)),
        ("tokens a month", _shown(user.monthly_token_limit)),
        ("cost a month", _shown(user.monthly_cost_limit)),
        ("bytes in files", _shown(user.stored_byte_limit)),
        ("turns at a time", _shown(user.parallel_turn_limit)),
    ]
    print_table(("", ""), rows, nothing="")


def _state(user: User) -> str:
    return f"{user.role}, disabled" if user.is_disabled else user.role


def _shown(limit: float | None) -> str:
    return "no limit of their own" if limit is None else f"{limit:,}"


def _count(text: str) -> int | None:
    amount = _amount(text)
    if amount is not None and amount != int(amount):
        raise InvalidRequest(f"{text!r} is no whole number.")
    return None if amount is None else int(amount)


def _amount(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError as exc:
        raise InvalidRequest(f"{text!r} is neither a number nor `none`.") from exc
