"""The screen of a terminal, drawn with Rich: text that is cleaned first, and a turn while it runs.

Final parts of a running turn are printed once; parts that may still change are redrawn in place. Text is printed one
Markdown block at a time, as soon as later text cannot change its rendering. If the model starts again and says the
same, nothing is printed twice. If it says something else, printed text is void. A terminal cannot take it back, so a
note says so, and that part is printed again.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from turnkeep.cli.markdown import arguments_of, short
from turnkeep.cli.output import clean_line, clean_text, size_of
from turnkeep_client.stream import TurnView
from turnkeep_client.wire.blocks import FilePart, Part, ReasoningPart, StepPart, TextPart

REFRESH_PER_SECOND = 12
MARKS = {"succeeded": ("✓", "green"), "failed": ("✗", "red")}


class Screen(Console):
    """Cleans text after rendering, because Markdown can spell a control character as `&#x202e;`.

    Cursor movements and colours come from Rich itself, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_text(segment.text), segment.style)

    def print_line(self, text: str, *, style: str = "") -> None:
        """A text as it is, without markup, on one line; what is too long for the line goes on in the next."""
        self.print(Text(clean_line(text), style=style))

    def print_item(self, text: str) -> None:
        """An item of a list: what is too long for the line is cut off."""
        self.print(Text(clean_line(text)), no_wrap=True, overflow="ellipsis")

    def print_markdown(self, text: str) -> None:
        self.print(markdown(text))


def markdown(text: str) -> Markdown:
    """Markdown that shows the address of each link, because a link text can hide where it leads."""
    return Markdown(text, hyperlinks=False)


