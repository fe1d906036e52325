"""Steering on PostgreSQL."""

from turnkeep.ids import check_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import Taken
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.postgres.leases import cancel_waiting
from turnkeep.store.postgres.turns import ALL, entries_of, record_locked
from turnkeep.store.rows import to_message, to_recorded, to_turn
from turnkeep.store.rules.steers import already_taken, taken
from turnkeep.store.rules.turns import STEERED, STEERED_EVENT, fence_refusal, stand_of
from turnkeep_client.wire.events import Recorded


class PostgresSteers:
    """The verb of steering. Promises are those of `ports.TurnStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken:
        check_id(held.turn_id, "turn")

        async def work(statements: Statements) -> Taken:
            [(now,)] = await statements.fetch("lock_conversation", held.conversation_id) or [(0,)]
            rows = await statements.fetch("lock_turn", held.turn_id)
            turn = to_turn(rows[0]) if rows else None
            stand = stand_of(turn, held, after)
            if stand == "ahead":
                told = [
                    to_recorded(*row).event for row in await statements.fetch("events_after", held.turn_id, after, ALL)
                ]
                stored = [to_message(row) for row in await statements.fetch("turn_rows", held.turn_id)]
                if known := already_taken(stored, told, sequence=sequence):
                    return known
            if stand != "held":
                raise fence_refusal(stand, held, after, None if turn is None else turn.last_seq)
            found = await statements.fetch("steers_of", held.conversation_id, held.turn_id)
            if not found:
                return Taken()
            questions = [to_message(row) for row in found]
            told_now = taken(held, questions, sequence=sequence)
            ids = [question.turn_id for question in questions]
            await cancel_waiting(statements, ids, now, error=STEERED, event=STEERED_EVENT)
            await record_locked(
                statements, held, after, entries_of(held.turn_id, after, told_now.rows, told_now.events, ())
            )
            await statements.fetch("count_taken", held.conversation_id, len(questions))
            ended = []
            for turn_id in ids:
                [row] = await statements.fetch("turn_by_id", turn_id)
                ended.append((turn_id, Recorded(seq=to_turn(row).last_seq, event=STEERED_EVENT)))
            return Taken(rows=told_now.rows, events=told_now.events, ended=tuple(ended))

        return await self._database.transact(work)
