"""Leases and the queue on SQLite: who holds which turn, who may take it over, which turn runs next, and stops.

`show_chain`, `promote_next` and `cancel_waiting` are shared by several verbs, inside their transaction.
"""

from collections.abc import Sequence

import msgspec

from turnkeep.clock import month_of
from turnkeep.ids import ConversationId, KeyId, TurnId, UserId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.store.commands import Adopted, Backlog, DueWork, Renewal
from turnkeep.store.rows import event_values, json_text, to_turn
from turnkeep.store.rules.claims import ClaimFacts, Scope, counted_scopes, why_over_limit
from turnkeep.store.rules.turns import (
    CANCELLED,
    CANCELLED_EVENT,
    ExpiredTurn,
    PromotionFacts,
    adoption,
    cancel_step,
    no_turn,
    promotion,
)
from turnkeep.store.sqlite.io.session import Session, owner_of
from turnkeep.store.sqlite.outbox import write_outbox
from turnkeep_client.wire.account import TurnSource
from turnkeep_client.wire.events import Failure, TurnEvent

Counts = tuple[int, int]
"""Turns and visible messages."""

claim_facts = msgspec.json.Decoder(ClaimFacts, strict=False).decode
_promotion_facts = msgspec.json.Decoder(PromotionFacts, strict=False).decode


def renew(
    session: Session, held: Sequence[Held], lease_seconds: float, watched: Sequence[TurnId], watch_seconds: float
) -> list[Renewal]:
    watch(session, watched, watch_seconds)
    lease_until = session.now + int(lease_seconds * 1000)
    return [_renew(session, each, lease_until) for each in held]


def _renew(session: Session, held: Held, lease_until: int) -> Renewal:
    row = session.row("renew_turn", {"turn": held.turn_id, "attempt": held.attempt, "lease_until": lease_until})
    if row is None:
        return Renewal(turn_id=held.turn_id, is_held=False, cancel_requested=False)
    is_cancel_requested, files_written = row
    return Renewal(
        turn_id=held.turn_id,
        is_held=True,
        cancel_requested=bool(is_cancel_requested),
        files_written=files_written,
    )


def adopt(
    session: Session,
    worker: str,
    lease_seconds: float,
    limit: int,
    turn_id: TurnId | None,
    only_handed_over: bool,
) -> list[Adopted]:
    if turn_id is not None:
        expired = session.rows("expired_turn", {"turn": turn_id, "now": session.now})
    else:
        expired = session.rows(
            "expired_turns", {"now": session.now, "limit": limit, "only_handed_over": only_handed_over}
        )
    lease_until = session.now + int(lease_seconds * 1000)
    return [_adopt(session, ExpiredTurn(*row), worker, lease_until) for row in expired]


def _adopt(session: Session, expired: ExpiredTurn, worker: str, lease_until: int) -> Adopted:
    decided = adoption(expired, now=session.now)
    [columns] = session.rows(
        "adopt_turn",
        {
            "turn": expired.id,
            "attempt": decided.attempt,
            "failures": decided.failures,
            "last_seq": decided.last_seq,
            "worker": worker,
            "lease_until": lease_until,
            "is_first_start": decided.is_first_start,
        },
    )
    insert_events(session, expired.id, expired.org_id, expired.last_seq, [decided.event])
    turn = to_turn(columns)
    held = Held(turn_id=expired.id, conversation_id=expired.conversation_id, attempt=decided.attempt)
    over_limit = _why_over_limit(session, turn, expired.org_id) if decided.is_first_start else None
    return Adopted(turn=turn, held=held, is_first_start=decided.is_first_start, over_limit=over_limit)


def _why_over_limit(session: Session, turn: Turn, org_id: str) -> str | None:
    """Why a turn that comes out of the queue must not run. Of the facts of a claim, only the limits matter to it."""
    which = {
        "now": session.now,
        "org": org_id,
        "workspace": turn.workspace_id,
        "member": turn.user_id,
        "keys": json_text(turn.snapshot.counted_keys),
        "month": month_of(session.now),
    }
    others = dict.fromkeys(("user", "ref", "turn", "idempotency_key", "agent", "conversation", "beside", "external_id"))
    [(document,)] = session.rows("claim_facts", which | others)
    return why_over_limit(claim_facts(document).limits, session.now)


def hand_over(session: Session, held: Sequence[Held]) -> None:
    session.many("hand_over_turn", [{"turn": each.turn_id, "attempt": each.attempt} for each in held])


def release(session: Session, workers: Sequence[str]) -> None:
    session.many("release_worker", [{"worker": worker} for worker in workers])


def due_work(session: Session, queue: bool) -> DueWork:
    [row] = session.rows("due_work", {"now": session.clock(), "queue": queue})
    waiting, expired, unwatched, unindexed, erasures, erased_at, deliveries, overdue = row
    return DueWork(
        bool(waiting),
        bool(expired),
        bool(unwatched),
        bool(unindexed),
        bool(erasures),
        erased_at,
        bool(deliveries),
        bool(overdue),
    )