class LiveView:
    """Draws one turn. Use it as a context manager, and call `show` after every event."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._began = time.monotonic()
        self._printed = 0
        """The number of parts that are printed completely."""
        self._flushed = ""
        """The text of the next part that is already printed."""
        self._last: Literal["text", "line"] | None = None
        self._tail: tuple[Part, ...] = ()
        self._note: str | None = None
        self._is_waiting = False
        self._typed: Callable[[], str] | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            get_renderable=self._drawn, console=screen, transient=True, refresh_per_second=REFRESH_PER_SECOND
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tail = ()
        self._live.stop()

    def show(self, view: TurnView) -> None:
        """Print parts that became final since the last call, and redraw the rest."""
        self.recovered()
        self._is_waiting = view.began is not None and view.began.status == "queued"
        content = view.content
        is_over = view.ending is not None
        if self._flushed and not is_over and self._is_repeat(content):
            self._tail = ()
            return
        if not self._continues(content):
            self._print_note("the model starts again")
            self._flushed = ""
        while self._printed < len(content):
            part = content[self._printed]
            is_last = self._printed == len(content) - 1
            if _may_change(part, is_last=is_last and not is_over, is_speaking=view.is_speaking):
                self._flush(part)
                break
            self._print(part)
            self._printed += 1
            self._flushed = ""
        self._tail = content[self._printed :]

    def show_typed(self, typed: Callable[[], str]) -> None:
        """Show the text that the user types while the turn runs."""
        self._typed = typed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing meanwhile, so that the user can be asked something."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def print_line(self, text: str, *, style: str) -> None:
        """Print a line above what may still change."""
        self._space("line")
        self._screen.print_line(text, style=style)

    def note(self, text: str | None) -> None:
        """Show this beside the spinner until the next event."""
        self._note = text

    def recovered(self) -> None:
        if self._note is not None:
            self._note = None
            self._print_note("connected again; nothing was lost")

    def _continues(self, content: tuple[Part, ...]) -> bool:
        if not self._flushed:
            return True
        part = content[self._printed] if self._printed < len(content) else None
        return isinstance(part, TextPart) and part.text.startswith(self._flushed)

    def _is_repeat(self, content: tuple[Part, ...]) -> bool:
        """Whether the model says again what is printed already, and nothing new yet. Reasoning may come first."""
        rest = [part for part in content[self._printed :] if not isinstance(part, ReasoningPart)]
        if not rest:
            return True
        return len(rest) == 1 and isinstance(rest[0], TextPart) and self._flushed.startswith(rest[0].text)

    def _flush(self, part: Part) -> None:
        """Print the blocks of a text that are final."""
        if not isinstance(part, TextPart):
            return
        end = finished_until(part.text)
        if end > len(self._flushed):
            self._print_text(part.text[len(self._flushed) : end])
            self._flushed = part.text[:end]

    def _print(self, part: Part) -> None:
        match part:
            case TextPart():
                self._print_text(part.text[len(self._flushed) :])
            case ReasoningPart():
                self._space("line")
                self._screen.print(Text(f"∴ {short(part.text, 200)}", style="dim italic"))
            case StepPart():
                self._space("line")
                self._screen.print(_step(part))
            case FilePart():
                self._space("line")
                line = f"▪ {part.name} ({size_of(part.size)}) {part.file_id}"
                self._screen.print(Text(clean_line(line), style="cyan"))
            case _:
                assert_never(part)

    def _print_text(self, text: str) -> None:
        if text.strip():
            self._space("text")
            self._screen.print(_Lines(markdown(text)))

    def _space(self, kind: Literal["text", "line"]) -> None:
        """Print a blank line between blocks of text, and between text and steps; none between steps."""
        if self._last is not None and "text" in {kind, self._last}:
            self._screen.print()
        self._last = kind

    def _print_note(self, text: str) -> None:
        self._screen.print(Text(f"↻ {text}", style="dim yellow"))

    def _drawn(self) -> RenderableType:
        drawn: list[RenderableType] = []
        flushed = self._flushed
        for part in self._tail:
            match part:
                case TextPart():
                    if rest := part.text[len(flushed) :].strip("\n"):
                        drawn.append(markdown(rest))
                case ReasoningPart():
                    drawn.append(Text(f"∴ …{' '.join(part.text.split())[-160:]}", style="dim italic"))
                case StepPart():
                    drawn.append(_step(part))
                case FilePart():
                    drawn.append(Text(clean_line(part.name), style="cyan"))
                case _:
                    assert_never(part)
            flushed = ""
        self._spinner.update(text=Text(f" {clean_line(self._status())}", style="dim"))
        space = [Text("")] if drawn and self._last is not None else []
        typed = self._typed() if self._typed else ""
        line = [Text(clean_line(f"› {typed}"), style="bold cyan")] if typed else []
        return Group(*space, _Lines(Group(*drawn), at_most=max(self._screen.height - 5, 3)), self._spinner, *line)

    def _status(self) -> str:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        if self._note is not None:
            return f"{self._note} · {seconds}"
        if self._is_waiting:
            return f"waiting for the turn before · {seconds} · Ctrl-C stops it"
        return f"{seconds} · Ctrl-C stops it{', typing steers it' if self._typed else ''}"


class _Lines:
    """A renderable without blank lines at its ends, cut to its last `at_most` lines."""

    def __init__(self, inner: RenderableType, *, at_most: int | None = None) -> None:
        self._inner = inner
        self._at_most = at_most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rendered = console.render_lines(self._inner, options, pad=False)
        while rendered and _is_blank(rendered[0]):
            rendered.pop(0)
        while rendered and _is_blank(rendered[-1]):
            rendered.pop()
        for line in rendered if self._at_most is None else rendered[-self._at_most :]:
            yield from line
            yield Segment.line()


def _is_blank(line: list[Segment]) -> bool:
    return not "".join(segment.text for segment in line).strip()


def finished_until(text: str) -> int:
    """The length of the text whose rendering is final: up to a blank line outside of fences, lists and tables.

    Text after a list item or a table row may still belong to it, so these are kept until another block begins.
    """
    end = place = 0
    is_fenced = False
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            is_fenced = not is_fenced
        place += len(line)
        if not is_fenced and not stripped and line.endswith("\n"):
            end = place
    rest = text[end:]
    # A blank line right before an indented line or another item does not end the list above it.
    if rest[:1] in {" ", "\t"} or not rest:
        return 0 if end and _is_in_list(text[:end]) else end
    return 0 if _begins_item(rest) and _is_in_list(text[:end]) else end


def _is_in_list(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and (_begins_item(lines[-1]) or lines[-1][:1] in {" ", "\t"})


def _begins_item(line: str) -> bool:
    word = line.lstrip().split(" ", 1)[0]
    return word in {"-", "*", "+"} or (word[:-1].isdigit() and word[-1:] in {".", ")"})


def _may_change(part: Part, *, is_last: bool, is_speaking: bool) -> bool:
    match part:
        case TextPart() | ReasoningPart():
            return is_last and is_speaking
        case StepPart():
            return part.status == "running"
        case FilePart():
            return False
        case _:
            assert_never(part)


def _step(step: StepPart) -> Text:
    mark, colour = MARKS.get(step.status, ("◌", "yellow"))
    line = Text.assemble((f"{mark} ", colour), (clean_line(step.name), "bold"), (arguments_of(step), "dim"))
    if step.duration_ms is not None:
        line.append(f"  {step.duration_ms / 1000:.1f} s", style="dim")
    if step.status == "failed" and step.error is not None:
        line.append(f"  {short(step.error, 200)}", style="red")
    return line
