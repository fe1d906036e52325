"""Passages: a long text in pieces that can be found, ranked and cited one by one.

A piece ends at a heading, at the end of a page (a form feed, as the extraction of a PDF leaves it) or of a paragraph;
only a paragraph that is too long by itself is cut inside, at a space.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

PASSAGE_CHARS = 2_000

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_BREAK = re.compile(r"\f|^(?=#{1,6}[ \t])", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


class Passage(Struct, frozen=True, kw_only=True):
    """The characters from `start` up to `stop`. `place` is the heading above it, or the number of its page."""

    start: int
    stop: int
    place: str | None = None


def split_passages(text: str, *, unit: str = "page", limit: int = PASSAGE_CHARS) -> list[Passage]:
    """The pieces in order. Pieces of nothing but space are left out. `unit` is what form feeds separate."""
    is_paged = "\f" in text
    page, heading = 1, None
    passages: list[Passage] = []
    for start, stop in _sections(text):
        if start and text[start - 1] == "\f":
            page += 1
        if match := _HEADING.match(text, start, stop):
            heading = match[1].strip()
        place = f"{unit} {page}" if is_paged else heading
        passages += [
            Passage(start=begin, stop=end, place=place)
            for begin, end in _pieces(text, start, stop, limit)
            if text[begin:end].strip()
        ]
    return passages


def _sections(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _BREAK.finditer(text):
        if match.start() > start or match[0]:
            yield start, match.start()
        start = match.end()
    yield start, len(text)


def _pieces(text: str, start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """As few pieces as the paragraphs allow, each within the limit."""
    while stop - start > limit:
        end = _last_paragraph(text, start, start + limit) or _last_space(text, start, start + limit)
        yield start, end
        start = end
    yield start, stop


def _last_paragraph(text: str, start: int, stop: int) -> int | None:
    ends = [match.end() for match in _PARAGRAPH.finditer(text, start + (stop - start) // 3, stop)]
    return ends[-1] if ends else None


def _last_space(text: str, start: int, stop: int) -> int:
    space = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    return space + 1 if space > start + (stop - start) // 2 else stop
