"""Waits on SQLite."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from turnkeep.ids import CallId, ConversationId, TurnId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import CallAnswer, Wait, WaitReason
from turnkeep.store import checks
from turnkeep.store.rows import json_text, to_names
from turnkeep.store.rules.turns import fence_refusal
from turnkeep.store.rules.waits import answered, newly_trusted
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.leases import own_turn
from turnkeep.store.sqlite.outbox import write_outbox
from turnkeep.store.sqlite.turns import Entries, claimed_turn, entries_of, has_events, record_entries, state_of
from turnkeep_client.wire.events import TurnEvent


class SqliteWaits(StoreThreads):
    """The verbs of waits. Promises are those of `ports.WaitStore`."""

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

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        return frozenset(await self._read(_trusted_tools, check_id(conversation_id, "conv")))


def _wait(session: Session, held: Held, after: int, entries: Entries, wait: Wait) -> bool:
    turn, state = claimed_turn(session, held.turn_id), state_of(session, held.turn_id)
    assert state is not None
    if turn.attempt == held.attempt + 1 and turn.wait is not None and has_events(session, turn.id, after, entries):
        return True  # the answer to this very call was lost
    if turn.attempt != held.attempt or turn.is_settled:
        raise fence_refusal("settled" if turn.is_settled else "lost", held, after, turn.last_seq)
    if turn.cancel_requested_at is not None:
        return False
    record_entries(session, held, after, entries)
    session.run("wait", {"turn": held.turn_id, "waiting": json_text(wait), "until": wait.expires_at})
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
    wait = answered(turn, answers, reason=reason, now=session.now)
    if wait is None:
        return turn
    until = 0 if wait.reason is None else wait.expires_at
    session.run("change_wait", {"turn": turn_id, "waiting": json_text(wait), "until": until})
    trusted = _trusted_tools(session, turn.conversation_id)
    if new := [tool for tool in newly_trusted(turn, wait) if tool not in trusted]:
        tools = json_text(sorted({*trusted, *new}))
        session.run("trust_tools", {"conversation": turn.conversation_id, "tools": tools})
    return structs.replace(turn, wait=wait, status="waiting" if until else "running")


def _end_overdue_waits(session: Session) -> list[TurnId]:
    return sorted(turn_id for (turn_id,) in session.rows("end_overdue_waits", {"now": session.now}))


def _trusted_tools(session: Session, conversation_id: ConversationId) -> tuple[str, ...]:
    row = session.row("trusted_tools", {"conversation": conversation_id})
    return () if row is None or row[0] is None else to_names(row[0])
