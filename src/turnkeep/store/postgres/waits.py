"""Waits and steering on PostgreSQL."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from turnkeep.ids import CallId, ConversationId, TurnId, check_id, new_outbox_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import CallAnswer, Wait, WaitReason
from turnkeep.store.checks import check_answers, check_record
from turnkeep.store.commands import Taken
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.leases import cancel_waiting
from turnkeep.store.postgres.turns import ALL, entries_of, record_locked
from turnkeep.store.rows import json_text, to_message, to_names, to_recorded, to_turn
from turnkeep.store.rules.outbox import told_turn
from turnkeep.store.rules.turns import STEERED, STEERED_EVENT, fence_refusal, no_turn, stand_of
from turnkeep.store.rules.waits import already_taken, answered, spent, taken, unanswered
from turnkeep_client.wire.events import Recorded, TurnEvent


class PostgresWaits:
    """The verbs of waits, and the one of steering. Promises are those of `ports.TurnStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool:
        check_record(held, (), events, ())
        entries = entries_of(held.turn_id, after, (), events, ())

        async def work(statements: Statements) -> bool:
            rows = await statements.fetch("lock_turn", held.turn_id)
            if not rows:
                raise fence_refusal("lost", held, after, None)
            turn = to_turn(rows[0])
            last_attempt = held.attempt + (1 if wait.held_by is None else 0)
            if turn.attempt == last_attempt and turn.wait is not None:
                [(is_known,)] = await statements.fetch("has_events", held.turn_id, after, entries.events)
                if is_known:
                    return True  # the answer to this very call was lost
            if turn.attempt != held.attempt or turn.is_settled:
                raise fence_refusal("settled" if turn.is_settled else "lost", held, after, turn.last_seq)
            if turn.cancel_requested_at is not None:
                return False
            await record_locked(statements, held, after, entries)
            entry = told_turn(new_outbox_id(), held.turn_id, "waiting")
            if wait.held_by is None:
                await statements.fetch("wait", held.turn_id, json_text(wait), wait.expires_at, entry.id, entry.type)
            else:
                await statements.fetch("hold_wait", held.turn_id, json_text(wait), entry.id, entry.type)
            return True

        return await self._database.transact(work)

    async def answer_calls(
        self, principal: Principal, turn_id: TurnId, answers: Mapping[CallId, CallAnswer], *, reason: WaitReason
    ) -> Turn:
        check_id(turn_id, "turn")
        check_answers(answers)

        async def work(statements: Statements) -> Turn:
            locked = await statements.fetch("lock_own_turn", *owner_of(principal), turn_id)
            if not locked:
                raise no_turn()
            [row] = await statements.fetch("lock_turn", turn_id)
            turn = to_turn(row)
            effect = answered(turn, answers, reason=reason, now=locked[0]["now"])
            if effect.trusted:
                [row] = await statements.fetch("trusted_tools", turn.conversation_id)
                trusted = {*_names(row["trusted_tools"]), *effect.trusted}
                await statements.fetch("trust_tools", turn.conversation_id, json_text(sorted(trusted)))
            wait = effect.wait
            if wait is None:
                return turn
            until = None if wait.reason is None else wait.expires_at
            if effect.events:
                held = Held(turn_id=turn_id, conversation_id=turn.conversation_id, attempt=turn.attempt)
                entries = entries_of(turn_id, turn.last_seq, (), effect.events, ())
                await record_locked(statements, held, turn.last_seq, entries)
            if wait.held_by is None:
                await statements.fetch("change_wait", turn_id, json_text(wait), until)
            else:
                await statements.fetch("change_held_wait", turn_id, json_text(wait))
            last_seq = turn.last_seq + len(effect.events)
            return structs.replace(turn, wait=wait, last_seq=last_seq, status="running" if until is None else "waiting")

        return await self._database.transact(work)

    async def end_overdue_waits(self) -> list[TurnId]:
        return sorted(turn_id for (turn_id,) in await self._database.write("end_overdue_waits"))

    async def end_held_wait(self, turn_id: TurnId, attempt: int) -> Turn | None:
        check_id(turn_id, "turn")

        async def work(statements: Statements) -> Turn | None:
            rows = await statements.fetch("lock_turn", turn_id)
            if not rows:
                return None
            [(now,)] = await statements.fetch("now")
            turn = to_turn(rows[0])
            wait = unanswered(turn, attempt=attempt, now=now)
            if wait is None:
                return None
            await statements.fetch("change_held_wait", turn_id, json_text(wait))
            return structs.replace(turn, wait=wait, status="running")

        return await self._database.transact(work)

    async def spend_answer(self, turn_id: TurnId, attempt: int, call_id: CallId, digest: str) -> bool:
        check_id(turn_id, "turn")

        async def work(statements: Statements) -> bool:
            rows = await statements.fetch("lock_turn", turn_id)
            wait = spent(to_turn(rows[0]), call_id, digest, attempt=attempt) if rows else None
            if wait is not None:
                await statements.fetch("change_held_wait", turn_id, json_text(wait))
            return wait is not None

        return await self._database.transact(work)

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        rows = await self._database.read("trusted_tools", check_id(conversation_id, "conv"))
        return frozenset(_names(rows[0]["trusted_tools"]) if rows else ())

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


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else to_names(text)
