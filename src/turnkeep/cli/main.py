"""`turnkeep`: the table of commands, and how an error reaches the terminal.

Only the command that was asked for is imported, so `turnkeep --help` does not wait for a database driver. Each
command is a function for typer, or a `typer.Typer` with commands of its own, in a module of its own.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer

from turnkeep.errors import TurnkeepError


class Command(NamedTuple):
    """A line of the table: the name, one sentence, and where the command is."""

    name: str
    summary: str
    module: str
    attribute: str


COMMANDS = (
    Command("serve", "Run the server.", "turnkeep.cli.serve", "serve"),
    Command("orgs", "Make and list tenants.", "turnkeep.cli.orgs", "orgs"),
    Command("keys", "Make, list and revoke service keys.", "turnkeep.cli.keys", "keys"),
    Command("migrate", "Bring the database to this release.", "turnkeep.cli.migrate", "migrate"),
    Command("status", "Create the database and report on it.", "turnkeep.cli.status", "status"),
    Command(
        "doctor",
        "Say why a provider would refuse a transcript, and write one that it accepts.",
        "turnkeep.cli.doctor",
        "doctor",
    ),
)

FAILED = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code. Our own errors are one line on stderr, without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = typer.main.get_command(build(arguments))
    try:
        command.main(args=arguments, prog_name="turnkeep")
    except TurnkeepError as exc:
        print(f"turnkeep: {exc.detail}", file=sys.stderr)
        sys.exit(FAILED)


def build(arguments: Sequence[str]) -> typer.Typer:
    """The app for these arguments: commands that they name are loaded, the others are only listed."""
    app = typer.Typer(
        name="turnkeep",
        help="A conversation runtime for AI assistants and agents.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in COMMANDS:
        loaded = _load(command) if command.name in arguments else _unloaded
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=command.name, help=command.summary)
        else:
            app.command(command.name, help=None if loaded is not _unloaded else command.summary)(loaded)
    return app


def _load(command: Command) -> Any:
    return getattr(import_module(command.module), command.attribute)


def _unloaded() -> None:
    """Stands in the list for a command that was not asked for."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"turnkeep {version('turnkeep')}")
        raise typer.Exit


def _options(
    shown: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
