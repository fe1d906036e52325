"""Transcripts of other systems → rows grouped into turns, and back into the form they came in."""

import time
from typing import Any

import pytest

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId, ConversationId
from turnkeep.model.messages import Message
from turnkeep.transfer.transcripts import (
    Form,
    Transcript,
    detect,
    read_history,
    read_transcript,
    without_surrogates,
    write_transcript,
)
from turnkeep_client.wire.blocks import Image, Reasoning, Text, ToolResult, ToolUse

ASK = {"role": "user", "content": "Weather?"}
DONE = {"role": "assistant", "content": "Sunny."}
CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}],
}
CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
USE = ToolUse(id=CallId("c1"), name="weather", input={"city": "Paris"})
RESULT = ToolResult(call_id=CallId("c1"), content="sunny")


def shape(transcript: Transcript) -> list[list[str]]:
    """The roles of each turn."""
    turns: dict[str, list[str]] = {}
    for row in transcript.rows:
        turns.setdefault(row.turn_id, []).append(row.role)
    return list(turns.values())


def only(transcript: Transcript) -> Message:
    (row,) = transcript.rows
    return row


class TestTheForm:
    @pytest.mark.parametrize(
        "document,form",
        [
            ([ASK, CHAT_CALL, CHAT_RESULT], "openai_chat"),
            ([{"role": "developer", "content": "x"}, ASK], "openai_chat"),
            ([ASK, DONE], "openai_chat"),
            ([{**ASK, "ts": 1}, {**DONE, "ts": 2}], "plain"),
            ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}], "anthropic"),
            ([ASK, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}], "anthropic"),
            ({"system": "x", "messages": [ASK]}, "anthropic"),
            ({"messages": [ASK], "temperature": 1}, "openai_chat"),
            ([ASK, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}], "openai_responses"),
            ([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "openai_responses"),
            ({"input": "Hello."}, "openai_responses"),
        ],
    )
    def test_is_detected_by_fields_that_only_it_has(self, document: Any, form: Form) -> None:
        assert read_transcript(document).form == form

    def test_may_be_given_if_it_cannot_be_detected(self) -> None:
        assert detect([ASK, DONE]) == "openai_chat"
        assert read_transcript([ASK, DONE], form="anthropic").form == "anthropic"


class TestTurns:
    def test_a_users_message_starts_one_and_tool_traffic_stays_in_it(self) -> None:
        transcript = read_transcript([ASK, CHAT_CALL, CHAT_RESULT, DONE, ASK, DONE])
        assert shape(transcript) == [["user", "assistant", "user", "assistant"], ["user", "assistant"]]

    def test_messages_of_the_user_in_a_row_are_one_question(self) -> None:
        assert shape(read_transcript([ASK, ASK, DONE, ASK])) == [["user", "user", "assistant"], ["user"]]

    def test_each_row_before_the_first_question_is_a_turn_of_its_own(self) -> None:
        transcript = read_transcript([DONE, CHAT_CALL, CHAT_RESULT, ASK, DONE])
        assert shape(transcript) == [["assistant"], ["assistant"], ["user"], ["user", "assistant"]]

    def test_an_instruction_in_the_middle_belongs_to_the_question_after_it(self) -> None:
        transcript = read_transcript([ASK, DONE, {"role": "system", "content": "Be brief."}, ASK])
        assert shape(transcript) == [["user", "assistant"], ["system", "user"]]

    def test_leading_instructions_are_a_turn_of_their_own(self) -> None:
        system = {"role": "system", "content": "Be brief.", "ts": 1}
        assert shape(read_transcript([system, system, ASK, DONE])) == [["system", "system"], ["user", "assistant"]]
        assert shape(read_transcript([system, DONE, ASK])) == [["system"], ["assistant"], ["user"]]

    def test_rows_are_numbered_and_tool_traffic_is_internal(self) -> None:
        rows = read_transcript([ASK, CHAT_CALL, CHAT_RESULT, DONE], conversation_id=ConversationId("conv_1")).rows
        assert [row.turn_sequence for row in rows] == [0, 1, 2, 3]
        assert [row.internal for row in rows] == [False, True, True, False]
        assert [row.iteration for row in rows] == [None, 0, 0, 1]
        assert {row.conversation_id for row in rows} == {"conv_1"}

    def test_the_last_is_open_while_it_waits_for_an_answer(self) -> None:
        waiting = read_transcript([ASK, CHAT_CALL, CHAT_RESULT])
        assert waiting.open_turn == waiting.rows[-1].turn_id
        assert read_transcript([ASK, DONE]).open_turn is None
        assert read_transcript([]).open_turn is None


