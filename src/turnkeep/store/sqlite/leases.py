"""Leases: who holds which turn, who may take it over, and who has asked for a stop."""

from collections.abc import Sequence

from turnkeep.ids import ConversationId, MessageId, TurnId
from turnkeep.model.events import Failure, Reset, TurnBegan, TurnEvent
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.model.usage import Source
from turnkeep.store.commands import Adopted, Renewal
from turnkeep.store.rows import event_values, json_text, to_turn
from turnkeep.store.sqlite.history import own_turn
from turnkeep.store.sqlite.io.session import Row, Session

Counts = tuple[int, int]
"""Turns and visible messages."""


def show_chain(session: Session, conversation_id: ConversationId, head: TurnId | None) -> Counts:
    """Make the visible chain end with `head` (None: empty); return by how much the counts change.

    Walks up from the head only to the first turn that is visible already, so the cost is that of what changes.
    """
    shown: list[TurnId] = []
    turn_id, ordinal = head, 0
    while turn_id is not None:
        place = session.row("turn_place", {"turn": turn_id, "conversation": conversation_id})
        if place is None:
            break
        parent, at, is_active, _, _ = place
        if is_active:
            ordinal = at
            break
        shown.append(turn_id)
        turn_id = parent
    suffix = {"conversation": conversation_id, "ordinal": ordinal}
    hidden = session.rows("visible_after", suffix)[0]
    if hidden[0]:
        session.run("hide_after", suffix)
    messages = -hidden[1]
    for turn_id in shown:
        session.run("show_turn", {"turn": turn_id})
        messages += session.rows("visible_of_turn", {"turn": turn_id})[0][0]
    return len(shown) - hidden[0], messages


def parent_for(
    session: Session, conversation_id: ConversationId, head: TurnId | None, beside: TurnId | None
) -> tuple[TurnId | None, Counts]:
    """Where a turn that starts now hangs: after the head, or where `beside` hangs, whose chain gives way to it.

    Beside a turn that was stopped before it began there is no such place: its successor takes its turn after the head.
    """
    if beside is None:
        return head, (0, 0)
    parent, _, _, _, started_at = session.rows("turn_place", {"turn": beside, "conversation": conversation_id})[0]
    if started_at is None:
        return head, (0, 0)
    return parent, show_chain(session, conversation_id, parent)


def promote_next(session: Session, conversation_id: ConversationId) -> TurnId | None:
    """Let the first waiting turn run, with a lease that has already ended; in a deleted conversation cancel them all.

    Call it only where no turn runs.
    """
    waiting = session.row("next_waiting", {"conversation": conversation_id})
    if waiting is None:
        return None
    head, is_deleted = session.rows("conversation_head", {"conversation": conversation_id})[0]
    if is_deleted:
        cancel_all_waiting(session, conversation_id)
        return None
    turn_id: TurnId = waiting[0]
    parent, (turns, messages) = parent_for(session, conversation_id, head, waiting[2])
    now = session.now
    session.run("start_waiting", {"turn": turn_id, "parent": parent, "now": now})
    session.run(
        "conversation_counts",
        {"conversation": conversation_id, "turns": turns + 1, "messages": messages + 1, "now": now},
    )
    return turn_id


def free_first_place(session: Session, conversation_id: ConversationId, free: int) -> int:
    """Move every waiting turn one place back; return the ordinal that is free in front of them.

    The last one gets `free`, an ordinal that no turn has. Ordinals of turns that have started or ended do not change.
    """
    for turn_id, ordinal in session.rows("waiting_places", {"conversation": conversation_id}):
        session.run("move_waiting", {"turn": turn_id, "ordinal": free})
        free = ordinal
    return free


def cancel_all_waiting(session: Session, conversation_id: ConversationId) -> None:
    for (turn_id,) in session.rows("all_waiting", {"conversation": conversation_id}):
        cancel_waiting(session, turn_id)


def cancel_waiting(session: Session, turn_id: TurnId) -> Turn:
    """End a turn that never started, and give its message back to those it was counted for."""
    said = TurnError(code="cancelled", message="Stopped before it began.")
    row = session.rows("cancel_waiting", {"turn": turn_id, "now": session.now, "error": json_text(said)})[0]
    turn, key_id, org_id = to_turn(row), row[26], row[27]
    insert_events(session, turn_id, org_id, turn.last_seq - 1, [Failure(code=said.code, message=said.message)])
    for scope, scope_id in scopes(turn.workspace_id, turn.user_id, key_id):
        session.run(
            "refund_message",
            {"org": org_id, "scope": scope, "scope_id": scope_id, "month": turn.month} | one(turn.source),
        )
    return turn


