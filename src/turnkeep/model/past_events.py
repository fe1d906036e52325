"""Past events: the events of a turn whose stream was never recorded, made from its rows.

Appended and imported turns have rows but no events. A reader who opens their stream gets what a live stream would
have shown: the same display, the same order, one terminal event.

Decision: docs/decisions/0204
"""

from collections.abc import Sequence

from turnkeep.ids import MessageId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep_client.wire.blocks import Reasoning, ToolResult, ToolUse, text_of
from turnkeep_client.wire.display import fold, parts_of
from turnkeep_client.wire.events import Failure, Result, Sources, Step, ToolCall, ToolCalls, TurnBegan, TurnEvent
from turnkeep_client.wire.usage import Usage


def events_from_rows(turn: Turn, rows: Sequence[Message]) -> tuple[TurnEvent, ...]:
    """The events of a settled turn, first to last. A turn without rows has none."""
    if not rows:
        return ()
    final = next((row for row in reversed(rows) if row.role == "assistant" and not row.internal), None)
    events: list[TurnEvent] = [first_event(turn, rows[0].id)]
    names: dict[str, str] = {}
    has_failed = turn.status != "succeeded"
    for row in rows:
        if row is not final or (has_failed and text_of(row.blocks)):
            events.extend(_events_of(row, names))
    if final is not None and final.sources:
        events.append(Sources(sources=final.sources))
    events.append(_terminal_of(turn, final, events))
    return tuple(events)


def first_event(turn: Turn, user_message_id: MessageId) -> TurnBegan:
    """The event with which every turn begins: it waits, or it runs."""
    return TurnBegan(
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        user_message_id=user_message_id,
        status="queued" if turn.status == "queued" else "running",
        attempt=turn.attempt,
    )


def _events_of(row: Message, names: dict[str, str]) -> list[TurnEvent]:
    calls = [block for block in row.blocks if isinstance(block, ToolUse)]
    results = [block for block in row.blocks if isinstance(block, ToolResult)]
    events: list[TurnEvent] = []
    if row.role == "assistant":
        names |= {call.id: call.name for call in calls}
        events.append(
            ToolCalls(
                iteration=row.iteration or 0,
                text=text_of(row.blocks),
                calls=tuple(ToolCall(id=call.id, name=call.name, args=call.input) for call in calls),
            )
        )
        events.extend(Step(id=call.id, name=call.name, status="running", args=call.input) for call in calls)
    events.extend(_step_of(result, names.get(result.call_id, "tool")) for result in results)
    return events


def _step_of(result: ToolResult, name: str) -> Step:
    if result.is_error:
        return Step(id=result.call_id, name=name, status="failed", error=result.content)
    return Step(id=result.call_id, name=name, status="succeeded", result=result.content)


def _terminal_of(turn: Turn, final: Message | None, events: Sequence[TurnEvent]) -> TurnEvent:
    if turn.error is not None or turn.status != "succeeded":
        code = turn.error.code if turn.error else turn.status
        message = turn.error.message if turn.error else "This turn ended without an answer."
        if final is None:
            return Failure(code=code, message=message)
        return Failure(code=code, message=message, message_id=final.id)
    if final is None:
        return Result(message_id=MessageId(""), message="", content=fold(events).content, usage=turn.usage)
    content = final.display if final.display is not None else (*fold(events).content, *parts_of(final.blocks))
    return Result(
        message_id=final.id,
        message=text_of(tuple(block for block in final.blocks if not isinstance(block, Reasoning))),
        content=content,
        usage=final.usage or Usage(),
    )
