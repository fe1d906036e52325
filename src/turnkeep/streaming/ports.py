"""The port between the engine, which publishes, and the readers of a turn.

The hub never holds a fact that the store lacks. What it carries may be lost, late or repeated. Readers still end with
the same text, because they check the numbers of events and read the store whenever something is missing.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep.streaming.frames import EventFrame, Frame
from turnkeep_client.wire.events import Recorded


class PreviewPiece(Struct, frozen=True, kw_only=True):
    """Text of the current iteration, which is not an event yet.

    `base_seq` is the last durable event before them, `offset` counts code points of all preview text (both kinds)
    since that event. A reader takes only contiguous pieces of its attempt and base. The next event is one that
    contains the text, drops it or ends the turn: nothing else is recorded in the middle of an iteration.
    """

    turn_id: TurnId
    attempt: int
    base_seq: int
    offset: int
    iteration: int
    kind: Literal["text", "reasoning"]
    text: str


class Publisher(Protocol):
    """What the engine calls. Never blocks and never raises, with or without readers, with or without a network."""

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        """Announce events that are durable now."""

    def preview(self, piece: PreviewPiece) -> None: ...

    def forget(self, turn_id: TurnId) -> None:
        """This worker no longer runs the turn (settled, lost or handed over): drop its preview."""


class EventSource(Protocol):
    """The part of the store that readers need."""

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Events later than `after`, in order."""

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        """The number of the last event of each of these turns. Turns that do not exist are left out."""


class Subscription(Protocol):
    """One reader's subscription to one turn."""

    take: Callable[[], bool] | None
    """Called for every piece of news while the reader waits. If it returns true, the reader goes on waiting."""

    @property
    def head(self) -> int:
        """The highest event number that was announced. The store has that event, the hub perhaps not."""

    @property
    def is_gone(self) -> bool:
        """Whether the turn was erased. No event follows any more, from the hub or from the store."""

    def wait(self, until: float = math.inf) -> Awaitable[bool]:
        """True when something new came since `frames` was last called.

        False at that time of the event loop, or when a notice may have been lost: then read the store.
        """

    def wake(self) -> None:
        """End the wait of the reader, unless its `take` returns true."""

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        """What follows that position, without a gap, as far as the hub has it; perhaps nothing."""

    async def read(self, source: EventSource, *, after: int, limit: int) -> Sequence[EventFrame]:
        """Events later than `after`, from the store. Readers who ask for the same at the same time share one read."""


class Hub(Publisher, Protocol):
    """Publisher and subscriptions of this process, perhaps connected to other workers."""

    def subscribe(self, turn_id: TurnId) -> AbstractAsyncContextManager[Subscription]: ...

    def followed_turns(self) -> list[TurnId]:
        """The turns that have readers in this process."""

    def note_event(self, turn_id: TurnId, seq: int) -> None:
        """That event is durable: readers that lack it are woken, and read the store if the hub does not have it."""

    def note_gone(self, turn_id: TurnId) -> None:
        """The store does not have the turn any more: its readers are woken, and end."""

    def preview_length(self, turn_id: TurnId, seq: int) -> int | None:
        """Code points of the preview since that event, if this worker runs the turn; None if the hub cannot tell.

        No reader on any worker has more than that: text is counted here before it is sent.
        """

    @property
    def is_connected(self) -> bool | None:
        """Whether this worker hears the others; None if it is alone."""

    async def close(self) -> None: ...
