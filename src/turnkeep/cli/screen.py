"""A Rich console that cleans all text before it reaches the terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment

from turnkeep.cli.terminal_text import clean_text


class Screen(Console):
    """Cleans text after rendering, because Markdown can spell a control character as `&#x202e;`.

    Cursor movements and colours come from Rich itself, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_text(segment.text), segment.style)


def markdown(text: str) -> Markdown:
    """Markdown that shows the address of each link, because a link text can hide where it leads."""
    return Markdown(text, hyperlinks=False)
