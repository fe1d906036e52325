"""The hub of one process: the subscriptions to each turn, and the log that the readers of a turn share.

A turn has a channel while this worker runs it or a reader here subscribes to it. The log of a channel holds the preview
of the current iteration and a short tail of recent events, so that readers who are a little behind need not ask the
store. A reader has a position in the log and a flag, never a queue of its own: a slow reader costs no memory and
delays no other reader, and the size of a log is bounded by one answer.

Decision: docs/decisions/0401
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec import structs

from turnkeep.ids import TurnId
from turnkeep.streaming.formats import encode_event
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
        self._channels: dict[TurnId, _Channel] = {}

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        channel = self._channels.get(turn_id)
        if channel is None or not recorded:
            return
        channel.log.add(frames_of(recorded))
        channel.wake()
        if isinstance(recorded[-1].event, Result | Failure):
            channel.is_live = False
            self._close_if_empty(channel)

    def preview(self, piece: PreviewPiece) -> None:
        channel = self._channels.get(piece.turn_id) or self._open(piece.turn_id)
        channel.is_live = True
        if not piece.text.isascii():
            piece = _without_surrogates(piece)
        channel.attempt = piece.attempt if channel.log.add_preview(piece) else None
        for subscription in channel.subscriptions:
            subscription.wake()

    def forget(self, turn_id: TurnId) -> None:
        channel = self._channels.get(turn_id)
        if channel is not None:
            channel.is_live = False
            channel.log.preview = None
            self._close_if_empty(channel)

    def preview_length(self, turn_id: TurnId, seq: int) -> int | None:
        channel = self._channels.get(turn_id)
        preview = None if channel is None or not channel.is_live else channel.log.preview
        # The preview of another attempt came from another worker, which may be ahead of what is known here.
        if channel is None or preview is None or preview.base != seq or preview.attempt != channel.attempt:
            return None
        return preview.end

    def subscribe(self, turn_id: TurnId) -> "LocalSubscription":
        return LocalSubscription(self, turn_id)

    async def close(self) -> None:
        """Cancel reads of the store that are under way. Streams are ended elsewhere."""
        reads = [read for channel in self._channels.values() for read in channel.reads.values()]
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    @property
    def turn_count(self) -> int:
        """Turns that run here or have readers here."""
        return len(self._channels)

    # Messages of other workers

    def note_event(self, turn_id: TurnId, seq: int) -> None:
        """Another worker announced that this event is durable."""
        channel = self._channels.get(turn_id)
        if channel is not None:
            channel.log.note_event(seq)
            channel.wake()

    def add_remote_preview(self, piece: PreviewPiece) -> bool:
        """Another worker sent preview text. False if text before it is missing."""
        channel = self._channels.get(piece.turn_id)
        if channel is None:
            return True
        is_whole = channel.log.add_preview(piece)
        channel.wake()
        return is_whole

    def require_read(self, turn_id: TurnId) -> None:
        """Messages of other workers may have been lost: make the readers of this turn read the store."""
        channel = self._channels.get(turn_id)
        for subscription in channel.subscriptions if channel is not None else ():
            subscription.require_read()

    def log_of(self, turn_id: TurnId, *, live_only: bool = False) -> "TurnLog | None":
        channel = self._channels.get(turn_id)
        return None if channel is None or (live_only and not channel.is_live) else channel.log

    # Channels

    def _attach(self, subscription: "LocalSubscription") -> "_Channel":
        channel = self._channels.get(subscription.turn_id) or self._open(subscription.turn_id)
        channel.subscriptions[subscription] = None
        return channel

    def _detach(self, subscription: "LocalSubscription", channel: "_Channel") -> None:
        channel.subscriptions.pop(subscription, None)
        self._close_if_empty(channel)

    def _open(self, turn_id: TurnId) -> "_Channel":
        channel = self._channels[turn_id] = _Channel(turn_id)
        return channel

    def _close_if_empty(self, channel: "_Channel") -> None:
        if not channel.subscriptions and not channel.is_live and self._channels.get(channel.turn_id) is channel:
            del self._channels[channel.turn_id]


class _Channel:
    """One turn: its log and its subscriptions."""

    __slots__ = ("attempt", "is_live", "log", "reads", "subscriptions", "turn_id")

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.log = TurnLog()
        self.subscriptions: dict[LocalSubscription, None] = {}
        self.is_live = False
        """The engine of this process runs the turn."""
        self.attempt: int | None = None
        """The attempt of the last preview that came from here, if the log has all of it."""
        self.reads: dict[int, asyncio.Task[list[EventFrame]]] = {}

    def wake(self) -> None:
        for subscription in self.subscriptions:
            subscription.wake()

    async def read(self, source: EventSource, after: int, limit: int) -> list[EventFrame]:
        """Read the store. Readers who need the same page share one task, which goes on when one of them leaves."""
        task = self.reads.get(after)
        if task is None:
            task = self.reads[after] = asyncio.create_task(self._read(source, after, limit))
            task.add_done_callback(_retrieve_error)
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


class LocalSubscription:
    """One reader's subscription. It begins when it is entered."""

    __slots__ = (
        "_channel",
        "_deadline",
        "_has_news",
        "_hub",
        "_loop",
        "_must_read",
        "_timer",
        "_timer_at",
        "_waiter",
        "turn_id",
    )

    def __init__(self, hub: LocalHub, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self._hub = hub
        self._channel = _NO_CHANNEL
        self._has_news = False
        self._must_read = False
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._timer_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        self._channel = self._hub._attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub._detach(self, self._channel)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def head(self) -> int:
        return self._channel.log.head

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        self._has_news = False
        return self._channel.log.frames(seq, offset)

    async def read(self, source: EventSource, *, after: int, limit: int) -> Sequence[EventFrame]:
        return await self._channel.read(source, after, limit)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is None:
            self._has_news = True
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(True)

    def require_read(self) -> None:
        self._must_read = True
        self.wake()

    def wait(self, until: float) -> "asyncio.Future[bool]":
        waiter = self._loop.create_future()
        if self._must_read:
            self._must_read = False
            waiter.set_result(False)
            return waiter
        if self._has_news:
            # A reader that never has to wait must read the store from time to time all the same.
            waiter.set_result(self._loop.time() < until)
            return waiter
        self._waiter = waiter
        self._deadline = until
        # A running timer is kept: it checks the deadline when it fires. Readers of a busy turn wait a hundred times
        # before that.
        if self._timer is None or self._timer_at > until + TIMER_SLACK:
            self._start_timer()
        return waiter

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        waiter = self._waiter
        if self._loop.time() < self._deadline - TIMER_SLACK:
            self._start_timer()
        elif waiter is None or waiter.done():
            # The reader was woken at this moment by something else; its next wait returns False.
            self._must_read = True
        else:
            self._waiter = None
            waiter.set_result(False)


def _retrieve_error(read: "asyncio.Task[list[EventFrame]]") -> None:
    """Mark the error as seen: all readers who waited for this read may have left."""
    if not read.cancelled():
        read.exception()


def _without_surrogates(piece: PreviewPiece) -> PreviewPiece:
    """Half a surrogate pair, as some providers send it, cannot be encoded as UTF-8. It becomes U+FFFD."""
    with suppress(UnicodeEncodeError):
        piece.text.encode()
        return piece
    text = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in piece.text)
    return structs.replace(piece, text=text)


