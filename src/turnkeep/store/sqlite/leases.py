"""Leases: who holds which turn, who may take it over, and who has asked for a stop."""

from collections.abc import Sequence

from turnkeep.ids import TurnId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store.commands import Adopted, Renewal
from turnkeep.store.rows import to_turn
from turnkeep.store.sqlite.reading import own_turn
from turnkeep.store.sqlite.session import Row, Session
from turnkeep.store.sqlite.starting import began, cancel_waiting, insert_events, promote_next
from turnkeep_client.wire.events import Reset, TurnEvent


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
