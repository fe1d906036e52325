"""The verbs of `TurnStore`: each checks what it is given, then runs as one job."""

from collections.abc import Sequence

from turnkeep.ids import CallId, ConversationId, TurnId, check_id
from turnkeep.model.events import LogLine, Recorded, TurnEvent
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.usage import Usage
from turnkeep.store import checks, shapes
from turnkeep.store.commands import (
    ROW_LIMIT,
    Adopted,
    Appended,
    Claim,
    Claimed,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    TurnTrace,
    Window,
)
from turnkeep.store.marks import call_mark
from turnkeep.store.sqlite import claiming, history, leases, recording, transferring
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.ownership import check_service


class TurnVerbs(StoreThreads):
    """Turns, their rows and their events. Promises are those of `ports.TurnStore`."""

    async def claim(self, claim: Claim) -> Claimed:
        checks.check_claim(claim)
        return await self._write(claiming.claim, claim)

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        check_id(conversation_id, "conv")
        checks.check_appended(turn)
        shapes.check_usage(turn.usage)
        rows = transferring.rows_for_append(principal, conversation_id, turn)
        return await self._write(transferring.append, principal, conversation_id, turn, rows)

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        if rows:
            checks.check_rows(rows)
        if events:
            checks.check_events(events)
        if logs:
            checks.check_logs(logs)
        entries = recording.entries_of(held, rows, events, logs)
        return await self._write(recording.record, held, after, entries)

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        checks.check_settlement(settlement)
        shapes.check_usage(settlement.usage)
        entries = recording.entries_of(held, settlement.all_rows, settlement.all_events, settlement.logs)
        return await self._write(recording.settle, held, after, settlement, entries)

    async def renew(self, held: Sequence[Held], *, lease_seconds: float) -> list[Renewal]:
        if not held:
            return []
        return await self._write(leases.renew, list(held), lease_seconds)

    async def adopt(
        self, worker: str, *, lease_seconds: float, limit: int = 10, turn_id: TurnId | None = None
    ) -> list[Adopted]:
        shapes.check_worker(worker)
        if turn_id is not None:
            check_id(turn_id, "turn")
        return await self._write(leases.adopt, worker, lease_seconds, limit, turn_id)

    async def hand_over(self, held: Sequence[Held]) -> None:
        if held:
            await self._write(leases.hand_over, list(held))

    async def release(self, workers: Sequence[str]) -> None:
        if workers:
            await self._write(leases.release, list(workers))

    async def promote_waiting(self) -> list[TurnId]:
        return await self._write(leases.promote_waiting)

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        return await self._write(leases.request_cancel, principal, turn_id)

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        if turn_ids:
            await self._write(leases.watch, list(turn_ids), seconds)

    async def cancel_unwatched(self) -> list[TurnId]:
        return await self._write(leases.cancel_unwatched)

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        return await self._see(principal, history.my_turn, turn_id)

    async def claimed_turn(self, turn_id: TurnId) -> Turn:
        return await self._read(history.claimed_turn, check_id(turn_id, "turn"))

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        return await self._read(history.running_turn, check_id(turn_id, "turn"), attempt)

    async def count_usage(self, turn_id: TurnId, attempt: int, usage: Usage, *, call_id: CallId) -> bool:
        check_id(turn_id, "turn")
        shapes.check_usage(usage)
        return await self._write(recording.count_usage, turn_id, attempt, usage, call_mark(turn_id, call_id))

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return await self._read(history.events, check_id(turn_id, "turn"), after, limit)

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        return await self._read(history.turn_rows, check_id(turn_id, "turn"))

    async def window(self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT) -> Window:
        return await self._read(history.window, check_id(conversation_id, "conv"), turns, row_limit)

    async def trace(self, principal: Principal, turn_id: TurnId) -> TurnTrace:
        check_service(principal)
        return await self._read(history.trace, principal, check_id(turn_id, "turn"))
