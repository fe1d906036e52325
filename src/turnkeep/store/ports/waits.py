"""The verbs of waits: a turn waits for answers to its calls, and goes on when it has them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from turnkeep.ids import CallId, ConversationId, TurnId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import CallAnswer, Wait, WaitReason
from turnkeep_client.wire.events import TurnEvent


class WaitStore(Protocol):
    """Waits. A waiting turn keeps its conversation busy. No worker holds it, and only its deadline can pass."""

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool:
        """Record these events, and let the turn wait from now on; the holder loses it. An entry of the outbox tells of
        it. False, with nothing written, if a stop was requested. Repeats and errors as for `record`.
        """

    async def answer_calls(
        self, principal: Principal, turn_id: TurnId, answers: Mapping[CallId, CallAnswer], *, reason: WaitReason
    ) -> Turn:
        """Store the answers of calls that wait for this `reason`. With the last one the turn goes on: any worker may
        adopt it. The first answer of a call holds, and a repeat changes nothing.

        Raises NotFound for a call that does not wait, and AlreadyDecided for another answer than the first.
        """

    async def end_overdue_waits(self) -> list[TurnId]:
        """Let turns go on whose answers did not come in time; return their ids. Any worker may adopt them."""

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        """The tools whose calls need no decision in this conversation (`model.waits.trust_of`)."""
