"""The hub of one process: the subscriptions to each turn, and the log that the readers of a turn share.

A turn has a channel while this worker runs it or a reader here subscribes to it. The log of a channel holds the preview
of the current iteration and a short tail of recent events, so that readers who are a little behind need not ask the
store. A reader has a position in the log and a flag, never a queue of its own: a slow reader costs no memory and
delays no other reader, and the size of a log is bounded by one answer.

Decision: docs/decisions/0401
"""

import asyncio
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec import structs

from turnkeep.ids import TurnId
from turnkeep.streaming.formats import encode_event
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame, Kind, event_frame
from turnkeep.streaming.ports import EventSource, PreviewPiece
from turnkeep_client.wire.events import Failure, Recorded, Reset, Result

TAIL_EVENTS = 64
TAIL_BYTES = 65_536
TAIL_PIECES = 64


class LocalHub:
    """The hub for one worker alone. All calls come from one event loop."""

    def __init__(self) -> None:
        self._channels: dict[TurnId, _Channel] = {}
        self._resting: list[LocalSubscription] = []

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        channel = self._channels.get(turn_id)
        if channel is None and recorded and recorded[0].seq == 1:
            # The turn has just begun here. Its first reader, who comes in a moment, need not ask the store.
            channel = self._open(turn_id)
            channel.is_live = True
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
            channel.wake()
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
    def is_connected(self) -> None:
        """There is nothing to be connected with."""

    @property
    def turn_count(self) -> int:
        """Turns that run here or have readers here."""
        return len(self._channels)

    def is_live(self, turn_id: TurnId) -> bool:
        """Whether this worker runs the turn, as far as the hub knows."""
        channel = self._channels.get(turn_id)
        return channel is not None and channel.is_live

    def followed_turns(self) -> list[TurnId]:
        return [turn_id for turn_id, channel in self._channels.items() if channel.subscriptions]

    def note_event(self, turn_id: TurnId, seq: int) -> None:
        channel = self._channels.get(turn_id)
        if channel is not None and seq > channel.log.head:
            channel.log.note_event(seq)
            channel.wake()

    def note_gone(self, turn_id: TurnId) -> None:
        channel = self._channels.get(turn_id)
        if channel is not None:
            channel.is_gone = True
            self.require_read(turn_id)

    # Messages of other workers

    def add_remote_preview(self, piece: PreviewPiece) -> bool:
        """Another worker sent preview text. False if text before it is missing."""
        channel = self._channels.get(piece.turn_id)
        if channel is None:
            return True
        is_whole = channel.log.add_preview(piece)
        channel.wake()
        return is_whole

    def require_read(self, turn_id: TurnId) -> None:
        """Make the readers of this turn read the store: messages of other workers may have been lost."""
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

    def _rest(self, subscription: "LocalSubscription", loop: asyncio.AbstractEventLoop) -> None:
        """Let this reader take its next news after the present round of the event loop: one write for each round."""
        if not self._resting:
            loop.call_soon(self._end_rest)
        self._resting.append(subscription)

    def _end_rest(self) -> None:
        resting, self._resting = self._resting, []
        for subscription in resting:
            subscription.end_rest()

    def _open(self, turn_id: TurnId) -> "_Channel":
        channel = self._channels[turn_id] = _Channel(turn_id)
        return channel

    def _close_if_empty(self, channel: "_Channel") -> None:
        if not channel.subscriptions and not channel.is_live and self._channels.get(channel.turn_id) is channel:
            del self._channels[channel.turn_id]


