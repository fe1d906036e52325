"""What a reader sees at each moment: previews stand until an event replaces them, and history agrees at the end."""

from pathlib import Path

import pytest

from turnkeep.errors import Defect
from turnkeep_client.stream import Delta, TurnView, Unknown, decode_event
from turnkeep_client.wire.blocks import ReasoningPart, StepPart, TextPart
from turnkeep_client.wire.events import Result
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

GOLDEN = Path(__file__).parents[1] / "golden"


def delta(text: str, kind: str = "text", iteration: int = 0) -> ServerSentEvent:
    data = f'{{"iteration": {iteration}, "kind": "{kind}", "text": "{text}"}}'
    return ServerSentEvent(event="delta", data=data, id="1.1")


def view_of(*frames: ServerSentEvent) -> TurnView:
    view = TurnView()
    for frame in frames:
        view.add(decode_event(frame))
    return view


def event(name: str, data: str) -> ServerSentEvent:
    return ServerSentEvent(event=name, data=data, id="2")


class TestTheView:
    def test_words_are_a_part_while_they_are_said(self) -> None:
        view = view_of(delta("Hm. ", "reasoning"), delta("It "), delta("is."))
        assert view.text == "It is."
        assert view.content == (ReasoningPart(text="Hm. "), TextPart(text="It is."))
        assert view.is_speaking

    def test_tool_calls_replace_the_words_before_them(self) -> None:
        calls = event("tool_calls", '{"type": "tool_calls", "iteration": 0, "text": "Let me look.", "calls": []}')
        view = view_of(delta("Let me"), calls)
        assert view.content == (TextPart(text="Let me look."),)
        assert not view.is_speaking

    def test_a_reset_takes_back_what_no_event_has_made_true(self) -> None:
        calls = event("tool_calls", '{"type": "tool_calls", "iteration": 0, "text": "Kept.", "calls": []}')
        reset = event("reset", '{"type": "reset", "attempt": 2, "reason": "lost"}')
        view = view_of(calls, delta("Void.", iteration=1), reset)
        assert view.text == "Kept."
        assert view.content == (TextPart(text="Kept."),)

    def test_an_answer_says_how_it_ended(self) -> None:
        data = '{"message_id": "m", "message": "", "content": [], "usage": {}%s}'
        for more, finish in (("", "complete"), (', "finish": "length"', "length"), (', "finish": "empty"', "empty")):
            view = view_of(event("result", data % more))
            assert view.answer(turn_id="t", conversation_id="c").finish == finish
        stopped = view_of(event("error", '{"code": "cancelled", "message": "Stopped."}'))
        assert stopped.answer(turn_id="t", conversation_id="c").finish is None

    def test_a_failed_turn_that_was_too_long_ends_with_what_history_shows(self) -> None:
        step = event("step", '{"id": "s", "name": "look", "status": "failed", "error": "xxxx"}')
        cut = '[{"type": "step", "id": "s", "name": "look", "status": "failed", "error": "x", "is_cut": true}]'
        view = view_of(step, event("error", f'{{"code": "x", "message": "Why.", "content": {cut}}}'))
        assert view.content == (
            StepPart(id="s", name="look", status="failed", args=None, result=None, error="x", is_cut=True),
        )

    def test_a_step_stays_where_it_began(self) -> None:
        running = event("step", '{"type": "step", "id": "s", "name": "look", "status": "running", "args": {"a": 1}}')
        done = event("step", '{"type": "step", "id": "s", "name": "look", "status": "succeeded", "result": "x"}')
        view = view_of(running, delta("Then"), done)
        first, second = view.content
        assert isinstance(first, StepPart)
        assert (first.status, first.args, first.result) == ("succeeded", {"a": 1}, "x")
        assert second == TextPart(text="Then")

    @pytest.mark.parametrize("turn", ["answer", "failed", "sandbox", "stopped", "takeover", "tools"])
    def test_a_live_stream_and_its_replay_end_with_the_same(self, turn: str) -> None:
        live, replay = (
            view_of(*SseParser().feed((GOLDEN / f"{turn}.native{kind}.sse").read_bytes())) for kind in ("", ".replay")
        )
        assert live.ending is not None
        assert live.content == replay.content
        assert live.text == replay.text
        if isinstance(live.ending, Result):
            assert live.content == live.ending.content

    def test_an_event_of_a_later_server_is_passed_on(self) -> None:
        frame = event("weather", '{"sky": "blue"}')
        assert decode_event(frame) == Unknown(event="weather", data={"sky": "blue"})
        assert view_of(frame).content == ()

    def test_an_event_of_another_shape_is_told(self) -> None:
        with pytest.raises(Defect, match="Is one of them older"):
            decode_event(event("result", '{"type": "result"}'))

    def test_a_delta_is_the_value_that_the_model_has(self) -> None:
        assert decode_event(delta("x")) == Delta(iteration=0, kind="text", text="x")
