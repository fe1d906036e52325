"""The line stream, the output of running steps, and the instructions for the model."""

import asyncio

import pytest
from msgspec import UNSET

from tests.sandbox_runner.fake_server import FakeTurn
from tests.sandbox_runner.harness import site
from turnkeep.clock import FakeClock
from turnkeep.ids import ConversationId
from turnkeep.providers.scripted import Pause
from turnkeep.sandbox import line_stream, server, tools
from turnkeep.sandbox.line_stream import LineStream, shown_args
from turnkeep.sandbox.turn import history, skill_summary
from turnkeep.streaming.ndjson import LINE_BYTES, LineParser
from turnkeep_client.wire.blocks import Text
from turnkeep_client.wire.events import Step
from turnkeep_client.wire.sandbox import ChatTurn, ResultLine, SandboxSkill


async def all_of(written: LineStream) -> bytes:
    return await written.take(seconds=1)


class TestLines:
    async def test_the_first_ending_counts_and_nothing_follows_it(self) -> None:
        written = LineStream(clock=FakeClock(5))
        written.delta("Hi")
        written.error("first", "one")
        written.result("second")
        written.log("info", "third")
        assert (await all_of(written)).splitlines() == [
            b'{"type":"delta","text":"Hi"}',
            b'{"type":"error","code":"first","message":"one","ts":5}',
        ]

    async def test_take_returns_after_a_line_or_after_a_timeout(self) -> None:
        written = LineStream()
        waiting = asyncio.create_task(written.take(seconds=20))
        await asyncio.sleep(0)
        written.delta("x")
        assert await waiting == b'{"type":"delta","text":"x"}\n'
        assert await written.take(seconds=0.01) == b""

    async def test_an_answer_longer_than_a_line_is_an_error(self) -> None:
        written = LineStream()
        written.result("x" * LINE_BYTES)
        assert b'"code":"answer_too_long"' in await all_of(written)

    async def test_too_many_unread_lines_stop_the_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line_stream, "UNSENT_BYTES", 1_000)
        written, overflows = LineStream(), []
        written.on_overflow = lambda: overflows.append(True)
        for _ in range(100):
            written.delta("x" * 100)
        assert overflows == [True]

    def test_arguments_are_shown_whole_unless_they_are_very_long(self) -> None:
        assert shown_args({"a": "x" * 10_000}) == {"a": "x" * 10_000}
        assert shown_args(UNSET) is UNSET
        short = shown_args({"a": "x" * 100_000, "b": 1, "c": ["y" * 5_000]})
        assert short["a"].endswith("[cut: 100,000 characters in all]")
        assert short["b"] == 1
        assert shown_args({str(number): "x" * 100 for number in range(5_000)}) == {"cut": "5,000 arguments"}

    async def test_blank_lines_are_sent_while_nothing_happens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "HEARTBEAT_SECONDS", 0.05)
        turn = FakeTurn([[Pause(1.0), "Slow."]])
        async with site() as here, here.session.post(f"{here.url}/stream", json=here.server.add(turn)) as response:
            body = await response.read()
        assert b"\n\n\n" in body
        parser = LineParser()
        parser.feed(body)
        ending = parser.close()
        assert isinstance(ending, ResultLine)
        assert ending.message == "Slow."


class TestProgress:
    async def test_only_the_end_of_long_output_is_shown_and_never_too_often(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tools, "FULL_RATE_LINES", 2)
        shown: list[str] = []
        output = tools.StepProgress(lambda _, text: shown.append(text), every_seconds=0.01).start("call_1")
        for _ in range(60):
            output.add(b"x" * 500)
            await asyncio.sleep(0.005)
        output.stop()
        assert 3 <= len(shown) <= 12, "each waits twice as long as the one before"
        assert max(map(len, shown)) == len(shown[-1]) == tools.SHOWN_CHARS
        assert len(output.text()) == 30_000

    async def test_a_character_cut_in_two_is_shown_whole(self) -> None:
        output = tools.StepProgress(lambda _, text: None).start("call_1")
        for piece in ("€".encode()[:1], "€".encode()[1:], b"\xff"):
            output.add(piece)
        output.stop()
        assert output.text() == "€\ufffd"


class TestInstructions:
    @pytest.mark.parametrize(
        "text, told",
        [
            ("---\nname: x\ndescription: 'Draws charts.'\n---\n# X\n", "Draws charts."),
            ("---\nname: x\n---\n# Heading\n\nWhat it does.\n", "What it does."),
            ("# Only a heading", "Only a heading"),
            ("", "no description"),
        ],
    )
    def test_a_skill_is_summarized_in_one_line(self, text: str, told: str) -> None:
        assert skill_summary(SandboxSkill(name="x", files={"SKILL.md": text})) == told

    def test_the_conversation_so_far_becomes_turns(self) -> None:
        said = (("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d"), ("assistant", "e"))
        turns = [ChatTurn(role=role, content=text, ts=at) for at, (role, text) in enumerate(said)]  # type: ignore[arg-type]
        rows = history(turns, ConversationId("conv"))
        assert [(row.role, row.blocks[0], row.turn_sequence) for row in rows] == [
            ("user", Text(text="a"), 0),
            ("assistant", Text(text="b"), 1),
            ("user", Text(text="c"), 0),
            ("user", Text(text="d"), 0),
            ("assistant", Text(text="e"), 1),
        ]
        assert len({row.turn_id for row in rows}) == 3


def test_a_step_is_told_with_its_time() -> None:
    async def told() -> bytes:
        written = LineStream(clock=FakeClock(7))
        written.step(Step(id="s", name="shell", status="running", args={"a": 1}), name="other")
        return await all_of(written)

    assert asyncio.run(told()) == (
        b'{"type":"step","id":"s","name":"other","status":"running","args":{"a":1},"ts":7}\n'
    )
