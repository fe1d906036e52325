"""Rules of waits and of steering.

- An answer to a waiting call: the first one holds. A repeat of it changes nothing, unless it says that the conversation
  shall remember it.
- Words that steer a turn: how the questions of queued turns become rows and events of the turn that runs.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from turnkeep.errors import AlreadyDecided, InvalidRequest, NotFound, TooLarge
from turnkeep.ids import CallId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import (
    UNANSWERED,
    CallAnswer,
    Wait,
    WaitingCall,
    WaitReason,
    bytes_of,
    digest_of,
    reason_of,
    trust_of,
)
from turnkeep.store.commands import Taken
from turnkeep_client.wire.blocks import paragraphs_of
from turnkeep_client.wire.events import Decided, Steered, TurnEvent

WAIT_BYTES = 4 * 1024 * 1024
"""Maximum size of the JSON of a wait, with the calls and their answers. It is written anew with every answer."""


class AnswerEffect(Struct, frozen=True, kw_only=True):
    """What answers change. `wait` is None if all of them are repeats. `events` tell of decisions; those of a turn that
    is held are told by its holder. `trusted` are the tools that the conversation shall remember."""

    wait: Wait | None = None
    events: tuple[TurnEvent, ...] = ()
    trusted: tuple[str, ...] = ()


def answered(turn: Turn, given: Mapping[CallId, CallAnswer], *, reason: WaitReason, now: int) -> AnswerEffect:
    """What these answers change.

    Raises NotFound for a call that never waited, InvalidRequest for one that waits for something else, and
    AlreadyDecided for another answer than the one that holds. All answers are taken or none.
    """
    wait = turn.wait
    if wait is None:
        raise NotFound("This turn waits for nothing, and never has.")
    is_open = turn.status == "waiting" and now < wait.expires_at
    news: dict[CallId, CallAnswer] = {}
    trusted: list[str] = []
    for call_id, answer in given.items():
        call = wait.call(call_id)
        if call is None:
            raise NotFound(f"Turn {turn.id} has no call {call_id} that waits.")
        _check_reason(call, reason)
        if call.answer is None and is_open:
            args = call.args if answer.args is None else answer.args
            news[call.id] = structs.replace(answer, digest=digest_of(call.name, args), at=now)
        elif call.answer is None or not call.answer.is_same_as(answer):
            _refuse(turn, call, answer)
        if answer.is_remembered:
            trusted.append(trust_of(turn.snapshot.agent_id, call.identity or call.name))
    if not news:
        return AnswerEffect(trusted=tuple(trusted))
    calls = tuple(
        structs.replace(call, answer=news[call.id]) if call.answer is None and call.id in news else call
        for call in wait.calls
    )
    missing = reason_of(calls)
    changed = structs.replace(wait, calls=calls, reason=missing, resumed_at=now if missing is None else None)
    if (size := bytes_of(changed)) > WAIT_BYTES:
        raise TooLarge(
            f"The answers to the calls of this turn take {size:,} bytes together; at most {WAIT_BYTES:,} are kept. "
            "Send a shorter result, or upload a file and send its name."
        )
    made = tuple(
        call.decision
        for before, call in zip(wait.calls, calls, strict=True)
        if before.answer is None and call.decision is not None
    )
    events = (Decided(decisions=made),) if made and wait.held_by is None else ()
    return AnswerEffect(wait=changed, events=events, trusted=tuple(trusted))


def unanswered(turn: Turn, *, attempt: int, now: int) -> Wait | None:
    """The wait of a turn that is held by this attempt, once its time is over: what nobody answered counts as denied.
    None if it goes on, or has ended already."""
    wait = turn.wait
    if turn.status != "waiting" or wait is None or wait.held_by != attempt or now < wait.expires_at:
        return None
    calls = tuple(
        call if call.answer is not None else structs.replace(call, answer=structs.replace(UNANSWERED, at=now))
        for call in wait.calls
    )
    return structs.replace(wait, calls=calls, reason=None, resumed_at=now)


def spent(turn: Turn, call_id: CallId, digest: str, *, attempt: int) -> Wait | None:
    """The wait of a turn that is held by this attempt, once the call that this digest names has begun. None if the call
    was not allowed with these arguments, or has begun before."""
    wait = turn.wait
    call = None if wait is None else wait.call(call_id)
    if wait is None or call is None or turn.is_settled or turn.cancel_requested_at is not None:
        return None
    if turn.attempt != attempt or wait.held_by != attempt or call.is_spent or call.allowed_args is None:
        return None
    if call.answer is None or call.answer.digest != digest:
        return None
    calls = tuple(structs.replace(each, is_spent=True) if each.id == call_id else each for each in wait.calls)
    return structs.replace(wait, calls=calls)


def _check_reason(call: WaitingCall, reason: WaitReason) -> None:
    if call.reason == reason:
        return
    if call.reason == "approval":
        raise InvalidRequest(f"Call {call.id} waits for a decision. Send it to `approvals`.")
    raise InvalidRequest(f"Call {call.id} is one of a client tool. Send its result to `results`.")


def _refuse(turn: Turn, call: WaitingCall, answer: CallAnswer) -> None:
    """Raise for an answer that comes too late, unless it says what the silence said already."""
    held = call.answer or UNANSWERED
    if held.verdict == "none":
        if answer.verdict == "deny":
            return
        is_overdue = turn.wait is not None and turn.settled_at is not None and turn.wait.expires_at <= turn.settled_at
        if turn.is_settled and call.answer is None and not is_overdue:
            end = " It was not run." if call.reason == "approval" else ""
            raise AlreadyDecided(
                f"The turn ended ({turn.status}) before call {call.id} was answered.{end}",
                turn_id=turn.id,
                decision="deny" if call.reason == "approval" else None,
            )
        raise AlreadyDecided(
            f"Call {call.id} was not answered in time, which counts as denied. Ask again in a new turn.",
            turn_id=turn.id,
            decision="deny" if call.reason == "approval" else None,
        )
    decision = held.verdict if call.reason == "approval" else None
    said = f"was decided already ({decision}{held.by_whom})" if decision else "has its result already"
    raise AlreadyDecided(f"Call {call.id} {said}. The first answer holds.", turn_id=turn.id, decision=decision)


def taken(held: Held, questions: Sequence[Message], *, sequence: int) -> Taken:
    """These questions as rows of the turn that is held, numbered from `sequence` on. They keep their ids."""
    rows = tuple(
        structs.replace(question, turn_id=held.turn_id, turn_sequence=sequence + place)
        for place, question in enumerate(questions)
    )
    return Taken(rows=rows, events=tuple(Steered(message_id=row.id, message=paragraphs_of(row.blocks)) for row in rows))


def already_taken(rows: Sequence[Message], events: Sequence[TurnEvent], *, sequence: int) -> Taken | None:
    """What was taken by a call whose answer was lost; None if these events are not of such a call."""
    if not events or not all(isinstance(event, Steered) for event in events):
        return None
    return Taken(rows=tuple(row for row in rows if row.turn_sequence >= sequence), events=tuple(events))
