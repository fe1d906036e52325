"""What a row says: its blocks, else its legacy tool calls, else its plain content."""

from typing import Any

import pytest

from tests.compiler.histories import row
from turnkeep.compiler.utterances import blocks_of, read
from turnkeep.ids import CallId, FileId
from turnkeep.model.legacy import arguments_from
from turnkeep.model.messages import Legacy
from turnkeep_client.wire.blocks import Block, FileRef, Image, Reasoning, Text, ToolResult, ToolUse

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}
USE = ToolUse(id=CallId("c1"), name="search", input={"q": "x"})


def legacy(content: Any = None, tool_calls: Any = None) -> tuple[Block, ...]:
    return blocks_of(row("t", 0, "assistant", legacy=Legacy(content=content, tool_calls=tool_calls)))


class TestPriority:
    def test_blocks_win_over_everything(self) -> None:
        both = row("t", 0, "assistant", Text(text="new"), legacy=Legacy(content="old", tool_calls=[CALL]))
        assert blocks_of(both) == (Text(text="new"),)

    def test_tool_calls_win_over_content_and_keep_its_words(self) -> None:
        assert legacy("Let me see.", [CALL]) == (Text(text="Let me see."), USE)

    def test_plain_content_is_read_last(self) -> None:
        assert legacy("words") == (Text(text="words"),)
        assert legacy("words", []) == (Text(text="words"),)
        assert legacy() == ()


class TestLegacyCalls:
    @pytest.mark.parametrize(
        "call",
        [
            CALL,
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}},
            {"id": "c1", "name": "search", "arguments": {"q": "x"}},
            {"toolCallId": "c1", "toolName": "search", "args": {"q": "x"}},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'},
        ],
    )
    def test_every_way_of_writing_a_call_is_understood(self, call: dict[str, Any]) -> None:
        assert legacy(None, [call]) == (USE,)

    def test_a_result_beside_its_call_makes_the_text_the_answer_that_followed(self) -> None:
        blocks = legacy("It is 3.", [{**CALL, "result": {"n": 3}}])
        assert blocks == (USE, ToolResult(call_id=CallId("c1"), content='{"n":3}'), Text(text="It is 3."))

    def test_nonsense_among_the_calls_is_passed_over(self) -> None:
        assert legacy("words", ["nonsense", {}, None, 3]) == (Text(text="words"),)
        assert legacy("words", "nonsense") == (Text(text="words"),)

    @pytest.mark.parametrize(
        "given,expected",
        [
            ('{"a": 1}', {"a": 1}),
            ("", {}),
            (None, {}),
            ('{"a": ', {"arguments": '{"a": '}),
            ("[1]", {"arguments": [1]}),
            ({"a": 1}, {"a": 1}),
        ],
    )
    def test_arguments_are_an_object_whatever_they_were(self, given: Any, expected: dict[str, Any]) -> None:
        assert arguments_from(given) == expected


class TestLegacyContent:
    def test_parts_are_read_one_by_one(self) -> None:
        parts = [
            {"type": "text", "text": "a"},
            "b",
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}},
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "r"}], "is_error": True},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}},
            {"type": "image", "source": {"type": "url", "url": "https://a"}},
            {"type": "mystery"},
            None,
        ]
        assert legacy(parts) == (
            Text(text="a"),
            Text(text="b"),
            USE,
            ToolResult(call_id=CallId("c1"), content="r", is_error=True),
            Image(media_type="image/png", data="aaaa"),
            Image(media_type="image/png", url="https://a"),
        )

    @pytest.mark.parametrize("content", [3, True, {"odd": 1}, [[]], [{"type": "image"}]])
    def test_what_means_nothing_says_nothing(self, content: Any) -> None:
        assert legacy(content) == ()


class TestSides:
    def test_a_row_is_split_where_the_side_changes(self) -> None:
        result = ToolResult(call_id=CallId("c1"), content="r")
        mixed = row("t", 0, "assistant", Text(text="a"), USE, result, Text(text="b"))
        assert [(u.role, len(u.blocks)) for u in read(mixed)] == [("assistant", 2), ("user", 1), ("assistant", 1)]

    def test_a_call_in_the_users_row_is_the_assistants(self) -> None:
        assert [u.role for u in read(row("t", 0, "user", Text(text="a"), USE))] == ["user", "assistant"]

    def test_an_instruction_in_the_middle_is_shown_as_one(self) -> None:
        (said,) = read(row("t", 1, "system", Text(text="Be brief.")))
        assert (said.role, said.blocks) == ("user", (Text(text="<system>\nBe brief.\n</system>"),))

    def test_a_row_without_anything_is_an_empty_message(self) -> None:
        assert [(u.role, u.blocks) for u in read(row("t", 0, "user"))] == [("user", ())]


class TestAttachments:
    def test_they_come_before_the_words_and_only_once(self) -> None:
        a, b = (FileRef(file_id=FileId(n), name=n, mime_type="text/plain", size=1) for n in "ab")
        both = row("t", 0, "user", Text(text="see"), a, attachments=(a, b))
        assert blocks_of(both) == (b, Text(text="see"), a)

    def test_they_leave_reasoning_its_first_place(self) -> None:
        file = FileRef(file_id=FileId("a"), name="a", mime_type="text/plain", size=1)
        thought = Reasoning(text="hm", signature="s")
        made = row("t", 1, "assistant", thought, Text(text="Here it is."), attachments=(file,))
        assert blocks_of(made) == (thought, file, Text(text="Here it is."))
