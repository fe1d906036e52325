"""Turns on PostgreSQL: claims, leases, stops, and what their workers and readers read."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import asyncpg
import msgspec
from msgspec import structs

from turnkeep.errors import Unavailable
from turnkeep.ids import CallId, ConversationId, TurnId, check_id, new_conversation_id, new_message_id
from turnkeep.model.events import LogLine, Recorded
from turnkeep.model.messages import Message
from turnkeep.model.narrate import narrate
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.usage import Usage
from turnkeep.store.checks import check_adopt, check_claim, check_usage
from turnkeep.store.commands import ROW_LIMIT, Adopted, Claim, Claimed, Renewal, TurnTrace, Window
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.io.errors import OVER_LIMIT, counted_of
from turnkeep.store.postgres.records import message_record, turn_record
from turnkeep.store.rows import (
    json_or_null,
    json_text,
    to_message,
    to_recorded,
    to_replayed,
    to_turn,
    turn_values,
)
from turnkeep.store.rules import claims, queue, quota
from turnkeep.store.rules.claims import ClaimFacts, NewIds, NewTurn, Repeat
from turnkeep.store.rules.quota import call_mark
from turnkeep.store.rules.refusals import check_service, no_turn

ALL = 2**31 - 1
_CLAIM_TRIES = 100
"""So often another request may change the conversation between the two statements of a claim."""
_place = itemgetter("ordinal", "turn_sequence")
_claim_facts = msgspec.json.Decoder(ClaimFacts).decode


class PostgresTurns:
    """Everything about turns but the grouped writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, claim: Claim) -> Claimed:
        check_claim(claim)
        ids = NewIds(conversation_id=claim.conversation_id or new_conversation_id(), message_id=new_message_id())

        async def work(statements: Statements, is_repeat: bool) -> Claimed:
            for _ in range(_CLAIM_TRIES):
                [found] = await statements.fetch("claim_facts", json_text(_asked(claim)))
                facts = structs.replace(_claim_facts(found["facts"]), now=found["now"])
                decided = claims.decide(claim, facts, ids, is_repeat=is_repeat)
                if isinstance(decided, Repeat):
                    [row] = await statements.fetch("turn_by_id", decided.turn_id)
                    return decided.claimed(to_turn(row))
                try:
                    [written] = await statements.fetch("write_claim", *_claim_values(claim, decided, found["facts"]))
                except asyncpg.PostgresError as exc:
                    if exc.sqlstate == OVER_LIMIT:
                        quota.check(decided.limits, counted_of(exc))
                    raise
                if written["is_written"]:
                    return decided.claimed()
            raise Unavailable("Too many requests change this conversation at once. Try again.")

        return await self._database.run(work)

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
        check_adopt(worker, turn_id)
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
        told = narrate(turn, await self.turn_rows(turn_id))
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


def _asked(claim: Claim) -> dict[str, Any]:
    """What `claim_facts` needs to know of a claim."""
    principal = claim.principal
    org_id, workspace_id, owner = owner_of(principal)
    return {
        "org": org_id,
        "workspace": workspace_id,
        "owner": owner,
        "ref": principal.ref,
        "key": principal.key_id,
        "turn": claim.turn_id,
        "idempotency_key": claim.idempotency_key,
        "agent": claim.new.agent_id if claim.conversation_id is None else None,
        "conversation": claim.conversation_id,
        "beside": claim.beside,
        "files": claim.attachment_ids or None,
    }


def _claim_values(claim: Claim, new: NewTurn, facts: str) -> tuple[Any, ...]:
    """What `write_claim` is given."""
    turn, entry = new.turn, new.entry
    attached = [{"id": each.ref.file_id, "name": each.ref.name, "name_key": each.name_key} for each in new.attachments]
    return (
        turn_record(turn_values(turn) | claims.turn_columns(claim, new)),
        message_record(new.question, claim.principal.org_id),
        json_text(new.began),
        facts,
        json_text(
            {
                "conversation": _new_conversation(claim, turn) if claim.conversation_id is None else None,
                "title": new.title,
                "preview": new.preview,
                "attachments": attached or None,
                "owner": owner_of(claim.principal)[2],
                "cancels": entry.cancels,
                "cancel_error": json_text(queue.CANCELLED),
                "cancel_event": json_text(queue.CANCELLED_EVENT),
                "stops": entry.stops,
                "moves": entry.moves or None,
                "is_branch": new.place is not None and new.place.is_branch,
                "workspace_limit": new.limits.workspace,
                "user_limit": new.limits.user,
                "key_limit": new.limits.key,
            }
        ),
    )


def _new_conversation(claim: Claim, turn: Turn) -> dict[str, Any]:
    new = claim.new
    return {
        "id": turn.conversation_id,
        "org_id": claim.principal.org_id,
        "workspace_id": turn.workspace_id,
        "user_id": turn.user_id,
        "kind": new.kind,
        "agent_id": new.agent_id,
        "model": new.model,
        "workflow_id": new.workflow_id,
        "title": new.title,
        "metadata": json_or_null(new.metadata),
        "created_at": turn.created_at,
        "updated_at": turn.created_at,
    }


def _held(turn: Turn) -> Held:
    return Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=turn.attempt)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _renewal(held: Held, kept: tuple[bool, int] | None) -> Renewal:
    wanted, written = kept or (False, 0)
    return Renewal(turn_id=held.turn_id, is_held=kept is not None, cancel_requested=wanted, files_written=written)
