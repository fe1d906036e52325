"""What a fake model replies and how its server misbehaves, in any protocol."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

Json = dict[str, Any]


class Say(Struct, frozen=True):
    """Words, a piece at a time."""

    text: str
    pieces: int = 3
    is_refusal: bool = False
    """OpenAI has a field of its own for the words with which a model declines."""


class Think(Struct, frozen=True):
    """Reasoning, with the proof that its provider wants back. No text and `data`: redacted."""

    text: str = ""
    proof: str = "c2lnbmVkIGFuZCBzZWFsZWQ="


class Call(Struct, frozen=True):
    """A tool call; arguments as an object, or as the very characters that the model wrote."""

    name: str
    arguments: Json | str = {}

    @property
    def text(self) -> str:
        import json

        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


class Stop(Struct, frozen=True):
    """Why it ends, in the protocol's own word: max_tokens, refusal, length, content_filter …"""

    reason: str
    explanation: str | None = None


class Refuse(Struct, frozen=True):
    """Answer with an error status instead. A str body is sent as it is."""

    status: int
    message: str = "no"
    kind: str = "invalid_request_error"
    code: str | None = None
    headers: dict[str, str] = {}
    body: str | None = None


class Hang(Struct, frozen=True):
    """Say nothing more, and keep the connection; with `pings` so often a sign that means nothing."""

    ping_seconds: float | None = None


class HangBeforeHeaders(Struct, frozen=True):
    """Not even a status."""


class Wait(Struct, frozen=True):
    """Go on only when the test lets it."""

    until: Callable[[], Any]


class Cut(Struct, frozen=True):
    """Drop the connection, in the middle of a chunk."""


class End(Struct, frozen=True):
    """End the body properly, before the answer is whole."""


class Raw(Struct, frozen=True):
    """Bytes that belong to no protocol."""

    content: bytes


class ErrorEvent(Struct, frozen=True):
    """An error inside a stream that began well."""

    kind: str = "overloaded_error"
    message: str = "Overloaded"


Item = Say | Think | Call | Stop | Refuse | Hang | HangBeforeHeaders | Wait | Cut | End | Raw | ErrorEvent
Script = Sequence[Item]
Brain = Callable[[Json], Script]


def pieces_of(text: str, count: int) -> list[str]:
    """The text in about so many pieces."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]
