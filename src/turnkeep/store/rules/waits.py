"""Rules of waits and of steering.

- An answer to a waiting call: the first one holds, and a repeat changes nothing.
- Words that steer a turn: how the questions of queued turns become rows and events of the turn that runs.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from turnkeep.errors import AlreadyDecided, InvalidRequest, NotFound
from turnkeep.ids import CallId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import UNANSWERED, CallAnswer, Wait, WaitingCall, WaitReason, digest_of, reason_of, trust_of
from turnkeep.store.commands import Taken
from turnkeep_client.wire.blocks import paragraphs_of
from turnkeep_client.wire.events import Steered, TurnEvent


def answered(turn: Turn, given: Mapping[CallId, CallAnswer], *, reason: WaitReason, now: int) -> Wait | None:
    """The wait with these answers; None if they change nothing, because all of them are repeats.

    Raises NotFound for a call that never waited, InvalidRequest for one that waits for something else, and
    AlreadyDecided for another answer than the one that holds. All answers are taken or none.
    """
    wait = turn.wait
    if wait is None:
        raise NotFound("This turn waits for nothing, and never has.")
    is_open = turn.status == "waiting" and now < wait.expires_at
    news: dict[CallId, CallAnswer] = {}
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
    if not news:
        return None
    calls = tuple(
        structs.replace(call, answer=news[call.id]) if call.answer is None and call.id in news else call
        for call in wait.calls
    )
    missing = reason_of(calls)
    return structs.replace(wait, calls=calls, reason=missing, resumed_at=now if missing is None else None)


def newly_trusted(turn: Turn, wait: Wait) -> list[str]:
    """The tools that the answers of this wait let the conversation remember."""
    return [
        trust_of(turn.snapshot.agent_id, call.name)
        for call in wait.calls
        if call.answer is not None and call.answer.is_remembered
    ]


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
        raise AlreadyDecided(
            f"Call {call.id} was not answered in time, which counts as denied. Ask again in a new turn.",
            turn_id=turn.id,
            decision="deny" if call.reason == "approval" else None,
        )
    decision = held.verdict if call.reason == "approval" else None
    said = f"was decided already ({decision}, by {held.by})" if decision else "has its result already"
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
