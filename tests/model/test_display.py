"""Folding: events become what a reader sees, in the order in which it happened."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeep.ids import CallId, FileId, MessageId, new_conversation_id, new_message_id, new_turn_id
from turnkeep_client import wire
from turnkeep_client.wire.blocks import (
    Block,
    FilePart,
    FileRef,
    Image,
    Reasoning,
    ReasoningPart,
    StepPart,
    Text,
    TextPart,
    ToolResult,
    ToolUse,
    Usage,
)
from turnkeep_client.wire.display import Display, fold, parts_of, words_of
from turnkeep_client.wire.events import (
    Failure,
    Files,
    Reset,
    Result,
    Source,
    Sources,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

HERE = Source(title="Here", snippet="a place")
THERE = Source(title="There", snippet="another", url="https://example.org")


def began() -> TurnBegan:
    return TurnBegan(
        turn_id=new_turn_id(),
        conversation_id=new_conversation_id(),
        user_message_id=new_message_id(),
        status="running",
        attempt=1,
    )


def step(id_: str, status: Any, **fields: Any) -> Step:
    return Step(id=id_, name="weather", status=status, **fields)


def iteration(text: str, reasoning: Any = None) -> ToolCalls:
    return ToolCalls(iteration=1, text=text, calls=(), reasoning=reasoning)


class TestFolding:
    def test_nothing_happened(self) -> None:
        assert fold([]) == fold([began()]) == Display()

    def test_words_and_thoughts_of_an_iteration(self) -> None:
        assert fold([iteration("Let me look.", "hmm")]).content == (
            ReasoningPart(text="hmm"),
            TextPart(text="Let me look."),
        )

    def test_empty_words_leave_no_part(self) -> None:
        assert fold([iteration("", "")]).content == ()

    def test_a_step_stays_where_it_began_and_is_updated_in_place(self) -> None:
        display = fold(
            [
                step("a", "running", args={"n": 1}),
                step("b", "running"),
                iteration("meanwhile"),
                step("a", "succeeded", result=0, duration_ms=12),
            ]
        )
        assert display.content == (
            StepPart(id="a", name="weather", status="succeeded", args={"n": 1}, result=0, duration_ms=12),
            StepPart(id="b", name="weather", status="running"),
            TextPart(text="meanwhile"),
        )

    def test_a_later_line_wins_and_null_is_a_value(self) -> None:
        [part] = fold([step("a", "running", args=1), step("a", "failed", args=None, error="no")]).content
        assert part == StepPart(id="a", name="weather", status="failed", args=None, error="no")

    def test_sources_are_kept_once_each_in_order(self) -> None:
        assert fold([Sources(sources=(THERE,)), Sources(sources=(HERE, THERE))]).sources == (THERE, HERE)

    def test_files_are_shown_where_they_were_written(self) -> None:
        written = wire.File(
            id=FileId("file_1"),
            conversation_id=None,
            message_id=None,
            name="out.csv",
            mime_type="text/csv",
            size=3,
            sha256=None,
            source="sandbox",
            created_at=0,
        )
        assert fold([Files(files=(written,)), iteration("Done.")]).content == (
            FilePart(file_id=FileId("file_1"), name="out.csv", mime_type="text/csv", size=3),
            TextPart(text="Done."),
        )

    def test_a_reset_or_a_failure_takes_nothing_back(self) -> None:
        events: list[TurnEvent] = [iteration("So far")]
        ended = [*events, Reset(attempt=2, reason="lease_expired"), Failure(code="cancelled", message="")]
        assert fold(ended) == fold(events)

    def test_a_result_says_it_all_again(self) -> None:
        content = (TextPart(text="Answer"),)
        result = Result(message_id=MessageId("msg_1"), message="Answer", content=content, usage=Usage())
        assert fold([iteration("Before"), result]).content == content

    def test_open_steps_are_those_that_began_and_did_not_end(self) -> None:
        display = fold([step("a", "running"), step("b", "running"), step("a", "succeeded")])
        assert [part.id for part in display.open_steps()] == ["b"]

    def test_the_last_words_follow(self) -> None:
        display = fold([step("a", "succeeded"), Sources(sources=(HERE,))]).then_said(text="So.", reasoning="hm")
        assert display.content[1:] == (ReasoningPart(text="hm"), TextPart(text="So."))
        assert display.sources == (HERE,)
        assert display.then_said(text="") == display

    @given(
        st.lists(
            st.builds(
                step,
                st.sampled_from("abc"),
                st.sampled_from(["running", "succeeded", "failed"]),
            )
            | st.builds(iteration, st.text(max_size=3)),
            max_size=20,
        ),
        st.integers(0, 20),
    )
    def test_what_was_shown_never_moves(self, events: list[TurnEvent], cut: int) -> None:
        before, after = fold(events[:cut]), fold(events)

        def places(display: Display) -> list[str]:
            return [part.id if isinstance(part, StepPart) else repr(part) for part in display.content]

        assert places(after)[: len(before.content)] == places(before)


class TestPartsOfBlocks:
    def test_every_kind_of_block(self) -> None:
        call = CallId("call_1")
        blocks: list[Block] = [
            Reasoning(text="hm"),
            Text(text="Hello"),
            Text(text=""),
            FileRef(file_id=FileId("file_1"), name="a", mime_type="b/c", size=1),
            ToolUse(id=call, name="f", input={"a": 1}),
            ToolResult(call_id=call, content="hidden"),
            Image(media_type="image/png", data="hidden"),
        ]
        assert parts_of(blocks) == (
            ReasoningPart(text="hm"),
            TextPart(text="Hello"),
            FilePart(file_id=FileId("file_1"), name="a", mime_type="b/c", size=1),
            StepPart(id="call_1", name="f", status="running", args={"a": 1}),
        )

    def test_a_search_looks_through_words_alone(self) -> None:
        parts = (ReasoningPart(text="no"), TextPart(text="one"), StepPart(id="a", name="f", status="running"))
        assert words_of((*parts, TextPart(text="two"))) == "one\ntwo"
