"""The terminal as Rich draws on it: whatever is drawn, only clean text reaches it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment

from turnkeep.cli.terminal_text import clean_text


class Screen(Console):
    """A console that cleans what it draws, at the last moment: Markdown can spell a character as `&#x202e;`.

    Movements and colours are Rich's own and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_text(segment.text), segment.style)


def markdown(text: str) -> Markdown:
    """Markdown in which a link is followed by its address: one behind words could lead anywhere."""
    return Markdown(text, hyperlinks=False)
