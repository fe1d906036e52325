"""The streams of other wires as values: what a client has in the end, live, in a replay and after words taken back."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.streaming import golden
from turnkeep.api.ag_ui.run_stream import RunEvents, RunInfo, messages_of
from turnkeep.api.ai_sdk.message_stream import MessageStream, message_of
from turnkeep.ids import TurnId
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame
from turnkeep.streaming.hub import frames_of
from turnkeep_client.wire.blocks import ReasoningPart, TextPart, Usage
from turnkeep_client.wire.events import (
    Failure,
    Files,
    Recorded,
    Reset,
    Result,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

TURN = TurnId("turn_x")
COMPLETE = [name for name in golden.names() if name != "failed"]
"""Of a turn that failed, a live reader may have words that no event has."""


def turn_of(*previews: tuple[Any, str], text: str, reasoning: str = "") -> list[Frame]:
    """A turn in which the model said these previews, and of which this was recorded."""
    began = TurnBegan(turn_id=TURN, conversation_id="c", user_message_id="m", status="running", attempt=1)  # type: ignore[arg-type]
    parts = (ReasoningPart(text=reasoning), TextPart(text=text)) if reasoning else (TextPart(text=text),)
    result = Result(message_id="m", message=text, content=parts, usage=Usage())  # type: ignore[arg-type]
    frames: list[Frame] = [EventFrame(seq=1, recorded=Recorded(seq=1, event=began))]
    offset = 0
    for kind, words in previews:
        offset += len(words)
        frames.append(DeltaFrame(seq=1, offset=offset, iteration=1, kind=kind, text=words))
    return [*frames, EventFrame(seq=2, recorded=Recorded(seq=2, event=result))]


def types_of(frames: Sequence[Frame]) -> list[str]:
    stream = MessageStream(turn_id=TURN)
    return [chunk.get("type", "") for frame in frames for chunk in stream.chunks(frame)]


class TestLiveAndReplayed:
    @pytest.mark.parametrize("name", COMPLETE)
    def test_a_message_of_the_ai_sdk_is_the_same(self, name: str) -> None:
        live = message_of(TURN, golden.live_frames(name), base_url="")
        assert live == message_of(TURN, frames_of(golden.events_of(name)), base_url="")

    @pytest.mark.parametrize("name", COMPLETE)
    def test_the_messages_of_ag_ui_are_the_same(self, name: str) -> None:
        live = messages_of(TURN, golden.live_frames(name))
        assert live == messages_of(TURN, frames_of(golden.events_of(name)))


class TestPreviewsThatWereNotTheBeginning:
    """Reasoning after words is recorded before them, and a reply may have been cleaned."""

    LATER_REASONING = (("text", "Yes. "), ("reasoning", "Hm."), ("text", "Really."))

    def test_the_ai_sdk_gets_the_step_again(self) -> None:
        frames = turn_of(*self.LATER_REASONING, text="Yes. Really.", reasoning="Hm.")
        message = message_of(TURN, frames, base_url="")
        assert [(part["type"], part.get("text")) for part in message["parts"]] == [
            ("step-start", None),
            ("reasoning", "Hm."),
            ("text", "Yes. Really."),
        ]
        assert types_of(frames).count("reset-step") == 1

    def test_ag_ui_gets_a_snapshot(self) -> None:
        stream = RunEvents(turn_id=TURN, run=RunInfo(thread_id="t", run_id="r", messages=[golden.QUESTION]))
        events = [event for frame in turn_of(("text", "Wrong"), text="Right.") for event in stream.events(frame)]
        [snapshot] = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [message["content"] for message in snapshot["messages"]] == [golden.QUESTION["content"], "Right."]
        opened = [event["type"].endswith("_START") for event in events].count(True)
        assert opened == [event["type"].endswith("_END") for event in events].count(True)

    def test_nothing_is_sent_again_if_they_were(self) -> None:
        frames = turn_of(("reasoning", "Hm."), ("text", "Ye"), text="Yes.", reasoning="Hm.")
        assert types_of(frames) == [
            *("start", "start-step", "reasoning-start", "reasoning-delta", "text-start", "text-delta", "text-delta"),
            *("reasoning-end", "text-end", "finish-step", "finish", ""),
        ]


class TestFilesThatComeWhileWordsAreSpoken:
    """A sandbox writes a file, and it is found when the turn ends: behind the previews, and before their event."""

    def test_are_behind_the_words_live_and_in_a_replay(self) -> None:
        [files] = [recorded.event for recorded in golden.events_of("sandbox") if isinstance(recorded.event, Files)]
        began, words, ended = turn_of(("text", "Here it"), text="Here it is.")
        assert isinstance(ended, EventFrame)
        found = EventFrame(seq=2, recorded=Recorded(seq=2, event=files))
        last = EventFrame(seq=3, recorded=Recorded(seq=3, event=ended.recorded.event))
        live = message_of(TURN, [began, words, found, last], base_url="")
        assert [part["type"] for part in live["parts"]] == ["step-start", "text", "file"]
        assert live == message_of(TURN, [began, found, last], base_url="")


class TestWordsThatWereTakenBack:
    """The SDK can drop the words of a step, and not the step. So a reader who has never seen the words has it too."""

    def test_leave_their_step_live_and_in_a_replay(self) -> None:
        [began, _] = turn_of(text="")
        events: list[TurnEvent] = [
            ToolCalls(iteration=1, text="", calls=(ToolCall(id="call_1", name="look", args={}),)),  # type: ignore[arg-type]
            Step(id="call_1", name="look", status="running"),
            Step(id="call_1", name="look", status="succeeded", result="snow"),
            Reset(attempt=1, reason="provider"),
            Failure(code="provider_error", message="It broke."),
        ]
        recorded = [EventFrame(seq=n, recorded=Recorded(seq=n, event=event)) for n, event in enumerate(events, 2)]
        words = DeltaFrame(seq=4, offset=5, iteration=2, kind="text", text="Wrong")
        live = message_of(TURN, [began, *recorded[:3], words, *recorded[3:]], base_url="")
        assert [part["type"] for part in live["parts"]] == ["step-start", "dynamic-tool", "step-start"]
        assert live == message_of(TURN, [began, *recorded], base_url="")

    def test_leave_calls_that_run_where_they_are(self) -> None:
        """A worker that takes a turn over while its calls run tells it in the same way."""
        [began, _] = turn_of(text="")
        events: list[TurnEvent] = [
            ToolCalls(iteration=1, text="", calls=(ToolCall(id="call_1", name="look", args={}),)),  # type: ignore[arg-type]
            Step(id="call_1", name="look", status="running"),
            Reset(attempt=2, reason="lease_expired"),
            Step(id="call_1", name="look", status="succeeded", result="snow"),
        ]
        recorded = [EventFrame(seq=n, recorded=Recorded(seq=n, event=event)) for n, event in enumerate(events, 2)]
        message = message_of(TURN, [began, *recorded], base_url="")
        assert [part["type"] for part in message["parts"]] == ["step-start", "dynamic-tool"]


class TestATurnThatFailed:
    @pytest.mark.parametrize("code, end", [("provider_error", "error"), ("cancelled", "abort")])
    def test_has_its_error_in_the_metadata(self, code: str, end: str) -> None:
        [began, _] = turn_of(text="")
        failure = EventFrame(seq=2, recorded=Recorded(seq=2, event=Failure(code=code, message="It broke.")))
        assert types_of([began, failure]) == ["start", "start-step", "finish-step", "message-metadata", end, ""]
        message = message_of(TURN, [began, failure], base_url="")
        assert message["parts"] == [{"type": "step-start"}]
        assert message["metadata"]["error"] == {"code": code, "message": "It broke."}


class TestAStreamThatBeginsAfterAWait:
    @pytest.mark.parametrize("name", ["everything"])
    def test_is_what_the_whole_stream_has_behind_it(self, name: str) -> None:
        frames = list(golden.live_frames(name))
        for after in range(1, len(golden.events_of(name))):
            whole, rest = MessageStream(turn_id=TURN), MessageStream(turn_id=TURN, after=after)
            behind = [
                chunk
                for frame in frames
                for chunk in whole.chunks(frame)
                if frame.seq > after or (frame.seq == after and isinstance(frame, DeltaFrame))
            ]
            start, *others = [chunk for frame in frames for chunk in rest.chunks(frame)]
            assert (start["type"], others) == ("start", behind)
