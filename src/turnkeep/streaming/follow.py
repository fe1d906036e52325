"""Following a turn: the one algorithm behind every stream.

Subscribe, replay, then follow. A reader is only ever given the event after its last one, whatever the hub says. If the
hub does not have that event, the store is read. Every two seconds one statement asks the store how far the turns of all
readers have come that other workers run (`poll`). So notices of other workers may be lost, late, doubled or out of
order, and previews may come from a worker that has lost the turn: a reader still ends with the same text and the same
events. The stream ends with the terminal event, never with a status.

A turn can be erased while it has readers, with its terminal event. The next poll does not find it, and its readers end
with an error `not_found`.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence

from turnkeep.errors import InvalidRequest, NotFound, WorldError
from turnkeep.ids import TurnId
from turnkeep.streaming.frames import START, WHOLE, Cursor, DeltaFrame, EventFrame, Frame, event_frame
from turnkeep.streaming.ports import EventSource, Hub, Subscription
from turnkeep_client.wire.blocks import ReasoningPart, TextPart
from turnkeep_client.wire.events import Failure, Recorded, Result

Take = Callable[[DeltaFrame], bool]
"""Takes the next frame, if it can do so at once. Else it returns false and has done nothing."""

POLL_SECONDS = 2.0
"""The longest time for which readers rely on the hub alone."""

PAGE = 50
"""Events in one read of the store. A step may be large, so a page has few events."""

TURNS_AT_ONCE = 20_000
"""Turns in one statement of a poll."""

ERASED = Failure(code=NotFound.code, message="This turn was erased.")
"""The end of a stream whose turn is gone."""

SPARE_CHARS = 1_000

_FIRST_RETRY_SECONDS = 0.05

_logger = logging.getLogger(__name__)


async def is_over(source: EventSource, hub: Hub, turn_id: TurnId, cursor: Cursor) -> bool:
    """Whether nothing will ever follow this cursor. For a caller that must respond before a stream begins.

    Raises InvalidRequest if the turn has not reached it, NotFound if it has no events at all. A preview is counted
    only if this worker runs the turn; another worker may be ahead of what is known here.
    """
    here = await source.events(turn_id, after=max(cursor.seq - 1, 0), limit=2 if cursor.offset else 1)
    if not here and not cursor.seq:
        raise NotFound(f"Turn {turn_id} has no events.")
    if not here:
        raise InvalidRequest(f"The turn has not reached the cursor {cursor}.")
    ended = cursor.seq > 0 and event_frame(here[0]).is_terminal
    if ended and cursor.offset:
        raise InvalidRequest(f"The turn has not reached the cursor {cursor}: it ended with event {cursor.seq}.")
    if len(here) > 1 and cursor.offset != WHOLE and cursor.offset > _max_preview_length(here[1]):
        raise InvalidRequest(f"The turn has not reached the cursor {cursor}: less text followed event {cursor.seq}.")
    if len(here) == 1 and cursor.offset != WHOLE and cursor.offset > _preview_length(hub, turn_id, cursor.seq):
        raise InvalidRequest(f"The turn has not reached the cursor {cursor}: its text is still shorter.")
    return ended


def _preview_length(hub: Hub, turn_id: TurnId, seq: int) -> float:
    spoken = hub.preview_length(turn_id, seq)
    return math.inf if spoken is None else spoken


def _max_preview_length(following: Recorded) -> float:
    """The longest preview that can have been shown before that event. Only a result tells, and only roughly: its text
    may have been cleaned or cut when it was recorded, and a reader who saw the preview must never be refused."""
    if not isinstance(following.event, Result):
        return math.inf
    parts = following.event.content
    said = sum(len(part.text) for part in parts if isinstance(part, TextPart | ReasoningPart))
    return 2 * (said + len(following.event.message)) + SPARE_CHARS


async def follow(
    source: EventSource,
    hub: Hub,
    turn_id: TurnId,
    cursor: Cursor = START,
    *,
    take: Take | None = None,
) -> AsyncIterator[Sequence[Frame]]:
    """Everything after `cursor`, in batches of what is available; ends after the terminal event. The last event of a
    turn that is erased meanwhile is an error `not_found`, which is in no store.

    When the store is away, the reader waits and the store is asked again. Raises as `is_over` does, before the first
    batch. Without a `poll` of the same hub beside it, a reader relies on the hub.

    Most frames are one more piece of preview text for a reader that has everything before it. While the reader waits,
    such a frame is offered to `take` at the moment it is published. A frame that `take` takes is in no batch.
    """
    if cursor.seq and await is_over(source, hub, turn_id, cursor):
        return
    async with hub.subscribe(turn_id) as subscription:
        seq, offset, must_read = cursor.seq, cursor.offset, False
        stored = _StoreReader(source, subscription, turn_id)

        def take_news() -> bool:
            nonlocal offset
            frames = subscription.frames(seq, offset)
            if take is None or len(frames) != 1 or not isinstance(frames[0], DeltaFrame) or not take(frames[0]):
                return False
            offset = frames[0].offset
            return True

        subscription.take = take_news if take is not None else None
        while True:
            frames = subscription.frames(seq, offset)
            found: Sequence[Frame] = ()
            if not frames or must_read:
                found = await stored.read(seq, is_due=must_read)
                if found:
                    # The hub knows these events now, and what was said before them.
                    frames = subscription.frames(seq, offset) or found
            if frames:
                last = frames[-1]
                seq, offset = last.seq, last.offset
                yield frames
                if isinstance(last, EventFrame) and last.is_terminal:
                    return
                if frames is found:
                    # The hub may have what follows these events, and has said so before.
                    must_read = False
                    continue
            elif subscription.is_gone:
                yield [event_frame(Recorded(seq=seq + 1, event=ERASED))]
                return
            must_read = not stored.is_behind(seq) and not await subscription.wait(stored.due)


async def poll(
    source: EventSource, hub: Hub, *, holds: Callable[[TurnId], bool] = lambda _: False, seconds: float = POLL_SECONDS
) -> None:
    """Announce for ever to the readers of this process how far their turns have come in the store.

    This makes up for notices that were lost, and for workers that the hub is not connected with. It also finds turns
    that were erased. It is one statement for all readers, however many there are. It leaves out turns that this worker
    `holds`: only their holder writes events, and publishes them here.
    """
    while True:
        await asyncio.sleep(seconds)
        turn_ids = [turn_id for turn_id in hub.followed_turns() if not holds(turn_id)]
        try:
            for start in range(0, len(turn_ids), TURNS_AT_ONCE):
                asked = turn_ids[start : start + TURNS_AT_ONCE]
                found = await source.last_seqs(asked)
                for turn_id, seq in found.items():
                    hub.note_event(turn_id, seq)
                for turn_id in asked:
                    if turn_id not in found:
                        hub.note_gone(turn_id)
        except WorldError as error:
            _logger.warning("The store cannot say now how far its turns have come: %s", error)
        except Exception:  # a poll that fails must not end all polls
            _logger.exception("A poll of the store failed; the next one follows")


class _StoreReader:
    """One reader's reads of the store: when to read, and when to read again if nothing was found."""

    __slots__ = (
        "_has_more",
        "_has_read",
        "_missed",
        "_now",
        "_retry_seconds",
        "_source",
        "_subscription",
        "_turn_id",
        "due",
    )

    def __init__(self, source: EventSource, subscription: Subscription, turn_id: TurnId) -> None:
        self._source = source
        self._subscription = subscription
        self._turn_id = turn_id
        self._now = asyncio.get_running_loop().time
        self.due = math.inf
        """When the store must be read again, because it did not answer or lacked an event that was announced."""
        self._has_more = False
        """The last read filled its page, so there may be more."""
        self._has_read = False
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._missed = 0
        """The highest event that the hub had announced when the store did not have it yet, or did not answer."""

    def is_behind(self, seq: int) -> bool:
        """Whether the store has, or should have, an event after `seq`. If the hub does not have it, it must be read."""
        return self._has_more or self._subscription.head > max(seq, self._missed)

    async def read(self, seq: int, *, is_due: bool) -> Sequence[Frame]:
        """The events after `seq` in the store; nothing if there is no reason to read, or none were found."""
        if self._has_read and not is_due and not self.is_behind(seq):
            return ()
        self._has_read = True
        self._has_more = False
        try:
            frames = await self._subscription.read(self._source, after=seq, limit=PAGE)
        except WorldError as error:
            _logger.warning("The events of %s cannot be read now: %s", self._turn_id, error)
            self._read_later()
            return ()
        self.due = math.inf
        if frames:
            self._missed = 0
            self._has_more = len(frames) == PAGE
            self._retry_seconds = _FIRST_RETRY_SECONDS
            return frames
        if not seq and not self._subscription.head:
            raise NotFound(f"Turn {self._turn_id} has no events.")
        if self._subscription.head > seq:
            # Announced, but not there: a replica that lags, or a wrong notice.
            self._read_later()
        return ()

    def _read_later(self) -> None:
        """Read again, less and less often. Readers who began together do not read at the same moment for ever."""
        self._missed = self._subscription.head
        self.due = self._now() + self._retry_seconds * random.uniform(0.8, 1.0)
        self._retry_seconds = min(2 * self._retry_seconds, POLL_SECONDS)
