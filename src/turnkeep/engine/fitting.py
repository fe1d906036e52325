"""Fitting: what a reader saw of a turn, made small enough to be one message.

Every event keeps what its step said. The message into which they are folded is loaded whole by everybody who opens the
conversation, so it has a limit: first long values in steps are cut, and only then does the beginning give way to a
note. What fits is not touched.
"""

from itertools import accumulate

import msgspec
from msgspec import UNSET, structs

from turnkeep_client.wire.blocks import JsonValue
from turnkeep_client.wire.display import Display
from turnkeep_client.wire.events import Source
from turnkeep_client.wire.parts import Part, StepPart, TextPart

DISPLAY_BYTES = 800_000
SOURCES_BYTES = 400_000
TEXT_BYTES = 400_000
"""Of one text. An answer is written four times with its settlement, which has a limit too."""

_VALUE_CHARS = (16_000, 1_000, 100)
_encode = msgspec.json.encode


def fitted(display: Display, *, limit: int = DISPLAY_BYTES) -> Display:
    """The same display, within the limit."""
    content = display.content
    sizes = [len(_encode(part)) for part in content]
    for chars in _VALUE_CHARS:
        if sum(sizes) <= limit:
            break
        content = tuple(_cut_part(part, chars) for part in content)
        sizes = [len(_encode(part)) for part in content]
    return structs.replace(
        display, content=_without_beginning(content, sizes, limit), sources=_fitted_sources(display.sources)
    )


def fitted_text(text: str, *, limit: int = TEXT_BYTES) -> str:
    """The text, or its beginning and a note."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return f"{encoded[: limit - 64].decode(errors='ignore')}\n\n[cut: {len(text):,} characters in all]"


def _fitted_sources(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """The first ones, as many as there is room for. The events of the turn have them all."""
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
        part, args=_cut(part.args, chars), result=_cut(part.result, chars), error=_cut(part.error, chars)
    )


def _cut(value: JsonValue, chars: int) -> JsonValue:
    if value is UNSET:
        return value
    text = value if isinstance(value, str) else _encode(value).decode()
    return value if len(text) <= chars else f"{text[:chars]}\n[cut: {len(text):,} characters in all]"
