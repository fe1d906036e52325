"""Turns on PostgreSQL: claimed, recorded, settled, appended and read.

A claim loads facts, lets `store/rules` decide, and writes. Record, settle and append are what is written most: they are
grouped across conversations into one statement and one commit.

What is written most is sent as rows of tables: parameters of the types `turnkeep.turns`, `turnkeep.messages` and so on.
The driver sends such a row as a tuple of all columns, in the order in which the table has them. Only this module knows
that order, and a test compares it with the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import TurnkeepError, Unavailable
from turnkeep.ids import CallId, ConversationId, TurnId, check_id, new_conversation_id, new_message_id, new_outbox_id
from turnkeep.model.conversations import events_from_rows, title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store.checks import check_append, check_claim, check_record, check_service, check_settlement, check_usage
from turnkeep.store.commands import ROW_LIMIT, Appended, Claim, Claimed, Receipt, Settled, Settlement, TurnTrace, Window
from turnkeep.store.postgres.io.database import Database, Groups, Statements, owner_of
from turnkeep.store.postgres.io.errors import OVER_LIMIT, RefusedWrite, counted_of
from turnkeep.store.postgres.leases import promote_next
from turnkeep.store.postgres.outbox import cancelled_entries
from turnkeep.store.rows import (
    event_values,
    json_text,
    message_values,
    to_message,
    to_recorded,
    to_replayed,
    to_turn,
    turn_values,
)
from turnkeep.store.rules.claims import (
    AcceptedClaim,
    AppendFacts,
    ClaimFacts,
    NewIds,
    Repeat,
    call_mark,
    check_appendable,
    check_limits,
    decide,
    turn_columns,
)
from turnkeep.store.rules.conversations import insertion, new_conversation
from turnkeep.store.rules.outbox import NewEntry, ended_turn
from turnkeep.store.rules.turns import CANCELLED, CANCELLED_EVENT, fence_refusal, no_turn
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import LogLine, Recorded, TurnEvent

_CLAIM_TRIES = 100
"""How often another request may change the conversation between the two statements of a claim."""

_claim_facts = msgspec.json.Decoder(ClaimFacts).decode
_append_facts = msgspec.json.Decoder(AppendFacts | None).decode


ALL = 2**31 - 1
"""Larger than any real count."""
_place = itemgetter("ordinal", "turn_sequence")

# fmt: off
TURNS = (
    "id", "org_id", "workspace_id", "conversation_id", "user_id", "key_id", "parent_turn_id", "beside_turn_id",
    "ordinal", "active", "status", "attempt", "failures", "last_seq", "seq_at_adoption", "worker", "lease_until",
    "watched_until", "cancel_requested_at", "background", "principal_ref", "idempotency_key", "request_hash",
    "snapshot", "source", "model", "metadata", "month", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "error", "created_at", "started_at", "settled_at", "files_written", "watched_ms", "cost",
)
MESSAGES = (
    "turn_id", "turn_sequence", "id", "org_id", "conversation_id", "role", "internal", "iteration", "blocks", "display",
    "attachments", "sources", "metadata", "usage", "legacy", "provider", "created_at",
)
EVENTS = ("turn_id", "seq", "org_id", "type", "payload")
LOGS = ("turn_id", "n", "org_id", "after_seq", "level", "message", "ts")
# fmt: on

Record = tuple[Any, ...]


class Entries(Struct, frozen=True):
    """Rows, events and log lines of one turn, as rows of their tables. The database fills in the org."""

    rows: list[Record]
    events: list[Record]
    logs: list[Record]
    size: int


class _Recording(Struct, frozen=True):
    held: Held
    after: int
    entries: Entries

    @property
    def document(self) -> dict[str, Any]:
        """The job as the functions `record` and `settle` know it."""
        return {
            "turn_id": self.held.turn_id,
            "attempt": self.held.attempt,
            "after": self.after,
            "last": self.after + len(self.entries.events),
        }


class _Settling(_Recording, frozen=True):
    settlement: Settlement
    entry: NewEntry

    @property
    def document(self) -> dict[str, Any]:
        settlement = self.settlement
        return {
            **super().document,
            **structs.asdict(settlement.usage),
            "cost": settlement.cost,
            "conversation_id": self.held.conversation_id,
            "status": settlement.status,
            "error": None if settlement.error is None else json_text(settlement.error),
            "has_final": settlement.final is not None,
        }


class _Appending(Struct, frozen=True):
    conversation_id: ConversationId
    owner: str | None
    turn: Record
    title: str | None
    preview: str | None
    visible: int
    rows: list[Record]


class PostgresTurns:
    """The verbs that write turns. Record, settle and append answer only after their commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._records: Groups[_Recording, Receipt] = Groups(self._flush_records)
        self._settlements: Groups[_Settling, Settled] = Groups(self._flush_settlements)
        self._appends: Groups[_Appending, int] = Groups(self._flush_appends)

    async def claim(self, claim: Claim) -> Claimed:
        check_claim(claim)
        ids = NewIds(conversation_id=claim.conversation_id or new_conversation_id(), message_id=new_message_id())

        async def work(statements: Statements, is_repeat: bool) -> Claimed:
            for _ in range(_CLAIM_TRIES):
                [found] = await statements.fetch("claim_facts", json_text(_asked(claim)))
                facts = structs.replace(_claim_facts(found["facts"]), now=found["now"])
                decided = decide(claim, facts, ids, is_repeat=is_repeat)
                if isinstance(decided, Repeat):
                    [row] = await statements.fetch("turn_by_id", decided.turn_id)
                    return decided.claimed(to_turn(row))
                try:
                    [written] = await statements.fetch("write_claim", *_claim_values(claim, decided, found["facts"]))
                except asyncpg.PostgresError as exc:
                    if exc.sqlstate == OVER_LIMIT:
                        check_limits(decided.counters, counted_of(exc))
                    raise
                if written["is_written"]:
                    return decided.claimed()
            raise Unavailable("Too many requests change this conversation at once. Try again.")

        return await self._database.run(work)

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        check_record(held, rows, events, logs)
        entries = entries_of(held.turn_id, after, rows, events, logs)
        return await self._records.submit(held.turn_id, _Recording(held, after, entries), size=entries.size)

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        check_settlement(held, settlement)
        entries = entries_of(held.turn_id, after, settlement.all_rows, settlement.all_events, settlement.logs)
        entry = ended_turn(new_outbox_id(), held.turn_id, settlement.status)
        job = _Settling(held, after, entries, settlement, entry)
        return await self._settlements.submit(held.conversation_id, job, size=entries.size)

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        check_append(conversation_id, turn)
        job = _appending(principal, conversation_id, turn)
        return await self._appends.submit(conversation_id, job, size=size_of(job.rows))

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

    async def finish_writes(self) -> None:
        """Wait for everything that has begun."""
        for groups in (self._records, self._settlements, self._appends):
            await groups.close()

    async def _flush_records(self, jobs: Sequence[_Recording]) -> list[Receipt | TurnkeepError]:
        ordered = sorted(jobs, key=lambda job: job.held.turn_id)
        found = await self._database.write_group("record", *_job_values(ordered))
        answers: dict[TurnId, Receipt | TurnkeepError] = {}
        for job, row in zip(ordered, found, strict=True):
            if row["outcome"] in {"held", "known"}:
                answers[job.held.turn_id] = Receipt(
                    last_seq=row["last_seq"],
                    cancel_requested=row["cancel_requested"],
                    files_written=row["files_written"],
                )
            else:
                answers[job.held.turn_id] = fence_refusal(row["outcome"], job.held, job.after, row["last_seq"])
        return [answers[job.held.turn_id] for job in jobs]

    async def _flush_settlements(self, jobs: Sequence[_Settling]) -> list[Settled | TurnkeepError]:
        ordered = sorted(jobs, key=lambda job: job.held.turn_id)
        found = await self._database.write_group("settle", *_job_values(ordered), _outbox(ordered), False)
        answers: dict[ConversationId, Settled | TurnkeepError] = {}
        for job, (outcome, *columns) in zip(ordered, found, strict=True):
            if outcome == "waiting":
                answers[job.held.conversation_id] = await self._settle_and_promote(job)
            else:
                answers[job.held.conversation_id] = _settled(job, outcome, columns)
        return [answers[job.held.conversation_id] for job in jobs]

    async def _settle_and_promote(self, job: _Settling) -> Settled | TurnkeepError:
        """Settle where another turn waits: in the same transaction the rules decide which one runs next."""

        async def work(statements: Statements) -> Settled | TurnkeepError:
            [(outcome, *columns)] = await statements.fetch("settle", *_job_values([job]), _outbox([job]), True)
            settled = _settled(job, outcome, columns)
            if outcome != "held" or isinstance(settled, TurnkeepError):
                return settled
            return structs.replace(settled, promoted=await promote_next(statements, job.held.conversation_id))

        try:
            return await self._database.transact(work)
        except TurnkeepError as exc:
            return exc

    async def _flush_appends(self, jobs: Sequence[_Appending]) -> list[int | TurnkeepError]:
        ordered = sorted(jobs, key=lambda job: job.conversation_id)
        try:
            [row] = await self._database.write_group(
                "append",
                [job.turn for job in ordered],
                [job.owner for job in ordered],
                [job.title for job in ordered],
                [job.preview for job in ordered],
                [job.visible for job in ordered],
                [row for job in ordered for row in job.rows],
            )
        except RefusedWrite as exc:
            if len(jobs) > 1:
                raise  # each is sent again alone
            facts = check_appendable(_append_facts(exc.facts), jobs[0].conversation_id)
            if facts.known_ordinal is None:
                raise
            return [facts.known_ordinal]
        ordinals = dict(zip([job.conversation_id for job in ordered], row["ordinals"], strict=True))
        return [ordinals[job.conversation_id] for job in jobs]


