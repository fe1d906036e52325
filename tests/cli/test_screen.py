"""The live view prints final text once, and holds back text whose rendering may still change."""

import io

import pytest

from turnkeep.cli.screen import LiveView, Screen, finished_until
from turnkeep_client.stream import TurnView
from turnkeep_client.wire.blocks import TextPart, Usage
from turnkeep_client.wire.events import Delta, Reset, Result, Step, ToolCalls


class TestFinalText:
    @pytest.mark.parametrize(
        "text,done",
        [
            ("A paragraph", ""),
            ("A paragraph\n\n", "A paragraph\n\n"),
            ("One\n\nTwo", "One\n\n"),
            ("```\ncode\n\nmore", ""),
            ("```\ncode\n\nmore\n```\n\nText", "```\ncode\n\nmore\n```\n\n"),
            ("- one\n\n", ""),
            ("- one\n\n- two", ""),
            ("1. one\n\n   more", ""),
            ("- one\n\nA paragraph", "- one\n\n"),
            ("Text:\n\n- one", "Text:\n\n"),
            ("| a |\n|---|\n| 1 |", ""),
        ],
    )
    def test_ends_at_a_blank_line_outside_of_fences_and_lists(self, text: str, done: str) -> None:
        assert text[: finished_until(text)] == done


class TestTheLiveView:
    def paint(self, *events: Delta | ToolCalls | Step | Reset | Result) -> str:
        out = io.StringIO()
        view = TurnView()
        with LiveView(Screen(file=out, width=60, force_terminal=False)) as live_view:
            for event in events:
                view.add(event)
                live_view.show(view)
        return out.getvalue()

    def test_prints_text_once(self) -> None:
        said = "First.\n\nSecond.\n\nThird."
        deltas = [Delta(iteration=0, kind="text", text=word) for word in said]
        printed = self.paint(*deltas, result(said))
        assert [printed.count(word) for word in ("First.", "Second.", "Third.")] == [1, 1, 1]

    def test_prints_a_step_when_it_has_ended(self) -> None:
        printed = self.paint(
            ToolCalls(iteration=0, text="Let me look.", calls=()),
            Step(id="a", name="look", status="running", args={"x": 1}),
            Step(id="b", name="also", status="running"),
            Step(id="b", name="also", status="failed", error="no"),
            Step(id="a", name="look", status="succeeded"),
        )
        assert printed.index("✓ look (x: 1)") < printed.index("✗ also  no")
        assert printed.count("look (x: 1)") == 1

    def test_notes_that_text_is_void_and_prints_the_new_text(self) -> None:
        printed = self.paint(
            Delta(iteration=0, kind="text", text="Old.\n\nMore"),
            Reset(attempt=2, reason="lost"),
            Delta(iteration=0, kind="text", text="New.\n\n"),
            result("New.\n\nEnd."),
        )
        assert printed.index("Old.") < printed.index("the model starts again") < printed.index("New.")
        assert printed.count("New.") == 1

    def test_prints_nothing_twice_that_the_model_says_again(self) -> None:
        again = [Delta(iteration=0, kind="text", text=word) for word in ("Old", ".\n", "\nMore", " and more.\n\n")]
        printed = self.paint(
            Delta(iteration=0, kind="text", text="Old.\n\nMore"),
            Reset(attempt=2, reason="lost"),
            *again,
            result("Old.\n\nMore and more.\n\nEnd."),
        )
        assert [printed.count(word) for word in ("Old.", "More and more.", "End.")] == [1, 1, 1]
        assert "starts again" not in printed

    def test_does_not_note_a_reset_of_text_that_was_not_printed(self) -> None:
        printed = self.paint(
            Delta(iteration=0, kind="text", text="Old"), Reset(attempt=2, reason="lost"), result("New.")
        )
        assert "Old" not in printed
        assert "starts again" not in printed


def result(text: str) -> Result:
    return Result(message_id="msg_1", message=text, content=(TextPart(text=text),), usage=Usage())  # type: ignore[arg-type]