class TestOpenAIChat:
    def test_calls_and_results_are_read(self) -> None:
        rows = read_transcript([ASK, CHAT_CALL, CHAT_RESULT]).rows
        assert [row.blocks for row in rows[1:]] == [(USE,), (RESULT,)]
        assert [row.provider for row in rows] == [None, "openai", None]

    def test_parts_are_read(self) -> None:
        parts = [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}},
            {"type": "image_url", "image_url": "https://a/b.png"},
            {"type": "refusal", "refusal": "no"},
        ]
        assert only(read_transcript([{"role": "user", "content": parts}], form="openai_chat")).blocks == (
            Text(text="see"),
            Image(media_type="image/png", data="aaaa"),
            Image(media_type="image/*", url="https://a/b.png"),
            Text(text="no"),
        )

    def test_legacy_function_calls_are_read(self) -> None:
        old = [
            ASK,
            {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
            {"role": "function", "name": "weather", "content": "sunny"},
        ]
        call, result = (row.blocks[0] for row in read_transcript(old).rows[1:])
        assert isinstance(call, ToolUse)
        assert isinstance(result, ToolResult)
        assert call.id == result.call_id

    def test_arguments_that_were_cut_off_are_kept_as_text_with_a_remark(self) -> None:
        cut = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b'}}
        transcript = read_transcript([ASK, {"role": "assistant", "tool_calls": [cut]}])
        assert transcript.rows[1].blocks == (ToolUse(id=CallId("c1"), name="f", input={"arguments": '{"a": "b'}),)
        assert transcript.remarks[0].startswith("Item 1: the arguments of a call are not JSON")

    def test_leading_system_messages_are_kept_apart_word_for_word(self) -> None:
        system = {"role": "system", "content": "Be brief.", "name": "boss"}
        transcript = read_transcript([system, ASK])
        assert transcript.preamble == (system,)
        assert [row.role for row in transcript.rows] == ["user"]

    def test_a_refusal_beside_the_content_is_text(self) -> None:
        refused = {"role": "assistant", "content": None, "refusal": "I cannot."}
        assert read_transcript([ASK, refused]).rows[1].blocks == (Text(text="I cannot."),)

    def test_a_spoken_answer_becomes_a_line_and_a_remark(self) -> None:
        transcript = read_transcript([ASK, {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}])
        assert transcript.rows[1].blocks == (Text(text="[audio: left out]"),)
        assert "'audio' has no equal here" in transcript.remarks[0]


class TestAnthropic:
    def test_every_block_is_read(self) -> None:
        content = [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}},
        ]
        results = [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}},
            {"type": "image", "source": {"type": "url", "url": "https://a"}},
        ]
        body = {
            "model": "claude-x",
            "messages": [ASK, {"role": "assistant", "content": content}, {"role": "user", "content": results}],
        }
        _, said, told = read_transcript(body).rows
        assert said.provider == "anthropic/claude-x"
        assert said.blocks == (
            Reasoning(text="hm", provider="anthropic", signature="s"),
            Reasoning(provider="anthropic", data="d"),
            Text(text="x"),
            USE,
        )
        assert told.blocks == (
            RESULT,
            Image(media_type="image/png", data="aaaa"),
            Image(media_type="image/*", url="https://a"),
        )

    def test_a_part_without_equivalent_becomes_a_line_and_a_remark(self) -> None:
        content = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]
        transcript = read_transcript([ASK, {"role": "assistant", "content": content}])
        assert transcript.rows[1].blocks == (Text(text="[server_tool_use: left out]"),)
        assert "'server_tool_use' has no equal here" in transcript.remarks[0]


class TestOpenAIResponses:
    def test_the_items_of_one_answer_are_one_row(self) -> None:
        items = [
            ASK,
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "e",
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "web_search_call", "id": "ws_1"},
        ]
        _, answer, result, searched = read_transcript(items).rows
        assert answer.blocks == (
            Reasoning(text="hm", provider="openai", data="e", item_id="rs_1"),
            Text(text="Looking."),
            USE,
        )
        assert result.blocks == (RESULT,)
        assert searched.blocks == (Text(text="[web_search_call: left out]"),)


