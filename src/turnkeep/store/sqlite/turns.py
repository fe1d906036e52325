"""Turns on SQLite: claimed, recorded, settled, appended and read.

Each verb checks its input and runs as one job on the writer's thread: it loads facts, lets `store/rules` decide, and
writes. What a holder writes is turned into columns by the caller's thread (`Entries`), so that the writer's thread has
little to do but write.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.ids import CallId, ConversationId, FileId, TurnId, check_id, new_conversation_id, new_message_id
from turnkeep.model.conversations import events_from_rows, title_and_preview
from turnkeep.model.messages import Message, Order
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.store import checks
from turnkeep.store.checks import check_service
from turnkeep.store.commands import (
    ROW_LIMIT,
    Adopted,
    Appended,
    Backlog,
    Claim,
    Claimed,
    DueWork,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    TurnTrace,
    Window,
)
from turnkeep.store.rows import (
    compacted,
    event_values,
    json_text,
    message_values,
    report_text,
    settled_rows,
    to_message,
    to_recorded,
    to_turn,
    to_window,
    turn_values,
)
from turnkeep.store.rules.claims import (
    AcceptedClaim,
    AppendFacts,
    Attachable,
    Attachment,
    ClaimFacts,
    Counted,
    NewIds,
    Repeat,
    attach,
    call_mark,
    check_appendable,
    check_limits,
    conversation_columns,
    counted_scopes,
    decide,
    joined_files,
    turn_columns,
)
from turnkeep.store.rules.turns import TurnState, fence_refusal, no_turn, stand_of, with_notes
from turnkeep.store.sqlite import leases
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session, owner_of
from turnkeep.store.sqlite.leases import (
    cancel_waiting,
    claim_facts,
    insert_events,
    one_message,
    own_turn,
    promote_next,
    scopes_of,
    show_chain,
)
from turnkeep.store.sqlite.outbox import write_outbox
from turnkeep_client.wire.blocks import JsonObject, Usage
from turnkeep_client.wire.events import LogLine, Recorded, TurnEvent

Columns = list[tuple[Any, ...]]

ALL = 2**62
"""Larger than any real count."""

_to_attachable = msgspec.json.Decoder(Attachable).decode


class TurnVerbs(StoreThreads):
    """Turns, their rows and their events. Promises are those of `ports.TurnStore`."""

    async def claim(self, claim: Claim) -> Claimed:
        checks.check_claim(claim)
        return await self._write(_claim, claim)

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        checks.check_append(conversation_id, turn)
        return await self._write(append_turn, principal, conversation_id, turn)

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        checks.check_record(held, rows, events, logs)
        return await self._write(record_entries, held, after, entries_of(rows, events, logs))

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        checks.check_settlement(held, settlement)
        entries = entries_of(settlement.all_rows, settlement.all_events, settlement.logs)
        return await self._write(_settle, held, after, settlement, entries)

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
        return await self._write(leases.renew, list(held), lease_seconds, list(watched), watch_seconds)

    async def adopt(
        self,
        worker: str,
        *,
        lease_seconds: float,
        limit: int = 10,
        turn_id: TurnId | None = None,
        only_handed_over: bool = False,
    ) -> list[Adopted]:
        checks.check_adopt(worker, turn_id)
        return await self._write(leases.adopt, worker, lease_seconds, limit, turn_id, only_handed_over)

    async def hand_over(self, held: Sequence[Held]) -> None:
        if held:
            await self._write(leases.hand_over, list(held))

    async def release(self, workers: Sequence[str]) -> None:
        if workers:
            await self._write(leases.release, list(workers))

    async def due_work(self, *, queue: bool = True) -> DueWork:
        return await self._read(leases.due_work, queue)

    async def backlog(self) -> Backlog:
        return await self._read(leases.backlog)

    async def hold_sweep(self, worker: str, *, seconds: float) -> bool:
        """One server owns the file, so its worker always holds the lease."""
        return True

    async def leave_sweep(self, worker: str) -> None:
        pass

    async def promote_waiting(self) -> list[TurnId]:
        return await self._write(leases.promote_waiting)

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        return await self._write(leases.request_cancel, principal, turn_id)

    async def add_notes(self, principal: Principal, turn_id: TurnId, notes: JsonObject) -> Turn:
        check_id(turn_id, "turn")
        checks.check_notes(notes)
        return await self._write(_add_notes, principal, turn_id, notes)

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        if turn_ids:
            await self._write(leases.watch, list(turn_ids), seconds)

    async def unwatch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        if turn_ids:
            await self._write(leases.unwatch, list(turn_ids), seconds)

    async def cancel_unwatched(self) -> list[TurnId]:
        return await self._write(leases.cancel_unwatched)

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn:
        check_id(turn_id, "turn")
        return await self._see(principal, _my_turn, turn_id)

    async def claimed_turn(self, turn_id: TurnId) -> Turn:
        return await self._read(claimed_turn, check_id(turn_id, "turn"))

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        return await self._read(_running_turn, check_id(turn_id, "turn"), attempt)

    async def count_usage(self, turn_id: TurnId, attempt: int, usage: Usage, *, call_id: CallId) -> bool:
        check_id(turn_id, "turn")
        checks.check_usage(usage)
        return await self._write(_count_usage, turn_id, attempt, usage, call_mark(turn_id, call_id))

    async def open_call(self, turn_id: TurnId, attempt: int, *, call_id: CallId) -> None:
        which = {"turn": check_id(turn_id, "turn"), "attempt": attempt, "hash": call_mark(turn_id, call_id)}
        await self._write(lambda session: session.run("open_call", which))

    async def has_open_calls(self, turn_id: TurnId, attempt: int) -> bool:
        which = {"turn": check_id(turn_id, "turn"), "attempt": attempt}
        return bool(await self._read(lambda session: session.rows("has_open_calls", which)[0][0]))

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return await self._read(events_after, check_id(turn_id, "turn"), after, limit)

    async def compact(self, *, settled_before: int, limit: int = 200) -> bool:
        return await self._write(_compact, settled_before, limit)

    async def make_partitions(self, *, now: int, months: int = 1) -> None:
        return

    async def drop_partitions(self, *, ended_before: int, limit: int = 200) -> bool:
        return False

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        return await self._read(_last_seqs, turn_ids) if turn_ids else {}

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        return await self._read(rows_of_turn, check_id(turn_id, "turn"))

    async def window(
        self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT, before: int | None = None
    ) -> Window:
        first = ALL if before is None else before
        return await self._read(_window, check_id(conversation_id, "conv"), turns, row_limit, first)

    async def chain(
        self, conversation_id: ConversationId, *, order: Order = "asc", past: int | None = None, limit: int = 20
    ) -> list[Turn]:
        checks.check_limit(limit)
        return await self._read(_chain, check_id(conversation_id, "conv"), order, past, limit)

    async def trace(self, principal: Principal, turn_id: TurnId) -> TurnTrace:
        check_service(principal)
        return await self._read(_trace, principal, check_id(turn_id, "turn"))


def _claim(session: Session, claim: Claim) -> Claimed:
    ids = NewIds(conversation_id=claim.conversation_id or new_conversation_id(), message_id=new_message_id())
    decided = decide(claim, _facts_of_claim(session, claim), ids)
    if isinstance(decided, Repeat):
        return decided.claimed(claimed_turn(session, decided.turn_id))
    # No other write comes between, so the limits are checked before anything is written: see `io/executors.py`.
    check_limits(decided.counters, _counted_with_this(session, claim, decided), session.now)
    _write_claim(session, claim, decided)
    return decided.claimed()


def _facts_of_claim(session: Session, claim: Claim) -> ClaimFacts:
    principal = claim.principal
    owner = owner_of(principal)
    values = owner | {
        "now": session.now,
        "ref": principal.ref,
        "member": principal.user_id,
        "keys": json_text(principal.counted_keys),
        "month": month_of(session.now),
        "turn": claim.turn_id,
        "idempotency_key": claim.idempotency_key,
        "agent": claim.new.agent_id if claim.conversation_id is None else None,
        "conversation": claim.conversation_id,
        "beside": claim.beside,
        "external_id": claim.new.external_id if claim.conversation_id is None else None,
    }
    [(document,)] = session.rows("claim_facts", values)
    facts = claim_facts(document)
    if not claim.attachment_ids:
        return facts
    attachable = _attachable(session, principal, claim.conversation_id, claim.attachment_ids)
    return structs.replace(facts, attachments=attachable)


def _attachable(
    session: Session, principal: Principal, conversation_id: ConversationId | None, file_ids: Sequence[FileId]
) -> Attachable:
    wanted = owner_of(principal) | {"conversation": conversation_id, "files": json_text(file_ids)}
    [(document,)] = session.rows("attachment_facts", wanted)
    return _to_attachable(document)


def attach_files(
    session: Session,
    principal: Principal,
    conversation_id: ConversationId,
    file_ids: Sequence[FileId],
    rows: Sequence[Message],
) -> list[Attachment]:
    """Put these files into the conversation, with the rows that name them. Raises what `attach` raises."""
    if not file_ids:
        return []
    attachments = attach(file_ids, _attachable(session, principal, conversation_id, file_ids), conversation_id)
    for each in joined_files(rows, attachments):
        session.run("attach_file", {"conversation": conversation_id, **each})
    return list(attachments)


def _write_claim(session: Session, claim: Claim, new: AcceptedClaim) -> None:
    """The turn, its question, event 1, the conversation's counts and those of the month. In its conversation, a turn
    that waits counts nothing yet."""
    turn, entry, org_id = new.turn, new.entry, claim.principal.org_id
    if claim.conversation_id is None:
        session.run("insert_conversation", conversation_columns(claim, new))
    for each in new.attachments:
        session.run(
            "attach_file",
            {
                "id": each.ref.file_id,
                "conversation": turn.conversation_id,
                "message_id": new.question.id,
                "name": each.ref.name,
                "key": each.name_key,
            },
        )
    for turn_id in entry.cancels:
        cancel_waiting(session, turn_id)
    if entry.stops is not None:
        session.run("request_cancel", {"turn": entry.stops, "now": session.now})
    if entry.steers is not None:
        session.run("count_steer", {"turn": entry.steers})
    for move in entry.moves:
        session.run("move_waiting", {"turn": move.id, "ordinal": move.ordinal})
    turns, messages = 0, 0
    if new.position is not None:
        if new.position.is_branch:
            turns, messages = show_chain(session, turn.conversation_id, new.position.parent)
        turns, messages = turns + 1, messages + 1
    session.run("insert_turn", turn_values(turn) | turn_columns(claim, new))
    session.run("insert_message", (*message_values(new.question), org_id))
    insert_events(session, turn.id, org_id, 0, [new.began])
    if claim.conversation_id is not None:
        session.run(
            "conversation_claimed",
            {
                "conversation": turn.conversation_id,
                "turns": turns,
                "messages": messages,
                "now": session.now,
                "read_at": turn.created_at if turn.background else None,
                "title": new.title,
                "preview": new.preview,
            },
        )
    _count_message(session, claim, new)


def _counted_with_this(session: Session, claim: Claim, new: AcceptedClaim) -> Counted:
    """How many messages and turns there are with the new one, for everything that has a limit. The messages of waiting
    turns that it cancels are not counted any more."""
    messages: dict[str, int] = {}
    turns: dict[str, int] = {}
    cancelled = [session.rows("counted_turn", {"turn": turn_id})[0] for turn_id in new.entry.cancels]
    refunds = Counter(
        (month, *scope)
        for workspace_id, user_id, key_id, month in cancelled
        for scope in scopes_of(session, workspace_id, user_id, key_id)
    )
    for each in new.counters:
        if each.limit is not None:
            which = (claim.principal.org_id, each.scope, each.scope_id, new.turn.month)
            found = session.row("counted_messages", which)
            refunded = refunds[new.turn.month, each.scope, each.scope_id]
            messages[each.scope_id] = 1 if found is None else found[0] + 1 - refunded
        if each.turns is not None:
            gone = [*new.entry.cancels, *([new.entry.stops] if new.entry.stops else [])]
            scope = {"scope": each.scope, "scope_id": each.scope_id, "gone": json_text(gone)}
            [(others,)] = session.rows("open_turns_of", scope)
            turns[each.scope_id] = others + 1
    return Counted(messages=messages, turns=turns)


def _count_message(session: Session, claim: Claim, new: AcceptedClaim) -> None:
    """Count the message for everything it counts for."""
    which = (claim.principal.org_id, new.turn.month, *one_message(claim.source))
    session.many("count_message", [(*which, each.scope, each.scope_id) for each in new.counters])


class Entries(Struct):
    """Rows, events and logs as columns, in order."""

    rows: Columns
    events: list[tuple[str, str]]
    logs: Columns


def entries_of(rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]) -> Entries:
    rows = settled_rows(rows)
    return Entries(
        [message_values(row) for row in rows],
        [event_values(event, rows=rows) for event in events],
        [(line.after_seq, line.level, line.message, line.ts) for line in logs],
    )


def record_entries(session: Session, held: Held, after: int, entries: Entries) -> Receipt:
    """Commit all of it or none, as events `after + 1` …; a repeat is recognised."""
    state = state_of(session, held.turn_id)
    stand = stand_of(state, held, after)
    if state is None or stand not in {"held", "ahead"}:
        raise fence_refusal(stand, held, after, None)
    last_seq = state.last_seq
    if not _is_known(session, held, after, entries, last_seq):
        if stand == "ahead":
            raise fence_refusal(stand, held, after, last_seq)
        _insert(session, held, after, entries, state.org_id)
        last_seq = after + len(entries.events)
        if entries.events:
            session.run("advance_turn", (held.turn_id, last_seq))
    return Receipt(
        last_seq=last_seq,
        cancel_requested=bool(state.is_cancel_requested),
        files_written=state.files_written,
        steers=state.steers,
    )


def _settle(session: Session, held: Held, after: int, settlement: Settlement, entries: Entries) -> Settled:
    """End the turn and let the next one run. The last of `entries.events` is the terminal one."""
    row = session.row("settlement_facts", (held.turn_id,))
    if row is None:
        raise fence_refusal("lost", held, after, None)
    *columns, org_id, key_id, files_written, has_tokens, has_waiting = row
    turn = to_turn(columns)
    stand = stand_of(turn, held, after)
    last = after + len(entries.events)
    if stand == "settled" and turn.last_seq == last:
        stored = session.rows("events_between", {"turn": held.turn_id, "after": last - 1, "last": last})
        if stored == entries.events[-1:]:
            return Settled(turn=turn, promoted=None)
    if stand != "held":
        raise fence_refusal(stand, held, after, turn.last_seq)
    _insert(session, held, after, entries, org_id)
    usage, now, error = settlement.usage, session.now, settlement.error
    session.run(
        "settle_turn",
        (
            turn.id,
            settlement.status,
            last,
            now,
            None if error is None else json_text(error),
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            settlement.cost,
            report_text(settlement.report),
        ),
    )
    said = int(settlement.final is not None)
    session.run("conversation_settled", (turn.conversation_id, turn.id, said, now))
    ended = structs.replace(
        turn,
        status=settlement.status,
        last_seq=last,
        settled_at=now,
        error=error,
        usage=usage,
        report=settlement.report,
    )
    write_outbox(session, ended, settlement.status, org_id)
    _count_tokens(session, org_id, ended, key_id, settlement.cost or 0.0)
    session.run("count_day", (turn.id,))
    if has_tokens:
        session.run("expire_tokens", {"turn": turn.id, "now": now})
    if files_written and settlement.final is not None:
        session.run("carry_written_files", {"turn": turn.id, "message": settlement.final.id})
    return Settled(turn=ended, promoted=promote_next(session, turn.conversation_id) if has_waiting else None)


def _count_usage(session: Session, turn_id: TurnId, attempt: int, usage: Usage, call: bytes) -> bool:
    """Tokens that a call outside of the holder spent for a running turn, under the same fence; counted once."""
    turn = {"turn": turn_id, "attempt": attempt}
    if session.row("remember_call", {**turn, "hash": call, "now": session.now}) is None:
        return session.row("running_turn", turn) is not None
    row = session.row(
        "count_usage",
        {
            **turn,
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        },
    )
    return row is not None


def _count_tokens(session: Session, org_id: str, turn: Turn, key_id: Any, cost: float = 0.0) -> None:
    """Add what the turn consumed to all scopes it is counted for, in the month in which it was claimed."""
    usage = turn.usage
    if not (usage.input_tokens or usage.output_tokens):
        return
    scopes = counted_scopes(turn.workspace_id, turn.user_id, [] if key_id is None else [key_id])
    session.many(
        "count_tokens",
        [(org_id, *scope, turn.month, usage.input_tokens, usage.output_tokens, cost) for scope in scopes],
    )


def state_of(session: Session, turn_id: TurnId) -> TurnState | None:
    row = session.row("fence", (turn_id,))
    return None if row is None else TurnState(*row)


def _is_known(session: Session, held: Held, after: int, entries: Entries, last_seq: int) -> bool:
    """Whether this very record is stored already, because its answer was lost."""
    if entries.events:
        return has_events(session, held.turn_id, after, entries) if last_seq >= after + len(entries.events) else False
    if entries.rows:
        _, sequence, message_id, *_ = entries.rows[0]
        stored = session.rows("message_at", {"turn": held.turn_id, "sequence": sequence})
        return stored == [(message_id,)]
    if entries.logs:
        stored = session.rows("logs_from", {"turn": held.turn_id, "n": _log_count(session, held) - len(entries.logs)})
        return stored == entries.logs
    return False


def has_events(session: Session, turn_id: TurnId, after: int, entries: Entries) -> bool:
    """Whether the turn has these events, under the numbers after `after`."""
    last = after + len(entries.events)
    return session.rows("events_between", {"turn": turn_id, "after": after, "last": last}) == entries.events


def _insert(session: Session, held: Held, after: int, entries: Entries, org_id: str) -> None:
    turn_id = held.turn_id
    if entries.rows:
        session.many("insert_message", [(*row, org_id) for row in entries.rows])
    if entries.events:
        numbered = enumerate(entries.events, start=after + 1)
        session.many("insert_event", [(turn_id, seq, org_id, kind, payload) for seq, (kind, payload) in numbered])
    if entries.logs:
        lines = enumerate(entries.logs, start=_log_count(session, held) + 1)
        session.many("insert_log", [(turn_id, n, org_id, *line) for n, line in lines])


def _log_count(session: Session, held: Held) -> int:
    [(count,)] = session.rows("last_log", {"turn": held.turn_id})
    return int(count)


def _rows_for_append(principal: Principal, conversation_id: ConversationId, turn: Appended) -> Columns:
    """The rows as columns, under the turn's own ids."""
    return [
        (turn.turn_id, sequence, message_id, conversation_id, *rest, principal.org_id)
        for _, sequence, message_id, _, *rest in map(message_values, turn.rows)
    ]


