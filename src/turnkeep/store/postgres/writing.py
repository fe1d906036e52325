"""Record, settle and append: what is written most, grouped across conversations into one statement and one commit."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from turnkeep.clock import month_of
from turnkeep.errors import Defect, InvalidRequest, TurnkeepError
from turnkeep.ids import ConversationId
from turnkeep.model.conversations import title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held
from turnkeep.store.checks import check_append, check_record, check_settlement
from turnkeep.store.commands import Appended, Receipt, Settled, Settlement
from turnkeep.store.postgres.io.database import Database, owner_of
from turnkeep.store.postgres.io.errors import AlreadyThere
from turnkeep.store.postgres.io.group_commit import Groups
from turnkeep.store.rows import event_values, json_text, message_values, to_turn
from turnkeep.store.rules import fence
from turnkeep_client.wire.events import LogLine, TurnEvent
from turnkeep_client.wire.usage import Usage

SEPARATOR = "\x1f"
_ROW_FIELDS = 14


class Entries(Struct, frozen=True):
    """Rows, events and log lines of one turn, as `functions/31_append.sql` says, but for the number of their job."""

    rows: list[str]
    events: list[str]
    logs: tuple[LogLine, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.rows)) + sum(map(len, self.events))


class _Recording(Struct, frozen=True):
    held: Held
    after: int
    entries: Entries


class _Settling(Struct, frozen=True):
    held: Held
    after: int
    settlement: Settlement
    entries: Entries


class _Appending(Struct, frozen=True):
    """A turn as the function `append_one` takes it, but for its rows."""

    values: tuple[str | int | None, ...]
    rows: list[str]

    @property
    def conversation_id(self) -> str:
        return str(self.values[5])


class GroupedWrites:
    """The three grouped verbs. Each answers only after its commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._records: Groups[_Recording, Receipt] = Groups(self._flush_records)
        self._settlements: Groups[_Settling, Settled] = Groups(self._flush_settlements)
        self._appends: Groups[_Appending, int] = Groups(self._flush_appends)

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
        entries = entries_of(rows, events, logs)
        return await self._records.submit(held.turn_id, _Recording(held, after, entries), size=entries.size)

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        check_settlement(held, settlement)
        entries = entries_of(settlement.all_rows, settlement.all_events, settlement.logs)
        job = _Settling(held, after, settlement, entries)
        return await self._settlements.submit(held.conversation_id, job, size=entries.size)

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        check_append(conversation_id, turn)
        job = _appending(principal, conversation_id, turn)
        return await self._appends.submit(conversation_id, job, size=sum(map(len, job.rows)))

    async def finish_writes(self) -> None:
        """Wait for everything that has begun."""
        for groups in (self._records, self._settlements, self._appends):
            await groups.close()

    async def _flush_records(self, jobs: Sequence[_Recording]) -> list[Receipt | TurnkeepError]:
        order = sorted(range(len(jobs)), key=lambda n: jobs[n].held.turn_id)
        ordered = [jobs[n] for n in order]
        found = await self._database.write_group(
            "record",
            [job.held.turn_id for job in ordered],
            [job.held.attempt for job in ordered],
            [job.after for job in ordered],
            *packed([job.entries for job in ordered]),
        )
        answers: list[Receipt | TurnkeepError] = [Defect("unanswered")] * len(jobs)
        for n, job, (outcome, last_seq, cancel_requested, files_written) in zip(order, ordered, found, strict=True):
            if outcome in {"held", "known"}:
                answers[n] = Receipt(last_seq=last_seq, cancel_requested=cancel_requested, files_written=files_written)
            else:
                answers[n] = fence.refusal(outcome, job.held, job.after, last_seq)
        return answers

    async def _flush_settlements(self, jobs: Sequence[_Settling]) -> list[Settled | TurnkeepError]:
        order = sorted(range(len(jobs)), key=lambda n: jobs[n].held.conversation_id)
        ordered = [jobs[n] for n in order]
        by_turn = sorted(range(len(ordered)), key=lambda n: ordered[n].held.turn_id)
        settlements = [job.settlement for job in ordered]
        found = await self._database.write_group(
            "settle",
            [job.held.turn_id for job in ordered],
            [job.held.attempt for job in ordered],
            [job.after for job in ordered],
            [job.held.conversation_id for job in ordered],
            [n + 1 for n in by_turn],
            [each.status for each in settlements],
            [None if each.error is None else json_text(each.error) for each in settlements],
            _tokens(each.usage for each in settlements),
            [each.final is not None for each in settlements],
            *packed([job.entries for job in ordered]),
        )
        answers: list[Settled | TurnkeepError] = [Defect("unanswered")] * len(jobs)
        for number, outcome, promoted, *turn in found:
            job = ordered[number - 1]
            if outcome in {"held", "known"}:
                answers[order[number - 1]] = Settled(turn=to_turn(turn), promoted=promoted)
            else:
                answers[order[number - 1]] = fence.refusal(outcome, job.held, job.after, turn[10])
        return answers

    async def _flush_appends(self, jobs: Sequence[_Appending]) -> list[int | TurnkeepError]:
        order = sorted(range(len(jobs)), key=lambda n: jobs[n].conversation_id)
        try:
            if len(jobs) == 1:
                found = await self._database.write_group("append_one", *jobs[0].values, _joined([jobs[0].rows]))
            else:
                ordered = [jobs[n] for n in order]
                heads = SEPARATOR.join([_field(value) for job in ordered for value in job.values])
                _check_separators(heads, len(ordered) * len(ordered[0].values))
                found = await self._database.write_group("append", heads, _joined([job.rows for job in ordered]))
        except AlreadyThere as exc:
            if len(jobs) > 1:
                raise
            return [exc.ordinal]
        ordinals = dict(zip(order, found[0][0], strict=True))
        return [ordinals[n] for n in range(len(jobs))]


