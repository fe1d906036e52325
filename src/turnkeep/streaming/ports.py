"""The port between the engine, which publishes, and the readers of a turn.

The hub never holds a fact that the store lacks: what it carries may be lost, late or repeated, and readers still end
with the same text, because they check numbers and read the store whenever something is missing.
"""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep.streaming.frames import EventFrame, Frame
from turnkeep_client.wire.events import Recorded


class PreviewPiece(Struct, frozen=True, kw_only=True):
    """Characters of the iteration now being spoken.

    `base_seq` is the last durable event before them, `offset` counts code points of all preview text (both kinds)
    since that event. A reader takes only contiguous pieces of its attempt and base. The next event is one that
    makes the words true, drops them or ends the turn: nothing else is recorded in the middle of an iteration.
    """

    turn_id: TurnId
    attempt: int
    base_seq: int
    offset: int
    iteration: int
    kind: Literal["text", "reasoning"]
    text: str


class Publisher(Protocol):
    """What the engine calls. Never blocks, never raises: nobody may be listening, and the network may be away."""

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        """These events are durable now."""

    def preview(self, piece: PreviewPiece) -> None: ...

    def forget(self, turn_id: TurnId) -> None:
        """This worker no longer runs the turn (settled, lost or handed over): its preview is void."""


class EventSource(Protocol):
    """The one thing that readers ask of the store."""

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Events later than `after`, in order."""


class Subscription(Protocol):
    """One reader's ear at one turn."""

    @property
    def head(self) -> int:
        """The highest event number that the hub has heard of. The store has it, the hub perhaps not."""

    def wait(self, until: float) -> Awaitable[bool]:
        """True when something was heard since `frames` was last called.

        False at that time of the event loop, or when something may have been missed: then look at the store.
        """

    def frames(self, seq: int, offset: int) -> Sequence[Frame]:
        """What follows that place, without a gap, as far as the hub has it; perhaps nothing."""

    async def read(self, source: EventSource, *, after: int, limit: int) -> Sequence[EventFrame]:
        """Events later than `after`, from the store. Readers who ask for the same at the same time share one read."""


class Hub(Publisher, Protocol):
    """Publisher and listeners of this process, perhaps joined to other workers."""

    def subscribe(self, turn_id: TurnId) -> AbstractAsyncContextManager[Subscription]: ...

    def spoken(self, turn_id: TurnId, seq: int) -> int | None:
        """How many code points were said since that event, if it is this worker that says them; None if it cannot
        tell. Nobody anywhere has read more than that: what is said here is counted before it is sent."""

    async def close(self) -> None: ...
