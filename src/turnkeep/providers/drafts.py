"""Drafts: a reply while it is being streamed. What the three protocols have in common.

A draft takes the events of a stream one by one. It returns what readers may see at once, and in the end the whole
reply. It does no I/O, so that each protocol can be read and tested by itself. An event is decoded once, into a struct
that has only the fields that are used.
"""

import json
import math
from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

import msgspec

from turnkeep.ids import CallId, new_call_id
from turnkeep.model.truncation import TOO_DEEP, is_too_deep
from turnkeep.providers.failures import ErrorResponse, StreamFailed
from turnkeep.providers.ports import BETWEEN_THOUGHTS, Delta, Reply
from turnkeep_client.wire.blocks import Block, JsonObject, Text, ToolUse, Usage

ALIVE = Delta(text="")
"""The model works on something that is not shown."""

MAX_ARGUMENT_CHARS = 2_000_000
"""Maximum length of the arguments in one reply. A longer text is a fault of the model."""

MAX_TOKENS = 2**31 - 1
"""No call has more tokens. The sum of a month still fits into the integers of the databases."""

CUT_OFF = "the model reached its output limit while it wrote them"


_DONE = b"[DONE]"
"""The end of a stream at OpenAI, and not JSON."""

Kind = Literal["text", "reasoning"]
Frame = TypeVar("Frame", bound=msgspec.Struct)


class Draft(ABC, Generic[Frame]):
    """One reply under way.

    A protocol has a `decoder` of its events. `known_types` are the events that it must understand; one of another type
    may contain anything. None: it must understand all of them.

    `has_begun` is true once a part of the answer has come; then the request is not repeated. `is_done` is true when
    nothing more is to come, also before the server ends the stream.
    """

    decoder: msgspec.json.Decoder[Frame]
    known_types: frozenset[str] | None = None

    def __init__(self) -> None:
        self.has_begun = False
        self.is_done = False
        self.is_alive = False
        """Whether the model worked on something that is not shown, since the last call of `pieces`."""
        self._fresh: list[str] = []
        self._kind: Kind = "text"
        self._has_thought = False
        self._is_new_thought = False
        self._pieces: list[Delta] = []

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Whether the provider has marked the end of the reply."""

    @abstractmethod
    def take(self, event: Frame) -> None:
        """Add one event to the reply. Raises ErrorResponse or StreamFailed when it reports an error."""

    @abstractmethod
    def reply(self) -> Reply:
        """The whole reply. Raises StreamFailed if the stream ended too early, or if the model declined."""

    def add(self, name: bytes, data: bytes | bytearray) -> None:
        """Take one event as it came. Raises like `take`, and ValueError for what is not JSON of the protocol."""
        if name == b"error":
            raise ErrorResponse(data.decode("utf-8", "replace").strip())
        try:
            event = self.decoder.decode(data)
        except msgspec.DecodeError as exc:
            if (unusual := self._decode_unusual(data, exc)) is None:
                return
            event = unusual
        self.take(event)

    def show(self, text: str, kind: Kind) -> None:
        """Readers may see this text."""
        if type(text) is not str:
            raise TypeError(f"a text is expected, not {text!r:.100}")
        if kind != self._kind:
            self._join_fresh()
            self._kind = kind
        self.has_begun = True
        self._fresh.append(text)

    def think(self, text: str) -> None:
        """Readers may see this reasoning."""
        if text:
            if self._is_new_thought:
                self._is_new_thought = False
                self.show(BETWEEN_THOUGHTS, "reasoning")
            self._has_thought = True
        self.show(text, "reasoning")

    def begin_thought(self) -> None:
        """Reasoning that follows is a block of its own."""
        self._is_new_thought = self._has_thought

    def pieces(self) -> list[Delta]:
        """What readers may see since the last call: one delta for all text of a kind, or a sign of life."""
        held = ""
        if self._fresh:
            last = self._fresh[-1]
            if last and "\ud800" <= last[-1] <= "\udbff":  # half a character; the other half comes in the next event
                self._fresh[-1], held = last[:-1], last[-1]
            self._join_fresh()
        pieces = self._pieces
        if pieces:
            self._pieces = []
        elif self.is_alive or held:
            pieces = [ALIVE]
        self.is_alive = False
        if held:
            self._fresh.append(held)
        return pieces

    def _decode_unusual(self, data: bytes | bytearray, exc: msgspec.DecodeError) -> Frame | None:
        """The event whose data could not be decoded at first; None if it says nothing about the reply."""
        if data.strip().startswith(_DONE):
            self.is_done = True
            return None
        if isinstance(exc, msgspec.ValidationError):
            if self.known_types is None or msgspec.json.decode(data, type=_Typed).type in self.known_types:
                raise exc
            return None
        # Servers split surrogate pairs and write NaN. Python's own decoder takes both.
        return msgspec.convert(json.loads(data), self.decoder.type)

    def _join_fresh(self) -> None:
        fresh = self._fresh
        text = fresh[0] if len(fresh) == 1 else "".join(fresh)
        fresh.clear()
        if text:
            self._pieces.append(Delta(text=text, kind=self._kind))


class _Typed(msgspec.Struct):
    type: Any = None


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

    def reply(self, usage: Usage) -> Reply:
        """The whole reply. Raises StreamFailed if the limit of tokens was reached before there was any text or call."""
        if self._is_cut_off and not any(isinstance(block, Text | ToolUse) for block in self.blocks):
            raise StreamFailed("the model reached its output limit before it gave an answer")
        return Reply(
            blocks=tuple(self.blocks),
            usage=usage,
            malformed=self.malformed,
            finish="length" if self._is_cut_off else "complete",
        )


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
