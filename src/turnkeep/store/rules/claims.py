"""The claim and the append: one request becomes a turn, or is refused and leaves nothing.

`decide` looks at the facts of a claim in this order: idempotency, conversation, attachments, busy. The quota comes
last: the database counts the message while it writes, and `check_limits` compares before the commit. Limits that are
not set are not among the facts, and cost nothing.

What a turn consumes is known when it ends. Until then it counts with an expected amount, so that turns at the same time
cannot all start on the last token. `turns_left` says how many turns fit into what is left of a limit, and the claim is
held to that number as it is to a limit of parallel turns.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from turnkeep.clock import month_of, next_month
from turnkeep.errors import (
    AttachedElsewhere,
    Conflict,
    ConversationBusy,
    ConversationChanged,
    ExternalIdTaken,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    QuotaExceeded,
    RateLimited,
    ReachedLimit,
)
from turnkeep.ids import CallId, ConversationId, FileId, KeyId, MessageId, TurnId, UserId, WorkspaceId
from turnkeep.model.conversations import TurnSettings, first_event, title_and_preview
from turnkeep.model.files import FileStatus
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn, TurnStatus
from turnkeep.model.waits import WaitReason
from turnkeep.store.commands import EXPECTED_TOKENS, Claim, Claimed, TurnTrace
from turnkeep.store.rules.conversations import insertion, new_conversation, no_conversation
from turnkeep.store.rules.directory import no_agent, no_workspace
from turnkeep.store.rules.files import candidates, name_key, no_file
from turnkeep.store.rules.turns import (
    Beside,
    Entry,
    Queue,
    TurnPosition,
    check_replaceable,
    enter_queue,
    no_turn,
    position_of,
    steer_queue,
)
from turnkeep_client.wire.blocks import FileRef, Usage
from turnkeep_client.wire.events import TurnBegan


class KnownTurn(Struct, frozen=True, kw_only=True):
    """A turn that exists already under the claim's idempotency key or turn id."""

    id: TurnId
    conversation_id: ConversationId
    org_id: str
    principal_ref: str
    request_hash: str | None
    status: TurnStatus
    attempt: int
    worker: str | None
    user_message_id: MessageId


Scope = Literal["workspace", "user", "key"]

PARALLEL_RETRY_SECONDS = 2
"""When a client that has too many turns at the same time may try again."""

MOST_TURNS = 100_000
"""If more turns than this fit into what is left of a limit, they are not counted: so many never run at once."""

_NAMES: dict[Scope, str] = {"workspace": "This workspace", "user": "This user", "key": "This API key"}


class ScopeLimits(Struct, frozen=True, kw_only=True):
    """The limits of one scope that apply to a claim, and what it has used this month if tokens or money have a limit.
    None: no limit."""

    scope: Scope
    scope_id: str
    messages: int | None = None
    tokens: int | None = None
    cost: float | None = None
    turns: int | None = None
    used_tokens: int | None = None
    used_cost: float | None = None
    used_messages: int | None = None

    @property
    def spendings(self) -> Iterator["Spending"]:
        """What is spent of each limit of tokens or cost."""
        messages = self.used_messages or 0
        if self.tokens is not None:
            yield Spending("tokens", "monthly_token_limit", self.tokens, self.used_tokens or 0, messages)
        if self.cost is not None:
            yield Spending("cost", "monthly_cost_limit", self.cost, self.used_cost or 0.0, messages)


class Spending(Struct, frozen=True):
    """A limit of tokens or cost, what was used of it this month, and in how many messages."""

    noun: Literal["tokens", "cost"]
    field: str
    limit: float
    used: float
    messages: int


class MessageCounter(Struct, frozen=True, kw_only=True):
    """Something that a message is counted for, and its limits: of messages in a month, and of turns that run or wait.

    `spending` is the limit that allows no more turns than `turns`; None if that is the limit of parallel turns.
    """

    scope: Scope
    scope_id: str
    limit: int | None = None
    turns: int | None = None
    spending: Spending | None = None


