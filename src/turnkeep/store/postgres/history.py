"""The history of turns on PostgreSQL: what their workers and readers read."""

from operator import itemgetter

from turnkeep.ids import ConversationId, TurnId, check_id
from turnkeep.model.conversations import events_from_rows
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import ROW_LIMIT, TurnTrace, Window
from turnkeep.store.postgres.io.database import Database, owner_of
from turnkeep.store.rows import to_message, to_recorded, to_replayed, to_turn
from turnkeep.store.rules.refusals import check_service, no_turn
from turnkeep_client.wire.events import LogLine, Recorded

ALL = 2**31 - 1
"""More than there ever is of anything."""
_place = itemgetter("ordinal", "turn_sequence")


class PostgresHistory:
    """Turns, their rows, their events and their traces."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        rows = await self._database.read_as(principal, "my_turn", turn_id)
        if not rows:
            raise no_turn()
        return to_turn(rows[0])

    async def claimed_turn(self, turn_id: TurnId) -> Turn:
        rows = await self._database.read("turn_by_id", check_id(turn_id, "turn"))
        if not rows:
            raise no_turn()
        return to_turn(rows[0])

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        rows = await self._database.read("running_turn", check_id(turn_id, "turn"), attempt)
        return to_turn(rows[0]) if rows else None

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        check_id(turn_id, "turn")
        rows = await self._database.read("events_after", turn_id, after, limit)
        if rows:
            return [to_recorded(*row) for row in rows]
        found = await self._database.read("turn_by_id", turn_id)
        if not found:
            return []
        turn = to_turn(found[0])
        if turn.last_seq or not turn.is_settled:
            return []
        told = events_from_rows(turn, await self.turn_rows(turn_id))
        return [Recorded(seq=n, event=event) for n, event in enumerate(told, start=1) if n > after][:limit]

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        check_id(turn_id, "turn")
        return [to_message(row) for row in await self._database.read("turn_rows", turn_id)]

    async def window(self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT) -> Window:
        check_id(conversation_id, "conv")
        rows = await self._database.read("window", conversation_id, turns, row_limit + 1)
        rows.sort(key=_place)
        kept = rows[-row_limit:] if len(rows) > row_limit else rows
        return Window(rows=tuple([to_replayed(conversation_id, row) for row in kept]), is_cut=len(rows) > row_limit)

    async def trace(self, principal: Principal, turn_id: TurnId) -> TurnTrace:
        check_service(principal)
        check_id(turn_id, "turn")
        found = await self._database.read("own_turn", *owner_of(principal), turn_id)
        if not found:
            raise no_turn()
        return TurnTrace(
            turn=to_turn(found[0]),
            rows=tuple(await self.turn_rows(turn_id)),
            events=tuple(await self.events(turn_id, limit=ALL)),
            logs=tuple(
                LogLine(after_seq=after, level=level, message=message, ts=ts)
                for after, level, message, ts in await self._database.read("turn_logs", turn_id)
            ),
        )