def backlog(session: Session) -> Backlog:
    [row] = session.rows("backlog", {"now": session.clock()})
    return Backlog(*row)


def promote_waiting(session: Session) -> list[TurnId]:
    promoted = (promote_next(session, conversation_id) for (conversation_id,) in session.rows("conversations_waiting"))
    return sorted(turn_id for turn_id in promoted if turn_id is not None)


def request_cancel(session: Session, principal: Principal, turn_id: TurnId) -> Turn:
    turn = own_turn(session, principal, turn_id)
    match cancel_step(turn.status, turn.cancel_requested_at):
        case "end":
            return cancel_waiting(session, turn_id)
        case "mark":
            session.run("request_cancel", {"turn": turn_id, "now": session.now})
            return own_turn(session, principal, turn_id)
        case "none":
            return turn


def own_turn(session: Session, principal: Principal, turn_id: TurnId) -> Turn:
    """The principal's turn, on the engine's path."""
    row = session.row("own_turn", owner_of(principal) | {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def watch(session: Session, turn_ids: Sequence[TurnId], seconds: float) -> None:
    ms = int(seconds * 1000)
    until = session.now + ms
    session.many("watch_turn", [{"turn": turn_id, "until": until, "ms": ms} for turn_id in turn_ids])


def unwatch(session: Session, turn_ids: Sequence[TurnId], seconds: float) -> None:
    ms = int(seconds * 1000)
    until = session.now + ms
    session.many("unwatch_turn", [{"turn": turn_id, "until": until, "ms": ms} for turn_id in turn_ids])


def cancel_unwatched(session: Session) -> list[TurnId]:
    return sorted(turn_id for (turn_id,) in session.rows("cancel_unwatched", {"now": session.now}))


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
    [(hidden_turns, hidden_messages)] = session.rows("visible_after", suffix)
    if hidden_turns:
        session.run("hide_after", suffix)
    messages = -hidden_messages
    for turn_id in shown:
        session.run("show_turn", {"turn": turn_id})
        [(visible,)] = session.rows("visible_of_turn", {"turn": turn_id})
        messages += visible
    return len(shown) - hidden_turns, messages


def promote_next(session: Session, conversation_id: ConversationId) -> TurnId | None:
    """Let the first waiting turn run, with a lease that has already ended; in a deleted conversation cancel them all.

    Call it only where no turn runs.
    """
    found = session.row("promotion_facts", {"conversation": conversation_id})
    if found is None:
        return None
    (document,) = found
    decided = promotion(_promotion_facts(document))
    for turn_id in decided.cancels:
        cancel_waiting(session, turn_id)
    if decided.starts is None:
        return None
    turns, messages = 0, 0
    if decided.position.is_branch:
        turns, messages = show_chain(session, conversation_id, decided.position.parent)
    now = session.now
    session.run("start_waiting", {"turn": decided.starts, "parent": decided.position.parent, "now": now})
    session.run(
        "conversation_counts",
        {"conversation": conversation_id, "turns": turns + 1, "messages": messages + 1, "now": now},
    )
    return decided.starts


def cancel_all_waiting(session: Session, conversation_id: ConversationId) -> list[Turn]:
    waiting = session.rows("all_waiting", {"conversation": conversation_id})
    return [cancel_waiting(session, turn_id) for (turn_id,) in waiting]


def cancel_waiting(
    session: Session, turn_id: TurnId, *, error: TurnError = CANCELLED, event: Failure = CANCELLED_EVENT
) -> Turn:
    """End a turn that never started, and take back the message that was counted for it."""
    values = {"turn": turn_id, "now": session.now, "error": json_text(error)}
    [(*columns, key_id, org_id)] = session.rows("cancel_waiting", values)
    turn = to_turn(columns)
    insert_events(session, turn_id, org_id, turn.last_seq - 1, [event])
    write_outbox(session, turn, "cancelled", org_id)
    for scope, scope_id in scopes_of(session, turn.workspace_id, turn.user_id, key_id):
        session.run("refund_message", (org_id, turn.month, *one_message(turn.source), scope, scope_id))
    return turn


def scopes_of(
    session: Session, workspace_id: WorkspaceId, user_id: UserId | None, key_id: KeyId | None
) -> list[tuple[Scope, str]]:
    """What a turn of this key was counted for."""
    keys = [] if key_id is None else [KeyId(each) for (each,) in session.rows("key_and_ancestors", {"key": key_id})]
    return counted_scopes(workspace_id, user_id, keys)


def insert_events(session: Session, turn_id: TurnId, org_id: str, after: int, events: Sequence[TurnEvent]) -> None:
    session.many(
        "insert_event",
        [(turn_id, seq, org_id, *event_values(event)) for seq, event in enumerate(events, start=after + 1)],
    )


def one_message(source: TurnSource) -> tuple[int, int]:
    """One message as usage counts it: those of the chat page, and those of the API."""
    return int(source == "ui"), int(source == "api")
