"""Each rule of the judge, broken once, with the words in which the provider says so."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnkeep.compiler.judge import Violation, explain, judge_anthropic, judge_openai_chat, judge_openai_responses
from turnkeep.compiler.judge.violations import EXPLANATIONS

Json = dict[str, Any]
Case = tuple[str, Any, str]
TOOLS = [{"name": "search"}]
PNG = "aGVsbG8="


def user(*content: Any) -> Json:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> Json:
    return {"role": "assistant", "content": list(content)}


def text(words: str = "Hello.") -> Json:
    return {"type": "text", "text": words}


def use(call: Any = "c1", **more: Any) -> Json:
    return {"type": "tool_use", "id": call, "name": "search", "input": {}, **more}


def result(call: str = "c1", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call, "content": "ok", **more}


def image(**source: Any) -> Json:
    return {"type": "image", "source": source}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
ENABLED, DISABLED = {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}
LOOP = [user(text()), assistant(use()), user(result())]

ANTHROPIC: list[Case] = [
    ("messages_required", [], "at least one message is required"),
    ("content_type", [{"role": "user", "content": 3}], "Input should be a valid list"),
    ("content_type", [user({"type": "text"})], "Field required"),
    ("content_empty", [user()], "all messages must have non-empty content"),
    ("role_unknown", [{"role": "system", "content": "x"}, user(text())], 'Unexpected role "system"'),
    (
        "role_unknown",
        [user(text()), {"role": "tool", "content": "x"}, user(text())],
        "Input should be 'user' or 'assistant'",
    ),
    ("roles_alternate", [user(text()), user(text())], "roles must alternate"),
    ("first_is_user", [assistant(text()), user(text())], 'first message must use the "user" role'),
    ("last_is_user", [user(text()), assistant(text())], "The conversation must end with a user message"),
    ("text_empty", [user(text(""))], "text content blocks must be non-empty"),
    ("text_empty", [{"role": "user", "content": ""}], "text content blocks must be non-empty"),
    ("text_blank", [user(text(" \n"))], "text content blocks must contain non-whitespace text"),
    ("block_role", [user(use()), assistant(text()), user(text())], "`tool_use` blocks are not permitted"),
    ("block_role", [user(text()), assistant(result()), user(text())], "`tool_result` blocks are not permitted"),
    ("block_role", [user(text()), assistant(image(type="url", url="https://a")), user(text())], "`image` blocks"),
    ("block_role", [user({"type": "mystery"})], "`mystery` blocks are not permitted"),
    ("image_source", [user(image(type="file"))], "Input should be 'base64' or 'url'"),
    ("image_source", [user(image(type="url", url="ftp://a"))], "Input should be 'base64' or 'url'"),
    ("image_type", [user(image(type="base64", media_type="image/tiff", data=PNG))], "'image/jpeg', 'image/png'"),
    ("image_data", [user(image(type="base64", media_type="image/png", data="a==="))], "invalid base64 data"),
    ("image_size", [user(image(type="base64", media_type="image/png", data="a" * 5_242_884))], "exceeds 5 MB"),
    ("tool_input", [user(text()), assistant(use(input="{}")), user(result())], "valid dictionary"),
    ("id_pattern", [user(text()), assistant(use("a.b")), user(result("a.b"))], "match pattern '^[a-zA-Z0-9_-]+$'"),
    ("id_length", [user(text()), assistant(use("a" * 65)), user(result("a" * 65))], "at most 64 characters"),
    ("tool_name_pattern", [user(text()), assistant(use(name="a/b")), user(result())], "match pattern"),
    ("tool_name_length", [user(text()), assistant(use(name="a" * 129)), user(result())], "at most 128"),
    ("id_unique", [*LOOP, assistant(use()), user(result())], "`tool_use` ids must be unique"),
    ("tool_unanswered", [user(text()), assistant(use()), user(text())], "ids were found without `tool_result` blocks"),
    ("tool_unanswered", [user(text()), assistant(use()), user(result("other"), text())], "immediately after: c1"),
    (
        "results_first",
        [user(text()), assistant(use()), user(text(), result())],
        "Did not find 1 `tool_result` block(s)",
    ),
    ("result_unexpected", [user(result())], "unexpected `tool_use_id` found in `tool_result` blocks: c1"),
    ("result_unexpected", [*LOOP, assistant(text()), user(result())], "corresponding `tool_use` block in the previous"),
    ("result_repeated", [user(text()), assistant(use()), user(result(), result())], "must have a single result"),
    (
        "error_empty",
        [user(text()), assistant(use()), user(result(content="", is_error=True))],
        "content cannot be empty",
    ),
    ("text_empty", [user(text()), assistant(use()), user(result(content=[text("")]))], "must be non-empty"),
    ("signature", [user(text()), assistant({"type": "thinking", "thinking": "x"}, text()), user(text())], "signature"),
    ("signature", [user(text()), assistant({"type": "redacted_thinking"}, text()), user(text())], "data: Field"),
    ("thinking_first", [user(text()), assistant(text(), THOUGHT, text()), user(text())], "the first block must be"),
    ("thinking_last", [user(text()), assistant(THOUGHT), user(text())], "cannot be `thinking`"),
    (
        "thinking_expected",
        {"messages": LOOP, **ENABLED},
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
    ),
    (
        "thinking_disabled",
        {"messages": [user(text()), assistant(THOUGHT, use()), user(result())], **DISABLED},
        "When thinking is disabled",
    ),
    ("tools_required", {"messages": LOOP, "tools": []}, "must define tools"),
    ("markers", [user(*[MARKED] * 5)], "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    ("marker_place", [user(text()), assistant({**THOUGHT, "cache_control": {}}, text()), user(text())], "Extra inputs"),
    ("marker_place", [user({**MARKED, "text": ""})], "cannot be set for empty text blocks"),
    ("text_empty", {"messages": [user(text())], "system": [text(" ")]}, "system: text content blocks"),
    ("surrogate", [user(text("\ud83d"))], "no low surrogate"),
]


def call(own: Any = "c1", **function: Any) -> Json:
    return {"id": own, "type": "function", "function": {"name": "search", "arguments": "{}", **function}}


def calling(*calls: Any) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(own: str = "c1") -> Json:
    return {"role": "tool", "tool_call_id": own, "content": "ok"}


ASK = {"role": "user", "content": "Hello."}

CHAT: list[Case] = [
    ("messages_required", [], "empty array"),
    ("role_unknown", [{"role": "robot", "content": "x"}], "Invalid value: 'robot'"),
    ("content_null", [ASK, {"role": "assistant", "content": None}], "expected a string, got null"),
    ("content_null", [{"role": "user"}], "expected a string, got null"),
    ("content_empty", [{"role": "user", "content": []}], "minimum length 1"),
    ("content_type", [{"role": "user", "content": {"a": 1}}], "expected one of a string or array of objects"),
    ("part_type", [{"role": "user", "content": [{"type": "tool_result"}]}], "Invalid value: 'tool_result'"),
    ("part_type", [{"role": "user", "content": [{"type": "text"}]}], "Missing required parameter"),
    ("part_type", [{"role": "assistant", "content": [{"type": "image_url"}]}], "Invalid value: 'image_url'"),
    ("image_url", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "C:/a"}}]}], "valid URL"),
    ("calls_empty", [ASK, {"role": "assistant", "content": "x", "tool_calls": []}], "empty array"),
    ("call_type", [ASK, calling({"id": "c1"}), tool()], "Missing required parameter"),
    ("id_required", [ASK, calling(call(None)), tool("None")], "Missing required parameter"),
    ("id_length", [ASK, calling(call("x" * 41)), tool("x" * 41)], "maximum length 40"),
    ("id_unique", [ASK, calling(call(), call()), tool(), tool()], "Duplicate value for 'tool_call_id'"),
    ("tool_name_pattern", [ASK, calling(call(name="a.b")), tool()], "does not match pattern"),
    ("arguments_type", [ASK, calling(call(arguments={})), tool()], "expected a string, but got an object"),
    ("arguments_json", [ASK, calling(call(arguments='{"a": "b')), tool()], "must be a valid JSON object string"),
    ("arguments_json", [ASK, calling(call(arguments="[]")), tool()], "must be a valid JSON object string"),
    ("tool_unanswered", [ASK, calling(call())], "must be followed by tool messages responding to each 'tool_call_id'"),
    ("tool_unanswered", [ASK, calling(call()), ASK, tool()], "did not have response messages: c1"),
    ("result_unexpected", [ASK, tool()], "must be a response to a preceeding message with 'tool_calls'"),
    ("result_repeated", [ASK, calling(call()), tool(), tool()], "Duplicate value for 'tool_call_id' of 'c1'"),
    ("surrogate", [{"role": "user", "content": "\udc00"}], "no low surrogate"),
]


def function_call(own: Any = "c1", **more: Any) -> Json:
    return {"type": "function_call", "call_id": own, "name": "search", "arguments": "{}", **more}


def function_output(own: Any = "c1", **more: Any) -> Json:
    return {"type": "function_call_output", "call_id": own, "output": "ok", **more}


def reasoning(**more: Any) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", **more}


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}

RESPONSES: list[Case] = [
    ("input_required", [], "Missing required parameter: 'input'"),
    ("item_type", [{"type": "mystery"}], "Invalid value: 'mystery'"),
    ("item_id", [ASK, function_call(id="call_1"), function_output()], "Expected an ID that begins with 'fc'"),
    ("item_id", [ASK, reasoning(id="x"), SAID], "Expected an ID that begins with 'rs'"),
    ("role_unknown", [{"type": "message", "role": "tool", "content": "x"}], "Invalid value: 'tool'"),
    ("content_empty", [{"role": "user", "content": []}], "Missing required parameter"),
    (
        "part_type",
        [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
        "'output_text' and 'refusal'",
    ),
    ("part_type", [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "Invalid value: 'text'"),
    ("part_type", [{"role": "user", "content": [{"type": "input_text"}]}], "Missing required parameter"),
    ("image_url", [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}], "Expected a valid URL"),
    ("summary", [ASK, {"type": "reasoning", "encrypted_content": "x"}, SAID], "summary"),
    ("item_not_stored", [ASK, reasoning(encrypted_content=None), SAID], "Items are not persisted when `store`"),
    ("reasoning_alone", [reasoning(), ASK], "without its required following item"),
    ("id_required", [ASK, function_call(None), function_output("None")], "Missing required parameter"),
    ("id_length", [ASK, function_call("x" * 65), function_output("x" * 65)], "maximum length 64"),
    ("id_unique", [ASK, function_call(), function_call(), function_output()], "Duplicate function call"),
    ("output_type", [ASK, function_call(), function_output(output=None)], "Missing required parameter"),
    ("tool_name_pattern", [ASK, function_call(name=""), function_output()], "does not match pattern"),
    ("arguments_type", [ASK, function_call(arguments={}), function_output()], "expected a string"),
    ("arguments_json", [ASK, function_call(arguments=""), function_output()], "must be a valid JSON object string"),
    ("tool_unanswered", [ASK, function_call()], "No tool output found for function call c1."),
    ("result_unexpected", [ASK, function_output()], "No tool call found for function call output with call_id c1."),
    ("result_unexpected", [ASK, function_output(), function_call()], "No tool call found"),
    ("result_repeated", [ASK, function_call(), function_output(), function_output()], "Duplicate function call output"),
    ("surrogate", [{"role": "user", "content": "\udc00"}], "no low surrogate"),
]


def found(violations: list[Violation], rule: str) -> list[str]:
    return [violation.message for violation in violations if violation.rule == rule]


def body(given: Any, key: str, **defaults: Any) -> Json:
    return {**defaults, **given} if isinstance(given, dict) else {**defaults, key: given}


class TestEveryRuleIsNoticed:
    @pytest.mark.parametrize("rule,given,words", ANTHROPIC)
    def test_by_anthropic(self, rule: str, given: Any, words: str) -> None:
        messages = found(judge_anthropic(body(given, "messages", tools=TOOLS)), rule)
        assert any(words in message for message in messages), messages

    @pytest.mark.parametrize("rule,given,words", CHAT)
    def test_by_openai_chat(self, rule: str, given: Any, words: str) -> None:
        messages = found(judge_openai_chat(body(given, "messages")), rule)
        assert any(words in message for message in messages), messages

    @pytest.mark.parametrize("rule,given,words", RESPONSES)
    def test_by_openai_responses(self, rule: str, given: Any, words: str) -> None:
        messages = found(judge_openai_responses(body(given, "input", store=False)), rule)
        assert any(words in message for message in messages), messages

    @pytest.mark.parametrize(
        "file,section,cases",
        [
            ("anthropic.py", "", ANTHROPIC),
            ("violations.py", "", [*CHAT, *ANTHROPIC]),
            ("openai.py", "Chat Completions", CHAT),
            ("openai.py", "Responses", RESPONSES),
        ],
    )
    def test_no_rule_is_without_a_case_and_without_words(self, file: str, section: str, cases: list[Case]) -> None:
        source = (Path(judge_anthropic.__code__.co_filename).parent / file).read_text()
        if section:
            sections = re.split(r"^# ([A-Z][\w ]+)\n\n", source, flags=re.MULTILINE)
            source = dict(zip(sections[1::2], sections[2::2], strict=True))[section]
            assert "findings.add(" in source
        rules = set(re.findall(r'findings\.add\(\s*"(\w+)"', source))
        assert rules <= {rule for rule, _, _ in cases}
        assert {rule for rule, _, _ in cases} <= set(EXPLANATIONS)

    def test_every_explanation_is_a_sentence_about_a_rule_that_exists(self) -> None:
        used = {rule for rule, _, _ in (*ANTHROPIC, *CHAT, *RESPONSES)}
        assert used == set(EXPLANATIONS)
        assert all(explain(rule).endswith(".") for rule in used)


class TestWhatIsRightPasses:
    def accepted(self, judge: Callable[[Json], list[Violation]], request: Json) -> bool:
        return judge(request) == []

    def test_a_tool_loop_with_thinking(self) -> None:
        loop = [
            user(text()),
            assistant(THOUGHT, text(), use()),
            user(result()),
            assistant(use("c2")),
            user(result("c2")),
        ]
        assert self.accepted(judge_anthropic, {"messages": loop, "tools": TOOLS, **ENABLED})

    def test_thinking_need_not_open_a_loop_where_the_model_decides(self) -> None:
        request = {"messages": LOOP, "tools": TOOLS, "thinking": {"type": "adaptive"}}
        assert self.accepted(judge_anthropic, request)

    def test_pictures_texts_and_four_markers(self) -> None:
        pictures = [image(type="base64", media_type="image/png", data=PNG), image(type="url", url="https://a/b")]
        assert self.accepted(judge_anthropic, {"messages": [user(*pictures, *[MARKED] * 3)], "system": [MARKED]})

    def test_results_in_any_order_and_words_behind_them(self) -> None:
        messages = [user(text()), assistant(use("a"), use("b")), user(result("b"), result("a"), text())]
        assert self.accepted(judge_anthropic, {"messages": messages, "tools": TOOLS})

    def test_a_chat_with_parallel_calls(self) -> None:
        chat = [{"role": "system", "content": "x"}, ASK, calling(call("a"), call("b")), tool("b"), tool("a"), ASK]
        assert self.accepted(judge_openai_chat, {"messages": chat})

    def test_responses_with_reasoning_before_a_call(self) -> None:
        items = [
            ASK,
            reasoning(),
            reasoning(id="rs_2"),
            function_call(id="fc_1"),
            function_output(),
            reasoning(),
            SAID,
            ASK,
        ]
        assert self.accepted(judge_openai_responses, {"input": items, "store": False})
        assert self.accepted(judge_openai_responses, {"input": "Hello."})