class Counted(Struct, frozen=True, kw_only=True):
    """What there is with the new turn, by the ids of scopes: messages of the month, and turns that run or wait."""

    messages: dict[str, int] = {}
    turns: dict[str, int] = {}


class FileFacts(Struct, frozen=True, kw_only=True):
    """A file that the principal may attach."""

    id: FileId
    name: str
    mime_type: str
    size: int
    status: FileStatus
    conversation_id: ConversationId | None = None
    saved_at: int | None = None


class Attachable(Struct, frozen=True, kw_only=True):
    """Those files of a claim that the principal may use, and the name keys of the files in the conversation."""

    files: tuple[FileFacts, ...] = ()
    taken_names: tuple[str, ...] = ()


class Attachment(Struct, frozen=True, kw_only=True):
    """A file under its name in the conversation, and that name as it collides with others."""

    ref: FileRef
    name_key: str


class ClaimedConversation(Struct, frozen=True, kw_only=True):
    """The conversation of a claim, locked. The first three fields are those of the stored conversation."""

    head_turn_id: TurnId | None
    turn_count: int = 0
    settings: TurnSettings | None = None
    queue: Queue


class ClaimFacts(Struct, frozen=True, kw_only=True):
    """What a claim depends on, as of `now`.

    `limits` has the scopes with a limit: of the workspace, the user, the key and its ancestors. `conversation` is None
    if the principal has none of this id. `has_agent` is False if the new conversation names an agent that does not
    exist, `has_user` if the principal's user was erased or disabled. `attachments` is None for a claim without any.
    `of_external_id` is the conversation of the principal that has the external id of the new one.
    """

    now: int = 0
    by_key: KnownTurn | None = None
    by_id: KnownTurn | None = None
    limits: tuple[ScopeLimits, ...] = ()
    has_workspace: bool = True
    has_user: bool = True
    has_agent: bool = True
    conversation: ClaimedConversation | None = None
    beside: Beside | None = None
    attachments: Attachable | None = None
    of_external_id: ConversationId | None = None


class Repeat(Struct, frozen=True, kw_only=True):
    """The claim has already made this turn."""

    turn_id: TurnId
    user_message_id: MessageId
    held: Held | None

    def claimed(self, turn: Turn) -> Claimed:
        return Claimed(turn=turn, user_message_id=self.user_message_id, held=self.held, is_new=False)


class AcceptedClaim(Struct, frozen=True, kw_only=True):
    """The turn that the claim makes, and everything that is written with it.

    `entry.is_started` is False for a turn that waits; that one has no position yet and is not counted yet.
    """

    turn: Turn
    entry: Entry
    position: TurnPosition | None
    counters: tuple[MessageCounter, ...]
    question: Message
    began: TurnBegan
    attachments: tuple[Attachment, ...]
    lease_until: int | None
    watched_until: int | None
    watched_ms: int
    title: str | None
    preview: str | None
    turns_before: int

    def claimed(self) -> Claimed:
        turn = self.turn
        held = Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=turn.attempt)
        return Claimed(
            turn=turn,
            user_message_id=self.question.id,
            held=held if self.entry.is_started else None,
            is_new=True,
            question=self.question,
            turns_before=self.turns_before,
        )


class NewIds(Struct, frozen=True, kw_only=True):
    """Ids for what the claim makes: its conversation (or the one that it names) and the user's message."""

    conversation_id: ConversationId
    message_id: MessageId


