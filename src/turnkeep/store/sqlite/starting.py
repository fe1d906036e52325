"""Starting, promoting and cancelling turns: the moves that several verbs share, inside their transaction."""

from turnkeep.ids import ConversationId, MessageId, TurnId
from turnkeep.model.events import Failure, TurnBegan, TurnEvent
from turnkeep.model.narrate import first_event
from turnkeep.model.turns import Turn, TurnError
from turnkeep.model.usage import Source
from turnkeep.store.rows import event_values, json_text, to_turn
from turnkeep.store.sqlite.session import Session

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
    return first_event(turn, user_message_id)


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
