"""Leases: what an adoption changes, and what a request to cancel does.

Decision: docs/decisions/0201
"""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, MessageId, TurnId
from turnkeep.model.turns import TurnStatus
from turnkeep_client.wire.events import Reset, TurnBegan, TurnEvent

LET_GO = 0
"""The lease of a turn whose holder gave it up on purpose (hand-over, release, promotion)."""


class ExpiredTurn(Struct, frozen=True):
    """A running turn whose lease has ended."""

    id: TurnId
    conversation_id: ConversationId
    org_id: str
    user_message_id: MessageId
    attempt: int
    failures: int
    last_seq: int
    seq_at_adoption: int
    lease_until: int


class Adoption(Struct, frozen=True, kw_only=True):
    """The turn's next attempt. `event` gets the number `last_seq`."""

    attempt: int
    failures: int
    last_seq: int
    event: TurnEvent
    is_first_start: bool


def adoption(turn: ExpiredTurn) -> Adoption:
    """Raise the attempt and tell the readers.

    A turn that got no further since its last adoption has failed once more, and one that did starts to count anew. A
    turn that was let go on purpose has not failed.
    """
    attempt = turn.attempt + 1
    is_first_start = turn.attempt == 0
    was_let_go = turn.lease_until == LET_GO
    failures = turn.failures
    event: TurnEvent
    if is_first_start:
        failures = 0
        event = TurnBegan(
            turn_id=turn.id,
            conversation_id=turn.conversation_id,
            user_message_id=turn.user_message_id,
            status="running",
            attempt=attempt,
        )
    else:
        if not was_let_go:
            failures = 0 if turn.last_seq > turn.seq_at_adoption else failures + 1
        event = Reset(attempt=attempt, reason="handover" if was_let_go else "lease_expired")
    return Adoption(
        attempt=attempt, failures=failures, last_seq=turn.last_seq + 1, event=event, is_first_start=is_first_start
    )


def cancel_step(status: TurnStatus, cancel_requested_at: int | None) -> Literal["end", "mark", "none"]:
    """What a request to cancel does: a waiting turn ends at once, a running one is marked for its holder."""
    if status == "queued":
        return "end"
    if status == "running" and cancel_requested_at is None:
        return "mark"
    return "none"
