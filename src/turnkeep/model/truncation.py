"""Truncation: texts, values and displays that are too long are cut here, always with a note that says so.

What fits is returned unchanged. Every event keeps what its step said. The message into which the events of a turn are
folded is loaded whole by every reader of the conversation, so it has a limit of its own: `fit_display` first cuts long
values in steps, and only then replaces the beginning by a note.

JSON from models, tools and sandboxes may be nested to any depth. Code that walks it has a finite stack, so
`is_too_deep` finds it first.

Decision: docs/decisions/0202
"""

from itertools import accumulate

import msgspec
from msgspec import UNSET, structs

from turnkeep_client.wire.blocks import JsonValue, Part, StepPart, TextPart
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
_VALUE_CHARS = (16_000, 1_000, 100)
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


def cut_value(value: JsonValue, chars: int) -> JsonValue:
    """The value, or the first `chars` characters of its text, followed by a note."""
    if value is UNSET:
        return value
    text = text_of_value(value)
    return value if len(text) <= chars else f"{text[:chars]}\n{_note(len(text))}"


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
    sizes = [len(_encode(part)) for part in content]
    for chars in _VALUE_CHARS:
        if sum(sizes) <= limit:
            break
        content = tuple(_cut_part(part, chars) for part in content)
        sizes = [len(_encode(part)) for part in content]
    return structs.replace(
        display, content=_without_beginning(content, sizes, limit), sources=_first_sources(display.sources)
    )


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
    return (TextPart(text=f"[cut: {first:,} earlier parts; the events of the turn have them]"), *content[first:])


def _cut_part(part: Part, chars: int) -> Part:
    if not isinstance(part, StepPart):
        return part
    return structs.replace(
        part,
        args=cut_value(part.args, chars),
        result=cut_value(part.result, chars),
        error=cut_value(part.error, chars),
    )


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
