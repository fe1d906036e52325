"""The claim: one POST becomes a turn, or is refused and leaves nothing.

`decide` looks at the facts in this order: idempotency, conversation, attachments, busy. The quota comes last: the
database counts the message while it writes, and `quota.check` compares before the commit.
"""

from typing import Any

from msgspec import Struct

from turnkeep.clock import month_of
from turnkeep.errors import Conflict, IdempotencyConflict
from turnkeep.ids import ConversationId, MessageId, TurnId
from turnkeep.model.conversations import title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn, TurnStatus
from turnkeep.store.commands import Claim, Claimed
from turnkeep.store.rules import queue
from turnkeep.store.rules.attachments import Attachable, Attachment, attach
from turnkeep.store.rules.branches import Beside, Place, check_replaceable, place_of
from turnkeep.store.rules.queue import Entry, Queue
from turnkeep.store.rules.quota import Limits
from turnkeep.store.rules.refusals import no_agent, no_conversation, no_workspace
from turnkeep_client.wire.blocks import Usage
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


class ClaimedConversation(Struct, frozen=True, kw_only=True):
    """The conversation of a claim, locked."""

    head_turn_id: TurnId | None
    queue: Queue


class ClaimFacts(Struct, frozen=True, kw_only=True):
    """What a claim depends on, as of `now`.

    `limits` is None if the workspace does not exist, `conversation` if the principal has none of this id. `has_agent`
    is False if the new conversation names an agent that does not exist. `attachments` is None for a claim without any.
    """

    now: int = 0
    by_key: KnownTurn | None = None
    by_id: KnownTurn | None = None
    limits: Limits | None = None
    has_agent: bool = True
    conversation: ClaimedConversation | None = None
    beside: Beside | None = None
    attachments: Attachable | None = None


class Repeat(Struct, frozen=True, kw_only=True):
    """The claim has already made this turn."""

    turn_id: TurnId
    user_message_id: MessageId
    held: Held | None

    def claimed(self, turn: Turn) -> Claimed:
        return Claimed(turn=turn, user_message_id=self.user_message_id, held=self.held, is_new=False)


class NewTurn(Struct, frozen=True, kw_only=True):
    """The turn that the claim makes, and everything that is written with it.

    `entry.is_started` is False for a turn that waits; that one has no place yet and is not counted yet.
    """

    turn: Turn
    entry: Entry
    place: Place | None
    limits: Limits
    question: Message
    began: TurnBegan
    attachments: tuple[Attachment, ...]
    lease_until: int | None
    watched_until: int | None
    watched_ms: int
    title: str | None
    preview: str | None

    def claimed(self) -> Claimed:
        turn = self.turn
        held = Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=turn.attempt)
        return Claimed(
            turn=turn, user_message_id=self.question.id, held=held if self.entry.is_started else None, is_new=True
        )


class NewIds(Struct, frozen=True, kw_only=True):
    """Ids for what the claim makes: its conversation (or the one that it names) and the user's message."""

    conversation_id: ConversationId
    message_id: MessageId


def decide(claim: Claim, facts: ClaimFacts, ids: NewIds, *, is_repeat: bool = False) -> Repeat | NewTurn:
    """The turn that exists already, or the new one. Raises the refusal.

    `is_repeat` says that the database is asked again because the answer to this very call may have been lost.
    """
    known = _repeat(claim, facts, is_repeat=is_repeat)
    if known is not None:
        return known
    conversation, limits = _conversation(claim, facts)
    attachments = attach(claim.attachment_ids, facts.attachments or Attachable(), ids.conversation_id)
    entry = queue.enter(conversation.queue, if_busy=claim.if_busy, limit=claim.queue_limit, beside=claim.beside)
    place = place_of(conversation.head_turn_id, facts.beside) if entry.is_started else None
    turn = _turn(claim, facts.now, ids.conversation_id, entry, place)
    watched_ms = None if claim.watched_seconds is None else int(claim.watched_seconds * 1000)
    title, preview = title_and_preview(claim.blocks)
    return NewTurn(
        turn=turn,
        entry=entry,
        place=place,
        limits=limits,
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
        began=TurnBegan(
            turn_id=turn.id,
            conversation_id=turn.conversation_id,
            user_message_id=ids.message_id,
            status="running" if entry.is_started else "queued",
            attempt=turn.attempt,
        ),
        attachments=attachments,
        lease_until=facts.now + int(claim.lease_seconds * 1000) if entry.is_started else None,
        watched_until=None if watched_ms is None else facts.now + watched_ms,
        watched_ms=watched_ms or 0,
        title=title,
        preview=preview,
    )


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


def _conversation(claim: Claim, facts: ClaimFacts) -> tuple[ClaimedConversation, Limits]:
    """The conversation that the turn joins; an empty one for a claim that makes its own."""
    if claim.conversation_id is None:
        if facts.limits is None:
            raise no_workspace()
        if not facts.has_agent:
            raise no_agent()
        return ClaimedConversation(head_turn_id=None, queue=Queue(next_ordinal=1)), facts.limits
    if facts.conversation is None or facts.limits is None:
        raise no_conversation()
    if claim.beside is not None:
        check_replaceable(facts.beside)
    return facts.conversation, facts.limits


def _turn(claim: Claim, now: int, conversation_id: ConversationId, entry: Entry, place: Place | None) -> Turn:
    principal = claim.principal
    is_started = entry.is_started
    return Turn(
        id=claim.turn_id,
        conversation_id=conversation_id,
        workspace_id=principal.workspace_id,
        user_id=principal.user_id,
        parent_turn_id=None if place is None else place.parent,
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


def turn_columns(claim: Claim, new: NewTurn) -> dict[str, Any]:
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
    }
