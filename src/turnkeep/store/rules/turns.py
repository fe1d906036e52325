"""Rules of turns: the branch and the queue that a turn is in, its lease, and the fence in front of its writes.

- Branches: the parent of a turn in the tree of its conversation, and which turns can be replaced or shown.
- The queue: what a claim does while another turn runs or waits, and which turn runs next.
- Leases: what an adoption changes, and what a request to cancel does.
- The fence: only the holder of a turn's current attempt may write to it, and only after the last event it knows.

Decisions: docs/decisions/0201, docs/decisions/0205
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from turnkeep.errors import (
    Conflict,
    ConversationBusy,
    Defect,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotFound,
    QueueFull,
    TurnkeepError,
    TurnSettled,
)
from turnkeep.ids import ConversationId, MessageId, OrgId, TurnId, UserId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, IfBusy, Turn, TurnError, TurnStatus
from turnkeep.model.waits import WaitReason
from turnkeep.store.checks import check_text
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import Failure, Reset, TurnBegan, TurnEvent

COMMENT_CHARS = 4_000
"""How long the comment of a rating may be."""


class Beside(Struct, frozen=True, kw_only=True):
    """The turn that a new turn replaces (edit, regenerate)."""

    parent_turn_id: TurnId | None
    status: TurnStatus
    started_at: int | None


class TurnPosition(Struct, frozen=True, kw_only=True):
    """The parent of a turn that starts now.

    With `is_branch` the visible chain must first be cut back (or switched) so that it ends with the parent.
    """

    parent: TurnId | None
    is_branch: bool = False


def check_replaceable(beside: Beside | None) -> None:
    """Raise unless a new turn may start beside this one. None: it is not a turn of the conversation.

    A turn that has not ended yet may be replaced: it keeps the conversation busy, and `if_busy` says what happens then.
    """
    if beside is None:
        raise no_turn()
    if beside.started_at is None and beside.status != "queued":
        raise InvalidRequest("This turn never started, so there is nothing to replace. Send a new one.")


def position_of(head: TurnId | None, beside: Beside | None) -> TurnPosition:
    """After the head; or, beside another turn, where that one started.

    A turn that was stopped before it started has no such position, so its successor goes after the head.
    """
    if beside is None or beside.started_at is None:
        return TurnPosition(parent=head)
    return TurnPosition(parent=beside.parent_turn_id, is_branch=True)


CANCELLED = TurnError(code="cancelled", message="Stopped before it began.")
"""Why a turn that was cancelled in the queue ended."""
CANCELLED_EVENT = Failure(code=CANCELLED.code, message=CANCELLED.message)
"""Its terminal event."""


STEERED = TurnError(code="steered", message="These words became part of the turn that ran.")
"""Why a turn ended whose words reached the model in another turn."""
STEERED_EVENT = Failure(code=STEERED.code, message=STEERED.message)


class CurrentTurn(Struct, frozen=True, kw_only=True):
    """The turn of a conversation that runs now."""

    id: TurnId
    started_at: int | None
    waiting_for: WaitReason | None = None
    """What it waits for, if it does."""


class WaitingTurn(Struct, frozen=True, kw_only=True):
    id: TurnId
    ordinal: int
    steers: TurnId | None = None
    """The turn that its words steer, if that one asks the model again."""


class Queue(Struct, frozen=True, kw_only=True):
    """The turns of a conversation that have not ended. `waiting` is in the order of the ordinals.

    `next_ordinal` is the ordinal that no turn has yet.
    """

    next_ordinal: int
    running: CurrentTurn | None = None
    waiting: tuple[WaitingTurn, ...] = ()

    @property
    def is_busy(self) -> bool:
        return self.running is not None or bool(self.waiting)


class Move(Struct, frozen=True, kw_only=True):
    """A waiting turn gets another ordinal."""

    id: TurnId
    ordinal: int


class Entry(Struct, frozen=True, kw_only=True):
    """How a new turn enters the conversation.

    It runs at once, or waits at `ordinal`. `cancels` are waiting turns that it replaces or drops, `stops` is the
    running turn that is asked to stop for it. `moves` come in an order in which no two turns ever have the same
    ordinal.
    """

    ordinal: int
    is_started: bool
    cancels: tuple[TurnId, ...] = ()
    stops: TurnId | None = None
    moves: tuple[Move, ...] = ()
    steers: TurnId | None = None
    """The running turn that the new one steers."""


def steer_queue(queue: Queue, *, steers: TurnId, limit: int) -> Entry:
    """How words that steer a turn enter the conversation: as a queued turn in front of the others, behind those that
    steer the same turn. If that turn does not run any more, they are a turn like any other."""
    if queue.running is None or queue.running.id != steers:
        return enter_queue(queue, if_busy="enqueue", limit=limit, beside=None)
    _check_room(len(queue.waiting), limit)
    moves, first = _moved_back([turn for turn in queue.waiting if turn.steers != steers], queue.next_ordinal)
    return Entry(ordinal=first, is_started=False, moves=moves, steers=steers)


def enter_queue(queue: Queue, *, if_busy: IfBusy, limit: int, beside: TurnId | None, drop_queue: bool = False) -> Entry:
    """Refuse, wait at the end of the queue, or stop the running turn and wait in front.

    With `drop_queue`, a turn that interrupts cancels all turns that wait. Raises ConversationBusy for `reject`, and
    QueueFull at the limit. A full queue has one more place, for a turn that interrupts.
    """
    if not queue.is_busy:
        return Entry(ordinal=queue.next_ordinal, is_started=True)
    check_idle(queue, if_busy=if_busy)
    waiting = queue.waiting
    if if_busy == "enqueue":
        _check_room(len(waiting), limit)
        return Entry(ordinal=queue.next_ordinal, is_started=False)
    # An edit of a waiting turn replaces it. Every other turn goes on waiting, unless the caller drops the queue.
    others = () if drop_queue else tuple(turn for turn in waiting if turn.id != beside)
    _check_room(len(others), limit + 1)
    moves, first = _moved_back(others, queue.next_ordinal)
    return Entry(
        ordinal=first,
        is_started=False,
        cancels=tuple(turn.id for turn in waiting if turn not in others),
        stops=None if queue.running is None else queue.running.id,
        moves=moves,
    )


def check_idle(queue: Queue, *, if_busy: IfBusy = "reject") -> None:
    """Raise ConversationBusy if a turn runs or waits and the caller does not want to wait."""
    if if_busy != "reject" or not queue.is_busy:
        return
    if queue.running is not None:
        running = queue.running
        raise ConversationBusy(running.id, running.started_at, waiting_for=running.waiting_for)
    raise ConversationBusy(queue.waiting[0].id, None)


def _check_room(waiting: int, limit: int) -> None:
    if waiting >= limit:
        raise QueueFull(
            f"{waiting} turns wait in this conversation, which is the limit. Wait for one of them, or cancel some."
        )


def _moved_back(waiting: Sequence[WaitingTurn], free: int) -> tuple[tuple[Move, ...], int]:
    """Each waiting turn takes the place of the one behind it, the last one the free ordinal; and the first place."""
    moves = []
    for turn in reversed(waiting):
        moves.append(Move(id=turn.id, ordinal=free))
        free = turn.ordinal
    return tuple(moves), free


class Candidate(Struct, frozen=True, kw_only=True):
    """A waiting turn, and the turn that it will replace."""

    id: TurnId
    beside: Beside | None = None


class PromotionFacts(Struct, frozen=True, kw_only=True):
    """A conversation, and the turns that wait in it, in order."""

    is_deleted: bool
    head_turn_id: TurnId | None
    waiting: tuple[Candidate, ...]
    is_running: bool = False


class Promotion(Struct, frozen=True, kw_only=True):
    """The turn that runs next and its position, or the waiting turns that end instead; nothing where none waits."""

    starts: TurnId | None = None
    position: TurnPosition = TurnPosition(parent=None)
    cancels: tuple[TurnId, ...] = ()


def promotion(facts: PromotionFacts) -> Promotion:
    """Let the first waiting turn run. In a deleted conversation nothing starts: all waiting turns are cancelled."""
    if facts.is_running or not facts.waiting:
        return Promotion()
    if facts.is_deleted:
        return Promotion(cancels=tuple(turn.id for turn in facts.waiting))
    first = facts.waiting[0]
    return Promotion(starts=first.id, position=position_of(facts.head_turn_id, first.beside))


LET_GO = 0
"""The lease of a turn whose holder gave it up on purpose (hand-over, release, promotion). That of a turn which goes on
after a wait is one less."""


class ExpiredTurn(Struct, frozen=True):
    """A running turn whose lease has ended."""

    id: TurnId
    conversation_id: ConversationId
    org_id: str
    user_message_id: MessageId
    attempt: int
    failures: int
    last_seq: int
    seq_at_adoption: int
    lease_until: int
    has_waited: bool = False
    """Whether it goes on after a wait."""


class Adoption(Struct, frozen=True, kw_only=True):
    """The turn's next attempt. `event` gets the number `last_seq`."""

    attempt: int
    failures: int
    last_seq: int
    event: TurnEvent
    is_first_start: bool


