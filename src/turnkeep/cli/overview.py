"""The first page of help, made of the table of commands alone: nothing is imported for it but what Python has loaded.

`turnkeep --help` is what people type to see whether it is there, so it must not wait for a library.
"""

import os
import sys
from collections.abc import Sequence

EXAMPLES = (
    ("turnkeep serve", "run the server on this machine"),
    ("turnkeep chat", "talk to it here"),
    ('turnkeep chat "What is in it?" --attach report.pdf', "ask one thing and leave"),
    ("turnkeep doctor", "see whether everything works"),
    ("turnkeep export --all -o backup.jsonl", "take your conversations with you"),
)
NAME_WIDTH = 15


def overview(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """Help for a reader who knows nothing yet: what it is, what to type first, and every command in a line."""
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
        "TURNKEEP_KEY name. --json makes any of them speak to scripts.",
    ]
    return "\n".join(lines)


def _styles() -> tuple[str, str, str]:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return "\033[1m", "\033[2m", "\033[0m"
    return "", "", ""
