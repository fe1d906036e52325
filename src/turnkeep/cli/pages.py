"""`turnkeep pages`: the Markdown documents that agents search."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.file_io import read_text, whole_file
from turnkeep.cli.lookup import find_page
from turnkeep.cli.output import moment, print_json, print_lines, print_table, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest

pages = typer.Typer(no_args_is_help=True, help="List, search, show, write and delete pages.")

Named = Annotated[str, typer.Argument(metavar="PAGE", help="page_…, or a title that only one page has.")]
Text = Annotated[Path, typer.Argument(metavar="FILE", help="A Markdown file; - reads standard input.")]


@pages.command("list")
@asks_a_server
def list_pages(
    server: ServerOptions,
    q: Annotated[str | None, typer.Argument(metavar="[WORDS]", help="Only pages that these words find.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List pages, newest first; with words, those that they find, best first.

    **Examples**

    - `turnkeep pages list`

    - `turnkeep pages list "refund policy" --json | jq -r .title`
    """
    with server.connected() as turnkeep:
        found = turnkeep.pages.list(q, limit=limit)
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, moment(one.updated_at), one.title, one.snippet or "") for one in found]
    nothing = (
        "No page matches." if q else "There are no pages yet. `turnkeep pages write --help` shows how to make one."
    )
    print_table(("id", "changed", "title", "where it matches"), rows, nothing=nothing)


@pages.command()
@asks_a_server
def show(
    server: ServerOptions,
    page: Named,
    as_json: AsJson = False,
) -> None:
    """Show the Markdown of a page.

    **Example**

    - `turnkeep pages show "Refund policy" > refunds.md`
    """
    with server.connected() as turnkeep:
        found = turnkeep.pages.get(find_page(turnkeep, page).id)
    if as_json:
        print_json(found)
        return
    content = found.content or ""
    with whole_file(None) as out:
        out.write((content if content.endswith("\n") else f"{content}\n").encode())


@pages.command()
@asks_a_server
def write(
    server: ServerOptions,
    file: Text,
    title: Annotated[
        str | None, typer.Option("--title", help="By default the first heading, or the file's name.")
    ] = None,
    page: Annotated[str | None, typer.Option("--page", help="Replace this page (page_… or its title).")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a page from a Markdown file, or replace one.

    **Examples**

    - `turnkeep pages write handbook.md`

    - `turnkeep pages write handbook.md --page "Handbook"`
    """
    content = read_text(file)
    with server.connected() as turnkeep:
        if page is not None:
            made = turnkeep.pages.update(find_page(turnkeep, page).id, title=title, content=content)
        else:
            made = turnkeep.pages.create(title or _title_of(content, file), content)
    print_json(made) if as_json else say(f"{made.id} is written as “{made.title}”.")


@pages.command()
@asks_a_server
def delete(
    server: ServerOptions,
    page: Named,
    as_json: AsJson = False,
) -> None:
    """Delete a page, for good.

    **Example**

    - `turnkeep pages delete "Old handbook"`
    """
    with server.connected() as turnkeep:
        found = find_page(turnkeep, page)
        turnkeep.pages.delete(found.id)
    print_json({"id": found.id, "deleted": True}) if as_json else say(f"{found.id} (“{found.title}”) is deleted.")


def _title_of(content: str, file: Path) -> str:
    for line in content.splitlines():
        if line.startswith("# ") and line[2:].strip():
            return line[2:].strip()[:200]
    if str(file) == "-":
        raise InvalidRequest("The text has no heading. Say --title.")
    return file.stem
