"""Output of commands: JSON for scripts; tables, times and progress for people. Only results go to stdout.

Everything that a command prints goes through here or through a `Screen`, so that every text from outside is cleaned
first. The linter refuses `print` in other modules.

Titles, names, answers, file names and error details come from other people, from models and from servers. A terminal
acts on some characters in them: control characters (C0, C1), and characters that change the direction of writing. Each
of them is removed. So an escape sequence that arrives in two pieces is as harmless as a whole one, and the rest of it
(`[31m`) is shown as text.

They are not replaced by a visible mark. They have no shape of their own, and direction marks are common in names that
were copied from a phone and in Hebrew and Arabic texts, which read the same without them.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from rich.progress import Progress

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All characters that a terminal acts on, except newline and tab. A carriage return would overwrite its line."""

_SURROGATES = re.compile("[\ud800-\udfff]")
"""Python's stand-ins for bytes of a file name that are not UTF-8. Standard output cannot encode them."""


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


class ProgressBar:
    """How far a command has come, on standard error. In a pipe it prints nothing, and Rich is not even imported."""

    def __init__(self, doing: str, total: int | None) -> None:
        self._bar = _rich_progress() if sys.stderr.isatty() else None
        if self._bar is not None:
            self._task = self._bar.add_task(clean_line(doing), total=total, said="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def bytes(self, count: int) -> None:
        """So many bytes are sent or received."""
        self.update(count, said=size_of(count))

    def update(self, completed: int, *, said: str = "", doing: str | None = None, total: int | None = None) -> None:
        """So much is done; `said` stands beside the bar, and `doing` and `total` replace what was given before."""
        if self._bar is not None:
            changes: dict[str, Any] = {} if doing is None else {"description": clean_line(doing), "total": total}
            self._bar.update(self._task, completed=completed, said=said, **changes)


def _rich_progress() -> "Progress":
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from turnkeep.cli.screen import Screen

    return Progress(
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(),
        console=Screen(stderr=True),
        redirect_stdout=False,
        transient=True,
    )


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


def clean_text(text: str) -> str:
    """A text of many lines: newlines and tabs stay."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def clean_line(text: str) -> str:
    """A text for one line, such as a title: a line break becomes a space."""
    return clean_text(" ".join(text.splitlines()))


def clean_json(text: str) -> str:
    """The same JSON, with escapes (`\\u009b`) in place of characters that a terminal acts on."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_clean_line(text: str) -> bool:
    return text == clean_line(text)


def _cell(text: str) -> str:
    return " ".join(clean_line(text).split())