class TestPlain:
    def test_times_are_kept_and_given_where_they_are_missing(self) -> None:
        rows = read_transcript([{**ASK, "ts": 5}, DONE], created_at=9).rows
        assert [row.created_at for row in rows] == [5, 9]

    def test_a_developer_instructs_as_the_system_does(self) -> None:
        rows = read_history([{"role": "developer", "content": "Be brief.", "ts": 4}, {**ASK, "ts": 5}, DONE]).rows
        assert [(row.role, row.created_at) for row in rows] == [("system", 4), ("user", 5), ("assistant", 0)]


class TestAHistoryToKeep:
    @pytest.mark.parametrize(
        "document",
        [
            [{"role": "system", "content": "Be brief."}, ASK, DONE],
            [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, ASK, DONE],
            [{"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}, ASK, DONE],
            [{"role": "system", "content": "Be brief.", "ts": 1}, ASK, DONE],
            {"system": "Be brief.", "messages": [ASK, DONE]},
            {"system": [{"type": "text", "text": "Be brief."}], "messages": [ASK, DONE]},
            {"instructions": "Be brief.", "input": [ASK, DONE]},
        ],
        ids=[
            "chat system",
            "chat developer",
            "responses developer",
            "plain",
            "anthropic field",
            "anthropic blocks",
            "responses instructions",
        ],
    )
    def test_begins_with_its_leading_instructions(self, document: Any) -> None:
        history = read_history(document)
        assert shape(history) == [["system"], ["user", "assistant"]]
        assert history.rows[0].blocks == (Text(text="Be brief."),)
        assert history.remarks == ()

    def test_has_those_beside_the_messages_before_those_among_them(self) -> None:
        developer = {"role": "developer", "content": "In French."}
        history = read_history({"instructions": "Be brief.", "input": [developer, ASK]})
        assert [row.blocks for row in history.rows[:2]] == [(Text(text="Be brief."),), (Text(text="In French."),)]

    @pytest.mark.parametrize("system", ["", "  ", [], None])
    def test_has_no_instructions_where_the_field_is_empty(self, system: Any) -> None:
        assert shape(read_history({"system": system, "messages": [ASK, DONE]})) == [["user", "assistant"]]

    @pytest.mark.parametrize("system", [3, ["text"], [{"type": "image"}], {"text": "x"}])
    def test_with_instructions_that_are_no_text_is_refused(self, system: Any) -> None:
        with pytest.raises(InvalidRequest, match="`system` beside the messages must be a text"):
            read_history({"system": system, "messages": [ASK]})

    @pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
    @pytest.mark.parametrize("content", ["", " \n\t", None, [], [{"type": "text", "text": " "}]])
    def test_with_a_message_without_content_is_refused(self, role: str, content: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            read_history([ASK, {"role": role, "content": content}], form="openai_chat")
        assert caught.value.detail == (
            f"Item 1: the message of the {role} has no content. Remove it from the list or give it a text, "
            "and import again."
        )

    @pytest.mark.parametrize("form", ["anthropic", "openai_chat", "openai_responses", "plain"])
    def test_with_an_empty_text_is_refused_in_every_form(self, form: Form) -> None:
        with pytest.raises(InvalidRequest, match=r"^Item 2: the message of the user has no content"):
            read_history([ASK, DONE, {"role": "user", "content": ""}], form=form)

    def test_may_have_calls_and_results_without_words(self) -> None:
        silent = {**CHAT_RESULT, "content": ""}
        assert shape(read_history([ASK, CHAT_CALL, silent, DONE])) == [["user", "assistant", "user", "assistant"]]

    def test_may_have_reasoning_alone(self) -> None:
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
        assert len(read_history([ASK, reasoning, DONE]).rows) == 2

    def test_is_not_what_a_transcript_is_repaired_from(self) -> None:
        empty = [{"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": ""}]
        assert [row.role for row in read_transcript(empty).rows] == ["user", "assistant"]


class TestWrappings:
    def test_a_request_body_is_given_back_with_the_messages_in_their_place(self) -> None:
        system = {"role": "system", "content": "s"}
        body = {"model": "m", "messages": [system, ASK, CHAT_CALL], "temperature": 0}
        transcript = read_transcript(body)
        assert write_transcript(transcript, [ASK]) == {**body, "messages": [system, ASK]}

    def test_a_list_is_given_back_as_a_list(self) -> None:
        assert write_transcript(read_transcript([ASK]), [ASK, DONE]) == [ASK, DONE]

    def test_a_message_may_be_wrapped_in_a_line_of_a_log(self) -> None:
        lines = [{"type": "user", "message": ASK}, {"type": "assistant", "message": DONE}]
        assert shape(read_transcript(lines)) == [["user", "assistant"]]

    def test_a_lone_surrogate_is_replaced_and_a_whole_emoji_stays(self) -> None:
        row = only(read_transcript([{"role": "user", "content": "a \ud83d b \ud83d\ude00 🙂"}]))
        assert row.blocks == (Text(text="a \ufffd b 😀 🙂"),)


class TestMalformed:
    @pytest.mark.parametrize(
        "document,words",
        [
            ("text", "A transcript is a list of messages"),
            ({"data": []}, "without `messages`, `input` or `conversation`"),
            ([ASK, "text"], "Item 1: a message is an object, not str"),
            ([ASK, {"role": "robot", "content": "x"}], "Item 1: 'robot' is not a role"),
            ([{"role": "user", "content": 3}], "Item 0: `content` must be a text or a list of parts"),
            ([{"role": "user", "content": [3]}], "Item 0: `content` must be a text or a list of parts"),
            ([{"role": "user", "content": [{"type": "text"}]}], "Item 0: a part of type 'text' needs a text"),
            ([ASK, {"role": "tool", "content": "x"}], "Item 1: `tool_call_id` must be a text, not None"),
            ([{"role": "assistant", "tool_calls": {}}, {"role": "assistant", "tool_calls": 3}], "Item 1: `tool_calls`"),
            ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "Item 0: a tool call needs a `function`"),
            ([{"role": "assistant", "tool_calls": [{"id": 3, "function": {"name": "f"}}]}], "Item 0: `id` must be"),
            ([{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}], "Item 0: the name of a tool"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
                "Item 0: a picture needs an address",
            ),
            ([{"role": "robot", "content": [{"type": "tool_use"}]}], "Item 0: `role` must be user or assistant"),
            ([{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}], "Item 0: `id` must be a text"),
            ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "Item 0: a picture needs a source"),
            ([{"role": "user", "content": "x", "ts": "now"}], "Item 0: `ts` is a number"),
            ([{"role": "user", "content": None, "ts": 1}], "Item 0: a plain message has a role"),
            ([{"type": "function_call", "name": "f"}], "Item 0: `call_id` must be a text"),
        ],
    )
    def test_items_are_refused_with_their_number(self, document: Any, words: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            read_transcript(document)
        assert words in caught.value.detail


class TestVeryManyPieces:
    """A thread that reads an import cannot be stopped, so its work grows with the document and not with its square."""

    PIECES = 150_000
    CPU_SECONDS = 20
    """A copy for each piece takes more than twice as long; one pass a small part of it."""

    def test_of_one_answer_in_the_form_of_responses(self) -> None:
        begun = time.process_time()
        items = [{"role": "user", "content": "Hi"}, *({"type": "reasoning"} for _ in range(self.PIECES))]
        question, answer = read_history({"input": items}).rows
        assert (len(question.blocks), len(answer.blocks)) == (1, self.PIECES)
        assert time.process_time() - begun < self.CPU_SECONDS

    def test_beside_the_result_of_a_call(self) -> None:
        begun = time.process_time()
        texts = [{"type": "text", "text": "x"}] * self.PIECES
        result = {"type": "tool_result", "tool_use_id": "1", "content": ""}
        asked = {"role": "user", "content_blocks": [{"type": "text", "text": "q"}]}
        rows = read_history([asked, {"role": "assistant", "content_blocks": [result, *texts]}]).rows
        assert [len(row.blocks) for row in rows] == [1, 1, self.PIECES]
        assert time.process_time() - begun < self.CPU_SECONDS


class TestHalvesOfSurrogatePairs:
    def test_are_replaced_wherever_they_stand(self) -> None:
        document = {"messages": [{"role": "user", "content": "a\ud800b", "\udc00": ["\ud83d\ude00"]}]}
        assert without_surrogates(document) == {
            "messages": [{"role": "user", "content": "a\ufffdb", "\ufffd": ["\U0001f600"]}]
        }

    def test_a_document_without_any_is_not_copied(self) -> None:
        document = [{"role": "user", "content": ["é", {"x": "\U0001f600"}]}]
        assert without_surrogates(document) is document