def decide(claim: Claim, facts: ClaimFacts, ids: NewIds, *, is_repeat: bool = False) -> Repeat | AcceptedClaim:
    """The turn that exists already, or the new one. Raises the refusal.

    `is_repeat` says that the database is asked again because the answer to this very call may have been lost.
    """
    known = _repeat(claim, facts, is_repeat=is_repeat)
    if known is not None:
        return known
    conversation = _conversation(claim, facts)
    attachments = attach(claim.attachment_ids, facts.attachments or Attachable(), ids.conversation_id)
    if claim.steers is not None:
        entry = steer_queue(conversation.queue, steers=claim.steers, limit=claim.queue_limit)
    else:
        entry = enter_queue(
            conversation.queue,
            if_busy=claim.if_busy,
            limit=claim.queue_limit,
            beside=claim.beside,
            drop_queue=claim.drop_queue,
        )
    position = position_of(conversation.head_turn_id, facts.beside) if entry.is_started else None
    if claim.after is not None and position is not None and position.parent != claim.after:
        raise Conflict(
            "The conversation has gone on meanwhile. Read it again, and repeat the question if it still fits."
        )
    if facts.limits:
        check_spent(facts.limits, facts.now)
    turn = _turn(claim, facts.now, ids.conversation_id, entry, position)
    limits = facts.limits if claim.steers is None else _without_turns(facts.limits)
    watched_ms = None if claim.watched_seconds is None else int(claim.watched_seconds * 1000)
    title, preview = title_and_preview(claim.blocks)
    return AcceptedClaim(
        turn=turn,
        entry=entry,
        position=position,
        counters=counters_of(claim.principal, limits, expected_cost=claim.expected_cost),
        question=Message(
            id=ids.message_id,
            turn_id=turn.id,
            conversation_id=turn.conversation_id,
            turn_sequence=0,
            role="user",
            blocks=claim.blocks,
            created_at=facts.now,
            attachments=tuple(each.ref for each in attachments),
            metadata=claim.metadata,
        ),
        began=first_event(turn, ids.message_id),
        attachments=attachments,
        lease_until=facts.now + int(claim.lease_seconds * 1000) if entry.is_started else None,
        watched_until=None if watched_ms is None else facts.now + watched_ms,
        watched_ms=watched_ms or 0,
        title=title,
        preview=preview,
        turns_before=conversation.turn_count,
    )


def _without_turns(limits: Sequence[ScopeLimits]) -> tuple[ScopeLimits, ...]:
    """The limits for words that steer a turn: they join it, or begin when it has ended, so no more turns run."""
    return tuple([structs.replace(each, turns=None) for each in limits])


def _repeat(claim: Claim, facts: ClaimFacts, *, is_repeat: bool) -> Repeat | None:
    known = facts.by_key
    if known is not None and known.request_hash != claim.request_hash:
        raise IdempotencyConflict(known.id)
    if known is None:
        known = facts.by_id
        if known is None:
            return None
        if (known.org_id, known.principal_ref) != (claim.principal.org_id, claim.principal.ref):
            raise Conflict("This turn id is taken. Make a new one for a new turn.")
    # The answer to this very claim was lost, and its worker still holds the turn. A client that sends its key again is
    # another matter: the worker that came first runs the turn.
    is_ours = known.id == claim.turn_id and (claim.idempotency_key is None or is_repeat)
    is_held = is_ours and known.status == "running" and known.attempt == 1 and known.worker == claim.worker
    held = Held(turn_id=known.id, conversation_id=known.conversation_id, attempt=1) if is_held else None
    return Repeat(turn_id=known.id, user_message_id=known.user_message_id, held=held)


def _conversation(claim: Claim, facts: ClaimFacts) -> ClaimedConversation:
    """The conversation that the turn joins; an empty one for a claim that makes its own."""
    if claim.conversation_id is None:
        if not facts.has_workspace:
            raise no_workspace()
        if not facts.has_user:
            raise user_gone()
        if facts.of_external_id is not None:
            raise ExternalIdTaken(facts.of_external_id)
        if not facts.has_agent:
            raise no_agent()
        return ClaimedConversation(head_turn_id=None, queue=Queue(next_ordinal=1))
    if facts.conversation is None:
        raise no_conversation()
    if claim.settings is not None and claim.settings != facts.conversation.settings:
        raise ConversationChanged("The conversation was changed at the same moment. Send the request again.")
    if claim.beside is not None:
        check_replaceable(facts.beside)
    return facts.conversation


