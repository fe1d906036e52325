"""The hub of one process: who is listening to which turn, and the log that they share.

A turn has a log while this worker speaks it or somebody here listens. Readers have a place in the log and a flag;
nothing is queued for them, so a slow one costs nothing and holds nobody up.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec import structs

from turnkeep.ids import TurnId
from turnkeep.streaming.formats.native import encode_event
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame, Kind, event_frame
from turnkeep.streaming.ports import EventSource, PreviewPiece
from turnkeep_client.wire.events import Failure, Recorded, Result

TAIL_EVENTS = 64
TAIL_BYTES = 65_536
TAIL_PIECES = 64


TIMER_SLACK = 0.005
"""Seconds by which a wait may end early rather than start another timer."""


class LocalHub:
    """The hub for one worker alone. All calls come from one event loop."""

    def __init__(self) -> None:
        self._rooms: dict[TurnId, _Room] = {}

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        room = self._rooms.get(turn_id)
        if room is None or not recorded:
            return
        room.log.add(frames_of(recorded))
        room.wake()
        if isinstance(recorded[-1].event, Result | Failure):
            room.is_live = False
            self._close_if_empty(room)

    def preview(self, piece: PreviewPiece) -> None:
        room = self._rooms.get(piece.turn_id) or self._open(piece.turn_id)
        room.is_live = True
        if not piece.text.isascii():
            piece = _encodable(piece)
        room.attempt = piece.attempt if room.log.say(piece) else None
        for ear in room.ears:
            ear.wake()

    def forget(self, turn_id: TurnId) -> None:
        room = self._rooms.get(turn_id)
        if room is not None:
            room.is_live = False
            room.log.speech = None
            self._close_if_empty(room)

    def spoken(self, turn_id: TurnId, seq: int) -> int | None:
        room = self._rooms.get(turn_id)
        speech = None if room is None or not room.is_live else room.log.speech
        # A speech of another attempt was overheard: its speaker may be ahead of what is known here.
        if room is None or speech is None or speech.base != seq or speech.attempt != room.attempt:
            return None
        return speech.end

    def subscribe(self, turn_id: TurnId) -> "Ear":
        return Ear(self, turn_id)

    async def close(self) -> None:
        """End reads that are under way. Readers are not told; their streams end by other means."""
        reads = [read for room in self._rooms.values() for read in room.reads.values()]
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    @property
    def turn_count(self) -> int:
        """Turns that are spoken or listened to here."""
        return len(self._rooms)

    # What comes from other workers

    def hear(self, turn_id: TurnId, seq: int) -> None:
        """Another worker says that this event is durable."""
        room = self._rooms.get(turn_id)
        if room is not None:
            room.log.hear(seq)
            room.wake()

    def overhear(self, piece: PreviewPiece) -> bool:
        """Another worker speaks. False if words before these are missing."""
        room = self._rooms.get(piece.turn_id)
        if room is None:
            return True
        is_whole = room.log.say(piece)
        room.wake()
        return is_whole

    def doubt(self, turn_id: TurnId) -> None:
        """Other workers were out of hearing until now: readers should look at the store."""
        room = self._rooms.get(turn_id)
        for ear in room.ears if room is not None else ():
            ear.doubt()

    def log_of(self, turn_id: TurnId, *, spoken_here: bool = False) -> "TurnLog | None":
        room = self._rooms.get(turn_id)
        return None if room is None or (spoken_here and not room.is_live) else room.log

    # Rooms

    def _enter(self, ear: "Ear") -> "_Room":
        room = self._rooms.get(ear.turn_id) or self._open(ear.turn_id)
        room.ears[ear] = None
        return room

    def _leave(self, ear: "Ear", room: "_Room") -> None:
        room.ears.pop(ear, None)
        self._close_if_empty(room)

    def _open(self, turn_id: TurnId) -> "_Room":
        room = self._rooms[turn_id] = _Room(turn_id)
        return room

    def _close_if_empty(self, room: "_Room") -> None:
        if not room.ears and not room.is_live and self._rooms.get(room.turn_id) is room:
            del self._rooms[room.turn_id]


class _Room:
    """One turn: its log, and the ears at it."""

    __slots__ = ("attempt", "ears", "is_live", "log", "reads", "turn_id")

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.log = TurnLog()
        self.ears: dict[Ear, None] = {}
        self.is_live = False
        """The engine of this process speaks the turn."""
        self.attempt: int | None = None
        """The attempt under which it last spoke, if the log has all of that."""
        self.reads: dict[int, asyncio.Task[list[EventFrame]]] = {}

    def wake(self) -> None:
        for ear in self.ears:
            ear.wake()

    async def read(self, source: EventSource, after: int, limit: int) -> list[EventFrame]:
        """One task for all who want to know the same, so that a reader who leaves does not take it along."""
        task = self.reads.get(after)
        if task is None:
            task = self.reads[after] = asyncio.create_task(self._read(source, after, limit))
            task.add_done_callback(_note_outcome)
        return await asyncio.shield(task)

    async def _read(self, source: EventSource, after: int, limit: int) -> list[EventFrame]:
        try:
            frames = frames_of(await source.events(self.turn_id, after=after, limit=limit))
        finally:
            del self.reads[after]
        if frames:
            self.log.add(frames)
            self.wake()
        return frames


class Ear:
    """One reader's subscription. Enter it to begin listening."""

    __slots__ = (
        "_deadline",
        "_has_news",
        "_hub",
        "_is_in_doubt",
        "_loop",
        "_rings_at",
        "_room",
        "_timer",
        "_waiter",
        "turn_id",
    )

    def __init__(self, hub: LocalHub, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self._hub = hub
        self._room = _NOWHERE
        self._has_news = False
        self._is_in_doubt = False
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._rings_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        self._room = self._hub._enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub._leave(self, self._room)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def head(self) -> int:
        return self._room.log.head

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        self._has_news = False
        return self._room.log.frames(seq, offset)

    async def read(self, source: EventSource, *, after: int, limit: int) -> Sequence[EventFrame]:
        return await self._room.read(source, after, limit)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is None:
            self._has_news = True
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(True)

    def doubt(self) -> None:
        self._is_in_doubt = True
        self.wake()

    def wait(self, until: float) -> "asyncio.Future[bool]":
        waiter = self._loop.create_future()
        if self._is_in_doubt:
            self._is_in_doubt = False
            waiter.set_result(False)
            return waiter
        if self._has_news:
            # A reader that never has to wait must look at the store all the same.
            waiter.set_result(self._loop.time() < until)
            return waiter
        self._waiter = waiter
        self._deadline = until
        # A timer that runs is left alone: it looks at the deadline when it fires. Readers of a busy turn wait a
        # hundred times before it does.
        if self._timer is None or self._rings_at > until + TIMER_SLACK:
            self._arm()
        return waiter

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        waiter = self._waiter
        if self._loop.time() < self._deadline - TIMER_SLACK:
            self._arm()
        elif waiter is None or waiter.done():
            # It was just woken by something else; the next wait says that the time has come.
            self._is_in_doubt = True
        else:
            self._waiter = None
            waiter.set_result(False)


def _note_outcome(read: "asyncio.Task[list[EventFrame]]") -> None:
    """Everybody who wanted to know may have left; then nobody else looks at the error."""
    if not read.cancelled():
        read.exception()


def _encodable(piece: PreviewPiece) -> PreviewPiece:
    """Half a surrogate pair, as some providers send it, cannot be written as UTF-8: it becomes U+FFFD."""
    with suppress(UnicodeEncodeError):
        piece.text.encode()
        return piece
    text = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in piece.text)
    return structs.replace(piece, text=text)


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


_NOWHERE = _Room(TurnId(""))
