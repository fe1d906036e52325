"""Recording and settling: what the holder of a turn writes, behind one fence.

Values are turned into columns by the caller's thread (`Entries`), so that the writer's has little to do but write.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from turnkeep.errors import Defect, LeaseLost, TurnSettled
from turnkeep.ids import TurnId
from turnkeep.model.events import LogLine, TurnEvent
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.model.usage import Usage
from turnkeep.store.checks import check_own
from turnkeep.store.commands import Receipt, Settled, Settlement
from turnkeep.store.rows import event_values, json_text, message_values, to_turn
from turnkeep.store.sqlite.io.session import Row, Session
from turnkeep.store.sqlite.leases import promote_next, scopes


class Entries(Struct):
    """Rows, events and logs as columns, in order."""

    rows: list[tuple[Any, ...]]
    events: list[tuple[str, str]]
    logs: list[tuple[Any, ...]]


def entries_of(held: Held, rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]) -> Entries:
    """Refuses rows that say they belong to another turn."""
    check_own(held, rows)
    return Entries(
        [message_values(row) for row in rows],
        [event_values(event) for event in events],
        [(line.after_seq, line.level, line.message, line.ts) for line in logs],
    )


def record(session: Session, held: Held, after: int, entries: Entries) -> Receipt:
    """Commit all of it or none, as events `after + 1` …; a repeat is recognised."""
    state = _fenced(session, held)
    status, _, last_seq, cancel_requested_at, _, _, written = state
    if status != "running":
        raise TurnSettled(f"Turn {held.turn_id} has ended.")
    is_wanted = cancel_requested_at is not None
    if _is_known(session, held, after, entries, last_seq):
        return Receipt(last_seq=last_seq, cancel_requested=is_wanted, files_written=written)
    if last_seq != after:
        raise Defect(
            f"Two writers for turn {held.turn_id}: it is at event {last_seq}, but the next write says {after}."
        )
    _insert(session, held, after, entries, state)
    if entries.events:
        session.run("advance_turn", (held.turn_id, after + len(entries.events)))
    return Receipt(last_seq=after + len(entries.events), cancel_requested=is_wanted, files_written=written)


def settle(session: Session, held: Held, after: int, settlement: Settlement, entries: Entries) -> Settled:
    """End the turn and let the next one run. The last of `entries.events` is the terminal one."""
    state = _fenced(session, held)
    status, _, last_seq, _, conversation_id, org_id, written = state
    last = after + len(entries.events)
    if status != "running":
        stored = session.rows("events_between", {"turn": held.turn_id, "after": last - 1, "last": last})
        if last_seq == last and stored == entries.events[-1:]:
            return Settled(turn=to_turn(session.rows("turn_by_id", {"turn": held.turn_id})[0]), promoted=None)
        raise TurnSettled(f"Turn {held.turn_id} has ended.")
    if last_seq != after:
        raise Defect(f"Two writers for turn {held.turn_id}: it is at event {last_seq}, but its end says {after}.")
    _insert(session, held, after, entries, state)
    usage = settlement.usage
    row = session.rows(
        "settle_turn",
        {
            "turn": held.turn_id,
            "status": settlement.status,
            "last_seq": last,
            "now": session.now,
            "error": None if settlement.error is None else json_text(settlement.error),
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        },
    )[0]
    session.run(
        "conversation_settled",
        {
            "conversation": conversation_id,
            "turn": held.turn_id,
            "messages": int(settlement.final is not None),
            "now": session.now,
        },
    )
    turn = to_turn(row)
    _count_tokens(session, org_id, turn, row[26])
    session.run("expire_tokens", {"turn": held.turn_id, "now": session.now})
    if written and settlement.final is not None:
        session.run("carry_written_files", {"turn": held.turn_id, "message": settlement.final.id})
    return Settled(turn=turn, promoted=promote_next(session, conversation_id))


def count_usage(session: Session, turn_id: TurnId, attempt: int, usage: Usage, call: bytes) -> bool:
    """Tokens that somebody else spent for a running turn, under the same fence as everything else of it; once."""
    turn = {"turn": turn_id, "attempt": attempt}
    if session.row("remember_call", {**turn, "hash": call, "now": session.now}) is None:
        return session.row("running_turn", turn) is not None
    row = session.row(
        "count_usage",
        {
            **turn,
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        },
    )
    return row is not None


def _count_tokens(session: Session, org_id: str, turn: Turn, key_id: str | None) -> None:
    """Add what the turn consumed to everybody it is counted for, in the month in which it was asked."""
    usage = turn.usage
    if not (usage.input_tokens or usage.output_tokens):
        return
    counted = {"org": org_id, "month": turn.month, "input": usage.input_tokens, "output": usage.output_tokens}
    session.many(
        "count_tokens",
        [
            counted | {"scope": scope, "scope_id": scope_id}
            for scope, scope_id in scopes(turn.workspace_id, turn.user_id, key_id)
        ],
    )


def _fenced(session: Session, held: Held) -> Row:
    """The turn's state, if nobody has taken it over."""
    state = session.row("fence", (held.turn_id,))
    if state is None or state[1] != held.attempt:
        raise LeaseLost(f"Turn {held.turn_id} is not held by attempt {held.attempt} any more.")
    return state


def _is_known(session: Session, held: Held, after: int, entries: Entries, last_seq: int) -> bool:
    """Whether this very record is stored already, because its answer was lost."""
    if entries.events:
        last = after + len(entries.events)
        if last_seq < last:
            return False
        stored = session.rows("events_between", {"turn": held.turn_id, "after": after, "last": last})
        return stored == entries.events
    if entries.rows:
        first = entries.rows[0]
        stored = session.rows("message_at", {"turn": held.turn_id, "sequence": first[1]})
        return stored == [(first[2],)]
    if entries.logs:
        count = session.rows("last_log", {"turn": held.turn_id})[0][0]
        stored = session.rows("logs_from", {"turn": held.turn_id, "n": count - len(entries.logs)})
        return stored == entries.logs
    return False


def _insert(session: Session, held: Held, after: int, entries: Entries, state: Row) -> None:
    _, _, _, _, _, org_id, _ = state
    turn_id = held.turn_id
    if entries.rows:
        session.many(
            "insert_message",
            [(*row, org_id) for row in entries.rows],
        )
    if entries.events:
        session.many(
            "insert_event",
            [
                (turn_id, seq, org_id, kind, payload)
                for seq, (kind, payload) in enumerate(entries.events, start=after + 1)
            ],
        )
    if entries.logs:
        count = session.rows("last_log", {"turn": turn_id})[0][0]
        session.many(
            "insert_log",
            [(turn_id, n, org_id, *line) for n, line in enumerate(entries.logs, start=count + 1)],
        )
