"""Truncation: texts, values and displays that are too long are cut here, always with a note that says so.

What fits is returned unchanged. Every event keeps what its step said. The message into which the events of a turn are
folded is loaded whole by every reader of the conversation, so it has a limit of its own: `fit_display` cuts the longest
values of steps, all to the same length, the largest that fits; if that is not enough, also texts; and only then it
replaces the beginning by a note. What was cut is marked `is_cut`.

JSON from models, tools and sandboxes may be nested to any depth. Code that walks it has a finite stack, so
`is_too_deep` finds it first.

Decision: docs/decisions/0202
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec import UNSET, structs

from turnkeep_client.wire.blocks import JsonValue, Part, ReasoningPart, StepPart, TextPart
from turnkeep_client.wire.display import Display
from turnkeep_client.wire.events import Source

ANSWER_BYTES = 400_000
"""Of the text of one answer. It is written four times with its settlement, which has a limit too."""
DISPLAY_BYTES = 800_000
SOURCES_BYTES = 400_000

MAX_DEPTH = 100
"""Levels of lists and objects. Real arguments and results have a dozen; what reads JSON gives up near a thousand."""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

_NOTE_BYTES = 64
_LEAST_VALUE_CHARS = 1_000
"""The values of steps are not cut further than this before texts are cut too."""
_LEAST_CHARS = 100
_VALUES: dict[type[Part], Sequence[str]] = {StepPart: ("args", "result", "error")}
_TEXTS: dict[type[Part], Sequence[str]] = {TextPart: ("text",), ReasoningPart: ("text",)}
_encode = msgspec.json.encode


def text_of_value(value: JsonValue) -> str:
    """A text as it is, any other value as its JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def cut_chars(text: str, limit: int) -> str:
    """The text, or its beginning and a note: together at most `limit` characters."""
    if len(text) <= limit:
        return text
    note = f"\n{_note(len(text))}"
    return text[: max(0, limit - len(note))] + note


def cut_bytes(text: str, limit: int, *, of_chars: int | None = None, gap: str = "\n") -> str:
    """The text, or its beginning and a note: together at most `limit` bytes, ending with a whole character.

    `of_chars` is given where `text` is only the beginning of one with that many characters.
    """
    encoded = text.encode()
    if of_chars is None and len(encoded) <= limit:
        return text
    beginning = encoded[: limit - _NOTE_BYTES].decode(errors="ignore")
    return f"{beginning}{gap}{_note(of_chars or len(text))}"


def inline_text(text: str, chars: int, *, has_more: bool) -> str:
    """The first `chars` characters of a file's text, as a model is shown it; `has_more` where the file goes on."""
    left_out = len(text) - chars
    shown = text if left_out <= 0 else text[:chars]
    if has_more:
        return f"{shown}\n[… the rest is left out]"
    return f"{shown}\n[… {left_out} more characters left out]" if left_out > 0 else shown


def elided(result: str) -> str:
    """The note that stands in place of a tool's result which does not fit into the context."""
    return f"[{len(result)} characters of this result were left out to fit the context.]"


def fit_display(display: Display, *, limit: int = DISPLAY_BYTES) -> Display:
    """The same display, within the limit."""
    content = display.content
    if sum(map(_size, content)) >= limit:
        content = _cut_content(content, limit)
        content = _without_beginning(content, [_size(part) for part in content], limit)
    return structs.replace(display, content=content, sources=_first_sources(display.sources))


def _cut_content(content: tuple[Part, ...], limit: int) -> tuple[Part, ...]:
    """The parts with their long values cut to the largest length that fits, or to the smallest one."""
    parts = [_CuttablePart(part, _VALUES) for part in content]
    chars = _largest_cut(parts, limit, _LEAST_VALUE_CHARS)
    if chars is None:
        parts = [_CuttablePart(part, _VALUES | _TEXTS) for part in content]
        chars = _largest_cut(parts, limit, _LEAST_CHARS) or _LEAST_CHARS
    return tuple(part.cut(chars) for part in parts)


class _CuttablePart:
    """A part, and those of its fields that may be cut, as texts."""

    def __init__(self, part: Part, fields: Mapping[type[Part], Sequence[str]]) -> None:
        self._part = part
        self._size = _size(part)
        values = {field: getattr(part, field) for field in fields.get(type(part), ())}
        self._texts = {field: text_of_value(value) for field, value in values.items() if value is not UNSET}
        self.longest = max(map(len, self._texts.values()), default=0)

    def cut(self, chars: int) -> Part:
        if self.longest <= chars:
            return self._part
        cut = {field: f"{text[:chars]}\n{_note(len(text))}" for field, text in self._texts.items() if len(text) > chars}
        return structs.replace(self._part, **cut, is_cut=True)

    def size(self, chars: int) -> int:
        return self._size if self.longest <= chars else _size(self.cut(chars))


def _largest_cut(parts: Sequence[_CuttablePart], limit: int, least: int) -> int | None:
    """The largest number of characters, and at least `least`, with which the parts are within the limit."""
    low, high = least - 1, max(part.longest for part in parts)
    while low < high:
        chars = (low + high + 1) // 2
        if _is_within(limit, (part.size(chars) for part in parts)):
            low = chars
        else:
            high = chars - 1
    return low if low >= least else None


def _size(part: Part) -> int:
    """Bytes in a list of parts, with the comma or bracket around it."""
    return len(_encode(part)) + 1


def _is_within(limit: int, sizes: Iterable[int]) -> bool:
    return all(total < limit for total in accumulate(sizes))


def _first_sources(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """As many of the first sources as fit. The events of the turn have them all."""
    totals = accumulate(len(_encode(source)) for source in sources)
    return tuple(source for source, total in zip(sources, totals, strict=True) if total <= SOURCES_BYTES)


def _without_beginning(content: tuple[Part, ...], sizes: list[int], limit: int) -> tuple[Part, ...]:
    total, first = sum(sizes), 0
    while total > limit and first < len(content) - 1:
        total -= sizes[first]
        first += 1
    if not first:
        return content
    note = f"[cut: {first:,} earlier parts; the events of the turn have them]"
    return (TextPart(text=note, is_cut=True), *content[first:])


def _note(chars: int) -> str:
    return f"[cut: {chars:,} characters in all]"


def is_too_deep(value: JsonValue) -> bool:
    """Whether anything in it lies below MAX_DEPTH levels. Looks no deeper than that, and needs no stack itself."""
    waiting: list[tuple[JsonValue, int]] = [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        if level > MAX_DEPTH:
            return True
        within = item.values() if isinstance(item, dict) else item
        waiting += [(each, level + 1) for each in within if isinstance(each, dict | list | tuple)]
    return False
