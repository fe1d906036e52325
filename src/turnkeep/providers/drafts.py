"""Drafts: a reply while it is being streamed. What the three protocols have in common.

A draft is fed the SDK's events one by one. It gives back what a reader may see at once, and in the end the whole reply.
It does no I/O, so that each protocol can be read, and tested, by itself.
"""

import json
import math
from typing import Any, Protocol

import msgspec

from turnkeep.ids import CallId, new_call_id
from turnkeep.model.json_depth import TOO_DEEP, is_too_deep
from turnkeep.providers.failures import Trouble
from turnkeep.providers.ports import Delta, Reply
from turnkeep_client.wire.blocks import Block, JsonObject, ToolUse

ALIVE = Delta(text="")
"""The model is at work on something that is not shown."""

MAX_ARGUMENT_CHARS = 2_000_000
"""A model that writes more into the arguments of one reply has lost its way."""

MAX_TOKENS = 2**31 - 1
"""No call has more. A month of them still fits into what the databases add up."""

CUT_OFF = "the model reached its output limit while it wrote them"


class Draft(Protocol):
    """One reply under way. `has_begun` once anything of the answer has come: from then on nothing is asked again."""

    has_begun: bool

    @property
    def is_whole(self) -> bool:
        """Whether the provider has said that this was all."""

    def add(self, event: Any) -> Delta | None:
        """Take one event in. Raises Trouble when the provider says that it cannot go on."""

    def reply(self) -> Reply:
        """The whole. Raises Trouble when the stream ended before it was whole, or when the model declined."""


class Arguments:
    """The arguments of one call, as they come in pieces."""

    __slots__ = ("_pieces", "name", "size")

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self._pieces = [text] if text else []
        self.size = len(text)

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)
        if self.size > MAX_ARGUMENT_CHARS:
            raise Trouble(f"the arguments of a call did not end after {MAX_ARGUMENT_CHARS:,} characters")

    @property
    def text(self) -> str:
        return "".join(self._pieces)


class Calls:
    """Collects the blocks of a reply, giving each call an id of ours and noting those that cannot be read."""

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
    """The object, or an empty one and what is wrong with the text. No text at all stands for no arguments."""
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
    """A count as a server reports it. Whatever a server writes there, it is no reason to lose the answer: what is no
    number counts as none, and what no call can have is cut to what one can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return int(min(max(value, 0), MAX_TOKENS))


def whole(blocks: Calls, *, is_cut_off: bool) -> tuple[Block, ...]:
    """The blocks, unless the limit of tokens was reached before there was any word or call."""
    if is_cut_off and not any(block.__struct_config__.tag in {"text", "tool_use"} for block in blocks.blocks):
        raise Trouble("the model reached its output limit before it gave an answer")
    return tuple(blocks.blocks)


def _decoded(text: str) -> Any:
    """Raises ValueError, which says what is wrong, or RecursionError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        try:
            # Small models put line breaks into strings as they are, and servers halve characters. That much can be
            # understood.
            return json.loads(text, strict=False, parse_constant=_refuse)
        except ValueError:
            raise exc from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
