"""Frames: what a reader is given, one after the other, before a format turns it into bytes.

Frames of one process are shared by all its readers, so the native bytes are made once and kept with them.
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
    """What a format wants to find again; only its own encoder reads it."""

    def __str__(self) -> str:
        return written(self.seq, self.offset, self.state)


START = Cursor()

WHOLE = 999_999_999
"""As an offset: all of the preview, in whatever order it was said. Only the next event can follow."""


def written(seq: int, offset: int = 0, state: str = "") -> str:
    """The cursor as text, without making a value first."""
    place = f"{seq}.{offset}" if offset else str(seq)
    return f"{place}~{state}" if state else place


def parse(text: str) -> Cursor:
    """The cursor that `text` spells, else InvalidRequest. Whether the turn has come that far is not known here."""
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
    """The frame in the native format, once somebody has asked for it."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.seq)

    @property
    def is_terminal(self) -> bool:
        return isinstance(self.recorded.event, Result | Failure)


class DeltaFrame(Struct, kw_only=True, gc=False):
    """Words of a preview. `seq` is the event they follow; `offset` is where they end."""

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