def _job_values(jobs: Sequence[_Recording]) -> tuple[str, list[Record], list[Record], list[Record]]:
    """What `record` and `settle` are given."""
    return json_text([job.document for job in jobs]), *all_entries(job.entries for job in jobs)


def _outbox(jobs: Sequence[_Settling]) -> str:
    return json_text([job.entry for job in jobs])


def _settled(job: _Settling, outcome: Any, columns: Sequence[Any]) -> Settled | TurnkeepError:
    if outcome in {"held", "known"}:
        return Settled(turn=to_turn(columns), promoted=None)
    last_seq = None if outcome == "lost" else to_turn(columns).last_seq
    return fence_refusal(outcome, job.held, job.after, last_seq)


def _appending(principal: Principal, conversation_id: ConversationId, turn: Appended) -> _Appending:
    org_id, workspace_id, owner = owner_of(principal)
    title, preview = title_and_preview(turn.asked)
    columns = {
        "id": turn.turn_id,
        "org_id": org_id,
        "workspace_id": workspace_id,
        "conversation_id": conversation_id,
        "user_id": principal.user_id,
        "key_id": principal.key_id,
        "active": True,
        "status": "succeeded",
        "attempt": 1,
        "failures": 0,
        "last_seq": 0,
        "seq_at_adoption": 0,
        "background": False,
        "principal_ref": principal.ref,
        "source": turn.source,
        "model": turn.model,
        "month": month_of(turn.started_at),
        **structs.asdict(turn.usage),
        "created_at": turn.started_at,
        "started_at": turn.started_at,
        "settled_at": turn.settled_at,
        "files_written": 0,
        "watched_ms": 0,
    }
    return _Appending(
        conversation_id,
        owner,
        turn_record(columns),
        title,
        preview,
        sum(not row.internal for row in turn.rows),
        [message_record(row, org_id, (turn.turn_id, conversation_id)) for row in turn.rows],
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
        "user": principal.user_id,
        "keys": principal.counted_keys,
        "turn": claim.turn_id,
        "idempotency_key": claim.idempotency_key,
        "agent": claim.new.agent_id if claim.conversation_id is None else None,
        "conversation": claim.conversation_id,
        "beside": claim.beside,
        "files": claim.attachment_ids or None,
    }


