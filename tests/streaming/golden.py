"""The golden turns: `tests/golden/*.ndjson` and, beside each, its exact bytes in every format.

A line is an event with its number, or a piece of preview. `{name}.{format}.sse` is what a reader sees who was there
from the first moment; `{name}.{format}.replay.sse` what one sees who comes when all is over.

One turn has everything that can happen. It is also there on the wires of other clients, whose requests end where the
turn waits: `everything.{wire}.1.sse` is the first request, `everything.{wire}.2.sse` the one that brings the answers.
`everything.openai-responses.1.sse` and so on are the responses that it is for OpenAI's clients.

    python -m tests.streaming.golden       writes the bytes anew; look at the difference before you keep it
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from turnkeep.api.ag_ui.run_stream import RunEvents, RunInfo
from turnkeep.api.ai_sdk.message_stream import MessageStream
from turnkeep.api.openai.response_events import ResponseSegment
from turnkeep.api.openai.segments import segments_of
from turnkeep.api.wires import PausingEncoder
from turnkeep.ids import ConversationId, TurnId, WorkspaceId
from turnkeep.model.agents import Snapshot
from turnkeep.model.turns import Turn
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import DeltaFrame, Frame
from turnkeep.streaming.hub import TurnLog, frames_of
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import Approval, ClientCalls, Recorded, TurnBegan

FOLDER = Path(__file__).parent.parent / "golden"
FORMATS: tuple[FormatName, ...] = ("native", "openai", "anthropic")
CREATED_AT = 1_750_000_000_000
MODEL = "demo/golden"
EVERYTHING = "everything"
QUESTION = {"id": "question-1", "role": "user", "content": "Pay, and say how the weather is."}


def _ai_sdk(turn_id: TurnId, after: int) -> PausingEncoder:
    return MessageStream(turn_id=turn_id, base_url="https://turnkeep.example", after=after)


def _ag_ui(turn_id: TurnId, after: int, *, is_legacy: bool = False) -> PausingEncoder:
    run = RunInfo(thread_id="thread-1", run_id="run-2" if after else "run-1", is_legacy=is_legacy, messages=[QUESTION])
    return RunEvents(turn_id=turn_id, run=run, after=after)


def _old_ag_ui(turn_id: TurnId, after: int) -> PausingEncoder:
    return _ag_ui(turn_id, after, is_legacy=True)


WIRES: dict[str, Callable[[TurnId, int], PausingEncoder]] = {
    "ai-sdk": _ai_sdk,
    "ag-ui": _ag_ui,
    "ag-ui-0.0.59": _old_ag_ui,
}
"""An encoder of each wire, for a reader who has the turn up to an event."""


class Line(Struct, frozen=True, omit_defaults=True):
    """What happened next."""

    recorded: Recorded | None = None
    said: PreviewPiece | None = None


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ndjson"))


def lines_of(name: str) -> list[Line]:
    text = (FOLDER / f"{name}.ndjson").read_bytes()
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


def events_of(name: str) -> list[Recorded]:
    return [line.recorded for line in lines_of(name) if line.recorded is not None]


def live_frames(name: str) -> Iterator[Frame]:
    """The frames of a reader who keeps up."""
    log = TurnLog()
    seq = offset = 0
    for line in lines_of(name):
        if line.recorded is not None:
            log.add(frames_of([line.recorded]))
        if line.said is not None:
            assert log.add_preview(line.said)
        for frame in log.frames(seq, offset):
            seq, offset = frame.seq, frame.offset
            yield frame


def encoded(frames: Iterator[Frame] | Sequence[Frame], format: FormatName, turn_id: TurnId) -> bytes:
    encoder = encoder_for(format, turn_id=turn_id, model=MODEL, created_at=CREATED_AT)
    return b"".join(encoder.encode(frame) for frame in frames)


def bytes_of(name: str, format: FormatName) -> dict[str, bytes]:
    """The two files beside a turn, by name."""
    events = events_of(name)
    turn_id = getattr(events[0].event, "turn_id", TurnId(""))
    return {
        f"{name}.{format}.sse": encoded(live_frames(name), format, turn_id),
        f"{name}.{format}.replay.sse": encoded(frames_of(events), format, turn_id),
    }


def wire_bytes(wire: str) -> dict[str, bytes]:
    """The files of the turn that has everything, by name: each request of a client, and the replay of it all."""
    events = events_of(EVERYTHING)
    turn_id = getattr(events[0].event, "turn_id", TurnId(""))
    waits = [recorded.seq for recorded in events if isinstance(recorded.event, Approval | ClientCalls)]
    ends = [seq for seq in waits if seq + 1 not in waits]
    found: dict[str, bytes] = {}
    for number, (after, end) in enumerate(zip([0, *ends], [*ends, None], strict=True), start=1):
        encoder = WIRES[wire](turn_id, after)
        encoder.pauses_at = end
        frames = [frame for frame in live_frames(EVERYTHING) if end is None or frame.seq <= end]
        found[f"{EVERYTHING}.{wire}.{number}.sse"] = b"".join(map(encoder.encode, frames))
    replay = b"".join(map(WIRES[wire](turn_id, 0).encode, frames_of(events)))
    return {**found, f"{EVERYTHING}.{wire}.replay.sse": replay}


def response_bytes() -> dict[str, bytes]:
    """The same turn as responses of OpenAI's wire: one for each part between its waits."""
    events = events_of(EVERYTHING)
    found: dict[str, bytes] = {}
    for segment in segments_of(events):
        for kind, frames in (("", list(live_frames(EVERYTHING))), (".replay", frames_of(events))):
            encoder = ResponseSegment(_turn(events), segment)
            encoder.ends_at, encoder.ended_at = segment.until, CREATED_AT + 5_000
            encoder.before = events[: segment.after]
            own = [
                frame for frame in frames if _is_within(frame, after=segment.after, until=segment.until or len(events))
            ]
            file = f"{EVERYTHING}.openai-responses.{segment.index + 1}{kind}.sse"
            found[file] = b"".join(map(encoder.encode, own))
    return found


def _is_within(frame: Frame, *, after: int, until: int) -> bool:
    """A preview belongs behind the event that it follows."""
    is_preview = isinstance(frame, DeltaFrame)
    return after <= frame.seq < until if is_preview else after < frame.seq <= until


def _turn(events: Sequence[Recorded]) -> Turn:
    began = events[0].event
    assert isinstance(began, TurnBegan)
    return Turn(
        id=TurnId(began.turn_id),
        conversation_id=ConversationId(began.conversation_id),
        workspace_id=WorkspaceId("ws_golden"),
        user_id=None,
        parent_turn_id=None,
        ordinal=1,
        active=True,
        status="succeeded",
        attempt=3,
        failures=0,
        last_seq=len(events),
        cancel_requested_at=None,
        background=False,
        source="api",
        model=MODEL,
        snapshot=Snapshot(client_tools=({"type": "client", "name": "locate", "description": ""},)),
        usage=Usage(),
        month="2025-06",
        error=None,
        metadata={"topic": "weather", "notes": {"not": "a text"}},
        created_at=CREATED_AT,
        started_at=CREATED_AT,
        settled_at=CREATED_AT + 5_000,
    )


if __name__ == "__main__":
    for file, content in response_bytes().items():
        (FOLDER / file).write_bytes(content)
    for each_wire in WIRES:
        for file, content in wire_bytes(each_wire).items():
            (FOLDER / file).write_bytes(content)
    for each in names():
        for format_name in FORMATS:
            for file, content in bytes_of(each, format_name).items():
                (FOLDER / file).write_bytes(content)