def entries_of(rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]) -> Entries:
    return Entries([_row(row) for row in rows], [SEPARATOR.join(event_values(event)) for event in events], tuple(logs))


def packed(entries: Sequence[Entries]) -> tuple[str, str, list[str], list[int | None]]:
    """What `record`, `settle` and import share: rows, events, and log lines."""
    return (
        _joined([each.rows for each in entries]),
        _joined([each.events for each in entries]),
        [text for each in entries for line in each.logs for text in (line.level, line.message)],
        [n for job, each in enumerate(entries, start=1) for line in each.logs for n in (job, line.after_seq, line.ts)],
    )


def _joined(groups: Sequence[Sequence[str]]) -> str:
    """The records of all jobs, each behind the number of its job."""
    return SEPARATOR.join(
        [f"{job}{SEPARATOR}{record}" for job, group in enumerate(groups, start=1) for record in group]
    )


def _row(message: Message) -> str:
    """A row without the ids of its turn and conversation: those are the turn's, whatever the row says."""
    _, sequence, id_, _, role, internal, iteration, *rest, created_at = message_values(message)
    numbers = f"{sequence}{SEPARATOR}{int(internal)}{SEPARATOR}{'' if iteration is None else iteration}"
    row = SEPARATOR.join((numbers, str(created_at), id_, role, *[value or "" for value in rest]))
    _check_separators(row, _ROW_FIELDS)
    return row


def _field(value: str | int | None) -> str:
    return "" if value is None else str(value)


def _check_separators(text: str, fields: int) -> None:
    if text.count(SEPARATOR) != fields - 1:
        raise InvalidRequest("A name holds the control character U+001F, which separates values here. Remove it.")


def _appending(principal: Principal, conversation_id: ConversationId, turn: Appended) -> _Appending:
    org_id, workspace_id, owner = owner_of(principal)
    values = (
        org_id,
        workspace_id,
        principal.user_id,
        owner,
        principal.key_id,
        conversation_id,
        turn.turn_id,
        turn.source,
        turn.model,
        month_of(turn.started_at),
        *title_and_preview(turn.asked),
        turn.started_at,
        turn.settled_at,
        *_tokens((turn.usage,)),
        sum(not row.internal for row in turn.rows),
    )
    return _Appending(values, [_row(row) for row in turn.rows])


def _tokens(usages: Iterable[Usage]) -> list[int]:
    """Four numbers for each, one after the other."""
    return [
        number
        for usage in usages
        for number in (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
    ]
