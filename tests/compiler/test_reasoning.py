"""Reasoning goes back to the provider that can verify it, and to no other."""

from typing import Any

from tests.compiler.histories import answered, asked, row, said
from turnkeep.compiler import Compiled, Target, compile
from turnkeep.ids import CallId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Reasoning, Text, ToolUse

SIGNED = Reasoning(text="hm", signature="sig")
REDACTED = Reasoning(data="blob")
SEALED = Reasoning(text="hm", provider="openai", data="cipher", item_id="rs_1")


def loop(*thoughts: Reasoning, provider: str | None = "anthropic/claude-x", turn: str = "turn_a") -> list[Message]:
    """A turn in which a tool was called and answered."""
    call = ToolUse(id=CallId(f"{turn}_call"), name="search", input={})
    return [
        asked(turn),
        row(turn, 1, "assistant", *thoughts, call, provider=provider),
        answered(turn, 2, call.id),
    ]


def compiled(rows: list[Message], target: Target = "anthropic", **more: Any) -> Compiled:
    return compile(rows, target=target, open_turn=rows[-1].turn_id, **{"thinking": "adaptive", **more})


def kinds(request: Compiled) -> list[str]:
    return [block["type"] for message in request.messages for block in message["content"]]


class TestAnthropic:
    def test_signed_and_redacted_thinking_go_back_as_they_came(self) -> None:
        content = compiled(loop(SIGNED, REDACTED)).messages[1]["content"]
        assert content[0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
        assert content[1] == {"type": "redacted_thinking", "data": "blob"}

    def test_thinking_without_a_signature_stays_behind(self) -> None:
        assert "thinking" not in kinds(compiled(loop(Reasoning(text="hm"))))

    def test_of_one_answer_all_of_it_goes_back_or_none(self) -> None:
        assert "thinking" not in kinds(compiled(loop(SIGNED, Reasoning(text="hm"))))

    def test_another_providers_thinking_stays_behind(self) -> None:
        assert "thinking" not in kinds(compiled(loop(SIGNED, provider="openai/gpt-x")))
        assert "thinking" not in kinds(compiled(loop(SIGNED, provider=None)))
        assert "redacted_thinking" not in kinds(compiled(loop(SEALED, provider=None)))

    def test_another_model_of_the_same_provider_gets_it(self) -> None:
        assert "thinking" in kinds(compiled(loop(SIGNED, provider="anthropic/claude-older")))

    def test_a_block_may_name_its_own_provider(self) -> None:
        own = Reasoning(text="hm", signature="sig", provider="anthropic")
        assert "thinking" in kinds(compiled(loop(own, provider=None)))

    def test_it_stays_in_turns_that_have_ended_so_that_the_prefix_stays(self) -> None:
        rows = [*loop(SIGNED), said("turn_a", 3, provider="anthropic/claude-x"), asked("turn_b")]
        assert "thinking" in kinds(compiled(rows))

    def test_with_thinking_off_none_is_sent(self) -> None:
        request = compiled(loop(SIGNED), thinking="off")
        assert "thinking" not in kinds(request)
        assert request.thinking is False

    def test_a_loop_that_began_without_it_goes_on_without_it(self) -> None:
        rows = [*loop(SIGNED, turn="turn_a"), said("turn_a", 3), *loop(provider="openai/gpt-x", turn="turn_b")]
        request = compiled(rows, thinking="enabled")
        assert request.thinking is False
        assert "thinking" not in kinds(request)

    def test_a_loop_that_began_with_it_goes_on_with_it(self) -> None:
        request = compiled(loop(SIGNED), thinking="enabled")
        assert request.thinking is True
        assert "thinking" in kinds(request)

    def test_a_new_question_may_switch_it_on(self) -> None:
        rows = [*loop(provider="openai/gpt-x"), said("turn_a", 3), asked("turn_b")]
        assert compiled(rows, thinking="enabled").thinking is True

    def test_later_rounds_need_not_think_if_the_first_did(self) -> None:
        again = ToolUse(id=CallId("again"), name="search", input={})
        rows = [
            *loop(SIGNED),
            row("turn_a", 3, "assistant", again, provider="anthropic/claude-x"),
            answered("turn_a", 4, "again"),
        ]
        assert compiled(rows, thinking="enabled").thinking is True


class TestOpenAI:
    def test_responses_gets_its_ciphertext_back_before_the_call(self) -> None:
        items = compiled(loop(SEALED, provider="openai/gpt-x"), "openai_responses").messages
        assert items[1] == {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "cipher",
        }
        assert items[2]["type"] == "function_call"

    def test_reasoning_that_the_server_would_have_to_look_up_stays_behind(self) -> None:
        named = Reasoning(text="hm", provider="openai", item_id="rs_1")
        items = compiled(loop(named, provider="openai/gpt-x"), "openai_responses").messages
        assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]

    def test_chat_has_no_place_for_it(self) -> None:
        messages = compiled(loop(SEALED, provider="openai/gpt-x"), "openai_chat").messages
        assert messages[1]["content"] is None
        assert set(messages[1]) == {"role", "content", "tool_calls"}


class TestMergedAnswers:
    def test_reasoning_of_a_later_part_goes_if_the_first_had_none(self) -> None:
        rows = [
            asked("turn_a"),
            row("turn_a", 1, "assistant", Text(text="a"), provider="anthropic/x"),
            row("turn_a", 2, "assistant", SIGNED, Text(text="b"), provider="anthropic/x"),
            asked("turn_b"),
        ]
        answer = compile(rows, target="anthropic", open_turn=TurnId("turn_b"), thinking="adaptive").messages[1]
        assert [block["type"] for block in answer["content"]] == ["text", "text"]