class _Channel:
    """One turn: its log and its subscriptions."""

    __slots__ = ("attempt", "is_gone", "is_live", "log", "reads", "subscriptions", "turn_id")

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.log = TurnLog()
        self.subscriptions: dict[LocalSubscription, None] = {}
        self.is_live = False
        """The engine of this process runs the turn."""
        self.is_gone = False
        """The store does not have the turn any more."""
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

    __slots__ = ("_channel", "_has_news", "_hub", "_is_resting", "_loop", "_must_read", "_waiter", "take", "turn_id")

    def __init__(self, hub: LocalHub, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.take: Callable[[], bool] | None = None
        self._hub = hub
        self._channel = _NO_CHANNEL
        self._has_news = False
        self._must_read = False
        self._is_resting = False
        """News was taken in this round of the event loop. What comes in the same round is taken together, after it."""
        self._waiter: asyncio.Future[bool] | None = None
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        self._channel = self._hub._attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub._detach(self, self._channel)

    @property
    def head(self) -> int:
        return self._channel.log.head

    @property
    def is_gone(self) -> bool:
        return self._channel.is_gone

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        self._has_news = False
        return self._channel.log.frames(seq, offset)

    async def read(self, source: EventSource, *, after: int, limit: int) -> Sequence[EventFrame]:
        frames = await self._channel.read(source, after, limit)
        return self._channel.log.up_to_preview(frames)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is None or self._is_resting or waiter.done():
            self._has_news = True
        elif self._is_taken():
            self._is_resting = True
            self._hub._rest(self, self._loop)
        else:
            self._waiter = None
            waiter.set_result(True)

    def end_rest(self) -> None:
        self._is_resting = False
        if self._has_news and self._waiter is not None:
            self.wake()

    def _is_taken(self) -> bool:
        if self.take is None or self._must_read:
            return False
        self._has_news = False
        try:
            return self.take()
        except Exception:  # publishing never raises; the reader is woken and gets the same error
            return False

    def require_read(self) -> None:
        self._must_read = True
        self.wake()

    def wait(self, until: float = math.inf) -> "asyncio.Future[bool]":
        waiter = self._loop.create_future()
        if self._must_read:
            self._must_read = False
            waiter.set_result(False)
        elif self._has_news:
            # A reader that never has to wait must read the store in time all the same.
            waiter.set_result(self._loop.time() < until)
        else:
            self._waiter = waiter
            if until != math.inf:
                timer = self._loop.call_at(until, _expire, waiter)
                waiter.add_done_callback(lambda _: timer.cancel())
        return waiter


def _expire(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
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
    """Recent events without a gap, and the preview that follows the last known event. No I/O, no waiting.

    The last preview stays when its event has come, until the next preview begins. So a reader that was behind at that
    moment gets the rest of the text first, and then the event: for every reader the joined text is that of the event.
    """

    __slots__ = ("_bytes", "_ended", "_events", "head", "preview")

    def __init__(self) -> None:
        self.head = 0
        self.preview: PreviewText | None = None
        self._ended: PreviewText | None = None
        """The last preview, after its event was announced."""
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
            if isinstance(frame.recorded.event, Reset):
                self._ended = None
        self._trim()

    def note_event(self, seq: int) -> None:
        """That event exists. A preview of what came before it has ended."""
        if seq > self.head:
            self.head = seq
            if self.preview is not None:
                self._ended, self.preview = self.preview, None

    def add_preview(self, piece: PreviewPiece) -> bool:
        """Keep this piece if it continues the preview. False if text between them is missing."""
        preview = self.preview
        if preview is None or preview.base != piece.base_seq:
            self.note_event(piece.base_seq)
            if piece.base_seq < self.head:
                return True
            preview = self.preview = PreviewText(attempt=piece.attempt, base=piece.base_seq)
            self._ended = None
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
        ended = self._ended
        if ended is not None and seq <= ended.base < events[-1].seq:
            place = ended.base - seq
            found[place:place] = ended.after(offset if place == 0 else 0)
        if preview is not None and preview.base == events[-1].seq:
            found += preview.after(0)
        return found

    def up_to_preview(self, frames: Sequence[EventFrame]) -> Sequence[EventFrame]:
        """These events from the store, as far as the last preview: its text comes before the event that follows it."""
        base = -1 if self._ended is None else self._ended.base
        if frames and frames[0].seq <= base < frames[-1].seq:
            return frames[: base - frames[0].seq + 1]
        return frames

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

    __slots__ = ("_joined", "_last", "_pieces", "_shared", "_shared_from", "attempt", "base", "end")

    def __init__(self, *, attempt: int, base: int) -> None:
        self.attempt = attempt
        self.base = base
        self.end = 0
        self._last = 0
        """Where the last piece begins: the position of every reader who keeps up."""
        self._joined: list[DeltaFrame] = []
        self._pieces: list[DeltaFrame] = []
        self._shared: list[DeltaFrame] = []
        self._shared_from = (0, 0)
        """Which part of the text `_shared` is."""

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
        """The text from `offset` to the end: the last piece, or all that is missing in as few frames as possible.

        Readers at the same position share these frames, and so their bytes.
        """
        if offset == self._last:
            return self._pieces[-1:]
        if offset >= self.end:
            return ()
        if self._shared_from != (offset, self.end):
            self._shared_from = (offset, self.end)
            self._shared = self._joined_from(offset)
        return self._shared

    def _joined_from(self, offset: int) -> list[DeltaFrame]:
        """One frame for each run of the same kind."""
        pieces = self._pieces
        if offset >= pieces[0].start:
            frames = _join(pieces[bisect_right(pieces, offset, key=_end) :])
        else:
            frames = [frame for frame in _join([*self._joined, *pieces]) if frame.offset > offset]
        if frames[0].start < offset:
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
