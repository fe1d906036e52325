"""Claiming: one POST becomes a turn, or is refused and leaves nothing."""

from typing import Any

from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import (
    Conflict,
    ConversationBusy,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    QueueFull,
    QuotaExceeded,
)
from turnkeep.ids import ConversationId, MessageId, TurnId, new_conversation_id, new_message_id
from turnkeep.model.blocks import FileRef
from turnkeep.model.conversations import title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.store.commands import Claim, Claimed
from turnkeep.store.rows import json_or_null, json_text, message_values, to_turn
from turnkeep.store.sqlite.conversations import insert_conversation
from turnkeep.store.sqlite.files import attach
from turnkeep.store.sqlite.io.session import Row, Session
from turnkeep.store.sqlite.leases import (
    began,
    cancel_waiting,
    free_first_place,
    insert_events,
    one,
    parent_for,
    scopes,
)
from turnkeep.store.sqlite.ownership import conversation_for_write, in_workspace, no_conversation, no_turn

_SCOPE_NAMES = {"workspace": "This workspace", "user": "This user", "key": "This API key"}


class _Place(Struct):
    """Where the new turn goes."""

    conversation_id: ConversationId
    is_new: bool
    head: TurnId | None = None
    ordinal: int = 1
    running: TurnId | None = None
    waiting: TurnId | None = None

    @property
    def is_busy(self) -> bool:
        return self.running is not None or self.waiting is not None


def claim(session: Session, asked: Claim) -> Claimed:
    """Idempotency, conversation, attachments, busy, quota, rows: in this order, in one transaction."""
    known = _known(session, asked)
    if known is not None:
        return known
    place = _place(session, asked)
    limits = _limits(session, asked)
    if place.is_new:
        insert_conversation(session, asked.principal, asked.new, place.conversation_id)
    message_id = new_message_id()
    refs = attach(session, asked.principal, place.conversation_id, asked.attachment_ids, message_id)
    if place.is_busy:
        place = _make_way(session, asked, place)
    _count(session, asked, limits)
    turn = _write(session, asked, place, message_id, refs)
    held = None if place.is_busy else Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=1)
    return Claimed(turn=turn, user_message_id=message_id, held=held, is_new=True)


def _known(session: Session, asked: Claim) -> Claimed | None:
    """The turn that this claim has already made, if it has."""
    principal = asked.principal
    if asked.idempotency_key is not None:
        row = session.row("turn_by_key", {"org": principal.org_id, "ref": principal.ref, "key": asked.idempotency_key})
        if row is not None:
            if row[26] != asked.request_hash:
                raise IdempotencyConflict(row[0])
            return _again(session, row, None)
    row = session.row("turn_claimed", {"turn": asked.turn_id})
    if row is None:
        return None
    if row[26] != principal.ref:
        raise Conflict("This turn id is taken. Make a new one for a new turn.")
    is_ours = row[8] == 1 and row[7] == "running" and row[27] == asked.worker
    return _again(session, row, Held(turn_id=row[0], conversation_id=row[1], attempt=1) if is_ours else None)


def _again(session: Session, row: Row, held: Held | None) -> Claimed:
    turn = to_turn(row)
    message_id: MessageId = session.rows("user_message_id", {"turn": turn.id})[0][0]
    return Claimed(turn=turn, user_message_id=message_id, held=held, is_new=False)


def _place(session: Session, asked: Claim) -> _Place:
    if asked.conversation_id is None:
        return _Place(conversation_id=new_conversation_id(), is_new=True)
    found = conversation_for_write(session, asked.principal, asked.conversation_id)
    head, ordinal, _, running, waiting = found
    if asked.beside is not None:
        place = session.row("turn_place", {"turn": asked.beside, "conversation": asked.conversation_id})
        if place is None:
            raise no_turn()
        # One that has not ended keeps the conversation busy, and `if_busy` says what becomes of that.
        if place[4] is None and place[3] != "queued":
            raise InvalidRequest("This turn never started, so there is nothing to replace. Send a new one.")
    return _Place(
        conversation_id=asked.conversation_id,
        is_new=False,
        head=head,
        ordinal=ordinal,
        running=running,
        waiting=waiting,
    )


