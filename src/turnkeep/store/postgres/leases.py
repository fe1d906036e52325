"""Leases and the queue on PostgreSQL: who holds which turn, who may take it over, which turn runs next, and stops."""

from collections.abc import Sequence

import msgspec

from turnkeep.ids import ConversationId, TurnId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.store.checks import check_adopt, check_notes
from turnkeep.store.commands import Adopted, Backlog, DueWork, Renewal
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.outbox import cancelled_entries
from turnkeep.store.rows import event_values, json_text, to_turn
from turnkeep.store.rules.claims import ScopeLimits, why_over_limit
from turnkeep.store.rules.turns import (
    CANCELLED,
    CANCELLED_EVENT,
    Adoption,
    ExpiredTurn,
    PromotionFacts,
    adoption,
    cancel_step,
    no_turn,
    promotion,
    with_notes,
)
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import Failure

_promotion_facts = msgspec.json.Decoder(PromotionFacts).decode
_scope_limits = msgspec.json.Decoder(tuple[ScopeLimits, ...]).decode


class PostgresLeases:
    """Renewals, adoptions, promotions and requests to cancel."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(
        self,
        held: Sequence[Held],
        *,
        lease_seconds: float,
        watched: Sequence[TurnId] = (),
        watch_seconds: float = 0.0,
    ) -> list[Renewal]:
        if not held and not watched:
            return []
        left = set(watched)
        turns: list[tuple[TurnId, int | None, bool]] = [
            (each.turn_id, each.attempt, each.turn_id in left) for each in held
        ]
        left.difference_update(each.turn_id for each in held)
        turns += [(turn_id, None, True) for turn_id in left]
        turns.sort(key=lambda turn: turn[0])
        rows = await self._database.write(
            "renew",
            [turn_id for turn_id, _, _ in turns],
            [attempt for _, attempt, _ in turns],
            int(lease_seconds * 1000),
            [is_watched for _, _, is_watched in turns],
            int(watch_seconds * 1000),
        )
        kept = {
            (row["turn_id"], row["attempt"]): Renewal(
                turn_id=row["turn_id"],
                is_held=True,
                cancel_requested=row["cancel_requested"],
                files_written=row["files_written"],
            )
            for row in rows
        }
        return [
            kept.get((each.turn_id, each.attempt), Renewal(turn_id=each.turn_id, is_held=False, cancel_requested=False))
            for each in held
        ]

    async def adopt(
        self,
        worker: str,
        *,
        lease_seconds: float,
        limit: int = 10,
        turn_id: TurnId | None = None,
        only_handed_over: bool = False,
    ) -> list[Adopted]:
        check_adopt(worker, turn_id)

        async def work(statements: Statements) -> list[Adopted]:
            if turn_id is not None:
                rows = await statements.fetch("expired_turn", turn_id)
            else:
                rows = await statements.fetch("expired_turns", limit, only_handed_over)
            if not rows:
                return []
            now, *_ = rows[0]
            expired = [ExpiredTurn(*columns) for _, *columns in rows]
            decided = {turn.id: adoption(turn, now=now) for turn in expired}
            document = json_text([_adoption(each, decided[each]) for each in decided])
            adopted = await statements.fetch("adopt_turns", document, worker, now + int(lease_seconds * 1000))
            turns = {row["id"]: to_turn(row) for row in adopted}
            return [await _adopted(statements, turns[turn.id], decided[turn.id], turn.org_id, now) for turn in expired]

        return await self._database.transact(work)

    async def hand_over(self, held: Sequence[Held]) -> None:
        if held:
            ordered = sorted(held, key=lambda each: each.turn_id)
            await self._database.write(
                "hand_over", [each.turn_id for each in ordered], [each.attempt for each in ordered]
            )

    async def release(self, workers: Sequence[str]) -> None:
        if workers:
            await self._database.write("release", sorted(workers))

    async def due_work(self, *, queue: bool = True) -> DueWork:
        [row] = await self._database.read("due_work", queue)
        return DueWork(*row)

    async def backlog(self) -> Backlog:
        [row] = await self._database.read("backlog")
        return Backlog(*row)

    async def hold_sweep(self, worker: str, *, seconds: float) -> bool:
        return bool(await self._database.write("hold_sweep", worker, int(seconds * 1000)))

    async def leave_sweep(self, worker: str) -> None:
        await self._database.write("leave_sweep", worker)

    async def promote_waiting(self) -> list[TurnId]:
        promoted = []
        for row in await self._database.read("conversations_waiting"):
            conversation_id = row["conversation_id"]

            async def work(statements: Statements, conversation_id: ConversationId = conversation_id) -> TurnId | None:
                return await promote_next(statements, conversation_id)

            promoted.append(await self._database.transact(work))
        return sorted(turn_id for turn_id in promoted if turn_id is not None)

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")

        async def work(statements: Statements) -> Turn:
            locked = await statements.fetch("lock_own_turn", *owner_of(principal), turn_id)
            if not locked:
                raise no_turn()
            now = locked[0]["now"]
            [row] = await statements.fetch("lock_turn", turn_id)
            turn = to_turn(row)
            match cancel_step(turn.status, turn.cancel_requested_at):
                case "end":
                    await cancel_waiting(statements, [turn_id], now)
                case "mark":
                    await statements.fetch("mark_cancelled", turn_id, now)
                case "none":
                    return turn
            [row] = await statements.fetch("turn_by_id", turn_id)
            return to_turn(row)

        return await self._database.transact(work)

    async def add_notes(self, principal: Principal, turn_id: TurnId, notes: JsonObject) -> Turn:
        check_id(turn_id, "turn")
        check_notes(notes)

        async def work(statements: Statements) -> Turn:
            if not await statements.fetch("lock_own_turn", *owner_of(principal), turn_id):
                raise no_turn()
            [row] = await statements.fetch("lock_turn", turn_id)
            noted = with_notes(to_turn(row), notes)
            await statements.fetch("change_turn_metadata", turn_id, json_text(noted.metadata))
            return noted

        return await self._database.transact(work)

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        await self.renew((), lease_seconds=0, watched=turn_ids, watch_seconds=seconds)

    async def unwatch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        if turn_ids:
            await self._database.write("unwatch", sorted(turn_ids), int(seconds * 1000))

    async def cancel_unwatched(self) -> list[TurnId]:
        return [turn_id for (turn_id,) in await self._database.write("cancel_unwatched")]


async def promote_next(statements: Statements, conversation_id: ConversationId) -> TurnId | None:
    """Let the first waiting turn run, its lease already ended. In a deleted conversation cancel them all."""
    [row] = await statements.fetch("promotion_facts", conversation_id)
    if row["facts"] is None:
        return None
    now = row["now"]
    decided = promotion(_promotion_facts(row["facts"]))
    if decided.cancels:
        await cancel_waiting(statements, decided.cancels, now)
    if decided.starts is not None:
        position = decided.position
        await statements.fetch(
            "start_waiting", conversation_id, decided.starts, position.parent, position.is_branch, now
        )
    return decided.starts


async def cancel_waiting(
    statements: Statements,
    turn_ids: Sequence[TurnId],
    now: int,
    *,
    error: TurnError = CANCELLED,
    event: Failure = CANCELLED_EVENT,
) -> None:
    """End turns that never started, and take back the messages that were counted for them."""
    entries = json_text(cancelled_entries(turn_ids))
    await statements.fetch("cancel_turns", list(turn_ids), now, json_text(error), json_text(event), entries)


def _adoption(turn_id: TurnId, decided: Adoption) -> dict[str, object]:
    kind, payload = event_values(decided.event)
    return {
        "id": turn_id,
        "attempt": decided.attempt,
        "failures": decided.failures,
        "last_seq": decided.last_seq,
        "is_first_start": decided.is_first_start,
        "type": kind,
        "payload": payload,
    }


async def _adopted(statements: Statements, turn: Turn, decided: Adoption, org_id: str, now: int) -> Adopted:
    held = Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=turn.attempt)
    over_limit = None
    if decided.is_first_start:
        keys = list(turn.snapshot.counted_keys)
        [row] = await statements.fetch("limits_of", org_id, turn.workspace_id, turn.user_id, keys)
        over_limit = why_over_limit(_scope_limits(row["limits"]), now)
    return Adopted(turn=turn, held=held, is_first_start=decided.is_first_start, over_limit=over_limit)
