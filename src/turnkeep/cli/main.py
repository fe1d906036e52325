"""`turnkeep`: the table of commands, the first page of help, and the printing of errors.

Only the command that was asked for is imported. `turnkeep --help` is made of the table alone and imports no library,
because it is the first thing that people try. Each command is a function for typer, or a `typer.Typer` with commands of
its own.

Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

if TYPE_CHECKING:
    import typer
    from typer.core import TyperGroup


class CliCommand(NamedTuple):
    """A command: its name, one sentence, its module and attribute, and its heading in the help."""

    name: str
    summary: str
    module: str
    attribute: str
    heading: str = "Operate"


TALK, BUILD, OPERATE = "Talk", "Build", "Operate"
COMMANDS = (
    CliCommand("chat", "Talk to a model or an agent, here in the terminal.", "turnkeep.cli.chat", "chat", TALK),
    CliCommand(
        "conversations",
        "List, search, show, rename, share, delete and restore conversations.",
        "turnkeep.cli.conversations",
        "conversations",
        TALK,
    ),
    CliCommand(
        "turns",
        "List, show, approve, deny, answer, steer, stop and rate turns.",
        "turnkeep.cli.turns",
        "turns",
        TALK,
    ),
    CliCommand(
        "export", "Write conversations to a file, without loss or as Markdown.", "turnkeep.cli.transfer", "export", TALK
    ),
    CliCommand(
        "import",
        "Bring in conversations: our own exports, or histories from elsewhere.",
        "turnkeep.cli.transfer",
        "import_",
        TALK,
    ),
    CliCommand("agents", "List, show, create, change, delete and run agents.", "turnkeep.cli.agents", "agents", BUILD),
    CliCommand("pages", "List, search, show, write and delete pages.", "turnkeep.cli.pages", "pages", BUILD),
    CliCommand(
        "tables", "List, search and fill tables; CSV in and out, with progress.", "turnkeep.cli.tables", "tables", BUILD
    ),
    CliCommand("files", "List, upload, download, read, save and delete files.", "turnkeep.cli.files", "files", BUILD),
    CliCommand("models", "List the models that the server can reach.", "turnkeep.cli.account", "models", BUILD),
    CliCommand("tools", "List the tools that agents can name.", "turnkeep.cli.account", "tools", BUILD),
    CliCommand("users", "List, show, invite, limit and disable users.", "turnkeep.cli.users", "users", BUILD),
    CliCommand(
        "workspaces",
        "List, show, create, change and delete workspaces.",
        "turnkeep.cli.workspaces",
        "workspaces",
        BUILD,
    ),
    CliCommand("tokens", "Make short-lived tokens for users.", "turnkeep.cli.workspaces", "tokens", BUILD),
    CliCommand(
        "webhooks",
        "Let endpoints of yours hear of what happens, and see how that went.",
        "turnkeep.cli.webhooks",
        "webhooks",
        BUILD,
    ),
    CliCommand("usage", "Show what a month has used.", "turnkeep.cli.account", "usage", BUILD),
    CliCommand("serve", "Run the server.", "turnkeep.cli.serve", "serve", OPERATE),
    CliCommand(
        "doctor",
        "Check the installation; or a transcript that a provider refuses.",
        "turnkeep.cli.doctor",
        "doctor",
        OPERATE,
    ),
    CliCommand("status", "Create the database and report on it.", "turnkeep.cli.database", "status", OPERATE),
    CliCommand("sandbox", "Run a sandbox runner.", "turnkeep.cli.sandbox", "sandbox"),
    CliCommand("images", "Prepare, list and remove images for sandboxes.", "turnkeep.cli.images", "images", OPERATE),
    CliCommand("orgs", "Make and list tenants.", "turnkeep.cli.tenants", "orgs", OPERATE),
    CliCommand("keys", "Make, list and revoke service keys.", "turnkeep.cli.tenants", "keys", OPERATE),
    CliCommand("migrate", "Bring the database to this release.", "turnkeep.cli.database", "migrate", OPERATE),
    CliCommand(
        "completion", "Print or install completion for a shell.", "turnkeep.cli.completion", "completion", OPERATE
    ),
)
FAILED = 1
MISUSED = 2
COMPLETE_VARIABLE = "_TURNKEEP_COMPLETE"
EXAMPLES = (
    ("turnkeep serve", "run the server on this machine"),
    ("turnkeep chat", "talk to it here"),
    ('turnkeep chat "What is in it?" --attach report.pdf', "ask one question and exit"),
    ("turnkeep doctor", "see whether everything works"),
    ("turnkeep export --all -o backup.jsonl", "take your conversations with you"),
)
NAME_WIDTH = 15


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. Our own errors are one line on stderr, without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETE_VARIABLE not in os.environ and (not arguments or arguments[0] in {"--help", "-h"}):
        print(overview(_groups()))
        sys.exit(0 if arguments else MISUSED)
    gc.disable()  # there is no garbage in libraries that are being loaded: looking for it is a quarter of a command
    import typer

    from turnkeep.errors import InvalidRequest, TurnkeepError

    command = typer.main.get_command(build(arguments))
    try:
        command.main(args=arguments, prog_name="turnkeep")
    except TurnkeepError as exc:
        from turnkeep.cli.output import remark

        remark(f"turnkeep: {exc.detail}")
        sys.exit(MISUSED if isinstance(exc, InvalidRequest) else FAILED)


def build(arguments: Sequence[str]) -> "typer.Typer":
    """The app for these arguments. Commands that they name are imported, the others are only listed."""
    import typer

    app = typer.Typer(
        name="turnkeep",
        cls=_group(),
        help="A conversation runtime for AI assistants and agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options())
    named = {*arguments, *_completed_words()}
    for command in COMMANDS:
        loaded = _load(command) if command.name in named else _unloaded
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=command.name, help=command.summary)
        else:
            app.command(command.name, help=None if loaded is not _unloaded else command.summary)(loaded)
    return app


def overview(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """The first page of help, for new users: what it is, what to type first, and one line for each command."""
    bold, dim, plain = _styles()
    lines = [
        f"{bold}Usage:{plain} turnkeep COMMAND [OPTIONS]",
        "",
        "A conversation runtime for AI assistants and agents: no turn is ever lost.",
        "",
        f"{bold}Try this first{plain}",
    ]
    width = max(len(command) for command, _ in EXAMPLES) + 3
    lines += [f"  {command:<{width}}{dim}{meaning}{plain}" for command, meaning in EXAMPLES]
    for title, commands in groups:
        lines += ["", f"{bold}{title}{plain}"]
        lines += [f"  {name:<{NAME_WIDTH}}{summary}" for name, summary in commands]
    lines += [
        "",
        f"{bold}Options{plain}",
        f"  {'--version':<{NAME_WIDTH}}Show the version and exit.",
        f"  {'--help':<{NAME_WIDTH}}Show this page; after a command, that command's own, with examples.",
        "",
        "Commands that talk to a server find the one on this machine, or the one that TURNKEEP_URL and",
        "TURNKEEP_KEY name. --json makes them print JSON for scripts.",
    ]
    return "\n".join(lines)


def _styles() -> tuple[str, str, str]:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return "\033[1m", "\033[2m", "\033[0m"
    return "", "", ""


def _groups() -> list[tuple[str, list[tuple[str, str]]]]:
    headings = dict.fromkeys(command.heading for command in COMMANDS)
    return [
        (heading, [(each.name, each.summary) for each in COMMANDS if each.heading == heading]) for heading in headings
    ]


def _group() -> "type[TyperGroup]":
    import typer
    from typer.core import TyperGroup

    from turnkeep.cli.output import clean_line

    class Commands(TyperGroup):
        """Cleans errors about arguments. They quote the arguments, which a shell may have made of file names."""

        def invoke(self, ctx: Any) -> Any:
            gc.freeze()  # what is loaded now stays until the end
            gc.enable()
            try:
                return super().invoke(ctx)
            except typer.TyperException as exc:
                exc.message = clean_line(exc.message)
                raise

    return Commands


def _completed_words() -> list[str]:
    """The words of the line that a shell wants to complete. Each shell passes it in a variable of its own."""
    if COMPLETE_VARIABLE not in os.environ:
        return []
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()


def _load(command: CliCommand) -> Any:
    from importlib import import_module

    return getattr(import_module(command.module), command.attribute)


def _unloaded() -> None:
    """The placeholder in the list for a command that was not asked for."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        import typer

        print(f"turnkeep {version('turnkeep')}")
        raise typer.Exit


def _options() -> Any:
    import typer

    # typer reads annotations at run time, so the function is defined where typer is imported.
    def options(
        shown: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    return options