def _make_way(session: Session, asked: Claim, place: _Place) -> _Place:
    """The conversation is busy: refuse, wait at the end of the queue, or stop the running turn and wait in front."""
    if asked.if_busy == "reject":
        ahead = place.running or place.waiting
        assert ahead is not None
        raise ConversationBusy(ahead, session.rows("turn_started_at", {"turn": ahead})[0][0])
    is_interrupt = asked.if_busy == "interrupt"
    waiting = [turn_id for (turn_id,) in session.rows("all_waiting", {"conversation": place.conversation_id})]
    if is_interrupt and asked.beside is not None and asked.beside in waiting:
        # An edit of a waiting turn replaces it. Every other turn goes on waiting.
        cancel_waiting(session, asked.beside)
        waiting.remove(asked.beside)
    # A full queue has one more place, for a turn that interrupts.
    if len(waiting) >= asked.queue_limit + is_interrupt:
        raise QueueFull(
            f"{len(waiting)} turns wait in this conversation, which is the limit. Wait for one of them, or cancel some."
        )
    if not is_interrupt:
        return place
    if place.running is not None:
        session.run("request_cancel", {"turn": place.running, "now": session.now})
    return structs.replace(place, ordinal=free_first_place(session, place.conversation_id, place.ordinal))


def _limits(session: Session, asked: Claim) -> dict[str, int | None]:
    principal = asked.principal
    found = session.row("limits", in_workspace(principal) | {"key": principal.key_id})
    if found is None:
        raise NotFound("No such workspace.") if asked.conversation_id is None else no_conversation()
    return dict(zip(("workspace", "user", "key"), found, strict=True))


def _count(session: Session, asked: Claim, limits: dict[str, int | None]) -> None:
    """Reserve one message in every scope. Being over a limit raises, which takes the reservation back."""
    principal = asked.principal
    month = month_of(session.now)
    for scope, scope_id in scopes(principal.workspace_id, principal.user_id, principal.key_id):
        values: dict[str, Any] = {"org": principal.org_id, "scope": scope, "scope_id": scope_id, "month": month}
        counted = session.rows("count_message", values | one(asked.source))[0][0]
        limit = limits[scope]
        if limit is not None and counted > limit:
            raise QuotaExceeded(
                f"{_SCOPE_NAMES[scope]} has used up its limit of {limit} messages a month. "
                "Raise the limit, or wait for the next month."
            )


def _write(session: Session, asked: Claim, place: _Place, message_id: MessageId, refs: tuple[FileRef, ...]) -> Turn:
    """The turn, its question, event 1 and the conversation's counts. A turn that waits counts nothing yet."""
    org_id = asked.principal.org_id
    parent: TurnId | None = None
    turns, messages = 0, 0
    if not place.is_busy:
        parent, (turns, messages) = parent_for(session, place.conversation_id, place.head, asked.beside)
        turns, messages = turns + 1, messages + 1
    turn = to_turn(session.rows("insert_turn", _turn_values(session.now, asked, place, parent))[0])
    question = Message(
        id=message_id,
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        turn_sequence=0,
        role="user",
        blocks=asked.blocks,
        created_at=session.now,
        attachments=refs,
        metadata=asked.metadata,
    )
    session.run("insert_message", (*message_values(question), org_id))
    insert_events(session, turn.id, org_id, 0, [began(turn, message_id)])
    title, preview = title_and_preview(asked.blocks)
    session.run(
        "conversation_claimed",
        {
            "conversation": turn.conversation_id,
            "turns": turns,
            "messages": messages,
            "now": session.now,
            "title": title,
            "preview": preview,
        },
    )
    return turn


def _turn_values(now: int, asked: Claim, place: _Place, parent: TurnId | None) -> dict[str, Any]:
    principal = asked.principal
    is_started = not place.is_busy
    watched = asked.watched_seconds
    return {
        "id": asked.turn_id,
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "conversation": place.conversation_id,
        "user": principal.user_id,
        "key": principal.key_id,
        "parent": parent,
        "beside": asked.beside,
        "ordinal": place.ordinal,
        "started": int(is_started),
        "status": "running" if is_started else "queued",
        "attempt": int(is_started),
        "worker": asked.worker if is_started else None,
        "lease_until": now + int(asked.lease_seconds * 1000) if is_started else None,
        "watched_ms": None if watched is None else int(watched * 1000),
        "background": asked.background,
        "ref": principal.ref,
        "idempotency_key": asked.idempotency_key,
        "request_hash": asked.request_hash,
        "snapshot": json_text(asked.snapshot),
        "source": asked.source,
        "model": asked.model,
        "metadata": json_or_null(asked.metadata),
        "month": month_of(now),
        "now": now,
        "started_at": now if is_started else None,
    }
