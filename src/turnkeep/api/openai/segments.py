"""Segments: the parts of a turn between its waits. To a client of OpenAI's APIs each of them is one answer.

A turn that waits (for a person's approval, or for the result of a tool that the caller runs) ends an answer. The next
request brings what is missing, and the next answer begins where the turn goes on. A turn without waits is one segment.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp

from turnkeep.api.http.disconnects import while_connected
from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.native.turns import read_events
from turnkeep.api.wires import last_wait
from turnkeep.engine.outcomes import STOPPED_WAIT
from turnkeep.errors import ConversationBusy
from turnkeep.ids import TurnId
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message
from turnkeep.model.timeline import USAGE
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep.streaming.follow import Take, follow
from turnkeep.streaming.frames import Cursor, EventFrame, Frame, event_frame
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Recorded,
    Result,
    Step,
    ToolCalls,
    TurnBegan,
)

Waits = Approval | ClientCalls


class Segment(Struct, frozen=True, kw_only=True):
    """The events of a turn after `after`, and up to `until`; None while it goes on. `index` counts from 0."""

    index: int
    after: int
    until: int | None = None


class SegmentEncoder(Protocol):
    """Encodes the frames of one segment. The fields are set before the frame that ends it."""

    ends_at: int | None
    """The number of the last event."""
    ended_at: int | None
    """The time of it."""
    usage: Usage
    before: Sequence[Recorded]
    """The events of the segments before it."""

    def encode(self, frame: Frame) -> bytes: ...


def response_id(turn_id: TurnId, index: int = 0) -> str:
    """The id of a segment's response."""
    own = turn_id.removeprefix("turn_")
    return f"resp_{own}_{index}" if index else f"resp_{own}"


def parse_response_id(text: str) -> tuple[TurnId, int] | None:
    """The turn and the number of its segment; None if it is no such id."""
    found = re.fullmatch(r"resp_([0-9a-f]{32})(?:_([1-9]\d{0,5}))?", text)
    return None if found is None else (TurnId(f"turn_{found[1]}"), int(found[2] or 0))


def segments_of(events: Sequence[Recorded]) -> list[Segment]:
    """All segments of a turn with these events, the last of which may have no event yet. A decision alone begins none:
    the turn may wait for others. Nor does a stop: the segment in which the turn waited ends with it."""
    found: list[Segment] = []
    after, stopped_after = 0, _stopped_after(events)
    for place, recorded in enumerate(events):
        following = events[place + 1].event if place + 1 < len(events) else None
        is_wait = isinstance(recorded.event, Waits) and not isinstance(following, Waits)
        is_end = is_wait and recorded.seq != stopped_after
        if is_end or isinstance(recorded.event, Result | Failure):
            found.append(Segment(index=len(found), after=after, until=recorded.seq))
            after = recorded.seq
    last = next((each.event for each in reversed(events) if not isinstance(each.event, Decided)), None)
    if not isinstance(last, Waits | Result | Failure):
        found.append(Segment(index=len(found), after=after))
    return found


def _stopped_after(events: Sequence[Recorded]) -> int | None:
    """The number of the event with which the turn began to wait, if it was stopped while it waited."""
    last = events[-1].event if events else None
    if not isinstance(last, Failure) or last.code != "cancelled":
        return None
    is_open = False
    for recorded in reversed(events[:-1]):
        event = recorded.event
        if isinstance(event, Waits):
            return recorded.seq if is_open else None
        if isinstance(event, Step):
            is_open |= str(event.error).startswith(STOPPED_WAIT)
        elif not isinstance(event, Decided | TurnBegan):
            return None
    return None


async def explained(runtime: Runtime, busy: ConversationBusy) -> ConversationBusy:
    """The error with advice that a client of this wire can follow."""
    turn_id = TurnId(busy.turn_id)
    segments = segments_of(await read_events(runtime.store, turn_id))
    own = response_id(turn_id, segments[-1].index)
    turn = await runtime.store.claimed_turn(turn_id)
    reason = turn.wait.reason if turn.status == "waiting" and turn.wait is not None else None
    missing = {None: "Wait for its end", "approval": "Send its `mcp_approval_response`"}
    advice = f"{missing.get(reason, 'Send the output of each call')}, or cancel the response {own}."
    return ConversationBusy(turn_id, turn.started_at, advice=advice, waiting_for=reason)


async def newest_turn(call: ApiCall[Any, Any], conversation: Conversation | None) -> Turn | None:
    """The turn that runs or waits in the conversation, or its last one."""
    if conversation is None:
        return None
    turn_id = conversation.running_turn_id or conversation.head_turn_id
    return None if turn_id is None else await call.runtime.store.turn(call.principal, turn_id)


async def segment_after(runtime: Runtime, turn_id: TurnId, call_ids: Iterable[str]) -> Segment:
    """The segment with which the turn goes on after its wait for these calls, also if it has no event yet."""
    events = await read_events(runtime.store, turn_id)
    segments, waited = segments_of(events), last_wait(events, call_ids)
    following = next((each for each in segments if each.after >= waited > 0), None)
    return following or Segment(index=segments[-1].index + 1, after=segments[-1].until or segments[-1].after)


