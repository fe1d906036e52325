"""Output of commands: JSON for scripts, tables and times for people. Results go to stdout, remarks to stderr.

Everything that a command prints goes through here or through a `Screen`, so that every text from outside is
cleaned first (`terminal_text.py`). The linter refuses `print` in other modules.
"""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from turnkeep.cli.terminal_text import clean_json, clean_line, clean_text


def say(text: str, *, flush: bool = False) -> None:
    """A sentence for people, on one line."""
    print(clean_line(text), flush=flush)


def remark(text: str) -> None:
    """The same on standard error."""
    print(clean_line(text), file=sys.stderr)


def print_text(text: str, *, end: str = "\n") -> None:
    """A text of many lines, for people."""
    print(clean_text(text), end=end, flush=True)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON document, with the fields of the API; on one line unless it is indented."""
    encoded = msgspec.json.encode(value)
    if indent is not None:
        encoded = msgspec.json.format(encoded, indent=indent)
    sys.stdout.write(clean_json(encoded.decode()) + "\n")


def print_lines(values: Iterable[Any]) -> None:
    """NDJSON: one document per line, as they come."""
    for value in values:
        print_json(value)
        sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """A table as wide as the terminal; in a pipe, one line per row with tabs between, so that `cut` works."""
    if not rows:
        remark(nothing)
        return
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_cell(cell) for cell in row))
        return
    from rich.table import Table
    from rich.text import Text

    from turnkeep.cli.screen import Screen

    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for place, column in enumerate(columns):
        # As a Text, since Rich reads a string as markup: `[red]`, `[link=…]`.
        table.add_column(Text(_cell(column)), no_wrap=place != len(columns) - 1, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    Screen().print(table)


def moment(milliseconds: int | None) -> str:
    """A time for people, in their own zone."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def size_of(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def _cell(text: str) -> str:
    return " ".join(clean_line(text).split())
