"""`turnkeep conversations`: list, search, show, rename, delete, restore."""

import sys
from typing import Annotated

import typer

from turnkeep.cli.markdown import message_as_markdown
from turnkeep.cli.output import moment, print_json, print_lines, print_table, print_text, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep_client.wire.conversations import Kind

conversations = typer.Typer(no_args_is_help=True, help="List, search, show, rename, delete and restore conversations.")

Id = Annotated[str, typer.Argument(metavar="CONVERSATION", help="conv_…, as `turnkeep conversations list` shows it.")]


@conversations.command("list")
@asks_a_server
def list_conversations(
    server: ServerOptions,
    search: Annotated[str | None, typer.Argument(help="Words to look for in titles and messages.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    external_id: Annotated[str | None, typer.Option(help="Only those with this id of the host's application.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Only those of this agent: agent_…")] = None,
    kind: Annotated[
        Kind | None, typer.Option(help="Only those of this kind; runs are listed with `run` alone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List conversations, the last changed first; or those in which words occur.

    **Examples**

    - `turnkeep conversations list`

    - `turnkeep conversations list "quarterly report" -n 5`

    - `turnkeep conversations list --user ada@example.com --external-id ticket-4711`

    - `turnkeep conversations list --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        found = turnkeep.conversations.list(search, limit=limit, external_id=external_id, agent_id=agent, kind=kind)
        if as_json:
            print_lines(found)
            return
        rows = [
            (one.id, moment(one.updated_at), str(one.message_count), one.snippet or one.title or one.preview or "")
            for one in found
        ]
    if external_id or agent or kind:
        nothing = "No conversation is like that."
    else:
        nothing = (
            "No conversation has these words." if search else "There are no conversations yet. Try `turnkeep chat`."
        )
    print_table(("id", "changed", "messages", "title"), rows, nothing=nothing)


@conversations.command()
@asks_a_server
def show(
    server: ServerOptions,
    conversation: Id,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of messages; the last ones are shown.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a conversation as it reads, with its steps.

    **Examples**

    - `turnkeep conversations show conv_… | less`

    - `turnkeep conversations show conv_… --json | jq -r 'select(.role == "assistant").id'`
    """
    with server.connected() as turnkeep:
        found = list(turnkeep.conversations.messages(conversation, order="desc", limit=limit))
    messages = found[::-1]
    if as_json:
        print_lines(messages)
        return
    text = "\n\n".join(message_as_markdown(message) for message in messages)
    if not sys.stdout.isatty():
        print_text(text)
        return
    from turnkeep.cli.screen import Screen, markdown

    Screen().print(markdown(text))


@conversations.command()
@asks_a_server
def rename(
    server: ServerOptions,
    conversation: Id,
    title: Annotated[str, typer.Argument(help="The new title.")],
    as_json: AsJson = False,
) -> None:
    """Give a conversation another title.

    **Example**

    - `turnkeep conversations rename conv_… "The move to Bern"`
    """
    with server.connected() as turnkeep:
        changed = turnkeep.conversations.rename(conversation, title)
    print_json(changed) if as_json else say(f"{changed.id} is now called “{changed.title}”.")


@conversations.command()
@asks_a_server
def delete(
    server: ServerOptions,
    conversation: Id,
    as_json: AsJson = False,
) -> None:
    """Delete a conversation with its files. It can be restored for a while.

    **Example**

    - `turnkeep conversations delete conv_…`
    """
    with server.connected() as turnkeep:
        turnkeep.conversations.delete(conversation)
    if as_json:
        print_json({"id": conversation, "deleted": True})
    else:
        say(f"{conversation} is deleted. `turnkeep conversations restore {conversation}` brings it back.")


@conversations.command()
@asks_a_server
def restore(
    server: ServerOptions,
    conversation: Id,
    as_json: AsJson = False,
) -> None:
    """Undo a delete.

    **Example**

    - `turnkeep conversations restore conv_…`
    """
    with server.connected() as turnkeep:
        restored = turnkeep.conversations.restore(conversation)
    print_json(restored) if as_json else say(f"{restored.id} is back: {restored.title or restored.preview or ''}")
