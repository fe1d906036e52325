"""Turns: their states, their legal moves, and the token that lets one worker write."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, TurnId, UserId, WorkspaceId
from turnkeep.model.agents import Snapshot
from turnkeep_client.wire.account import TurnSource
from turnkeep_client.wire.blocks import JsonObject, Usage
from turnkeep_client.wire.conversations import IfBusy, TurnStatus

__all__ = [
    "MOVES",
    "FinalStatus",
    "Held",
    "IfBusy",
    "Turn",
    "TurnError",
    "TurnStatus",
]

FinalStatus = Literal["succeeded", "failed", "cancelled"]

MOVES: dict[TurnStatus, frozenset[TurnStatus]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
"""A turn only ever moves forward. An adoption is not a move: the turn stays `running` and its attempt rises."""


class TurnError(Struct, frozen=True, kw_only=True):
    """Why a turn ended without an answer."""

    code: str
    message: str


class Turn(Struct, frozen=True, kw_only=True):
    """One POST and everything it caused."""

    id: TurnId
    conversation_id: ConversationId
    workspace_id: WorkspaceId
    user_id: UserId | None
    parent_turn_id: TurnId | None
    ordinal: int
    active: bool
    status: TurnStatus
    attempt: int
    failures: int
    last_seq: int
    cancel_requested_at: int | None
    background: bool
    source: TurnSource
    model: str | None
    snapshot: Snapshot
    usage: Usage
    month: str
    error: TurnError | None
    metadata: JsonObject
    created_at: int
    started_at: int | None
    settled_at: int | None

    @property
    def is_settled(self) -> bool:
        return not MOVES[self.status]


class Held(Struct, frozen=True, kw_only=True):
    """The right to write to one turn: true only while the stored attempt is this one and the turn is running."""

    turn_id: TurnId
    conversation_id: ConversationId
    attempt: int
