"""The port between the engine, which publishes, and the readers of a turn.

The hub never holds a fact that the store lacks: what it carries may be lost, late or repeated, and readers still end
with the same text, because they check numbers and read the store whenever something is missing.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep.model.events import Recorded


class PreviewPiece(Struct, frozen=True, kw_only=True):
    """Characters of the iteration now being spoken.

    `base_seq` is the last durable event before them, `offset` counts code points of all preview text (both kinds)
    since that event. A reader takes only contiguous pieces of its attempt and base.
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


class Subscription(Protocol):
    """One reader's ear at one turn."""

    async def wait(self, seconds: float) -> None:
        """Return when something was published since the last call, or after that time."""

    def events(self, *, after: int) -> Sequence[Recorded]:
        """Published events from `after + 1` on, contiguous; empty if the hub does not have that one (any more)."""

    def pieces(self, *, base_seq: int, offset: int) -> Sequence[PreviewPiece]:
        """Preview text that follows `offset` on top of event `base_seq`, contiguous; the first may be cut to fit."""


class Hub(Publisher, Protocol):
    """Publisher and listeners of this process, perhaps joined to other workers."""

    def subscribe(self, turn_id: TurnId) -> AbstractAsyncContextManager[Subscription]: ...

    async def close(self) -> None: ...
