"""Rules of the outbox: which entry a turn writes when it ends, and when it waits."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import OutboxId, TurnId
from turnkeep.model.outbox import OutboxType
from turnkeep.model.turns import FinalStatus

ToldStatus = FinalStatus | Literal["waiting"]

_TYPES: dict[ToldStatus, OutboxType] = {
    "succeeded": "turn.succeeded",
    "failed": "turn.failed",
    "cancelled": "turn.cancelled",
    "waiting": "turn.waiting",
}


class NewEntry(Struct, frozen=True, kw_only=True):
    """An entry about a turn. The database adds tenant, user, conversation and moment, which are those of the turn."""

    id: OutboxId
    type: OutboxType
    turn_id: TurnId


def told_turn(entry_id: OutboxId, turn_id: TurnId, status: ToldStatus) -> NewEntry:
    """The entry of a turn that ends now, or waits. Every way in which a turn can end writes one."""
    return NewEntry(id=entry_id, type=_TYPES[status], turn_id=turn_id)
