"""`turnkeep models`, `turnkeep tools` and `turnkeep usage`: what the server can reach, and the usage of a month."""

from collections.abc import Iterable
from typing import Annotated

import typer

from turnkeep.cli.lookup import find_agent
from turnkeep.cli.output import moment, print_json, print_lines, print_table, print_text, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep_client.wire import GroupBy, MonthlyUsage, UsageRow, UsageTurn


@asks_a_server
def models(
    server: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List the models that the server can reach now, as they are named in requests.

    **Examples**

    - `turnkeep models`

    - `turnkeep chat --model "$(turnkeep models | head -1)" "Hello"`
    """
    with server.connected() as turnkeep:
        found = turnkeep.models.list()
        if as_json:
            print_lines(found)
            return
        for model in found:
            say(model.id)


@asks_a_server
def tools(
    server: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List the tools that agents can name: those of the server, and those of its operator.

    **Examples**

    - `turnkeep tools`

    - `turnkeep tools --json | jq -r .name`
    """
    with server.connected() as turnkeep:
        found = turnkeep.tools.list()
        if as_json:
            print_lines(found)
            return
        rows = [(tool.name, tool.description.partition("\n")[0]) for tool in found]
    print_table(("name", "description"), rows, nothing="There are no tools.")


@asks_a_server
def usage(
    server: ServerOptions,
    month: Annotated[str | None, typer.Option("--month", help="Such as 2026-11; by default this month.")] = None,
    by: Annotated[GroupBy | None, typer.Option("--by", help="Also show what each user, agent, … has used.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Only turns of this agent.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only turns of this model.")] = None,
    day: Annotated[str | None, typer.Option("--day", help="With --turns: only those of this day.")] = None,
    show_turns: Annotated[bool, typer.Option("--turns", help="List the turns, newest first, instead.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="With --turns: how many at most.")] = 50,
    as_csv: Annotated[bool, typer.Option("--csv", help="With --by: print the groups as a CSV file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a month has used: messages, tokens, cost, and the limits.

    **Examples**

    - `turnkeep usage --by model`

    - `turnkeep usage --month 2026-11 --user ann --json`

    - `turnkeep usage --by day --csv > november.csv`

    - `turnkeep usage --turns --day 2026-11-30`
    """
    if as_csv and by is None:
        raise InvalidRequest("--csv needs --by: the groups are the rows of the file.")
    if day is not None and not show_turns:
        raise InvalidRequest("--day narrows --turns. For what each day has used, use --by day.")
    with server.connected() as turnkeep:
        agent_id = None if agent is None else find_agent(turnkeep, agent).id
        if show_turns:
            month = month or (None if day is None else day[:7])
            found = turnkeep.usage.turns(month=month, day=day, agent_id=agent_id, model=model, limit=limit)
            _print_turns(found, as_json=as_json)
            return
        if as_csv and by is not None:
            print_text(turnkeep.usage.csv(by, month=month, agent_id=agent_id, model=model), end="")
            return
        used = turnkeep.usage.get(month=month, group_by=by, agent_id=agent_id, model=model)
    if as_json:
        print_json(used)
        return
    _print_usage(used)


def _print_usage(used: MonthlyUsage) -> None:
    limit = "no limit" if used.limit is None else f"limit {used.limit:,}"
    rows = [
        ("month", used.month),
        (
            "messages",
            f"{used.messages:,} ({limit}; {used.by_source.ui:,} from the page, {used.by_source.api:,} by API)",
        ),
        ("input tokens", f"{used.input_tokens:,}"),
        ("output tokens", f"{used.output_tokens:,}"),
        ("cost", _money(used.cost)),
    ]
    rows += [
        (f"{each.scope}'s {each.name.replace('_', ' ')}", f"{each.used:,g} of {each.limit:,g}") for each in used.limits
    ]
    print_table(("", ""), rows, nothing="")
    if used.group_by is not None:
        say("")
        groups = [
            (
                _group_name(row),
                f"{row.messages:,}",
                f"{row.input_tokens:,}",
                f"{row.output_tokens:,}",
                _money(row.cost),
            )
            for row in used.rows
        ]
        columns = (used.group_by, "messages", "input tokens", "output tokens", "cost")
        print_table(columns, groups, nothing="Nothing was used.")


def _print_turns(found: Iterable[UsageTurn], *, as_json: bool) -> None:
    if as_json:
        print_lines(found)
        return
    rows = [
        (
            turn.id,
            moment(turn.created_at),
            turn.status,
            "" if turn.user is None else turn.user.external_id,
            turn.model or "",
            f"{turn.input_tokens:,}",
            f"{turn.output_tokens:,}",
            _money(turn.cost),
        )
        for turn in found
    ]
    columns = ("id", "asked", "state", "user", "model", "input tokens", "output tokens", "cost")
    print_table(columns, rows, nothing="There are no turns.")


def _group_name(row: UsageRow) -> str:
    return row.user.external_id if row.user is not None else row.group or "(none)"


def _money(cost: float | None) -> str:
    return "no price" if cost is None else f"{cost:,.4f}"
