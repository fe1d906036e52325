"""Messages of the AI SDK and rows of a database, read as conversations."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property_tests import examples
from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId
from turnkeep.model.messages import Message
from turnkeep.transfer.chatgpt import read_chatgpt_export
from turnkeep.transfer.transcripts import Form, Transcript, detect, read_history, read_transcript
from turnkeep_client.wire.blocks import Image, Reasoning, Text, ToolResult, ToolUse

_NAMES = (
    "role", "user", "assistant", "content", "parts", "type", "text", "tool-x", "toolCallId", "state", "output", "input",
    "toolInvocations", "toolInvocation", "file", "mediaType", "url", "source", "reasoning", "providerMetadata",
    "openai", "content_blocks", "tool_calls", "turn_id", "turn_sequence", "created_at", "createdAt", "internal",
    "mapping", "message", "author", "parent", "children", "content_type", "thoughts", "metadata", "attachments",
)  # fmt: skip

ASK = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Weather?"}]}
USE = ToolUse(id=CallId("c1"), name="weather", input={"city": "Paris"})
RESULT = ToolResult(call_id=CallId("c1"), content='{"sky":"clear"}')


def answer(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "m2", "role": "assistant", "parts": list(parts), **more}


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "tool-weather", "toolCallId": "c1", "input": {"city": "Paris"}, **more}


def said(rows: Any) -> list[tuple[str, bool, tuple[Any, ...]]]:
    return [(row.role, row.internal, row.blocks) for row in rows]


def last(transcript: Transcript) -> Message:
    return transcript.rows[-1]


class TestTheAISDK:
    def test_is_detected_by_its_parts(self) -> None:
        assert detect([ASK]) == "ai_sdk"
        assert detect([{"role": "assistant", "content": "", "toolInvocations": []}]) == "ai_sdk"

    def test_each_step_is_an_iteration_and_results_follow_their_calls(self) -> None:
        steps = answer(
            {"type": "step-start"},
            {"type": "text", "text": "Let me look."},
            tool(state="output-available", output={"sky": "clear"}),
            {"type": "step-start"},
            {"type": "text", "text": "Sunny."},
        )
        assert said(read_history([ASK, steps]).rows) == [
            ("user", False, (Text(text="Weather?"),)),
            ("assistant", True, (Text(text="Let me look."), USE)),
            ("user", True, (RESULT,)),
            ("assistant", False, (Text(text="Sunny."),)),
        ]

    def test_text_after_a_result_is_a_step_of_its_own_also_without_a_mark(self) -> None:
        older = answer(
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result",
                    "toolCallId": "c1",
                    "toolName": "weather",
                    "args": {"city": "Paris"},
                    "result": {"sky": "clear"},
                },
            },
            {"type": "text", "text": "Sunny."},
        )
        roles = [row.role for row in read_history([ASK, older]).rows]
        assert roles == ["user", "assistant", "user", "assistant"]

    def test_messages_of_version_4_without_parts_are_read(self) -> None:
        call = {"state": "result", "toolCallId": "c1", "toolName": "weather", "args": {"city": "Paris"}, "result": "ok"}
        older = {
            "role": "assistant",
            "content": "Sunny.",
            "toolInvocations": [call],
            "createdAt": "2025-06-15T12:00:00Z",
        }
        rows = read_history([{"role": "user", "content": "Weather?"}, older]).rows
        assert said(rows)[1:] == [
            ("assistant", True, (USE,)),
            ("user", True, (ToolResult(call_id=CallId("c1"), content="ok"),)),
            ("assistant", False, (Text(text="Sunny."),)),
        ]
        assert rows[-1].created_at == 1_749_988_800_000

    @pytest.mark.parametrize(
        "state,content",
        [
            ({"state": "output-error", "errorText": "No such city"}, "No such city"),
            ({"state": "output-denied"}, "The call was denied."),
        ],
    )
    def test_a_failed_or_denied_call_has_an_error_as_its_result(self, state: dict[str, Any], content: str) -> None:
        rows = read_history([ASK, answer(tool(**state))]).rows
        assert rows[-1].blocks == (ToolResult(call_id=CallId("c1"), content=content, is_error=True),)

    def test_a_call_without_a_result_is_kept_and_remarked(self) -> None:
        transcript = read_history([ASK, answer(tool(state="input-available"))])
        assert last(transcript).blocks == (USE,)
        assert transcript.remarks == ("Item 1: the call of 'weather' has no result; its outcome is unknown.",)

    def test_a_tool_that_only_the_message_knows_has_its_name_in_a_field(self) -> None:
        part = {**tool(state="output-available", output="ok"), "type": "dynamic-tool", "toolName": "weather"}
        assert read_history([ASK, answer(part)]).rows[1].blocks == (USE,)

    def test_reasoning_keeps_what_its_provider_needs(self) -> None:
        parts: list[dict[str, Any]] = [
            {"type": "reasoning", "text": "Hm.", "providerMetadata": {"anthropic": {"signature": "sig"}}},
            {"type": "reasoning", "text": "So.", "providerMetadata": {"openai": {"itemId": "rs_1"}}},
            {"type": "reasoning", "reasoning": "Old."},
            {"type": "text", "text": "Sunny."},
        ]
        assert last(read_history([ASK, answer(*parts)])).blocks[:3] == (
            Reasoning(text="Hm.", provider="anthropic", signature="sig"),
            Reasoning(text="So.", provider="openai", item_id="rs_1"),
            Reasoning(text="Old."),
        )

    def test_sources_are_kept_with_the_answer(self) -> None:
        parts = [
            {"type": "text", "text": "Sunny."},
            {"type": "source-url", "sourceId": "s1", "url": "https://example.org", "title": "Sky"},
            {"type": "source-document", "sourceId": "s2", "mediaType": "application/pdf", "title": "Report"},
        ]
        found = last(read_history([ASK, answer(*parts)])).sources
        assert [(source.title, source.url) for source in found] == [("Sky", "https://example.org"), ("Report", None)]

    def test_a_picture_of_the_user_is_kept_and_other_files_are_remarked(self) -> None:
        picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}
        report = {
            "type": "file",
            "mediaType": "application/pdf",
            "filename": "r.pdf",
            "url": "https://example.org/r.pdf",
        }
        transcript = read_history([{"role": "user", "parts": [picture, report]}])
        assert last(transcript).blocks == (
            Image(media_type="image/png", data="AAAA"),
            Text(text="[file r.pdf: left out]"),
        )
        assert "'file r.pdf'" in transcript.remarks[0]

    def test_data_parts_are_remarked(self) -> None:
        transcript = read_history([ASK, answer({"type": "data-chart", "data": {}}, {"type": "text", "text": "Here."})])
        assert last(transcript).blocks[0] == Text(text="[data-chart: left out]")
        assert len(transcript.remarks) == 1

    @pytest.mark.parametrize("parts", [[], [{"type": "step-start"}], [{"type": "text", "text": " "}]])
    def test_a_message_without_content_is_refused_with_its_place(self, parts: list[Any]) -> None:
        with pytest.raises(InvalidRequest, match="Item 1: the message of the assistant has no content"):
            read_history([ASK, answer(*parts)])

    @pytest.mark.parametrize(
        "broken",
        [
            {"role": "robot", "parts": []},
            {"role": "user", "parts": 5},
            {"role": "assistant", "content": "x", "toolInvocations": 5},
            answer({"type": "text"}),
            answer(tool(toolCallId=None)),
            answer({"type": "text", "text": "x"}, createdAt="yesterday"),
            answer({"type": "text", "text": "x"}, createdAt=-1),
        ],
    )
    def test_what_is_no_message_is_refused_with_its_place(self, broken: Any) -> None:
        with pytest.raises(InvalidRequest, match="Item 1: "):
            read_history([ASK, broken], form="ai_sdk")

    def test_is_not_repaired(self) -> None:
        with pytest.raises(InvalidRequest, match="imported, and not repaired"):
            read_transcript([ASK])


ROWS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": "Weather?",
        "content_blocks": None,
        "turn_id": "t1",
        "turn_sequence": 0,
        "internal": False,
    },
    {
        "role": "assistant",
        "content": "",
        "content_blocks": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}],
        "turn_id": "t1",
        "turn_sequence": 1,
        "iteration": 0,
        "internal": True,
    },
    {
        "role": "user",
        "content_blocks": '[{"type": "tool_result", "tool_use_id": "c1", "content": "clear"}]',
        "turn_id": "t1",
        "turn_sequence": 2,
        "internal": True,
    },
    {
        "role": "assistant",
        "content": "Sunny.",
        "content_blocks": [{"type": "text", "text": "It is sunny."}],
        "turn_id": "t1",
        "turn_sequence": 3,
        "internal": False,
        "created_at": "2026-05-18T13:01:00+00:00",
    },
]


class TestRowsOfADatabase:
    def test_are_detected_by_their_blocks(self) -> None:
        assert detect(ROWS) == "rows"

    def test_blocks_come_before_the_columns_of_earlier_times(self) -> None:
        rows = read_history(ROWS).rows
        assert [row.internal for row in rows] == [False, True, True, False]
        assert rows[1].blocks == (USE,)
        assert rows[2].blocks == (ToolResult(call_id=CallId("c1"), content="clear"),)
        assert rows[3].blocks == (Text(text="It is sunny."),)
        assert rows[3].created_at == 1_779_109_260_000

    def test_rows_of_one_turn_are_one_turn_in_their_sequence(self) -> None:
        mixed = [ROWS[1], ROWS[0], *ROWS[2:], {**ROWS[0], "turn_id": "t2"}]
        rows = read_history(mixed).rows
        assert [row.turn_sequence for row in rows] == [0, 1, 2, 3, 0]
        assert [row.blocks for row in rows[:2]] == [(Text(text="Weather?"),), (USE,)]
        assert len({row.turn_id for row in rows}) == 2

    def test_a_row_without_a_turn_is_a_turn_that_readers_see(self) -> None:
        older = [
            {"role": "user", "content": "Hello", "content_blocks": None},
            {"role": "assistant", "content": "Hi.", "content_blocks": None},
        ]
        rows = read_history([*older, *ROWS]).rows
        assert [(row.role, row.internal) for row in rows[:2]] == [("user", False), ("assistant", False)]
        assert len({row.turn_id for row in rows}) == 3

    def test_calls_of_earlier_times_are_steps_of_their_turn(self) -> None:
        calls = [{"id": "c1", "name": "weather", "input": {"city": "Paris"}, "result": "clear"}]
        rows = read_history([*ROWS, {"role": "assistant", "content": "Sunny.", "tool_calls": calls}]).rows[4:]
        assert said(rows) == [
            ("assistant", True, (USE,)),
            ("user", True, (ToolResult(call_id=CallId("c1"), content="clear"),)),
            ("assistant", False, (Text(text="Sunny."),)),
        ]

    def test_blocks_that_are_no_json_are_refused_with_their_place(self) -> None:
        with pytest.raises(InvalidRequest, match="Item 1: `content_blocks` is a text that is not JSON"):
            read_history([ROWS[0], {**ROWS[1], "content_blocks": "[{"}])

    def test_a_row_without_content_is_refused_with_its_place(self) -> None:
        with pytest.raises(InvalidRequest, match="Item 1: the message of the assistant has no content"):
            read_history([ROWS[0], {"role": "assistant", "content": "", "content_blocks": []}])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(_NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5),
    max_leaves=20,
)


class TestAnyJson:
    @settings(max_examples=examples(200, at_night=5_000))
    @given(st.lists(_json, max_size=4), st.sampled_from(["ai_sdk", "rows", None]))
    def test_is_read_or_refused(self, document: list[Any], form: Form | None) -> None:
        with suppress(InvalidRequest):
            read_history(document, form=form)
        with suppress(InvalidRequest):
            read_chatgpt_export(document)
