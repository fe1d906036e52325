"""Turns on PostgreSQL: claimed, recorded, settled, appended and read.

A claim loads facts, lets `store/rules` decide, and writes. Claim, record, settle and append are what is written most.
They are grouped across conversations into one statement and one commit.

What is written most is sent as rows: parameters of types such as `turn_row` and `message_row`, beside a job for each
turn (`settle_job` and others; `functions/15_types.sql`). The driver sends such a row as a tuple of all its columns, in
the order that `rows.py` has too. A test compares both.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import Defect, TurnkeepError, Unavailable, WorldError
from turnkeep.ids import (
    CallId,
    ConversationId,
    TurnId,
    check_id,
    first_turn_id,
    new_conversation_id,
    new_message_id,
    new_outbox_id,
)
from turnkeep.model.conversations import events_from_rows, title_and_preview
from turnkeep.model.messages import Message, Order
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store.checks import (
    check_append,
    check_claim,
    check_limit,
    check_record,
    check_service,
    check_settlement,
    check_usage,
)
from turnkeep.store.commands import ROW_LIMIT, Appended, Claim, Claimed, Receipt, Settled, Settlement, TurnTrace, Window
from turnkeep.store.postgres.io.database import Answer, Database, Groups, Statements, owner_of
from turnkeep.store.postgres.io.errors import OVER_LIMIT, USER_GONE, RefusedWrite
from turnkeep.store.postgres.io.partitions import make_partitions, partitions_of
from turnkeep.store.postgres.leases import promote_next
from turnkeep.store.postgres.outbox import cancelled_entries
from turnkeep.store.rows import (
    TURN_ROW_COLUMNS,
    compacted,
    event_values,
    json_or_null,
    json_text,
    message_values,
    report_text,
    settled_rows,
    to_message,
    to_packed,
    to_recorded,
    to_turn,
    to_window,
    turn_values,
)
from turnkeep.store.rules.claims import (
    AcceptedClaim,
    AppendFacts,
    ClaimFacts,
    Counted,
    NewIds,
    Repeat,
    call_mark,
    check_appendable,
    check_limits,
    conversation_columns,
    decide,
    turn_columns,
    user_gone,
)
from turnkeep.store.rules.outbox import NewEntry, told_turn
from turnkeep.store.rules.turns import CANCELLED, CANCELLED_EVENT, fence_refusal, no_turn
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import LogLine, Recorded, TurnEvent

_CLAIM_TRIES = 100
"""How often another request may change the conversation between the two statements of a claim."""

_claim_facts = msgspec.json.Decoder(ClaimFacts).decode
_counted = msgspec.json.Decoder(Counted).decode
REFUSALS = frozenset({OVER_LIMIT, USER_GONE})
"""The database refuses one claim of a group. The rules say why."""
_append_facts = msgspec.json.Decoder(AppendFacts | None).decode


ALL = 2**31 - 1
"""Larger than any real count."""
ALL_TIMES = 2**62
"""Later than any real time."""
_place = itemgetter("ordinal", "turn_sequence")

TURN_ROW = tuple(TURN_ROW_COLUMNS.split(", "))

Record = tuple[Any, ...]


class Entries(Struct, frozen=True):
    """Rows, events and log lines of one turn, as rows of their tables. The database fills in the org."""

    rows: list[Record]
    events: list[Record]
    logs: list[Record]
    size: int


class _Claiming(Struct, frozen=True):
    claim: Claim
    ids: NewIds


class _DecidedClaim(Struct, frozen=True):
    """A claim that was accepted on these facts, a JSON document. The properties are rows of tables."""

    claim: Claim
    new: AcceptedClaim
    facts: str

    @property
    def is_new(self) -> bool:
        """Whether the claim makes its conversation."""
        return self.claim.conversation_id is None

    @property
    def record(self) -> Record:
        """The job as the database knows it, a `claim_job`."""
        facts = None if self.is_new else self.facts
        return self.new.turn.conversation_id, self.is_new, facts, self.new.title, self.new.preview

    @property
    def turn(self) -> Record:
        return turn_record(turn_values(self.new.turn) | turn_columns(self.claim, self.new))

    @property
    def question(self) -> Record:
        return message_record(self.new.question, self.claim.principal.org_id)

    @property
    def began(self) -> Record:
        return (self.new.turn.id, 1, self.claim.principal.org_id, *event_values(self.new.began))

    @property
    def counters(self) -> list[Record]:
        """What the message is counted for, each a `message_counter`."""
        turn, org_id = self.new.turn, self.claim.principal.org_id
        return [
            (turn.conversation_id, org_id, each.scope, each.scope_id, turn.month, turn.source, each.limit, each.turns)
            for each in self.new.counters
        ]

    @property
    def conversation(self) -> dict[str, Any]:
        """The conversation that is made."""
        return conversation_columns(self.claim, self.new)


class _Recording(Struct, frozen=True):
    held: Held
    after: int
    entries: Entries

    @property
    def last(self) -> int:
        """The number of the last event that is written."""
        return self.after + len(self.entries.events)

    @property
    def record(self) -> Record:
        """The job as the database knows it, a `record_job`."""
        return self.held.turn_id, self.held.attempt, self.after, self.last


class _Settling(_Recording, frozen=True):
    settlement: Settlement
    entry: NewEntry

    @property
    def record(self) -> Record:
        """A `turnkeep.settle_job`."""
        settlement, usage = self.settlement, self.settlement.usage
        return (
            self.held.turn_id,
            self.held.attempt,
            self.after,
            self.last,
            self.held.conversation_id,
            settlement.status,
            None if settlement.error is None else json_text(settlement.error),
            settlement.final is not None,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            self.entry.id,
            self.entry.type,
            settlement.cost,
            report_text(settlement.report),
        )


class _Appending(Struct, frozen=True):
    """`record` is a `append_job`."""

    conversation_id: ConversationId
    record: Record
    rows: list[Record]


class PostgresTurns:
    """The verbs that write turns. They answer only after their commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claims: Groups[_Claiming, Claimed] = Groups(self._flush_claims)
        self._records: Groups[_Recording, Receipt] = Groups(self._flush_records)
        self._settlements: Groups[_Settling, Settled] = Groups(self._flush_settlements)
        self._appends: Groups[_Appending, int] = Groups(self._flush_appends)

    async def claim(self, claim: Claim) -> Claimed:
        size = check_claim(claim)
        ids = NewIds(conversation_id=claim.conversation_id or new_conversation_id(), message_id=new_message_id())
        job = _Claiming(claim, ids)
        if claim.beside is not None or claim.steers is not None or claim.attachment_ids or claim.if_busy == "interrupt":
            return await self._claim_alone(job)
        return await self._claims.submit(ids.conversation_id, job, size=size)

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
        entry = told_turn(new_outbox_id(), held.turn_id, settlement.status)
        job = _Settling(held, after, entries, settlement, entry)
        return await self._settlements.submit(held.conversation_id, job, size=entries.size)

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        check_append(conversation_id, turn)
        job = appending(principal, conversation_id, turn)
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

    async def open_call(self, turn_id: TurnId, attempt: int, *, call_id: CallId) -> None:
        await self._database.write("open_call", check_id(turn_id, "turn"), attempt, call_mark(turn_id, call_id))

    async def has_open_calls(self, turn_id: TurnId, attempt: int) -> bool:
        [(is_open,)] = await self._database.read("has_open_calls", check_id(turn_id, "turn"), attempt)
        return bool(is_open)

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
        packed = await self._database.read("old_events", turn_id)
        told = to_packed(*packed[0]) if packed else events_from_rows(turn, await self.turn_rows(turn_id))
        return [Recorded(seq=n, event=event) for n, event in enumerate(told, start=1) if n > after][:limit]

    async def compact(self, *, settled_before: int, limit: int = 200) -> bool:
        [(up_to,)] = await self._database.read("compacted_up_to")
        found = [to_turn(row) for row in await self._database.read("turns_to_compact", up_to, limit)]
        turns = [turn for turn in found if turn.created_at < settled_before]
        if not turns:
            return False
        old = {turn.id: turn for turn in turns if turn.last_seq and (turn.settled_at or ALL_TIMES) < settled_before}
        payloads: dict[str, list[str]] = {turn_id: [] for turn_id in old}
        rows: dict[str, list[Message]] = {turn_id: [] for turn_id in old}
        for turn_id, payload in await self._database.read("events_of_turns", list(old)):
            payloads[turn_id].append(payload)
        for row in await self._database.read("rows_of_turns", list(old)):
            rows[row["turn_id"]].append(to_message(row))
        done = [compacted(turn, rows[turn_id], payloads[turn_id]) for turn_id, turn in old.items()]
        shortened = [(each.turn_id, each.sequence) for each in done if each.sequence is not None]
        await self._database.write(
            "compact_turns",
            turns[-1].id,
            [each.turn_id for each in done if each.drops_events],
            [turn_id for turn_id, _ in shortened],
            [sequence for _, sequence in shortened],
        )
        return len(turns) == limit

    async def make_partitions(self, *, now: int, months: int = 1) -> None:
        await self._database.run(lambda statements, _: make_partitions(statements.fetch, now, months=months))

    async def drop_partitions(self, *, ended_before: int, limit: int = 200) -> bool:
        last = first_turn_id(ended_before)
        old = [each for each in await partitions_of(self._database.read) if each.end is not None and each.end <= last]
        for each in old:
            if each.table == "turn_events":
                found = await self._database.read("turns_to_pack", each.first or "", each.end, limit)
                if found:
                    await self._database.write("pack_events", [turn_id for (turn_id,) in found])
                    return True
        for each in old:
            await self._database.write("drop_partition", each.table, each.name)
        return False

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        return dict(await self._database.read("last_seqs", turn_ids)) if turn_ids else {}

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        check_id(turn_id, "turn")
        return [to_message(row) for row in await self._database.read("turn_rows", turn_id)]

    async def window(
        self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT, before: int | None = None
    ) -> Window:
        check_id(conversation_id, "conv")
        rows = await self._database.read(
            "window", conversation_id, turns, row_limit + 1, ALL if before is None else before
        )
        rows.sort(key=_place)
        return to_window(conversation_id, rows, turns=turns, row_limit=row_limit)

    async def chain(
        self, conversation_id: ConversationId, *, order: Order = "asc", past: int | None = None, limit: int = 20
    ) -> list[Turn]:
        check_id(conversation_id, "conv")
        check_limit(limit)
        name, start = ("chain_forward", 0) if order == "asc" else ("chain_backward", ALL)
        found = await self._database.read(name, conversation_id, start if past is None else past, limit)
        return [to_turn(row) for row in found]

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
        for groups in (self._claims, self._records, self._settlements, self._appends):
            await groups.close()

    async def _flush_claims(self, jobs: Sequence[_Claiming]) -> list[Claimed | TurnkeepError]:
        """Claims that only add. Those whose conversation has changed meanwhile are decided again."""
        answers: dict[int, Claimed | TurnkeepError] = {}

        async def work(statements: Statements, is_repeat: bool) -> None:
            for _ in range(_CLAIM_TRIES):
                waiting = {place: job for place, job in enumerate(jobs) if place not in answers}
                if not waiting:
                    return
                accepted: dict[int, _DecidedClaim] = {}
                for place, decided in (await _decided(statements, _distinct(waiting), is_repeat=is_repeat)).items():
                    if isinstance(decided, _DecidedClaim):
                        accepted[place] = decided
                    else:
                        answers[place] = decided
                if accepted:
                    await _write_claims(statements, accepted, answers)
            raise _too_many_changes()

        try:
            await self._database.run_group(work)
        except WorldError as exc:
            return [answers.get(place, exc) for place in range(len(jobs))]
        except Exception:
            if not answers:
                raise  # each of them is then made alone
            for place, job in enumerate(jobs):
                if place not in answers:
                    answers[place] = await self._claim_apart(job)
        return [answers[place] for place in range(len(jobs))]

    async def _claim_apart(self, job: _Claiming) -> Claimed | TurnkeepError:
        """A claim whose group failed after others of it were written."""
        try:
            [answer] = await self._flush_claims([job])
        except TurnkeepError as exc:
            return exc
        return answer

    async def _claim_alone(self, job: _Claiming) -> Claimed:
        """A claim that changes more than it adds."""

        async def work(statements: Statements, is_repeat: bool) -> Claimed:
            for _ in range(_CLAIM_TRIES):
                [decided] = (await _decided(statements, {0: job}, is_repeat=is_repeat)).values()
                if isinstance(decided, TurnkeepError):
                    raise decided
                if isinstance(decided, Claimed):
                    return decided
                try:
                    [written] = await statements.fetch(
                        "write_claim",
                        decided.record,
                        decided.turn,
                        decided.question,
                        decided.began,
                        decided.counters,
                        json_text([decided.conversation]) if decided.is_new else None,
                        decided.facts,
                        json_text(_more_of(decided)),
                    )
                except asyncpg.PostgresError as exc:
                    if exc.sqlstate in REFUSALS:
                        raise _refusal(decided, exc) from exc
                    raise
                if written["is_written"]:
                    return decided.new.claimed()
            raise _too_many_changes()

        return await self._database.run(work)

    async def _flush_records(self, jobs: Sequence[_Recording]) -> list[Receipt | TurnkeepError]:
        found = await self._database.write_group("record", *_job_values(jobs))
        rows = {row["turn_id"]: row for row in found}
        return [await _own_answer(self._recorded(job, rows.get(job.held.turn_id))) for job in jobs]

    async def _recorded(self, job: _Recording, row: Any) -> Receipt | TurnkeepError:
        """What the holder is told. A write that comes too late may be a repeat whose first answer was lost."""
        if row is None:
            return fence_refusal("lost", job.held, job.after, None)
        _, outcome, last_seq, cancel_requested, files_written, steers = row
        if outcome in {"held", "known"} or (outcome == "ahead" and await self._has_events(job, job.after)):
            return Receipt(
                last_seq=last_seq, cancel_requested=cancel_requested, files_written=files_written, steers=steers
            )
        return fence_refusal(outcome, job.held, job.after, last_seq)

    async def _flush_settlements(self, jobs: Sequence[_Settling]) -> list[Settled | TurnkeepError]:
        found = await self._database.write_group("settle", *_job_values(jobs), False)
        rows = {row["turn_id"]: row for row in found}
        return [await _own_answer(self._settled(job, rows.get(job.held.turn_id))) for job in jobs]

    async def _settled(self, job: _Settling, row: Any) -> Settled | TurnkeepError:
        if row is None:
            return fence_refusal("lost", job.held, job.after, None)
        _, outcome, last_seq, *columns = row
        if outcome == "held":
            return Settled(turn=to_turn(columns), promoted=None)
        if outcome == "waiting":
            return await self._settle_and_promote(job)
        if outcome == "settled" and last_seq == job.last and await self._has_events(job, job.last - 1):
            return Settled(turn=await self.claimed_turn(job.held.turn_id), promoted=None)
        return fence_refusal(outcome, job.held, job.after, last_seq)

    async def _settle_and_promote(self, job: _Settling) -> Settled | TurnkeepError:
        """Settle where another turn waits: in the same transaction the rules decide which one runs next."""

        async def work(statements: Statements) -> tuple[Any, TurnId | None]:
            [row] = await statements.fetch("settle", *_job_values([job]), True) or [None]
            is_settled = row is not None and row["outcome"] == "held"
            return row, await promote_next(statements, job.held.conversation_id) if is_settled else None

        row, promoted = await self._database.transact(work)
        settled = await self._settled(job, row)
        return settled if isinstance(settled, TurnkeepError) else structs.replace(settled, promoted=promoted)

    async def _has_events(self, job: _Recording, after: int) -> bool:
        """Whether the events of this job behind `after` are stored. Events never change, so no lock is needed."""
        if not job.entries.events:
            return False
        [(has_events,)] = await self._database.read("has_events", job.held.turn_id, after, job.entries.events)
        return bool(has_events)

    async def _flush_appends(self, jobs: Sequence[_Appending]) -> list[int | TurnkeepError]:
        ordered = sorted(jobs, key=lambda job: job.conversation_id)
        try:
            [row] = await self._database.write_group(
                "append",
                [job.record for job in ordered],
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


async def record_locked(statements: Statements, held: Held, after: int, entries: Entries) -> None:
    """Record under the fence, in the transaction of another verb that has locked the turn."""
    job = (held.turn_id, held.attempt, after, after + len(entries.events))
    [row] = await statements.fetch("record", [job], entries.rows, entries.events, entries.logs)
    if row["outcome"] != "held":
        raise fence_refusal(row["outcome"], held, after, row["last_seq"])


async def _own_answer(answer: Awaitable[Answer | TurnkeepError]) -> Answer | TurnkeepError:
    """The answer of one job. An error is its own: the others of its group are written."""
    try:
        return await answer
    except TurnkeepError as exc:
        return exc


def _job_values(jobs: Sequence[_Recording]) -> tuple[list[Record], list[Record], list[Record], list[Record]]:
    """What `record` and `settle` are given, in the order of the turn ids."""
    ordered = sorted(jobs, key=lambda job: job.held.turn_id)
    return [job.record for job in ordered], *all_entries(job.entries for job in ordered)


def appending(principal: Principal, conversation_id: ConversationId, turn: Appended) -> _Appending:
    org_id, workspace_id, owner = owner_of(principal)
    title, preview = title_and_preview(turn.asked)
    usage, visible = turn.usage, sum(not row.internal for row in turn.rows)
    return _Appending(
        conversation_id,
        (
            *(turn.turn_id, org_id, workspace_id, conversation_id, principal.user_id, principal.key_id, owner),
            *(title, preview, visible, principal.ref, turn.source, turn.model, month_of(turn.started_at)),
            *(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens),
            *(turn.started_at, turn.settled_at),
        ),
        [message_record(row, org_id, (turn.turn_id, conversation_id)) for row in turn.rows],
    )


async def _decided(
    statements: Statements, jobs: Mapping[int, _Claiming], *, is_repeat: bool
) -> dict[int, _DecidedClaim | Claimed | TurnkeepError]:
    """What becomes of each claim: it is accepted, has made its turn already, or is refused."""
    found = await statements.fetch("claim_facts", [json_text(_asked(job.claim)) for job in jobs.values()])
    decisions: dict[int, _DecidedClaim | Claimed | TurnkeepError] = {}
    for (place, job), (now, document) in zip(jobs.items(), found, strict=True):
        facts = structs.replace(_claim_facts(document), now=now)
        try:
            decided = decide(job.claim, facts, job.ids, is_repeat=is_repeat)
        except TurnkeepError as exc:
            decisions[place] = exc
            continue
        if isinstance(decided, Repeat):
            [row] = await statements.fetch("turn_by_id", decided.turn_id)
            decisions[place] = decided.claimed(to_turn(row))
        else:
            decisions[place] = _DecidedClaim(job.claim, decided, document)
    return decisions


def _distinct(jobs: Mapping[int, _Claiming]) -> dict[int, _Claiming]:
    """Of claims with the same turn id, idempotency key or external id the first. The others are decided once it is
    written."""
    found: dict[int, _Claiming] = {}
    seen: set[object] = set()
    for place, job in jobs.items():
        claim = job.claim
        marks: set[object] = {claim.turn_id}
        if claim.idempotency_key is not None:
            marks.add((claim.principal.org_id, claim.principal.ref, claim.idempotency_key))
        if claim.conversation_id is None and claim.new.external_id is not None:
            marks.add((claim.principal.workspace_id, claim.principal.user_id, claim.new.external_id, "external id"))
        if not marks & seen:
            found[place] = job
        seen |= marks
    return found


async def _write_claims(
    statements: Statements, accepted: Mapping[int, _DecidedClaim], answers: dict[int, Claimed | TurnkeepError]
) -> None:
    """Add what became of these claims to the answers. Those whose conversation has changed meanwhile get none.

    One that is over a limit, or whose user is gone, undoes its group. The group is then halved until that one is alone.
    """
    ordered = sorted(accepted.values(), key=lambda each: each.new.turn.conversation_id)
    try:
        [row] = await statements.fetch(
            "write_claims",
            [each.record for each in ordered],
            [each.turn for each in ordered],
            [each.question for each in ordered],
            [each.began for each in ordered],
            [counter for each in ordered for counter in each.counters],
            json_or_null([each.conversation for each in ordered if each.is_new]),
        )
    except asyncpg.PostgresError as exc:
        if exc.sqlstate not in REFUSALS:
            raise
        if len(accepted) == 1:
            answers |= {place: _refusal(decided, exc) for place, decided in accepted.items()}
            return
        claims = list(accepted.items())
        for half in (claims[: len(claims) // 2], claims[len(claims) // 2 :]):
            await _write_claims(statements, dict(half), answers)
        return
    left_out = set(row["left_out"])
    answers |= {
        place: decided.new.claimed()
        for place, decided in accepted.items()
        if decided.new.turn.conversation_id not in left_out
    }


def _refusal(decided: _DecidedClaim, exc: asyncpg.PostgresError) -> TurnkeepError:
    if exc.sqlstate == USER_GONE:
        return user_gone()
    try:
        check_limits(decided.new.counters, _counted(exc.detail or "{}"), decided.new.turn.created_at)
    except TurnkeepError as refusal:
        return refusal
    return Defect("The database counts more messages than a limit allows, and the rules do not.")


def _too_many_changes() -> Unavailable:
    return Unavailable("Too many requests change this conversation at once. Try again.")


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
        "external_id": claim.new.external_id if claim.conversation_id is None else None,
    }


def _more_of(decided: _DecidedClaim) -> dict[str, Any]:
    """What a claim changes beside what it adds."""
    new, entry = decided.new, decided.new.entry
    attached = [{"id": each.ref.file_id, "name": each.ref.name, "name_key": each.name_key} for each in new.attachments]
    return {
        "attachments": attached or None,
        "owner": owner_of(decided.claim.principal)[2],
        "cancels": entry.cancels or None,
        "cancel_error": json_text(CANCELLED),
        "cancel_event": json_text(CANCELLED_EVENT),
        "cancel_outbox": cancelled_entries(entry.cancels) if entry.cancels else None,
        "stops": entry.stops,
        "moves": entry.moves or None,
        "is_branch": new.position is not None and new.position.is_branch,
        "steers": entry.steers,
    }


def turn_record(columns: Mapping[str, Any]) -> Record:
    """A row of `turns`. A column that is not given becomes NULL."""
    return tuple([columns.get(name) for name in TURN_ROW])


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
    rows = settled_rows(rows)
    records = [message_record(row) for row in rows]
    told = [(turn_id, seq, None, *event_values(event, rows=rows)) for seq, event in enumerate(events, start=after + 1)]
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
