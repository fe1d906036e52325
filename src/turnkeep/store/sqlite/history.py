"""Reads of turns: windows, events, rows and traces. Every function ends with its rows in hand, no cursor open."""

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.conversations import events_from_rows
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import TurnTrace, Window
from turnkeep.store.rows import (
    to_message,
    to_recorded,
    to_replayed,
    to_turn,
)
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import no_turn, owner_of
from turnkeep_client.wire.events import LogLine, Recorded

ALL = 2**62
"""More than there ever is of anything."""


def window(session: Session, conversation_id: ConversationId, turns: int, row_limit: int) -> Window:
    found = session.rows("window", (conversation_id, turns, row_limit + 1))
    is_cut = len(found) > row_limit
    if is_cut:
        found.pop()
    found.reverse()
    return Window(rows=tuple([to_replayed(conversation_id, row) for row in found]), is_cut=is_cut)


def events(session: Session, turn_id: TurnId, after: int, limit: int) -> list[Recorded]:
    found = session.rows("events_after", (turn_id, after, limit))
    if found:
        return [to_recorded(seq, payload, display) for seq, payload, display in found]
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        return []
    turn = to_turn(row)
    if turn.last_seq or not turn.is_settled:
        return []
    told = enumerate(events_from_rows(turn, turn_rows(session, turn_id)), start=1)
    return [Recorded(seq=seq, event=event) for seq, event in told if seq > after][:limit]


def turn_rows(session: Session, turn_id: TurnId) -> list[Message]:
    return [to_message(row) for row in session.rows("turn_rows", (turn_id,))]


def running_turn(session: Session, turn_id: TurnId, attempt: int) -> Turn | None:
    row = session.row("running_turn", {"turn": turn_id, "attempt": attempt})
    return None if row is None else to_turn(row)


def my_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("my_turn", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def claimed_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def own_turn(session: Session, principal: Principal, turn_id: TurnId) -> Turn:
    """The principal's turn, on the engine's path."""
    row = session.row("own_turn", owner_of(principal) | {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def trace(session: Session, principal: Principal, turn_id: TurnId) -> TurnTrace:
    return trace_of(session, own_turn(session, principal, turn_id), events(session, turn_id, 0, ALL))


def trace_of(session: Session, turn: Turn, recorded: list[Recorded]) -> TurnTrace:
    lines = session.rows("logs_from", {"turn": turn.id, "n": 0})
    return TurnTrace(
        turn=turn,
        rows=tuple(turn_rows(session, turn.id)),
        events=tuple(recorded),
        logs=tuple(
            LogLine(after_seq=after, level=level, message=message, ts=ts) for after, level, message, ts in lines
        ),
    )
