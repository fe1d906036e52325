"""Following a turn: the one algorithm behind every stream.

Subscribe, replay, then follow. Only the event after the last one is ever given, whatever the hub says; if the hub does
not have it, the store is asked, and it is asked every two seconds in any case. So wake-ups may be lost, late, doubled
or out of order, previews may come from a worker that has lost the turn, and a reader still ends with the same text and
the same events. The end is the terminal event, never a status.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Sequence

from turnkeep.errors import InvalidRequest, NotFound, WorldError
from turnkeep.ids import TurnId
from turnkeep.streaming.frames import START, WHOLE, Cursor, EventFrame, Frame, event_frame
from turnkeep.streaming.ports import EventSource, Hub, Subscription
from turnkeep_client.wire.events import Recorded, Result
from turnkeep_client.wire.parts import ReasoningPart, TextPart

POLL_SECONDS = 2.0
"""No longer than this does a reader trust the hub alone."""

PAGE = 50
"""Events in one read of the store. A step may be large, so a page is short."""

SPARE_CHARS = 1_000

_AGAIN_SECONDS = 0.05

_logger = logging.getLogger(__name__)


async def is_over(source: EventSource, hub: Hub, turn_id: TurnId, cursor: Cursor) -> bool:
    """Whether nothing will ever follow this cursor. For a caller that must answer before a stream begins.

    Raises InvalidRequest if the turn has not come that far, NotFound if it has no events at all. Words that are still
    being said are counted where this worker says them; another one may be ahead of what is known here.
    """
    here = await source.events(turn_id, after=max(cursor.seq - 1, 0), limit=2 if cursor.offset else 1)
    if not here and not cursor.seq:
        raise NotFound(f"Turn {turn_id} has no events.")
    if not here:
        raise InvalidRequest(f"The cursor {cursor} lies in the future: this turn has not come that far.")
    ended = cursor.seq > 0 and event_frame(here[0]).is_terminal
    if ended and cursor.offset:
        raise InvalidRequest(f"The cursor {cursor} lies in the future: the turn ended with event {cursor.seq}.")
    if len(here) > 1 and cursor.offset != WHOLE and cursor.offset > _most_said(here[1]):
        raise InvalidRequest(f"The cursor {cursor} lies in the future: so much was not said after event {cursor.seq}.")
    if len(here) == 1 and cursor.offset != WHOLE and cursor.offset > _spoken(hub, turn_id, cursor.seq):
        raise InvalidRequest(f"The cursor {cursor} lies in the future: so much has not been said yet.")
    return ended


def _spoken(hub: Hub, turn_id: TurnId, seq: int) -> float:
    spoken = hub.spoken(turn_id, seq)
    return math.inf if spoken is None else spoken


def _most_said(following: Recorded) -> float:
    """More than this cannot have been shown before that event. Only an answer tells, and with room to spare: it may
    have been cleaned or cut when it was recorded, and a reader who was there must never be refused."""
    if not isinstance(following.event, Result):
        return math.inf
    parts = following.event.content
    said = sum(len(part.text) for part in parts if isinstance(part, TextPart | ReasoningPart))
    return 2 * (said + len(following.event.message)) + SPARE_CHARS


async def follow(
    source: EventSource, hub: Hub, turn_id: TurnId, cursor: Cursor = START, *, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[Sequence[Frame]]:
    """Everything after `cursor`, in batches of what is there; ends after the terminal event.

    While nothing happens an empty batch comes every `poll_seconds` or sooner. A store that is away is asked again;
    the reader only waits. Raises as `is_over` does, before the first batch.
    """
    if cursor.seq and await is_over(source, hub, turn_id, cursor):
        return
    async with hub.subscribe(turn_id) as subscription:
        seq, offset, must_look = cursor.seq, cursor.offset, False
        shelf = _Shelf(source, subscription, turn_id, poll_seconds)
        while True:
            frames = subscription.frames(seq, offset)
            if not frames or must_look:
                frames = await shelf.look(seq, is_due=must_look) or frames
            if frames:
                last = frames[-1]
                seq, offset = last.seq, last.offset
                yield frames
                if isinstance(last, EventFrame) and last.is_terminal:
                    return
            must_look = shelf.has_more
            if not must_look and not await subscription.wait(shelf.due):
                must_look = True
                yield ()


class _Shelf:
    """The store as one reader sees it: when to look there, and what to make of it if nothing is found."""

    __slots__ = (
        "_again",
        "_has_looked",
        "_missed",
        "_now",
        "_poll",
        "_source",
        "_subscription",
        "_turn_id",
        "due",
        "has_more",
    )

    def __init__(self, source: EventSource, subscription: Subscription, turn_id: TurnId, poll_seconds: float) -> None:
        self._source = source
        self._subscription = subscription
        self._turn_id = turn_id
        self._poll = poll_seconds
        self._now = asyncio.get_running_loop().time
        self.due = self._now() + poll_seconds
        """When the store must be looked at, whatever the hub says."""
        self.has_more = False
        """The last look found so much that there may be more."""
        self._has_looked = False
        self._again = _AGAIN_SECONDS
        self._missed = 0
        """The highest event that had been heard of when the store did not show it."""

    async def look(self, seq: int, *, is_due: bool) -> Sequence[Frame]:
        """The events after `seq` in the store, or nothing, if there is no reason to look or nothing was found."""
        if self._has_looked and not is_due and self._subscription.head <= max(seq, self._missed):
            return ()
        self._has_looked = True
        self.has_more = False
        try:
            frames = await self._subscription.read(self._source, after=seq, limit=PAGE)
        except WorldError as error:
            _logger.warning("The events of %s cannot be read now: %s", self._turn_id, error)
            self._found_nothing(seq)
            return ()
        if frames:
            self.has_more = len(frames) == PAGE
            self._again = _AGAIN_SECONDS
            self.due = self._now() + self._poll
            return frames
        if not seq and not self._subscription.head:
            raise NotFound(f"Turn {self._turn_id} has no events.")
        self._found_nothing(seq)
        return ()

    def _found_nothing(self, seq: int) -> None:
        # Readers that began together should not all ask at the same moment for ever.
        self.due = self._now() + self._poll * random.uniform(0.8, 1.0)
        head = self._subscription.head
        if head > seq:
            # Heard of, but not there (a replica that lags, or a wake-up that was not true): ask again, ever less often.
            self._missed = head
            self.due = min(self.due, self._now() + self._again)
            self._again = min(2 * self._again, self._poll)
