"""Turns: their states, their legal moves, and the token that lets one worker write."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import AgentId, ConversationId, FileId, TurnId, UserId, WorkspaceId
from turnkeep.model.agents import Snapshot
from turnkeep.model.waits import Wait
from turnkeep_client.wire.account import TurnSource
from turnkeep_client.wire.blocks import Finish, JsonObject, Reading, Usage
from turnkeep_client.wire.conversations import IfBusy, Rating, TurnStatus

__all__ = [
    "MOVES",
    "NO_REPORT",
    "Feedback",
    "FinalStatus",
    "Held",
    "IfBusy",
    "ModelCallTimes",
    "ModelRetry",
    "RatedTurn",
    "Rating",
    "Turn",
    "TurnError",
    "TurnReport",
    "TurnStatus",
    "WindowCut",
]

FinalStatus = Literal["succeeded", "failed", "cancelled"]

MOVES: dict[TurnStatus, frozenset[TurnStatus]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"waiting", "succeeded", "failed", "cancelled"}),
    "waiting": frozenset({"running"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
"""A turn only ever moves forward, but for one that waits: it goes on running. An adoption is not a move: the turn stays
`running` and its attempt rises. A waiting turn is stored as a running one that no worker holds."""


class TurnError(Struct, frozen=True, kw_only=True):
    """Why a turn ended without an answer."""

    code: str
    message: str


class WindowCut(Struct, frozen=True, kw_only=True):
    """Where the window of a conversation begins since it was last too long: with the turn `first`. It was cut for a
    budget of this `size`, and means nothing for another one."""

    first: TurnId
    size: int


class ModelRetry(Struct, frozen=True, kw_only=True):
    """A model was asked again, because a request failed."""

    at: int
    reason: str


class ModelCallTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a model was called, for how long, and how long its first piece took. None: there was none."""

    began_at: int
    ms: int
    first_ms: int | None = None
    retries: tuple[ModelRetry, ...] = ()


class TurnReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the engine reports of a turn that it ran: how the answer ended, how the model was given the files, where the
    window began that the model saw last, and the times of the last call of the model. The times of the calls before it
    are in the metadata of their rows."""

    finish: Finish = "complete"
    readings: dict[FileId, Reading] = {}
    cut: WindowCut | None = None
    last_call: ModelCallTimes | None = None


NO_REPORT = TurnReport()


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
    report: TurnReport = NO_REPORT
    wait: Wait | None = None
    """For which calls it waits or has waited."""

    @property
    def is_settled(self) -> bool:
        return not MOVES[self.status]

    @property
    def instructions(self) -> str:
        """The instructions of the caller: those of the question, or those that came later with answers to calls."""
        told = None if self.wait is None else self.wait.instructions
        return self.snapshot.instructions if told is None else told


class Held(Struct, frozen=True, kw_only=True):
    """The right to write to one turn: true only while the stored attempt is this one and the turn is running."""

    turn_id: TurnId
    conversation_id: ConversationId
    attempt: int


class Feedback(Struct, frozen=True, kw_only=True):
    """What a user thinks of the answer of a turn."""

    turn_id: TurnId
    conversation_id: ConversationId
    user_id: UserId
    rating: Rating
    comment: str | None
    created_at: int
    updated_at: int


class RatedTurn(Struct, frozen=True, kw_only=True):
    """Feedback, with what the turn ran with and used."""

    feedback: Feedback
    model: str | None
    agent_id: AgentId | None
    usage: Usage
