"""The queue of a conversation: what a claim does while another turn runs or waits, and which turn runs next."""

from collections.abc import Sequence

from msgspec import Struct

from turnkeep.errors import ConversationBusy, QueueFull
from turnkeep.ids import TurnId
from turnkeep.model.turns import IfBusy, TurnError
from turnkeep.store.rules.branches import Beside, Place, place_of
from turnkeep_client.wire.events import Failure

CANCELLED = TurnError(code="cancelled", message="Stopped before it began.")
"""Why a turn that was cancelled in the queue ended."""
CANCELLED_EVENT = Failure(code=CANCELLED.code, message=CANCELLED.message)
"""Its terminal event."""


class RunningTurn(Struct, frozen=True, kw_only=True):
    id: TurnId
    started_at: int | None


class WaitingTurn(Struct, frozen=True, kw_only=True):
    id: TurnId
    ordinal: int


class Queue(Struct, frozen=True, kw_only=True):
    """The turns of a conversation that have not ended. `waiting` is in the order of the ordinals.

    `next_ordinal` is the ordinal that no turn has yet.
    """

    next_ordinal: int
    running: RunningTurn | None = None
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

    It runs at once, or waits at `ordinal`. `cancels` is a waiting turn that it replaces, `stops` the running turn that
    is asked to stop for it. `moves` come in an order in which no two turns ever have the same ordinal.
    """

    ordinal: int
    is_started: bool
    cancels: TurnId | None = None
    stops: TurnId | None = None
    moves: tuple[Move, ...] = ()


def enter(queue: Queue, *, if_busy: IfBusy, limit: int, beside: TurnId | None) -> Entry:
    """Refuse, wait at the end of the queue, or stop the running turn and wait in front.

    Raises ConversationBusy for `reject`, and QueueFull at the limit. A full queue has one more place, for a turn that
    interrupts.
    """
    if not queue.is_busy:
        return Entry(ordinal=queue.next_ordinal, is_started=True)
    check_idle(queue, if_busy=if_busy)
    waiting = queue.waiting
    if if_busy == "enqueue":
        _check_room(len(waiting), limit)
        return Entry(ordinal=queue.next_ordinal, is_started=False)
    # An edit of a waiting turn replaces it. Every other turn goes on waiting.
    others = tuple(turn for turn in waiting if turn.id != beside)
    _check_room(len(others), limit + 1)
    moves, first = _moved_back(others, queue.next_ordinal)
    return Entry(
        ordinal=first,
        is_started=False,
        cancels=beside if len(others) < len(waiting) else None,
        stops=None if queue.running is None else queue.running.id,
        moves=moves,
    )


def check_idle(queue: Queue, *, if_busy: IfBusy = "reject") -> None:
    """Raise ConversationBusy if a turn runs or waits and the caller does not want to wait."""
    if if_busy != "reject" or not queue.is_busy:
        return
    if queue.running is not None:
        raise ConversationBusy(queue.running.id, queue.running.started_at)
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
    """The turn that runs next and its place, or the waiting turns that end instead; nothing where none waits."""

    starts: TurnId | None = None
    place: Place = Place(parent=None)
    cancels: tuple[TurnId, ...] = ()


def promotion(facts: PromotionFacts) -> Promotion:
    """Let the first waiting turn run. In a deleted conversation nothing starts: all waiting turns are cancelled."""
    if facts.is_running or not facts.waiting:
        return Promotion()
    if facts.is_deleted:
        return Promotion(cancels=tuple(turn.id for turn in facts.waiting))
    first = facts.waiting[0]
    return Promotion(starts=first.id, place=place_of(facts.head_turn_id, first.beside))