def adoption(turn: ExpiredTurn, *, now: int) -> Adoption:
    """Raise the attempt and tell the readers, with the time.

    A turn that got no further since its last adoption has failed once more. For a turn that did, the count starts
    at 0. A turn that was let go on purpose has not failed.
    """
    attempt = turn.attempt + 1
    is_first_start = turn.attempt == 0
    was_let_go = turn.lease_until <= LET_GO
    failures = turn.failures
    event: TurnEvent
    if is_first_start or turn.has_waited:
        failures = 0
        event = TurnBegan(
            turn_id=turn.id,
            conversation_id=turn.conversation_id,
            user_message_id=turn.user_message_id,
            status="running",
            attempt=attempt,
            at=now,
        )
    else:
        if not was_let_go:
            failures = 0 if turn.last_seq > turn.seq_at_adoption else failures + 1
        event = Reset(attempt=attempt, reason="handover" if was_let_go else "lease_expired", at=now)
    return Adoption(
        attempt=attempt, failures=failures, last_seq=turn.last_seq + 1, event=event, is_first_start=is_first_start
    )


def cancel_step(status: TurnStatus, cancel_requested_at: int | None) -> Literal["end", "mark", "none"]:
    """What a request to cancel does: a queued turn ends at once, another one is marked for its holder. One that waits
    for answers goes on with the mark, and is settled by the worker that adopts it."""
    if status == "queued":
        return "end"
    if status in {"running", "waiting"} and cancel_requested_at is None:
        return "mark"
    return "none"