def _turn(claim: Claim, now: int, conversation_id: ConversationId, entry: Entry, position: TurnPosition | None) -> Turn:
    principal = claim.principal
    is_started = entry.is_started
    return Turn(
        id=claim.turn_id,
        conversation_id=conversation_id,
        workspace_id=principal.workspace_id,
        user_id=principal.user_id,
        parent_turn_id=None if position is None else position.parent,
        ordinal=entry.ordinal,
        active=is_started,
        status="running" if is_started else "queued",
        attempt=int(is_started),
        failures=0,
        last_seq=1,
        cancel_requested_at=None,
        background=claim.background,
        source=claim.source,
        model=claim.model,
        snapshot=claim.snapshot,
        usage=Usage(),
        month=month_of(now),
        error=None,
        metadata=claim.metadata,
        created_at=now,
        started_at=now if is_started else None,
        settled_at=None,
    )


def conversation_columns(claim: Claim, new: AcceptedClaim) -> dict[str, Any]:
    """The conversation that the claim makes, with its first turn counted."""
    made = new_conversation(claim.principal, claim.new, new.turn.conversation_id, new.turn.created_at)
    made = structs.replace(made, read_at=made.created_at if new.turn.background else None)
    columns = insertion(made, claim.principal.org_id, next_ordinal=2)
    return columns | {"title": made.title or new.title, "preview": new.preview, "turn_count": 1, "message_count": 1}


def turn_columns(claim: Claim, new: AcceptedClaim) -> dict[str, Any]:
    """What is stored of the turn beside `rows.turn_values`: who asked, how to recognise it, and its lease."""
    return {
        "org_id": claim.principal.org_id,
        "key_id": claim.principal.key_id,
        "beside_turn_id": claim.beside,
        "seq_at_adoption": int(new.entry.is_started),
        "worker": claim.worker if new.entry.is_started else None,
        "lease_until": new.lease_until,
        "watched_until": new.watched_until,
        "watched_ms": new.watched_ms,
        "files_written": 0,
        "principal_ref": claim.principal.ref,
        "idempotency_key": claim.idempotency_key,
        "request_hash": claim.request_hash,
        "agent_id": claim.snapshot.agent_id,
        "steers_turn_id": new.entry.steers,
    }


def attach(wanted: Sequence[FileId], facts: Attachable, conversation_id: ConversationId) -> tuple[Attachment, ...]:
    """Name the files in order. Those that are in the conversation already keep their names.

    Raises NotFound for a file that is not among the facts, InvalidRequest for one that is not complete, and
    AttachedElsewhere if some belong to other conversations or to the workspace's Files.
    """
    found = {file.id: file for file in facts.files}
    files = [_known(found, file_id) for file_id in wanted]
    for file in files:
        if file.status != "ready":
            raise InvalidRequest(f"File {file.id} is not complete yet. Attach it once its upload has ended.")
    elsewhere = [
        file.id for file in files if file.saved_at is not None or file.conversation_id not in {None, conversation_id}
    ]
    if elsewhere:
        named = ", ".join(elsewhere)
        raise AttachedElsewhere(f"These files belong elsewhere: {named}. Copy them into the conversation.", elsewhere)
    names = set(facts.taken_names)
    return tuple(_attach(file, names) for file in files)


def named_rows(rows: Iterable[Message], attachments: Iterable[Attachment]) -> tuple[Message, ...]:
    """The rows, whose attachments have the names under which the files are in the conversation."""
    refs = {each.ref.file_id: each.ref for each in attachments}
    return tuple(
        structs.replace(row, attachments=tuple(refs.get(ref.file_id, ref) for ref in row.attachments))
        if row.attachments
        else row
        for row in rows
    )