def append_turn(session: Session, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
    """Add a whole turn after the head; return its ordinal."""
    owner = owner_of(principal)
    row = session.row("append_facts", (conversation_id, owner["org"], owner["workspace"], owner["user"], turn.turn_id))
    facts = check_appendable(None if row is None else AppendFacts(*row), conversation_id)
    if facts.known_ordinal is not None:
        return facts.known_ordinal
    usage = turn.usage
    session.run(
        "insert_whole_turn",
        (
            turn.turn_id,
            principal.org_id,
            principal.workspace_id,
            conversation_id,
            principal.user_id,
            principal.key_id,
            facts.head_turn_id,
            facts.next_ordinal,
            principal.ref,
            turn.source,
            turn.model,
            month_of(turn.started_at),
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            turn.started_at,
            turn.settled_at,
        ),
    )
    session.many("insert_message", _rows_for_append(principal, conversation_id, turn))
    title, preview = title_and_preview(turn.asked) if facts.is_nameless else (None, None)
    visible = sum(not row.internal for row in turn.rows)
    session.run("conversation_appended", (conversation_id, turn.turn_id, visible, session.now, title, preview))
    return facts.next_ordinal


def _add_notes(session: Session, principal: Principal, turn_id: TurnId, notes: JsonObject) -> Turn:
    noted = with_notes(own_turn(session, principal, turn_id), notes)
    session.run("change_turn_metadata", {"turn": turn_id, "metadata": json_text(noted.metadata)})
    return noted


def _chain(session: Session, conversation_id: ConversationId, order: Order, past: int | None, limit: int) -> list[Turn]:
    which = {"conversation": conversation_id, "limit": limit}
    if order == "asc":
        found = session.rows("chain_forward", which | {"past": 0 if past is None else past})
    else:
        found = session.rows("chain_backward", which | {"past": ALL if past is None else past})
    return [to_turn(row) for row in found]


def _window(session: Session, conversation_id: ConversationId, turns: int, row_limit: int, before: int) -> Window:
    found = session.rows("window", (conversation_id, turns, row_limit + 1, before))
    found.reverse()
    return to_window(conversation_id, found, turns=turns, row_limit=row_limit)


def events_after(session: Session, turn_id: TurnId, after: int, limit: int = ALL) -> list[Recorded]:
    found = session.rows("events_after", (turn_id, after, limit))
    if found:
        return [to_recorded(seq, payload, display) for seq, payload, display in found]
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        return []
    turn = to_turn(row)
    if turn.last_seq or not turn.is_settled:
        return []
    told = enumerate(events_from_rows(turn, rows_of_turn(session, turn_id)), start=1)
    return [Recorded(seq=seq, event=event) for seq, event in told if seq > after][:limit]


def _compact(session: Session, settled_before: int, limit: int) -> bool:
    [(up_to,)] = session.rows("compacted_up_to")
    found = map(to_turn, session.rows("turns_to_compact", {"after": up_to, "limit": limit}))
    turns = [turn for turn in found if turn.created_at < settled_before]
    for turn in turns:
        if not turn.last_seq or turn.settled_at is None or turn.settled_at >= settled_before:
            continue
        payloads = [payload for (payload,) in session.rows("event_payloads", {"turn": turn.id})]
        done = compacted(turn, rows_of_turn(session, turn.id), payloads)
        if done.drops_events:
            session.run("drop_events", {"turn": turn.id})
            session.run("mark_compacted", {"turn": turn.id})
        if done.sequence is not None:
            session.run("drop_display", {"turn": turn.id, "sequence": done.sequence})
    if turns:
        session.run("compacted", {"turn": turns[-1].id})
    return len(turns) == limit


def _last_seqs(session: Session, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
    return dict(session.rows("last_seqs", (json_text(turn_ids),)))


def rows_of_turn(session: Session, turn_id: TurnId) -> list[Message]:
    return [to_message(row) for row in session.rows("turn_rows", (turn_id,))]


def _running_turn(session: Session, turn_id: TurnId, attempt: int) -> Turn | None:
    row = session.row("running_turn", {"turn": turn_id, "attempt": attempt})
    return None if row is None else to_turn(row)


def _my_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("my_turn", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def claimed_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def _trace(session: Session, principal: Principal, turn_id: TurnId) -> TurnTrace:
    return trace_of(session, own_turn(session, principal, turn_id), events_after(session, turn_id, 0, ALL))


def trace_of(session: Session, turn: Turn, recorded: list[Recorded]) -> TurnTrace:
    lines = session.rows("logs_from", {"turn": turn.id, "n": 0})
    return TurnTrace(
        turn=turn,
        rows=tuple(rows_of_turn(session, turn.id)),
        events=tuple(recorded),
        logs=tuple(
            LogLine(after_seq=after, level=level, message=message, ts=ts) for after, level, message, ts in lines
        ),
    )
