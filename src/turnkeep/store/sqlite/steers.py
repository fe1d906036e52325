"""Steering on SQLite."""

from turnkeep.ids import check_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import Taken
from turnkeep.store.rows import to_message
from turnkeep.store.rules.steers import already_taken, taken
from turnkeep.store.rules.turns import STEERED, STEERED_EVENT, fence_refusal, stand_of
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.leases import cancel_waiting
from turnkeep.store.sqlite.turns import entries_of, events_after, record_entries, rows_of_turn, state_of
from turnkeep_client.wire.events import Recorded


class SqliteSteers(StoreThreads):
    """The verb of steering. Promises are those of `ports.TurnStore`."""

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken:
        check_id(held.turn_id, "turn")
        return await self._write(_take_steers, held, after, sequence)


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
