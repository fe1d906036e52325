"""`turnkeep conversations`: list, search, show, rename, pin, move to folders, share, delete, restore, erase."""

import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from turnkeep.cli.markdown import message_as_markdown
from turnkeep.cli.output import moment, print_json, print_lines, print_table, print_text, remark, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.http_server.sockets import is_loopback
from turnkeep_client.wire.conversations import Kind

conversations = typer.Typer(
    no_args_is_help=True, help="List, search, show, rename, pin, move, share, delete, restore and erase conversations."
)

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
    folder: Annotated[str | None, typer.Option(help="Only those in this folder.")] = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="Only those that are pinned.")] = False,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Those that were deleted and can be restored; none of the others.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List conversations, the last changed first; or those in which words occur.

    **Examples**

    - `turnkeep conversations list`

    - `turnkeep conversations list "quarterly report" -n 5`

    - `turnkeep conversations list --user ada@example.com --external-id ticket-4711`

    - `turnkeep conversations list --deleted`

    - `turnkeep conversations list --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        found = turnkeep.conversations.list(
            search,
            limit=limit,
            external_id=external_id,
            agent_id=agent,
            kind=kind,
            folder=folder,
            is_pinned=pinned or None,
            deleted=deleted or None,
        )
        if as_json:
            print_lines(found)
            return
        rows = [
            (
                one.id,
                moment(one.deleted_at or one.updated_at),
                str(one.message_count),
                one.snippet or one.title or one.preview or "",
            )
            for one in found
        ]
    if deleted:
        nothing = "Nothing was deleted that could be restored."
    elif external_id or agent or kind or folder is not None or pinned:
        nothing = "No conversation is like that."
    else:
        nothing = (
            "No conversation has these words." if search else "There are no conversations yet. Try `turnkeep chat`."
        )
    print_table(("id", "deleted" if deleted else "changed", "messages", "title"), rows, nothing=nothing)


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
def move(
    server: ServerOptions,
    conversation: Id,
    folder: Annotated[str | None, typer.Argument(help="The name of the folder; without it, out of any folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put a conversation into a folder, or take it out of its folder.

    **Examples**

    - `turnkeep conversations move conv_… Travel`

    - `turnkeep conversations move conv_…`
    """
    with server.connected() as turnkeep:
        changed = turnkeep.conversations.update(conversation, folder=folder or None)
    place = f"in the folder “{changed.folder}”" if changed.folder else "in no folder"
    print_json(changed) if as_json else say(f"{changed.id} is {place}.")


@conversations.command()
@asks_a_server
def pin(
    server: ServerOptions,
    conversation: Id,
    undo: Annotated[bool, typer.Option("--undo", help="Do not keep it at the top any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a conversation at the top of the list of the page.

    **Examples**

    - `turnkeep conversations pin conv_…`

    - `turnkeep conversations pin conv_… --undo`
    """
    with server.connected() as turnkeep:
        changed = turnkeep.conversations.update(conversation, is_pinned=not undo)
    print_json(changed) if as_json else say(
        f"{changed.id} is {'pinned' if changed.is_pinned else 'not pinned any more'}."
    )


@conversations.command()
@asks_a_server
def folders(
    server: ServerOptions,
    rename: Annotated[
        tuple[str, str] | None, typer.Option(metavar="FOLDER NAME", help="Give this folder another name.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Take all conversations out of this folder. They stay.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List folders, rename one, or remove one.

    **Examples**

    - `turnkeep conversations folders`

    - `turnkeep conversations folders --rename Travel Journeys`

    - `turnkeep conversations folders --remove Journeys`
    """
    with server.connected() as turnkeep:
        if rename is not None:
            turnkeep.conversations.rename_folder(*rename)
        if remove is not None:
            turnkeep.conversations.rename_folder(remove, None)
        found = turnkeep.conversations.folders()
    if as_json:
        print_lines(found)
        return
    rows = [(one.name, str(one.conversations)) for one in found]
    print_table(("folder", "conversations"), rows, nothing="No conversation is in a folder.")


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
def erase(
    server: ServerOptions,
    conversation: Id,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a conversation for good, with its files, whether it was deleted before or not. It cannot be restored.

    **Example**

    - `turnkeep conversations erase conv_… --yes`
    """
    if not yes:
        typer.confirm(f"Erase {conversation} with its messages and files? It cannot be restored.", abort=True, err=True)
    with server.connected() as turnkeep:
        turnkeep.conversations.erase(conversation)
    print_json({"id": conversation, "erased": True}) if as_json else say(f"{conversation} is erased.")


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


@conversations.command()
@asks_a_server
def share(
    server: ServerOptions,
    conversation: Id,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=365, help="How long the link lasts; 30 days by default.")
    ] = None,
    with_files: Annotated[bool, typer.Option("--with-files", help="Show the files of the conversation, too.")] = False,
    turn: Annotated[
        str | None, typer.Option(metavar="TURN", help="The last turn that is shown: turn_…; by default the last one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a link that shows a conversation as it is now to everybody who has the link. It is shown only now.

    The link shows no later turns. It ends when a message that it shows is edited or answered again.

    **Examples**

    - `turnkeep conversations share conv_…`

    - `turnkeep conversations share conv_… --days 7 --with-files`
    """
    with server.connected() as turnkeep:
        made = turnkeep.shares.create(
            conversation,
            turn_id=turn,
            with_files=with_files,
            ttl_seconds=None if days is None else max(60, round(days * 86_400)),
        )
    if as_json:
        print_json(made)
        return
    say(str(made.url))
    if is_loopback(urlsplit(str(made.url)).hostname or ""):
        remark("Only this machine can open it. Set TURNKEEP_PUBLIC_URL on the server for links that others can open.")
    remark(f"Everybody who has it can read it until {moment(made.expires_at)}. `unshare {made.id}` ends it.")


@conversations.command()
@asks_a_server
def shares(
    server: ServerOptions,
    conversation: Annotated[
        str | None, typer.Argument(metavar="[CONVERSATION]", help="Only the links to this conversation: conv_…")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the share links that have not ended. Admins see those of the whole workspace.

    **Example**

    - `turnkeep conversations shares`
    """
    with server.connected() as turnkeep:
        found = turnkeep.shares.list(conversation)
        if as_json:
            print_lines(found)
            return
        rows = [
            (one.id, one.conversation_id, moment(one.expires_at), "yes" if one.with_files else "no", one.title or "")
            for one in found
        ]
    print_table(("id", "conversation", "ends", "files", "title"), rows, nothing="There are no share links.")


@conversations.command()
@asks_a_server
def unshare(
    server: ServerOptions,
    share: Annotated[
        str, typer.Argument(metavar="SHARE", help="share_…, as `turnkeep conversations shares` shows it.")
    ],
    as_json: AsJson = False,
) -> None:
    """End a share link at once.

    **Example**

    - `turnkeep conversations unshare share_…`
    """
    with server.connected() as turnkeep:
        turnkeep.shares.revoke(share)
    print_json({"id": share, "revoked": True}) if as_json else say(f"{share} has ended.")
