"""Turns on PostgreSQL: claims, leases, stops, and what their workers and readers read."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from turnkeep.errors import NotFound
from turnkeep.ids import CallId, ConversationId, TurnId, check_id, new_conversation_id, new_message_id
from turnkeep.model.conversations import title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.past_events import events_from_rows
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store.checks import check_claim
from turnkeep.store.commands import ROW_LIMIT, Adopted, Claim, Claimed, Renewal, TurnTrace, Window
from turnkeep.store.marks import call_mark
from turnkeep.store.postgres.attaching import Named, name_attachments
from turnkeep.store.postgres.database import Database, Statements, check_service, owner_of
from turnkeep.store.rows import json_or_null, json_text, to_message, to_recorded, to_replayed, to_turn
from turnkeep.store.shapes import check_usage, check_worker
from turnkeep_client.wire.events import LogLine, Recorded
from turnkeep_client.wire.usage import Usage

ALL = 2**31 - 1
_TURN_WIDTH = 26
_place = itemgetter(11, 1)


class PostgresTurns:
    """Everything about turns but the grouped writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, claim: Claim) -> Claimed:
        check_claim(claim)
        message_id = new_message_id()
        conversation_id = claim.conversation_id or new_conversation_id()

        async def work(statements: Statements, is_repeat: bool) -> Any:
            named = Named()
            if claim.attachment_ids:
                owner = owner_of(claim.principal)
                named = await name_attachments(statements, owner, conversation_id, claim.attachment_ids)
            values = _claim_values(claim, conversation_id, message_id, named, is_repeat=is_repeat)
            return (await statements.fetch("claim", *values))[0]

        # One statement is a transaction of its own. Attachments need several: their names are chosen first.
        row = await self._database.run(work, in_transaction=bool(claim.attachment_ids))
        turn = to_turn(row)
        user_message_id, is_new, is_held = row[_TURN_WIDTH:]
        return Claimed(
            turn=turn,
            user_message_id=user_message_id,
            held=_held(turn) if is_held else None,
            is_new=is_new,
        )

    async def renew(self, held: Sequence[Held], *, lease_seconds: float) -> list[Renewal]:
        if not held:
            return []
        ordered = sorted(held, key=lambda each: each.turn_id)
        rows = await self._database.write(
            "renew",
            [each.turn_id for each in ordered],
            [each.attempt for each in ordered],
            _ms(lease_seconds),
        )
        kept: dict[tuple[TurnId, int], tuple[bool, int]] = {
            (turn, attempt): (wanted, written) for turn, attempt, wanted, written in rows
        }
        return [_renewal(each, kept.get((each.turn_id, each.attempt))) for each in held]

    async def adopt(
        self, worker: str, *, lease_seconds: float, limit: int = 10, turn_id: TurnId | None = None
    ) -> list[Adopted]:
        check_worker(worker)
        if turn_id is not None:
            check_id(turn_id, "turn")
        rows = await self._database.write("adopt", worker, _ms(lease_seconds), limit, turn_id)
        adopted = []
        for is_first_start, *columns in rows:
            turn = to_turn(columns)
            adopted.append(Adopted(turn=turn, held=_held(turn), is_first_start=is_first_start))
        return adopted

    async def hand_over(self, held: Sequence[Held]) -> None:
        if held:
            ordered = sorted(held, key=lambda each: each.turn_id)
            await self._database.write(
                "hand_over", [each.turn_id for each in ordered], [each.attempt for each in ordered]
            )

    async def release(self, workers: Sequence[str]) -> None:
        if workers:
            await self._database.write("release", sorted(workers))

    async def promote_waiting(self) -> list[TurnId]:
        return [row[0] for row in await self._database.write("promote_waiting")]

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        return to_turn((await self._database.write("request_cancel", *owner_of(principal), turn_id))[0])

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        if turn_ids:
            await self._database.write("watch", sorted(turn_ids), _ms(seconds))

    async def cancel_unwatched(self) -> list[TurnId]:
        return [row[0] for row in await self._database.write("cancel_unwatched")]

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        rows = await self._database.read_as(principal, "my_turn", turn_id)
        if not rows:
            raise NotFound("No such turn.")
        return to_turn(rows[0])

    async def claimed_turn(self, turn_id: TurnId) -> Turn:
        rows = await self._database.read("turn_by_id", check_id(turn_id, "turn"))
        if not rows:
            raise NotFound("No such turn.")
        return to_turn(rows[0])

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        rows = await self._database.read("running_turn", check_id(turn_id, "turn"), attempt)
        return to_turn(rows[0]) if rows else None

    async def count_usage(self, turn_id: TurnId, attempt: int, usage: Usage, *, call_id: CallId) -> bool:
        check_usage(usage)
        rows = await self._database.write(
            "count_usage",
            check_id(turn_id, "turn"),
            attempt,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            call_mark(turn_id, call_id),
        )
        return bool(rows)

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
            raise NotFound("No such turn.")
        return TurnTrace(
            turn=to_turn(found[0]),
            rows=tuple(await self.turn_rows(turn_id)),
            events=tuple(await self.events(turn_id, limit=ALL)),
            logs=tuple(
                LogLine(after_seq=after, level=level, message=message, ts=ts)
                for after, level, message, ts in await self._database.read("turn_logs", turn_id)
            ),
        )


def _claim_values(
    claim: Claim, conversation_id: str, message_id: str, named: Named, *, is_repeat: bool
) -> tuple[Any, ...]:
    """The parameters of the function `claim`, in its order."""
    principal, new = claim.principal, claim.new
    return (
        principal.org_id,
        principal.workspace_id,
        principal.user_id,
        owner_of(principal)[2],
        principal.key_id,
        principal.ref,
        claim.turn_id,
        is_repeat,
        claim.worker,
        _ms(claim.lease_seconds),
        conversation_id,
        claim.conversation_id is None,
        new.kind,
        new.agent_id,
        new.model,
        new.workflow_id,
        new.title,
        json_or_null(new.metadata),
        message_id,
        json_text(claim.blocks),
        json_or_null(named.refs),
        json_or_null(claim.metadata),
        *title_and_preview(claim.blocks),
        claim.beside,
        list(claim.attachment_ids),
        list(named.names),
        list(named.name_keys),
        claim.if_busy,
        claim.queue_limit,
        claim.background,
        None if claim.watched_seconds is None else _ms(claim.watched_seconds),
        claim.source,
        claim.model,
        json_text(claim.snapshot),
        claim.idempotency_key,
        claim.request_hash,
    )


def _held(turn: Turn) -> Held:
    return Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=turn.attempt)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _renewal(held: Held, kept: tuple[bool, int] | None) -> Renewal:
    wanted, written = kept or (False, 0)
    return Renewal(turn_id=held.turn_id, is_held=kept is not None, cancel_requested=wanted, files_written=written)
