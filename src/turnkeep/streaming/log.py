"""The log of one live turn: what its readers in this process share. No I/O, no waiting.

It holds the words of the iteration now being spoken, and a short tail of recent events and pieces, so that readers
who are a little behind need not ask the store. Its size is bounded by one answer, however many readers there are and
however slow they may be: a reader has a place in the log, never a queue of its own.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from turnkeep.streaming.formats.native import encode_event
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame, Kind, event_frame
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.events import Recorded

TAIL_EVENTS = 64
TAIL_BYTES = 65_536
TAIL_PIECES = 64


class TurnLog:
    """Recent events without a gap, and the preview on top of the last event that anyone has heard of."""

    __slots__ = ("_bytes", "_events", "head", "speech")

    def __init__(self) -> None:
        self.head = 0
        self.speech: Speech | None = None
        self._events: list[EventFrame] = []
        self._bytes = 0

    def add(self, frames: Iterable[EventFrame]) -> None:
        """Keep these events. Known ones are passed over; after a gap the tail begins anew."""
        events = self._events
        for frame in frames:
            if events and frame.seq <= events[-1].seq:
                continue
            if events and frame.seq > events[-1].seq + 1:
                events.clear()
                self._bytes = 0
            if frame.native is None:
                frame.native = encode_event(frame.recorded)
            events.append(frame)
            self._bytes += len(frame.native)
            self.hear(frame.seq)
        self._trim()

    def hear(self, seq: int) -> None:
        """That event exists. A preview of what came before it is void."""
        if seq > self.head:
            self.head = seq
            self.speech = None

    def say(self, piece: PreviewPiece) -> bool:
        """Keep this piece, if it goes on from what was said. False if something between is missing."""
        speech = self.speech
        if speech is None or speech.base != piece.base_seq:
            self.hear(piece.base_seq)
            if piece.base_seq < self.head:
                return True
            speech = self.speech = Speech(attempt=piece.attempt, base=piece.base_seq)
        if speech.attempt != piece.attempt:
            return True
        return speech.add(piece.offset, piece.iteration, piece.kind, piece.text)

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        """What follows that place, without a gap; empty if this log cannot tell."""
        speech, events = self.speech, self._events
        if speech is not None and speech.base == seq:
            return speech.after(offset)
        if not events or seq >= events[-1].seq:
            return ()
        first = seq + 1 - events[0].seq
        if first < 0:
            return ()
        found: list[Frame] = [*events[first:]]
        if speech is not None and speech.base == events[-1].seq:
            found += speech.after(0)
        return found

    def _trim(self) -> None:
        events = self._events
        drop = max(0, len(events) - TAIL_EVENTS)
        size = self._bytes - sum(len(frame.native or b"") for frame in events[:drop])
        while size > TAIL_BYTES and drop < len(events) - 1:
            size -= len(events[drop].native or b"")
            drop += 1
        del events[:drop]
        self._bytes = size


class Speech:
    """All words since one event: the last ones in the pieces they came in, those before joined by the dozen."""

    __slots__ = ("_joined", "_last", "_pieces", "attempt", "base", "end")

    def __init__(self, *, attempt: int, base: int) -> None:
        self.attempt = attempt
        self.base = base
        self.end = 0
        self._last = 0
        """Where the last piece begins: the place of every reader who keeps up."""
        self._joined: list[DeltaFrame] = []
        self._pieces: list[DeltaFrame] = []

    def add(self, offset: int, iteration: int, kind: Kind, text: str) -> bool:
        """Append what is new of it. False if it begins after the end, so that words between are missing."""
        end = self.end
        if offset != end:
            if offset > end:
                return False
            text = text[end - offset :]
        if not text:
            return True
        self._last = end
        self.end = end = end + len(text)
        pieces = self._pieces
        pieces.append(DeltaFrame(seq=self.base, offset=end, iteration=iteration, kind=kind, text=text))
        if len(pieces) == 2 * TAIL_PIECES:
            # A small string costs 50 bytes more than its characters.
            self._joined += _join(pieces[:TAIL_PIECES])
            del pieces[:TAIL_PIECES]
        return True

    def after(self, offset: int) -> Sequence[DeltaFrame]:
        """The words from `offset` to the end: as they came, or joined for a reader who is far behind."""
        pieces = self._pieces
        if offset == self._last:
            return pieces[-1:]
        if offset >= self.end:
            return ()
        if offset < pieces[0].start:
            return self.joined(offset)
        found = pieces[bisect_right(pieces, offset, key=_end) :]
        if found[0].start < offset:
            found[0] = _cut(found[0], offset)
        return found

    def joined(self, offset: int) -> Sequence[DeltaFrame]:
        """The same words in as few frames as kinds allow."""
        frames = [frame for frame in _join([*self._joined, *self._pieces]) if frame.offset > offset]
        if frames and frames[0].start < offset:
            frames[0] = _cut(frames[0], offset)
        return frames


def _join(frames: Sequence[DeltaFrame]) -> list[DeltaFrame]:
    """Neighbours of one kind and iteration become one frame."""
    joined: list[DeltaFrame] = []
    first = 0
    for place in range(1, len(frames) + 1):
        begin, last = frames[first], frames[place - 1]
        after = frames[place] if place < len(frames) else None
        if after is None or after.kind != begin.kind or after.iteration != begin.iteration:
            text = "".join([frame.text for frame in frames[first:place]])
            joined.append(
                DeltaFrame(seq=last.seq, offset=last.offset, iteration=last.iteration, kind=last.kind, text=text)
            )
            first = place
    return joined


def _end(frame: DeltaFrame) -> int:
    return frame.offset


def _cut(frame: DeltaFrame, offset: int) -> DeltaFrame:
    text = frame.text[offset - frame.start :]
    return DeltaFrame(seq=frame.seq, offset=frame.offset, iteration=frame.iteration, kind=frame.kind, text=text)


def frames_of(recorded: Iterable[Recorded]) -> list[EventFrame]:
    return [event_frame(one) for one in recorded]
