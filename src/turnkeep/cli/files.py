"""`turnkeep files`: the files of conversations, and those saved for the whole workspace."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.file_io import download_file, upload_file, whole_file
from turnkeep.cli.output import moment, print_json, print_lines, print_table, say, size_of
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server

files = typer.Typer(no_args_is_help=True, help="List, upload, download, read, save and delete files.")

Id = Annotated[str, typer.Argument(metavar="FILE_ID", help="file_…, as `turnkeep files list` shows it.")]
Conversation = Annotated[str | None, typer.Option("--conversation", "-c", help="conv_…: the files of a conversation.")]


@files.command("list")
@asks_a_server
def list_files(server: ServerOptions, conversation: Conversation = None, as_json: AsJson = False) -> None:
    """List the files of a conversation; without one, those saved in the workspace.

    **Examples**

    - `turnkeep files list`

    - `turnkeep files list -c conv_… --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        found = turnkeep.files.list(conversation)
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, moment(one.created_at), size_of(one.size), one.source, one.name) for one in found]
    nothing = "The conversation has no files." if conversation else "No files are saved in the workspace."
    print_table(("id", "made", "size", "from", "name"), rows, nothing=nothing)


@files.command()
@asks_a_server
def upload(
    server: ServerOptions,
    file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The files to send.")],
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Send files, into a conversation or to be attached later. `turnkeep files save` shares one with the workspace.

    **Examples**

    - `turnkeep files upload report.pdf -c conv_…`

    - `turnkeep files upload *.csv --json | jq -r .id`
    """
    with server.connected() as turnkeep:
        for path in file:
            made = upload_file(turnkeep, path, conversation_id=conversation)
            print_json(made) if as_json else say(f"{made.id}  {made.name} ({size_of(made.size)})")


@files.command()
@asks_a_server
def download(
    server: ServerOptions,
    file_id: Id,
    output: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A file or folder; by default the file's name, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a file. It appears whole and checked, or not at all.

    **Example**

    - `turnkeep files download file_… reports/`
    """
    with server.connected() as turnkeep:
        path = download_file(turnkeep, file_id, output)
    print_json({"id": file_id, "path": str(path)}) if as_json else say(f"{file_id} is written to {path}.")


@files.command()
@asks_a_server
def text(server: ServerOptions, file_id: Id, as_json: AsJson = False) -> None:
    """Show the text of a file, as agents search it: a document without its layout, a spreadsheet as its cells.

    **Example**

    - `turnkeep files text file_… | less`
    """
    with server.connected() as turnkeep:
        found = turnkeep.files.text(file_id)
    if as_json:
        print_json(found)
        return
    with whole_file(None) as out:
        out.write((found.text if found.text.endswith("\n") else f"{found.text}\n").encode())


@files.command()
@asks_a_server
def save(server: ServerOptions, file_id: Id, conversation: Conversation = None, as_json: AsJson = False) -> None:
    """Copy a file to the files of the workspace, which all its members see; or into a conversation.

    **Example**

    - `turnkeep files save file_…`
    """
    with server.connected() as turnkeep:
        made = turnkeep.files.save(file_id, conversation_id=conversation)
    print_json(made) if as_json else say(f"{made.id} is a copy of it: {made.name}.")


@files.command()
@asks_a_server
def delete(server: ServerOptions, file_id: Id, as_json: AsJson = False) -> None:
    """Delete a file. Messages still name it.

    **Example**

    - `turnkeep files delete file_…`
    """
    with server.connected() as turnkeep:
        turnkeep.files.delete(file_id)
    print_json({"id": file_id, "deleted": True}) if as_json else say(f"{file_id} is deleted.")