class TurnLog:
    """Recent events without a gap, and the preview that follows the last known event. No I/O, no waiting."""

    __slots__ = ("_bytes", "_events", "head", "preview")

    def __init__(self) -> None:
        self.head = 0
        self.preview: PreviewText | None = None
        self._events: list[EventFrame] = []
        self._bytes = 0

    def add(self, frames: Iterable[EventFrame]) -> None:
        """Keep these events. Known ones are skipped; after a gap the tail begins again."""
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
            self.note_event(frame.seq)
        self._trim()

    def note_event(self, seq: int) -> None:
        """That event exists. A preview of what came before it is dropped."""
        if seq > self.head:
            self.head = seq
            self.preview = None

    def add_preview(self, piece: PreviewPiece) -> bool:
        """Keep this piece if it continues the preview. False if text between them is missing."""
        preview = self.preview
        if preview is None or preview.base != piece.base_seq:
            self.note_event(piece.base_seq)
            if piece.base_seq < self.head:
                return True
            preview = self.preview = PreviewText(attempt=piece.attempt, base=piece.base_seq)
        if preview.attempt != piece.attempt:
            return True
        return preview.add(piece.offset, piece.iteration, piece.kind, piece.text)

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        """What follows that position, without a gap; empty if this log does not have it."""
        preview, events = self.preview, self._events
        if preview is not None and preview.base == seq:
            return preview.after(offset)
        if not events or seq >= events[-1].seq:
            return ()
        first = seq + 1 - events[0].seq
        if first < 0:
            return ()
        found: list[Frame] = [*events[first:]]
        if preview is not None and preview.base == events[-1].seq:
            found += preview.after(0)
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


class PreviewText:
    """All text since one event: the last pieces as they came, earlier ones joined into larger pieces."""

    __slots__ = ("_joined", "_last", "_pieces", "attempt", "base", "end")

    def __init__(self, *, attempt: int, base: int) -> None:
        self.attempt = attempt
        self.base = base
        self.end = 0
        self._last = 0
        """Where the last piece begins: the position of every reader who keeps up."""
        self._joined: list[DeltaFrame] = []
        self._pieces: list[DeltaFrame] = []

    def add(self, offset: int, iteration: int, kind: Kind, text: str) -> bool:
        """Append the new part of it. False if it begins after the end, so that text between is missing."""
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
        """The text from `offset` to the end: in the pieces that came, or joined for a reader who is far behind."""
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
        """The same text in as few frames as possible: one for each run of the same kind."""
        frames = [frame for frame in _join([*self._joined, *self._pieces]) if frame.offset > offset]
        if frames and frames[0].start < offset:
            frames[0] = _cut(frames[0], offset)
        return frames


def _join(frames: Sequence[DeltaFrame]) -> list[DeltaFrame]:
    """Join neighbouring frames of the same kind and iteration."""
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


_NO_CHANNEL = _Channel(TurnId(""))
