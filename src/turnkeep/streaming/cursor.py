"""Cursors: how far a reader has come, as it says it itself. `12`, or `12.345` in the middle of a preview.

To a client a cursor is opaque. A format that must remember more than a position (which block is open, how much of
the iteration was sent) writes that behind a tilde, `12.345~300.45`; it can be followed in that format alone.
"""

import re

from msgspec import Struct

from turnkeep.errors import InvalidRequest

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