def named_traces(traces: Sequence[TurnTrace], attachments: Sequence[Attachment]) -> Sequence[TurnTrace]:
    """The same for the rows of whole turns."""
    if not attachments:
        return traces
    return [structs.replace(trace, rows=named_rows(trace.rows, attachments)) for trace in traces]


def joined_files(rows: Iterable[Message], attachments: Iterable[Attachment]) -> list[dict[str, str]]:
    """The columns of files that join a conversation with these rows: each belongs to the first row that names it."""
    first: dict[FileId, MessageId] = {}
    for row in rows:
        for ref in row.attachments:
            first.setdefault(ref.file_id, row.id)
    return [
        {"id": each.ref.file_id, "message_id": first[each.ref.file_id], "name": each.ref.name, "key": each.name_key}
        for each in attachments
        if each.ref.file_id in first
    ]


def _known(found: Mapping[FileId, FileFacts], file_id: FileId) -> FileFacts:
    if file_id not in found:
        raise no_file()
    return found[file_id]


def _attach(file: FileFacts, taken: set[str]) -> Attachment:
    name = file.name
    if file.conversation_id is None:
        name = next(candidate for candidate in candidates(name) if name_key(candidate) not in taken)
        taken.add(name_key(name))
    ref = FileRef(file_id=file.id, name=name, mime_type=file.mime_type, size=file.size)
    return Attachment(ref=ref, name_key=name_key(name))


def counted_scopes(
    workspace_id: WorkspaceId, user_id: UserId | None, key_ids: Sequence[KeyId]
) -> list[tuple[Scope, str]]:
    """What a turn is counted for, in the order in which every transaction locks the counters."""
    counted: list[tuple[Scope, str]] = [("key", key_id) for key_id in sorted(key_ids)]
    if user_id is not None:
        counted.append(("user", user_id))
    counted.append(("workspace", workspace_id))
    return counted


def counters_of(
    principal: Principal, limits: Sequence[ScopeLimits], *, expected_cost: float = 0.0
) -> tuple[MessageCounter, ...]:
    """The counters of a message of this principal, in the order in which they are locked."""
    scopes = counted_scopes(principal.workspace_id, principal.user_id, principal.counted_keys)
    if not limits:
        return tuple([MessageCounter(scope=scope, scope_id=scope_id) for scope, scope_id in scopes])
    known = {each.scope_id: each for each in limits}
    return tuple(_counter(scope, scope_id, known.get(scope_id), expected_cost) for scope, scope_id in scopes)


def _counter(scope: Scope, scope_id: str, limits: ScopeLimits | None, expected_cost: float) -> MessageCounter:
    if limits is None:
        return MessageCounter(scope=scope, scope_id=scope_id)
    turns, spending = limits.turns, None
    for each in limits.spendings:
        left = turns_left(each, expected_cost)
        if left is not None and (turns is None or left < turns):
            turns, spending = left, each
    return MessageCounter(scope=scope, scope_id=scope_id, limit=limits.messages, turns=turns, spending=spending)


def turns_left(spending: Spending, expected_cost: float = 0.0) -> int | None:
    """How many turns may run or wait at the same time on what is left of the limit: one, and as many more as fit.

    A turn is expected to consume as much as a message of this month has on average, and `EXPECTED_TOKENS` or
    `expected_cost` at least. None: so many that they need not be counted, or nothing is known of their cost.
    """
    least = EXPECTED_TOKENS if spending.noun == "tokens" else expected_cost
    expected = max(least, spending.used / max(spending.messages, 1))
    left = spending.limit - spending.used
    if expected <= 0 or left / expected > MOST_TURNS:
        return None
    return max(1, math.ceil(left / expected))


