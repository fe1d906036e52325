"""Waits and steering on SQLite."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from turnkeep.ids import CallId, ConversationId, TurnId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import CallAnswer, Wait, WaitReason
from turnkeep.store import checks
from turnkeep.store.commands import Taken
from turnkeep.store.rows import json_text, to_message, to_names
from turnkeep.store.rules.turns import STEERED, STEERED_EVENT, fence_refusal, stand_of
from turnkeep.store.rules.waits import already_taken, answered, spent, taken, unanswered
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.leases import cancel_waiting, own_turn
from turnkeep.store.sqlite.outbox import write_outbox
from turnkeep.store.sqlite.turns import (
    Entries,
    claimed_turn,
    entries_of,
    events_after,
    has_events,
    record_entries,
    rows_of_turn,
    state_of,
)
from turnkeep_client.wire.events import Recorded, TurnEvent


class SqliteWaits(StoreThreads):
    """The verbs of waits, and the one of steering. Promises are those of `ports.TurnStore`."""

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool:
        checks.check_record(held, (), events, ())
        return await self._write(_wait, held, after, entries_of((), events, ()), wait)

    async def answer_calls(
        self, principal: Principal, turn_id: TurnId, answers: Mapping[CallId, CallAnswer], *, reason: WaitReason
    ) -> Turn:
        check_id(turn_id, "turn")
        checks.check_answers(answers)
        return await self._write(_answer_calls, principal, turn_id, answers, reason)

    async def end_overdue_waits(self) -> list[TurnId]:
        return await self._write(_end_overdue_waits)

    async def end_held_wait(self, turn_id: TurnId, attempt: int) -> Turn | None:
        return await self._write(_end_held_wait, check_id(turn_id, "turn"), attempt)

    async def spend_answer(self, turn_id: TurnId, attempt: int, call_id: CallId, digest: str) -> bool:
        return await self._write(_spend_answer, check_id(turn_id, "turn"), attempt, call_id, digest)

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        return frozenset(await self._read(_trusted_tools, check_id(conversation_id, "conv")))

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken:
        check_id(held.turn_id, "turn")
        return await self._write(_take_steers, held, after, sequence)


def _wait(session: Session, held: Held, after: int, entries: Entries, wait: Wait) -> bool:
    turn, state = claimed_turn(session, held.turn_id), state_of(session, held.turn_id)
    assert state is not None
    last_attempt = held.attempt + (1 if wait.held_by is None else 0)
    if turn.attempt == last_attempt and turn.wait is not None and has_events(session, turn.id, after, entries):
        return True  # the answer to this very call was lost
    if turn.attempt != held.attempt or turn.is_settled:
        raise fence_refusal("settled" if turn.is_settled else "lost", held, after, turn.last_seq)
    if turn.cancel_requested_at is not None:
        return False
    stand = stand_of(state, held, after)
    if stand != "held":  # the same events of another wait are no repeat
        raise fence_refusal(stand, held, after, state.last_seq)
    record_entries(session, held, after, entries)
    if wait.held_by is None:
        session.run("wait", {"turn": held.turn_id, "waiting": json_text(wait), "until": wait.expires_at})
    else:
        session.run("hold_wait", {"turn": held.turn_id, "waiting": json_text(wait)})
    write_outbox(session, turn, "waiting", state.org_id)
    return True


def _answer_calls(
    session: Session,
    principal: Principal,
    turn_id: TurnId,
    answers: Mapping[CallId, CallAnswer],
    reason: WaitReason,
) -> Turn:
    turn = own_turn(session, principal, turn_id)
    effect = answered(turn, answers, reason=reason, now=session.now)
    if effect.trusted:
        trusted = {*_trusted_tools(session, turn.conversation_id), *effect.trusted}
        session.run("trust_tools", {"conversation": turn.conversation_id, "tools": json_text(sorted(trusted))})
    wait = effect.wait
    if wait is None:
        return turn
    if effect.events:
        held = Held(turn_id=turn_id, conversation_id=turn.conversation_id, attempt=turn.attempt)
        record_entries(session, held, turn.last_seq, entries_of((), effect.events, ()))
    until = None if wait.reason is None else wait.expires_at
    if wait.held_by is None:
        session.run("change_wait", {"turn": turn_id, "waiting": json_text(wait), "until": until})
    else:
        session.run("change_held_wait", {"turn": turn_id, "waiting": json_text(wait)})
    last_seq = turn.last_seq + len(effect.events)
    return structs.replace(turn, wait=wait, last_seq=last_seq, status="running" if until is None else "waiting")


def _end_overdue_waits(session: Session) -> list[TurnId]:
    return sorted(turn_id for (turn_id,) in session.rows("end_overdue_waits", {"now": session.now}))


def _end_held_wait(session: Session, turn_id: TurnId, attempt: int) -> Turn | None:
    turn = claimed_turn(session, turn_id)
    wait = unanswered(turn, attempt=attempt, now=session.now)
    if wait is None:
        return None
    session.run("change_held_wait", {"turn": turn_id, "waiting": json_text(wait)})
    return structs.replace(turn, wait=wait, status="running")


def _spend_answer(session: Session, turn_id: TurnId, attempt: int, call_id: CallId, digest: str) -> bool:
    wait = spent(claimed_turn(session, turn_id), call_id, digest, attempt=attempt)
    if wait is not None:
        session.run("change_held_wait", {"turn": turn_id, "waiting": json_text(wait)})
    return wait is not None


def _trusted_tools(session: Session, conversation_id: ConversationId) -> tuple[str, ...]:
    row = session.row("trusted_tools", {"conversation": conversation_id})
    return () if row is None or row[0] is None else to_names(row[0])


def _take_steers(session: Session, held: Held, after: int, sequence: int) -> Taken:
    state = state_of(session, held.turn_id)
    stand = stand_of(state, held, after)
    if stand == "ahead":
        told = [recorded.event for recorded in events_after(session, held.turn_id, after)]
        if known := already_taken(rows_of_turn(session, held.turn_id), told, sequence=sequence):
            return known
    if stand != "held":
        raise fence_refusal(stand, held, after, None if state is None else state.last_seq)
    which = {"conversation": held.conversation_id, "turn": held.turn_id}
    questions = [to_message(row) for row in session.rows("steers_of", which)]
    if not questions:
        return Taken()
    found = taken(held, questions, sequence=sequence)
    ended = []
    for question in questions:
        turn = cancel_waiting(session, question.turn_id, error=STEERED, event=STEERED_EVENT)
        ended.append((turn.id, Recorded(seq=turn.last_seq, event=STEERED_EVENT)))
    record_entries(session, held, after, entries_of(found.rows, found.events, ()))
    counts = {"conversation": held.conversation_id, "turns": 0, "messages": len(found.rows), "now": session.now}
    session.run("conversation_counts", counts)
    return Taken(rows=found.rows, events=found.events, ended=tuple(ended))