def insert_events(session: Session, turn_id: TurnId, org_id: str, after: int, events: list[TurnEvent]) -> None:
    session.many(
        "insert_event",
        [(turn_id, seq, org_id, *event_values(event)) for seq, event in enumerate(events, start=after + 1)],
    )


def began(turn: Turn, user_message_id: MessageId) -> TurnBegan:
    """The event that tells that a turn waits or runs."""
    return TurnBegan(
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        user_message_id=user_message_id,
        status="queued" if turn.status == "queued" else "running",
        attempt=turn.attempt,
    )


def scopes(workspace_id: str, user_id: str | None, key_id: str | None) -> list[tuple[str, str]]:
    """What a turn is counted for, in the order in which limits are looked at."""
    counted = [("workspace", workspace_id)]
    if user_id is not None:
        counted.append(("user", user_id))
    if key_id is not None:
        counted.append(("key", key_id))
    return counted


def one(source: Source) -> dict[str, int]:
    """One message, as usage counts it."""
    return {"ui": int(source == "ui"), "api": int(source == "api")}


def renew(session: Session, held: Sequence[Held], lease_seconds: float) -> list[Renewal]:
    lease_until = session.now + int(lease_seconds * 1000)
    renewals = []
    for each in held:
        row = session.row("renew_turn", {"turn": each.turn_id, "attempt": each.attempt, "lease_until": lease_until})
        renewals.append(
            Renewal(
                turn_id=each.turn_id,
                is_held=row is not None,
                cancel_requested=row is not None and row[0] is not None,
                files_written=0 if row is None else row[1],
            )
        )
    return renewals


def adopt(session: Session, worker: str, lease_seconds: float, limit: int, turn_id: TurnId | None) -> list[Adopted]:
    if turn_id is not None:
        expired = session.rows("expired_turn", {"turn": turn_id, "now": session.now})
    else:
        expired = session.rows("expired_turns", {"now": session.now, "limit": limit})
    return [_adopt(session, worker, lease_seconds, row) for row in expired]


def _adopt(session: Session, worker: str, lease_seconds: float, row: Row) -> Adopted:
    turn_id, attempt, failures, last_seq, seq_at_adoption, lease_until, conversation_id, org_id = row
    was_let_go = lease_until == 0
    if not was_let_go:
        failures = 0 if last_seq > seq_at_adoption else failures + 1
    adopted = session.rows(
        "adopt_turn",
        {
            "turn": turn_id,
            "attempt": attempt + 1,
            "failures": failures if attempt else 0,
            "last_seq": last_seq + 1,
            "worker": worker,
            "lease_until": session.now + int(lease_seconds * 1000),
        },
    )[0]
    turn = to_turn(adopted)
    event: TurnEvent
    if attempt == 0:
        event = began(turn, session.rows("user_message_id", {"turn": turn_id})[0][0])
    else:
        event = Reset(attempt=attempt + 1, reason="handover" if was_let_go else "lease_expired")
    insert_events(session, turn_id, org_id, last_seq, [event])
    held = Held(turn_id=turn_id, conversation_id=conversation_id, attempt=attempt + 1)
    return Adopted(turn=turn, held=held, is_first_start=attempt == 0)


def hand_over(session: Session, held: Sequence[Held]) -> None:
    session.many("hand_over_turn", [{"turn": each.turn_id, "attempt": each.attempt} for each in held])


def release(session: Session, workers: Sequence[str]) -> None:
    session.many("release_worker", [{"worker": worker} for worker in workers])


def promote_waiting(session: Session) -> list[TurnId]:
    promoted = (promote_next(session, conversation_id) for (conversation_id,) in session.rows("conversations_waiting"))
    return sorted(turn_id for turn_id in promoted if turn_id is not None)


def request_cancel(session: Session, principal: Principal, turn_id: TurnId) -> Turn:
    turn = own_turn(session, principal, turn_id)
    if turn.status == "queued":
        return cancel_waiting(session, turn_id)
    if turn.status == "running" and turn.cancel_requested_at is None:
        session.run("request_cancel", {"turn": turn_id, "now": session.now})
        return own_turn(session, principal, turn_id)
    return turn


def watch(session: Session, turn_ids: Sequence[TurnId], seconds: float) -> None:
    ms = int(seconds * 1000)
    until = session.now + ms
    session.many("watch_turn", [{"turn": turn_id, "until": until, "ms": ms} for turn_id in turn_ids])


def cancel_unwatched(session: Session) -> list[TurnId]:
    return sorted(turn_id for (turn_id,) in session.rows("cancel_unwatched", {"now": session.now}))