def check_limits(counters: Sequence[MessageCounter], counted: Counted, now: int) -> None:
    """Raise QuotaExceeded if a counter, with the new message in it, is over its limit of messages, and RateLimited if
    it is over its limit of parallel turns.

    Call it after counting and before the commit. The counters are locked then, so of two claims at limit - 1 one
    passes.
    """
    for each in reversed(counters):
        messages = counted.messages.get(each.scope_id, 0)
        if each.limit is not None and messages > each.limit:
            raise QuotaExceeded(
                f"{_NAMES[each.scope]} has used up its limit of {each.limit} messages a month. "
                "Raise the limit, or wait for the next month.",
                limit=_reached(each.scope, "monthly_message_limit", each.limit, messages - 1, now),
            )
    for each in reversed(counters):
        turns = counted.turns.get(each.scope_id, 0)
        if each.turns is not None and turns > each.turns:
            raise _too_many_turns(each, each.turns, others=turns - 1, now=now)


def _too_many_turns(counter: MessageCounter, most: int, *, others: int, now: int) -> RateLimited:
    name, spending = _NAMES[counter.scope], counter.spending
    if spending is None:
        return RateLimited(
            f"{name} may have {most} turns at the same time, those in queues included. "
            "Wait for one to end, stop one, or raise the limit.",
            retry_after_seconds=PARALLEL_RETRY_SECONDS,
            limit=_reached(counter.scope, "parallel_turn_limit", most, others, None),
        )
    return RateLimited(
        f"{name} has turns that run or wait, and they may use up what is left of the limit of {spending.noun} "
        f"({spending.limit:g}) of this month. Wait for one to end, stop one, or raise the limit.",
        retry_after_seconds=PARALLEL_RETRY_SECONDS,
        limit=_reached(counter.scope, spending.field, spending.limit, spending.used, now),
    )


def check_spent(limits: Sequence[ScopeLimits], now: int) -> None:
    """Raise QuotaExceeded if a scope has no tokens or no money left."""
    for scope in limits:
        for each in scope.spendings:
            if each.used >= each.limit:
                raise QuotaExceeded(
                    f"{_NAMES[scope.scope]} has used up the limit of {each.noun} ({each.limit:g}) of this month. "
                    "Raise the limit, or wait for the next month.",
                    limit=_reached(scope.scope, each.field, each.limit, each.used, now),
                )


def why_over_limit(limits: Sequence[ScopeLimits], now: int) -> str | None:
    """Why a turn that comes out of the queue must not run; None if it may."""
    try:
        check_spent(limits, now)
    except QuotaExceeded as refusal:
        return refusal.detail
    return None


def _reached(scope: Scope, name: str, value: float, used: float, now: int | None) -> ReachedLimit:
    """What a caller is told of a limit. With a time it is one of a month, which ends."""
    return ReachedLimit(
        scope=scope, name=name, value=value, used=used, resets_at=None if now is None else next_month(now)
    )


def user_gone() -> Forbidden:
    return Forbidden("This user was erased or is disabled. An admin of the workspace can enable a disabled user again.")


def call_mark(turn_id: TurnId, call_id: CallId) -> bytes:
    """Marks a model call whose tokens are counted. It is stored as a one-time token that no secret can spend."""
    return hashlib.sha256(f"model call\0{turn_id}\0{call_id}".encode()).digest()


class AppendFacts(Struct, frozen=True):
    """The conversation, what keeps it busy, and a turn that exists already under the id of the new one."""

    head_turn_id: TurnId | None
    next_ordinal: int
    running: TurnId | None
    started_at: int | None
    first_waiting: TurnId | None
    known_conversation_id: ConversationId | None
    known_ordinal: int | None
    is_nameless: bool
    waiting_for: WaitReason | None = None


def check_appendable(facts: AppendFacts | None, conversation_id: ConversationId) -> AppendFacts:
    """The facts, if the turn may be appended, or if it was: then they have a `known_ordinal`. Raises the refusal."""
    if facts is None:
        raise no_conversation()
    if facts.known_conversation_id is not None:
        if facts.known_conversation_id != conversation_id:
            raise no_turn()
        return facts
    ahead = facts.running or facts.first_waiting
    if ahead is not None:
        raise ConversationBusy(ahead, facts.started_at, waiting_for=facts.waiting_for)
    return facts
