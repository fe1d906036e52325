"""What commands print: JSON for scripts, tables and times for people. Results go to stdout, remarks to stderr."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec


def print_json(value: Any) -> None:
    """One JSON document on one line, field for field as the API has it."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_lines(values: Iterable[Any]) -> None:
    """NDJSON: one document per line, as they come."""
    for value in values:
        print_json(value)
        sys.stdout.flush()


def remark(text: str) -> None:
    print(text, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """A table as wide as the terminal; in a pipe, one line per row with tabs between, so that `cut` works."""
    if not rows:
        remark(nothing)
        return
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place != len(columns) - 1, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(" ".join(cell.split())) for cell in row))
    Console().print(table)


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
