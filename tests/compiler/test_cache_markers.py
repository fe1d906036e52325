"""Cache markers stand where the next request will share the prefix, and there are never more than four."""

from typing import Any

from hypothesis import given, settings

from tests.compiler.histories import answered, asked, called, decode, said, tapes
from turnkeep.compiler import Compiled, compile
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message


def request(rows: list[Message], **more: Any) -> Compiled:
    return compile(rows, target="anthropic", open_turn=rows[-1].turn_id, **{"system": "Be brief.", **more})


def marked(compiled: Compiled) -> list[int]:
    """The messages whose last block is marked."""
    return [i for i, message in enumerate(compiled.messages) if "cache_control" in message["content"][-1]]


def markers(compiled: Compiled) -> int:
    blocks = [*(compiled.system or []), *(block for m in compiled.messages for block in m["content"])]
    return sum("cache_control" in block for block in blocks if isinstance(block, dict))


PAST = [asked("turn_a"), said("turn_a", 1)]
NOW = [asked("turn_b"), called("turn_b", 1, "a"), answered("turn_b", 2, "a")]


class TestMarkers:
    def test_the_system_prompt_is_marked(self) -> None:
        assert request(PAST[:1]).system == [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
        ]

    def test_a_new_question_marks_the_end_of_the_past_and_itself(self) -> None:
        assert marked(request([*PAST, *NOW[:1]])) == [0, 1, 2]

    def test_a_tool_round_marks_also_where_the_request_before_it_ended(self) -> None:
        assert marked(request([*PAST, *NOW])) == [1, 2, 4]

    def test_there_are_none_without_a_wish_for_them(self) -> None:
        assert markers(request([*PAST, *NOW], cache_markers=False)) == 0

    def test_an_empty_system_prompt_is_not_sent(self) -> None:
        assert request(PAST[:1], system="  ").system == []

    @settings(max_examples=300, deadline=None, database=None)
    @given(tapes)
    def test_there_are_never_more_than_four(self, data: bytes) -> None:
        case = decode(data)
        compiled = compile(case.rows, target="anthropic", open_turn=case.open_turn, system="Be brief.")
        assert markers(compiled) <= 4

    def test_the_end_of_each_request_is_marked_again_in_the_next(self) -> None:
        rounds = [[*PAST, *NOW[:1]], [*PAST, *NOW]]
        before, after = (request(rows) for rows in rounds)
        assert len(before.messages) - 1 in marked(after)


class TestOtherTargets:
    def test_need_no_markers(self) -> None:
        for target in ("openai_chat", "openai_responses", "sandbox"):
            compiled = compile([*PAST, *NOW], target=target, open_turn=TurnId("turn_b"), system="Be brief.")
            assert "cache_control" not in repr(compiled)
