"""Frames: what a reader is given, one after the other, before a format turns it into bytes.

Frames of one process are shared by all its readers, so the native bytes are made once and kept with them.
"""

from typing import Literal

from msgspec import Struct

from turnkeep.streaming.cursor import Cursor
from turnkeep_client.wire.events import Failure, Recorded, Result

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
