"""Drafts: a reply while it is being streamed. What the three protocols have in common.

A draft takes the SDK's events one by one. It returns what readers may see at once, and in the end the whole reply. It
does no I/O, so that each protocol can be read and tested by itself.
"""

import json
import math
from typing import Any, Protocol

import msgspec

from turnkeep.ids import CallId, new_call_id
from turnkeep.model.truncation import TOO_DEEP, is_too_deep
from turnkeep.providers.failures import StreamFailed
from turnkeep.providers.ports import Delta, Reply
from turnkeep_client.wire.blocks import Block, JsonObject, ToolUse

ALIVE = Delta(text="")
"""The model works on something that is not shown."""

MAX_ARGUMENT_CHARS = 2_000_000
"""Maximum length of the arguments in one reply. A longer text is a fault of the model."""

MAX_TOKENS = 2**31 - 1
"""No call has more tokens. The sum of a month still fits into the integers of the databases."""

CUT_OFF = "the model reached its output limit while it wrote them"


class Draft(Protocol):
    """One reply under way. `has_begun` is true once a part of the answer has come; then the request is not repeated."""

    has_begun: bool

    @property
    def is_whole(self) -> bool:
        """Whether the provider has marked the end of the reply."""

    def add(self, event: Any) -> Delta | None:
        """Take one event. Raises StreamFailed when the provider reports an error."""

    def reply(self) -> Reply:
        """The whole reply. Raises StreamFailed if the stream ended too early, or if the model declined."""


class Arguments:
    """The arguments of one call, which come in pieces."""

    __slots__ = ("_pieces", "name", "size")

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self._pieces = [text] if text else []
        self.size = len(text)

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)
        if self.size > MAX_ARGUMENT_CHARS:
            raise StreamFailed(f"the arguments of a call did not end after {MAX_ARGUMENT_CHARS:,} characters")

    @property
    def text(self) -> str:
        return "".join(self._pieces)


class Calls:
    """Collects the blocks of a reply. Each call gets an id of ours; calls that cannot be parsed are noted."""

    def __init__(self, *, is_cut_off: bool) -> None:
        self.blocks: list[Block] = []
        self.malformed: dict[CallId, str] = {}
        self._is_cut_off = is_cut_off

    def add(self, name: str, arguments: str) -> None:
        call_id = new_call_id()
        value, wrong = read_arguments(arguments)
        self.blocks.append(ToolUse(id=call_id, name=name, input=value))
        if wrong is not None:
            self.malformed[call_id] = f"{wrong}; {CUT_OFF}" if self._is_cut_off else wrong


def read_arguments(text: str) -> tuple[JsonObject, str | None]:
    """The object, or an empty one and what is wrong with the text. An empty text means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value = _decoded(text)
    except RecursionError:
        return {}, TOO_DEEP
    except ValueError as exc:
        return {}, f"not JSON ({exc})"
    if not isinstance(value, dict):
        return {}, f"a JSON object is expected, not {type(value).__name__}"
    return ({}, TOO_DEEP) if is_too_deep(value) else (value, None)


def tokens(value: object) -> int:
    """A count as a server reports it. A wrong value must not cost the answer: what is no number counts as 0, and a
    number that no call can have is cut to the maximum."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return int(min(max(value, 0), MAX_TOKENS))


def whole(blocks: Calls, *, is_cut_off: bool) -> tuple[Block, ...]:
    """The blocks. Raises StreamFailed if the limit of tokens was reached before there was any text or call."""
    if is_cut_off and not any(block.__struct_config__.tag in {"text", "tool_use"} for block in blocks.blocks):
        raise StreamFailed("the model reached its output limit before it gave an answer")
    return tuple(blocks.blocks)


def _decoded(text: str) -> Any:
    """Raises ValueError, which says what is wrong, or RecursionError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        try:
            # Small models put raw line breaks into strings, and servers split surrogate pairs. Both can be parsed.
            return json.loads(text, strict=False, parse_constant=_refuse)
        except ValueError:
            raise exc from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