def _claim_values(claim: Claim, new: AcceptedClaim, facts: str) -> tuple[Any, ...]:
    """What `write_claim` is given."""
    turn, entry = new.turn, new.entry
    attached = [{"id": each.ref.file_id, "name": each.ref.name, "name_key": each.name_key} for each in new.attachments]
    return (
        turn_record(turn_values(turn) | turn_columns(claim, new)),
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
                "cancel_error": json_text(CANCELLED),
                "cancel_event": json_text(CANCELLED_EVENT),
                "cancel_outbox": None if entry.cancels is None else cancelled_entries([entry.cancels]),
                "stops": entry.stops,
                "moves": entry.moves or None,
                "is_branch": new.position is not None and new.position.is_branch,
                "counters": new.counters,
            }
        ),
    )


def _new_conversation(claim: Claim, turn: Turn) -> dict[str, Any]:
    conversation = new_conversation(claim.principal, claim.new, turn.conversation_id, turn.created_at)
    return insertion(conversation, claim.principal.org_id)


def turn_record(columns: Mapping[str, Any]) -> Record:
    """A row of `turns`. A column that is not given becomes NULL."""
    return tuple([columns.get(name) for name in TURNS])


def message_record(
    message: Message, org_id: str | None = None, place: tuple[TurnId, ConversationId] | None = None
) -> Record:
    """A row of `messages`, under the turn and the conversation that it names, or else at this `place`."""
    turn_id, sequence, id_, conversation_id, *rest = message_values(message)
    if place is not None:
        turn_id, conversation_id = place
    return (turn_id, sequence, id_, org_id, conversation_id, *rest)


def entries_of(
    turn_id: TurnId, after: int, rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]
) -> Entries:
    """The events get the numbers after `after`; log lines are numbered from 1, and placed behind those there are."""
    records = [message_record(row) for row in rows]
    told = [(turn_id, seq, None, *event_values(event)) for seq, event in enumerate(events, start=after + 1)]
    lines = [
        (turn_id, n, None, line.after_seq, line.level, line.message, line.ts) for n, line in enumerate(logs, start=1)
    ]
    return Entries(records, told, lines, size_of(records) + size_of(told))


def all_entries(entries: Iterable[Entries]) -> tuple[list[Record], list[Record], list[Record]]:
    """The rows, the events and the log lines of several turns."""
    those = list(entries)
    return (
        [row for each in those for row in each.rows],
        [event for each in those for event in each.events],
        [line for each in those for line in each.logs],
    )


def size_of(records: Iterable[Record]) -> int:
    """How many characters of text these records hold."""
    return sum(len(value) for record in records for value in record if isinstance(value, str))