async def follow_segment(
    runtime: Runtime, turn_id: TurnId, encoder: SegmentEncoder, cursor: Cursor, *, take: Take | None = None
) -> AsyncIterator[Sequence[Frame]]:
    """Everything after the cursor, in batches, up to the end of the segment in which the cursor is."""
    async for batch in follow(runtime.store, runtime.hub, turn_id, cursor, take=take):
        for place, frame in enumerate(batch):
            if not isinstance(frame, EventFrame):
                continue
            if isinstance(frame.recorded.event, Waits):
                shown = [*batch[: place + 1], *await _second_wait(runtime, turn_id, frame)]
                if not await prepare_end(runtime, turn_id, encoder, shown[-1].seq):
                    continue
                yield shown
                return
            if frame.is_terminal:
                await prepare_end(runtime, turn_id, encoder, frame.seq)
        yield batch


async def _second_wait(runtime: Runtime, turn_id: TurnId, frame: EventFrame) -> list[Frame]:
    """A turn may begin to wait for a person and for the caller with one write: then the caller's calls follow."""
    events = await runtime.store.events(turn_id, after=frame.seq, limit=1)
    return [event_frame(each) for each in events if isinstance(each.event, Waits)]


async def prepare_end(runtime: Runtime, turn_id: TurnId, encoder: SegmentEncoder, seq: int) -> bool:
    """Tell the encoder that this event ends the segment, when that was, and what the segment has cost. Returns False
    if the segment goes on: the turn was stopped while it waited."""
    events = await read_events(runtime.store, turn_id)
    segment = next((each for each in segments_of(events) if each.until == seq), None)
    if segment is None and _stopped_after(events) == seq:
        return False
    encoder.ends_at = seq
    if segment is None:
        return True
    last = events[seq - 1].event
    is_wait = isinstance(last, Waits)
    rows = await runtime.store.turn_rows(turn_id) if is_wait or segment.index else []
    total = Usage()
    if is_wait:
        iteration = _last_iteration(events[:seq])
        spoken = (row.created_at for row in rows if row.iteration == iteration and row.role == "assistant")
        encoder.ended_at = next(spoken, None)
    else:
        turn = await runtime.store.claimed_turn(turn_id)
        encoder.ended_at = turn.settled_at
        total = last.usage if isinstance(last, Result) else turn.usage
    encoder.before = events[: segment.after]
    encoder.usage = _usage_of_segment(segment, events, rows, total)
    return True


def _last_iteration(events: Sequence[Recorded]) -> int:
    return max((each.event.iteration for each in events if isinstance(each.event, ToolCalls)), default=0)


def _usage_of_segment(segment: Segment, events: Sequence[Recorded], rows: Sequence[Message], total: Usage) -> Usage:
    """The tokens of a segment that has ended. A turn counts its tokens as a whole (`total`, once it has ended, also if
    it was stopped); the rows of the iterations say what each has cost."""
    assert segment.until is not None
    costs = {
        row.iteration: msgspec.convert(row.metadata.get(USAGE, {}), Usage)
        for row in rows
        if row.iteration is not None and row.role == "assistant"
    }
    if isinstance(events[segment.until - 1].event, Waits):
        return _sum(costs, events[segment.after : segment.until])
    return _less(total, _sum(costs, events[: segment.after]))


def _sum(costs: Mapping[int, Usage], events: Sequence[Recorded]) -> Usage:
    spent = Usage()
    for recorded in events:
        if isinstance(recorded.event, ToolCalls):
            spent += costs.get(recorded.event.iteration, Usage())
    return spent


def _less(total: Usage, part: Usage) -> Usage:
    return Usage(**{name: max(0, getattr(total, name) - getattr(part, name)) for name in Usage.__struct_fields__})


def stream_segment(
    runtime: Runtime,
    turn: Turn,
    encoder: SegmentEncoder,
    cursor: Cursor,
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> ASGIApp:
    """The stream of a segment from the cursor on. While it is open, the turn counts as watched."""
    stream = runtime.streams.respond(
        lambda take: follow_segment(runtime, turn.id, encoder, cursor, take=take),
        encoder,
        attach=lambda: runtime.engine.attach(turn.id),
        runs_here=lambda: runtime.engine.runs(turn.id),
        headers=((b"turnkeep-turn", turn.id.encode()), *headers),
    )
    return cast(ASGIApp, stream)


async def wait_for_segment(call: ApiCall[Any, Any], turn: Turn, encoder: SegmentEncoder, segment: Segment) -> Turn:
    """Wait until the segment has ended, and give its events to the encoder. Returns the turn as it is then.

    Raises Draining when this worker goes away first, and ClientDisconnected.
    """
    ended = (await while_connected(call.receive, call.runtime.engine.ending(turn.id))).turn
    await encode_segment(call.runtime, ended.id, encoder, segment)
    return ended


async def encode_segment(runtime: Runtime, turn_id: TurnId, encoder: SegmentEncoder, segment: Segment) -> None:
    """Give the events of a segment, as far as they are stored, to the encoder."""
    events = await read_events(runtime.store, turn_id)
    found = next((each for each in segments_of(events) if each.index == segment.index), None)
    until = None if found is None else found.until
    if until is not None:
        await prepare_end(runtime, turn_id, encoder, until)
    for recorded in events[segment.after : until]:
        encoder.encode(event_frame(recorded))
