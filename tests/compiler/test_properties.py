"""Whatever a history went through, no provider refuses what the compiler makes of it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.compiler import histories
from tests.compiler.histories import (
    CONTENTS,
    Case,
    answered,
    asked,
    called,
    decode,
    decode_honest,
    decode_waits,
    tapes,
)
from tests.property_tests import examples
from turnkeep.compiler import Budget, Compiled, Target, compile
from turnkeep.compiler.exchange import NO_ANSWER, repair
from turnkeep.compiler.judge import Violation, judge_anthropic, judge_openai_chat, judge_openai_responses
from turnkeep.compiler.utterances import View, view_turn
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Text, ToolResult

Judge = Callable[[dict[str, Any]], list[Violation]]

TARGETS: tuple[Target, ...] = ("anthropic", "openai_chat", "openai_responses")

many = settings(
    max_examples=examples(500, at_night=2_000),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
nightly = settings(many, max_examples=10_000)
few = settings(many, max_examples=examples(150, at_night=1_000))


def request_of(compiled: Compiled, thinking: str = "off") -> dict[str, Any]:
    """The body as an adapter would send it."""
    tools = [{"name": name} for name in compiled.tool_names]
    match compiled.target:
        case "anthropic":
            mode = thinking if compiled.thinking else "disabled"
            body = {"messages": compiled.messages, "tools": tools, "thinking": {"type": mode}}
            return {**body, "system": compiled.system} if compiled.system else body
        case "openai_chat":
            return {"messages": compiled.messages, "tools": tools}
        case "openai_responses":
            return {"input": compiled.messages, "instructions": compiled.system, "store": False}
        case "sandbox":
            return {"conversation": compiled.messages}


def compiled_case(case: Case, target: Target) -> Compiled:
    return compile(
        case.rows,
        target=target,
        open_turn=case.open_turn,
        budget=case.budget,
        system=case.system,
        contents=CONTENTS,
        sees_images=case.sees_images,
        thinking=case.thinking,
    )


def judged(case: Case, target: Target) -> list[Violation]:
    body = request_of(compiled_case(case, target), case.thinking)
    match target:
        case "anthropic":
            return judge_anthropic(body)
        case "openai_chat":
            return judge_openai_chat(body)
        case _:
            return judge_openai_responses(body)


def is_users(message: dict[str, Any]) -> bool:
    return message.get("role") in {"user", "tool"} or message.get("type") == "function_call_output"


class TestNoProviderRefuses:
    @many
    @given(tapes)
    def test_anthropic_accepts_whatever_happened(self, data: bytes) -> None:
        assert judged(decode(data), "anthropic") == []

    @many
    @given(tapes)
    def test_openai_chat_accepts_whatever_happened(self, data: bytes) -> None:
        assert judged(decode(data), "openai_chat") == []

    @many
    @given(tapes)
    def test_openai_responses_accepts_whatever_happened(self, data: bytes) -> None:
        assert judged(decode(data), "openai_responses") == []

    @few
    @given(tapes)
    def test_a_request_ends_with_the_user_or_with_results(self, data: bytes) -> None:
        case = decode(data)
        for target in TARGETS:
            assert is_users(compiled_case(case, target).messages[-1])

    @few
    @given(tapes)
    def test_the_assistants_words_come_before_its_calls(self, data: bytes) -> None:
        for message in compiled_case(decode(data), "anthropic").messages:
            kinds = [block["type"] for block in message["content"]]
            if "tool_use" in kinds:
                assert "text" not in kinds[kinds.index("tool_use") :]

    @few
    @given(tapes)
    def test_the_sandbox_is_told_only_what_was_said(self, data: bytes) -> None:
        entries = compiled_case(decode(data), "sandbox").messages
        assert all(set(entry) == {"role", "content", "ts"} for entry in entries)
        assert all(entry["role"] in {"user", "assistant"} and entry["content"].strip() for entry in entries)
        assert NO_ANSWER not in [entry["content"] for entry in entries]


class TestCallsThatWaited:
    """Waiting, denied, expired, edited and interrupted calls, in any mix, and words that steered the turn."""

    @many
    @given(tapes)
    def test_no_provider_refuses_them(self, data: bytes) -> None:
        turns = decode_waits(data)
        rows = [row for turn in turns for row in turn]
        asks_again = [*rows, asked("turn_new", "And now?", ts=99)]
        for history, open_turn in ((rows, rows[-1].turn_id), (asks_again, TurnId("turn_new"))):
            case = Case(
                rows=history, open_turn=open_turn, budget=Budget(), thinking="off", sees_images=True, system="Be brief."
            )
            for target in TARGETS:
                assert judged(case, target) == []

    @few
    @given(tapes)
    def test_the_model_is_told_what_became_of_each(self, data: bytes) -> None:
        rows = [row for turn in decode_waits(data) for row in turn]
        told = [block.content for row in rows for block in row.blocks if isinstance(block, ToolResult)]
        for target in TARGETS:
            sent = repr(compile(rows, target=target, open_turn=rows[-1].turn_id, budget=Budget()).messages)
            for content in set(told):
                assert repr(content)[1:-1] in sent or repr(repr(content))[2:-2] in sent

    def test_words_that_steer_come_after_the_results(self) -> None:
        rows = [
            asked("turn_1"),
            called("turn_1", 1, "a", "b"),
            answered("turn_1", 2, "b"),
            answered("turn_1", 3, "a"),
            histories.row("turn_1", 4, "user", Text(text="Be short.")),
        ]
        [_, _, *results, steered] = compile(rows, target="openai_chat", open_turn=TurnId("turn_1")).messages
        assert [message["tool_call_id"] for message in results] == ["a", "b"]
        assert steered == {"role": "user", "content": "Be short."}
        last = compile(rows, target="anthropic", open_turn=TurnId("turn_1")).messages[-1]
        assert [block["type"] for block in last["content"]] == ["tool_result", "tool_result", "text"]


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
class TestNoProviderRefusesInAHundredThousandCases:
    """In ten parts each, so that none runs into the time limit of a single test and all cores can help."""

    @nightly
    @given(data=tapes)
    def test_anthropic(self, part: int, data: bytes) -> None:
        assert judged(decode(data), "anthropic") == [], part

    @nightly
    @given(data=tapes)
    def test_openai_chat(self, part: int, data: bytes) -> None:
        assert judged(decode(data), "openai_chat") == [], part

    @nightly
    @given(data=tapes)
    def test_openai_responses(self, part: int, data: bytes) -> None:
        assert judged(decode(data), "openai_responses") == [], part


class TestRepeating:
    @few
    @given(tapes)
    def test_compiling_again_gives_the_same_bytes(self, data: bytes) -> None:
        for target in TARGETS:
            assert compiled_case(decode(data), target) == compiled_case(decode(data), target)

    @few
    @given(tapes)
    def test_repairing_what_was_repaired_changes_nothing(self, data: bytes) -> None:
        view = View(reasoning_of="anthropic", contents=CONTENTS)
        exchange, _ = view_turn(TurnId("turn_x"), decode(data).rows, view)
        once, _ = repair(exchange)
        twice, repairs = repair(once)
        assert twice == once
        assert repairs == []


class TestThePrefix:
    @few
    @given(tapes)
    def test_every_request_of_a_conversation_begins_with_the_one_before(self, data: bytes) -> None:
        for target in TARGETS:
            requests = [without_markers(compiled.messages) for compiled in conversation(data, target)]
            for earlier, later in pairwise(requests):
                assert later[: len(earlier)] == earlier

    @few
    @given(tapes)
    def test_a_turn_that_has_ended_keeps_its_bytes(self, data: bytes) -> None:
        rows = decode(data).rows
        ended = [*rows, asked("turn_new")]
        longer = [*rows, asked("turn_new"), answered("turn_new", 1, "lost"), asked("turn_newer")]
        for target in TARGETS:
            before = compile(ended, target=target, open_turn=TurnId("turn_new"), cache_markers=False)
            after = compile(longer, target=target, open_turn=TurnId("turn_newer"), cache_markers=False)
            assert after.messages[: len(before.messages)] == before.messages


class TestTheBudget:
    @few
    @given(tapes)
    def test_only_the_open_turn_may_exceed_it(self, data: bytes) -> None:
        case = decode(data)
        for target in TARGETS:
            compiled = compiled_case(case, target)
            assert compiled.turns_included <= max(1, case.budget.turns)
            assert compiled.size <= case.budget.size or compiled.turns_included <= 1

    @few
    @given(tapes)
    def test_turns_are_whole_or_absent(self, data: bytes) -> None:
        turns = decode_honest(data)
        rows = [row for turn in turns for row in turn]
        open_turn = rows[-1].turn_id
        whole = compile(rows, target="anthropic", open_turn=open_turn, cache_markers=False)
        for size in (50, 200, 500, 900):
            part = compile(rows, target="anthropic", open_turn=open_turn, budget=Budget(size=size), cache_markers=False)
            if part.turns_included > 1:
                assert nameless(whole.messages[-len(part.messages) :]) == nameless(part.messages)
            assert part.turns_included + part.turns_dropped == len(turns)


def nameless(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without call ids: one that recurs is renamed only while its first use is in the window."""
    own = ("id", "tool_use_id")
    return [
        {**message, "content": [{k: v for k, v in part.items() if k not in own} for part in message["content"]]}
        for message in messages
    ]


def conversation(data: bytes, target: Target) -> list[Compiled]:
    """Every request that a conversation causes: one per round, as the turns go on."""
    rows: list[Message] = []
    requests: list[Compiled] = []
    for turn in decode_honest(data):
        for row in turn:
            rows.append(row)
            if row.role == "user" and _is_round_complete(rows):
                requests.append(
                    compile(rows, target=target, open_turn=row.turn_id, system="Be brief.", thinking="adaptive")
                )
    return requests


def _is_round_complete(rows: list[Message]) -> bool:
    own = [row for row in rows if row.turn_id == rows[-1].turn_id]
    calls = sum(block.__class__.__name__ == "ToolUse" for row in own for block in row.blocks)
    results = sum(block.__class__.__name__ == "ToolResult" for row in own for block in row.blocks)
    return calls == results


def without_markers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cleaned: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [{key: value for key, value in part.items() if key != "cache_control"} for part in content]
            message = {**message, "content": parts}  # noqa: PLW2901
        cleaned.append(message)
    return cleaned
