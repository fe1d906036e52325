"""The fence: only the holder of a turn's current attempt may write to it, and only after the last event it knows."""

from typing import Literal

from msgspec import Struct

from turnkeep.errors import Defect, LeaseLost, TurnkeepError, TurnSettled
from turnkeep.ids import ConversationId, OrgId
from turnkeep.model.turns import Held, TurnStatus

Stand = Literal["held", "known", "lost", "settled", "ahead"]
"""Where a writer stands: it may write; its write is stored already; another worker has the turn; the turn has ended; or
the turn has events that the writer does not know."""


class TurnState(Struct, frozen=True):
    """A turn as a write of its holder finds it. The fence looks at the first three fields."""

    status: TurnStatus
    attempt: int
    last_seq: int
    is_cancel_requested: bool
    conversation_id: ConversationId
    org_id: OrgId
    files_written: int


def stand_of(state: TurnState | None, held: Held, after: int) -> Stand:
    """Where a holder stands that wants to write event `after + 1`. Only a look at what is stored can tell `known`."""
    if state is None or state.attempt != held.attempt:
        return "lost"
    if state.status == "queued":
        return "lost"
    if state.status != "running":
        return "settled"
    return "held" if state.last_seq == after else "ahead"


def refusal(stand: Stand, held: Held, after: int, last_seq: int | None) -> TurnkeepError:
    """The error for a writer that may not write."""
    match stand:
        case "lost":
            return LeaseLost(f"Turn {held.turn_id} is not held by attempt {held.attempt} any more.")
        case "settled":
            return TurnSettled(f"Turn {held.turn_id} has ended.")
        case _:
            return Defect(
                f"Two writers for turn {held.turn_id}: it is at event {last_seq}, but the next write says {after}."
            )
