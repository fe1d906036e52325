"""Frames: the events and preview pieces that a reader gets, in order, before a format encodes them. And cursors.

All readers of one process share the same frames, so the native bytes are encoded once and kept with the frame.

A cursor says how far a reader has come: `12`, or `12.345` in the middle of a preview. To a client it is opaque. A
format that must remember more than a position (which block is open, how much of the iteration was sent) writes that
behind a tilde, `12.345~300.45`; such a cursor can be followed in that format alone.
"""

import re
from typing import Literal

from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep_client.wire.events import Failure, Recorded, Result

_PATTERN = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?(?:~([0-9a-z.]{1,48}))?")


class Cursor(Struct, frozen=True):
    """All events up to `seq`, and `offset` code points of the preview that follows it (text and reasoning alike)."""

    seq: int = 0
    offset: int = 0
    state: str = ""
    """State of a format's encoder; only that encoder reads it."""

    def __str__(self) -> str:
        return format_cursor(self.seq, self.offset, self.state)


START = Cursor()

WHOLE = 999_999_999
"""As an offset: the whole preview, in any order. Only the next event can follow."""


def format_cursor(seq: int, offset: int = 0, state: str = "") -> str:
    """The text of a cursor, without creating a Cursor first."""
    position = f"{seq}.{offset}" if offset else str(seq)
    return f"{position}~{state}" if state else position


def parse_cursor(text: str) -> Cursor:
    """The cursor in `text`. Raises InvalidRequest. Does not check whether the turn has come that far."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        shown = text if len(text) <= 60 else text[:59] + "…"
        raise InvalidRequest(f"{shown!r} is not a cursor. Send back an id that this stream gave you, unchanged.")
    seq, offset = int(found[1]), int(found[2] or 0)
    if offset and not seq:
        raise InvalidRequest(f"{text!r} is not a cursor: nothing is said before the first event.")
    return Cursor(seq, offset, found[3] or "")


Kind = Literal["text", "reasoning"]


class EventFrame(Struct, kw_only=True):
    """A durable event. `seq` is its number, and the cursor after it."""

    seq: int
    recorded: Recorded
    offset: int = 0
    native: bytes | None = None
    """The frame in the native format, once it was encoded."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.seq)

    @property
    def is_terminal(self) -> bool:
        return isinstance(self.recorded.event, Result | Failure)


class DeltaFrame(Struct, kw_only=True, gc=False):
    """Text of a preview. `seq` is the event that it follows; `offset` is where it ends."""

    seq: int
    offset: int
    iteration: int
    kind: Kind
    text: str
    native: bytes | None = None

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.seq, self.offset)

    @property
    def start(self) -> int:
        return self.offset - len(self.text)


Frame = EventFrame | DeltaFrame


def event_frame(recorded: Recorded) -> EventFrame:
    return EventFrame(seq=recorded.seq, recorded=recorded)
