"""Blocks and events are closed unions that survive JSON unchanged."""

from typing import get_args

import msgspec
import pytest

from turnkeep.ids import CallId
from turnkeep_client.wire.blocks import Block, Part, Reasoning, Text, ToolResult, ToolUse, text_of
from turnkeep_client.wire.events import Step, Terminal, TurnEvent


class TestUnions:
    @pytest.mark.parametrize("union", [Block, TurnEvent, Part])
    def test_every_member_has_a_tag_of_its_own(self, union: object) -> None:
        tags = [member.__struct_config__.tag for member in get_args(union)]
        assert len(set(tags)) == len(tags)

    @pytest.mark.parametrize("union", [Block, TurnEvent, Part])
    def test_values_are_frozen(self, union: object) -> None:
        assert all(member.__struct_config__.frozen for member in get_args(union))

    def test_terminal_events_are_events(self) -> None:
        assert set(get_args(Terminal)) < set(get_args(TurnEvent))

    def test_an_unknown_tag_is_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(b'{"type":"video"}', type=Block)


class TestJson:
    def test_a_step_is_the_line_of_the_sandbox(self) -> None:
        line = b'{"type":"step","id":"s","name":"f","status":"succeeded","result":null,"durationMs":1.5}'
        step = msgspec.json.decode(line, type=TurnEvent)
        assert step == Step(id="s", name="f", status="succeeded", result=None, duration_ms=1.5)
        assert msgspec.json.encode(step) == line

    def test_words_alone(self) -> None:
        blocks = (
            Text(text="a"),
            Reasoning(text="no"),
            ToolUse(id=CallId("c"), name="f", input={}),
            ToolResult(call_id=CallId("c"), content="no"),
            Text(text="b"),
        )
        assert text_of(blocks) == "ab"
