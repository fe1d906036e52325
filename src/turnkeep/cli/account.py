"""`turnkeep models`, `turnkeep tools` and `turnkeep usage`: what the server can reach, and the usage of a month."""

from typing import Annotated

import typer

from turnkeep.cli.output import print_json, print_lines, print_table, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server


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
    as_json: AsJson = False,
) -> None:
    """Show what a month has used: messages, tokens, and the limit.

    **Examples**

    - `turnkeep usage`

    - `turnkeep usage --month 2026-11 --user ann --json`
    """
    with server.connected() as turnkeep:
        used = turnkeep.usage.get(month=month)
    if as_json:
        print_json(used)
        return
    limit = "no limit" if used.limit is None else f"limit {used.limit:,}"
    rows = [
        ("month", used.month),
        (
            "messages",
            f"{used.messages:,} ({limit}; {used.by_source.ui:,} from the page, {used.by_source.api:,} by API)",
        ),
        ("input tokens", f"{used.input_tokens:,}"),
        ("output tokens", f"{used.output_tokens:,}"),
    ]
    print_table(("", ""), rows, nothing="")