Stand = Literal["held", "known", "lost", "settled", "ahead"]
"""Where a writer stands: it may write; its write is stored already; another worker has the turn; the turn has ended; or
the turn has events that the writer does not know."""


class TurnState(Struct, frozen=True):
    """A turn as a write of its holder finds it. The fence looks at the first three fields."""

    status: TurnStatus
    attempt: int
    last_seq: int
    is_cancel_requested: bool
    conversation_id: ConversationId
    org_id: OrgId
    files_written: int
    steers: int = 0


def stand_of(state: TurnState | Turn | None, held: Held, after: int) -> Stand:
    """Where a holder stands that wants to write event `after + 1`. Only a look at what is stored can tell `known`."""
    if state is None or state.attempt != held.attempt:
        return "lost"
    if state.status == "queued":
        return "lost"
    if state.status not in {"running", "waiting"}:  # a turn whose sandbox waits is held meanwhile
        return "settled"
    return "held" if state.last_seq == after else "ahead"


def fence_refusal(stand: Stand, held: Held, after: int, last_seq: int | None) -> TurnkeepError:
    """The error for a writer that may not write."""
    match stand:
        case "lost":
            return LeaseLost(f"Turn {held.turn_id} is not held by attempt {held.attempt} any more.")
        case "settled":
            return TurnSettled(f"Turn {held.turn_id} has ended.")
        case _:
            return Defect(
                f"Two writers for turn {held.turn_id}: it is at event {last_seq}, but the next write says {after}."
            )


def with_notes(turn: Turn, notes: JsonObject) -> Turn:
    """The turn with these notes in its metadata."""
    return structs.replace(turn, metadata=_merged(turn.metadata, notes))


def _merged(before: JsonObject, more: JsonObject) -> JsonObject:
    """Both objects. Values that are objects in both are merged too; of others the new one counts."""
    merged = dict(before)
    for name, value in more.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def check_comment(comment: str | None) -> str | None:
    """The comment of a rating, without what stands around it; None for one that says nothing."""
    if comment is None or not comment.strip():
        return None
    return check_text(comment.strip(), "comment", limit=COMMENT_CHARS)


def rater_of(principal: Principal) -> UserId:
    """Raises Forbidden for a service that acts for no user: a rating is what a person thinks."""
    if principal.user_id is None:
        raise Forbidden("A rating belongs to a user. Act for one with `Turnkeep-User`.")
    return principal.user_id


def not_ended() -> Conflict:
    return Conflict("This turn has not ended yet. Its answer can be rated then.")


def no_feedback() -> NotFound:
    return NotFound("You have not rated this turn.")


def no_turn() -> NotFound:
    return NotFound("No such turn.")
