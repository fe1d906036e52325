"""Tools that misbehave: an error result, and the turn goes on."""

import asyncio
import re
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster, kinds
from turnkeep.engine.outcomes import KEPT_BYTES, SHOWN_CHARS
from turnkeep.model.timeline import WHOLE_RESULT
from turnkeep.model.truncation import MAX_DEPTH, TOO_DEEP
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script, ScriptedProvider
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome
from turnkeep_client.wire.blocks import ToolResult
from turnkeep_client.wire.events import Step


async def outcome_of(cluster: Cluster, *tools: Any, call: Call, settings: Any = QUICK) -> tuple[Turn, ToolResult, Step]:
    """Let the model call a tool once and then answer; return what became of the call."""
    engine = await cluster.enter([[call], ["I see."]], tools=tools, settings=settings)
    turn = await cluster.answer(engine)
    assert turn.status == "succeeded", turn.error
    (result,) = [block for row in await cluster.rows(turn.id) for block in row.blocks if isinstance(block, ToolResult)]
    ended = [event for event in await cluster.events(turn.id) if isinstance(event, Step) and event.status != "running"]
    assert len(ended) == 1
    return turn, result, ended[0]


class TestVeryManyCalls:
    async def test_the_first_ones_are_run_and_the_model_is_told_of_the_rest(self, cluster: Cluster) -> None:
        called: list[int] = []

        @tool
        def count(n: int) -> str:
            called.append(n)
            return "counted"

        settings = structs.replace(QUICK, tool_calls=3)
        calls = [Call("count", {"n": n}) for n in range(200)]
        engine = await cluster.enter([calls, ["I see."]], tools=[count], settings=settings)
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded", turn.error
        assert sorted(called) == [0, 1, 2]
        rows = await cluster.rows(turn.id)
        results = [block for row in rows for block in row.blocks if isinstance(block, ToolResult)]
        assert len(results) == 200
        refused = [result for result in results if result.is_error]
        assert len(refused) == 197
        assert {result.content for result in refused} == {
            "This call was not run: a round may have 3 calls. Call it again in the next one."
        }
        ended = [event for event in await cluster.events(turn.id) if isinstance(event, Step)]
        assert sum(event.status == "failed" for event in ended) == 197


class TestAToolThatFails:
    async def test_raises(self, cluster: Cluster) -> None:
        @tool
        def explode() -> str:
            raise RuntimeError("the fuse was short")

        _, result, step = await outcome_of(cluster, explode, call=Call("explode"))
        assert result.is_error
        assert "the fuse was short" in result.content
        assert step.status == "failed"

    async def test_hangs(self, cluster: Cluster) -> None:
        @tool(timeout_seconds=0.05)
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

        _, result, _ = await outcome_of(cluster, hang, call=Call("hang"))
        assert result.is_error
        assert "0.05 seconds" in result.content

    async def test_does_not_exist(self, cluster: Cluster) -> None:
        @tool
        def known() -> str:
            return "here"

        _, result, _ = await outcome_of(cluster, known, call=Call("unknown"))
        assert result.is_error
        assert "'unknown'" in result.content
        assert "known" in result.content

    async def test_is_called_with_broken_json(self, cluster: Cluster) -> None:
        called = []

        @tool
        def known() -> str:
            called.append(1)
            return "here"

        _, result, _ = await outcome_of(cluster, known, call=Call("known", malformed="Expecting value at 7"))
        assert result.is_error
        assert "Expecting value at 7" in result.content
        assert called == []

    @pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 5_000])
    async def test_is_called_with_arguments_without_a_bottom(self, cluster: Cluster, levels: int) -> None:
        called = []

        @tool
        def known(a: Any) -> str:
            called.append(a)
            return "here"

        args: Any = 1
        for _ in range(levels):
            args = {"a": args}
        _, result, _ = await outcome_of(cluster, known, call=Call("known", args))
        assert result.is_error
        assert TOO_DEEP in result.content
        assert called == []

    async def test_raises_a_time_out_of_its_own(self, cluster: Cluster) -> None:
        @tool
        async def impatient() -> str:
            raise TimeoutError("the other side was slow")

        _, result, _ = await outcome_of(cluster, impatient, call=Call("impatient"))
        assert "the other side was slow" in result.content


class TestAResult:
    async def test_is_told_to_the_model_up_to_its_limit(self, cluster: Cluster) -> None:
        @tool
        def chatty() -> str:
            return "x" * 10_000

        _, result, step = await outcome_of(cluster, chatty, call=Call("chatty"))
        assert len(result.content) == QUICK.tool_result_chars
        assert "10,000 characters in all" in result.content
        assert step.result == "x" * 10_000

    async def test_is_shown_up_to_a_larger_limit_and_kept_whole_in_the_trace(self, cluster: Cluster) -> None:
        @tool
        def long() -> list[str]:
            return ["y" * 1_000] * 100

        turn, _, step = await outcome_of(cluster, long, call=Call("long"))
        assert isinstance(step.result, str)
        assert len(step.result) == SHOWN_CHARS
        trace = await cluster.store.trace(cluster.tenant.service, turn.id)
        assert [row.metadata.get(WHOLE_RESULT) for row in trace.rows if row.metadata.get(WHOLE_RESULT)] == [
            ["y" * 1_000] * 100
        ]

    @pytest.mark.parametrize("character", ["z", "ö", "🐋"])
    async def test_of_100_megabytes_is_cut_to_what_is_kept(self, cluster: Cluster, character: str) -> None:
        @tool
        def flood() -> str:
            return character * (100_000_000 // len(character.encode()))

        turn, _, _ = await outcome_of(cluster, flood, call=Call("flood"))
        trace = await cluster.store.trace(cluster.tenant.service, turn.id)
        (kept,) = [row.metadata[WHOLE_RESULT] for row in trace.rows if WHOLE_RESULT in row.metadata]
        assert KEPT_BYTES * 0.9 < len(kept.encode()) <= KEPT_BYTES

    async def test_with_nul_and_half_surrogates_is_made_fit_to_be_kept(self, cluster: Cluster) -> None:
        @tool
        def garbage() -> Outcome:
            return Outcome(result={"a\0": "b\ud800c"})

        _, result, _ = await outcome_of(cluster, garbage, call=Call("garbage"))
        assert "\0" not in msgspec.json.decode(result.content)
        assert not result.is_error

    async def test_that_is_no_json_becomes_its_text(self, cluster: Cluster) -> None:
        @tool
        def odd() -> object:
            return 10**400

        _, result, _ = await outcome_of(cluster, odd, call=Call("odd"))
        assert result.content.startswith("1000")

    @pytest.mark.parametrize("levels", [101, 600, 950, 5_000])
    @pytest.mark.parametrize("innermost", ["x", "\ud800"], ids=["text", "half a character"])
    async def test_that_is_nested_too_deeply_is_plain_text(self, cluster: Cluster, levels: int, innermost: str) -> None:
        value: Any = innermost
        for _ in range(levels):
            value = [value]

        @tool
        def deep() -> Outcome:
            return Outcome(result=value)

        _, result, step = await outcome_of(cluster, deep, call=Call("deep"))
        assert not result.is_error
        assert isinstance(step.result, str)
        if levels < 950 and innermost == "x":
            assert step.result == "[" * levels + '"x"' + "]" * levels

    async def test_may_be_nested_as_deep_as_anybody_needs(self, cluster: Cluster) -> None:
        value = msgspec.json.decode("[" * MAX_DEPTH + "]" * MAX_DEPTH)

        @tool
        def deep() -> Outcome:
            return Outcome(result=value)

        _, _, step = await outcome_of(cluster, deep, call=Call("deep"))
        assert step.result == value

    async def test_that_cannot_even_be_written_says_so(self, cluster: Cluster) -> None:
        class Shy:
            def __str__(self) -> str:
                raise RuntimeError("no")

        @tool
        def shy() -> Outcome:
            return Outcome(result=Shy())

        _, result, _ = await outcome_of(cluster, shy, call=Call("shy"))
        assert result.content == "(a result that cannot be written: RuntimeError)"

    async def test_may_be_empty(self, cluster: Cluster) -> None:
        @tool
        def silent() -> None:
            return None

        turn, result, step = await outcome_of(cluster, silent, call=Call("silent"))
        assert result.content == "null"
        assert step.status == "succeeded"
        assert kinds(await cluster.events(turn.id))[-1] == "result"


class TestTheNameOfATool:
    async def test_that_providers_refuse_is_declared_under_another_and_called_under_its_own(
        self, cluster: Cluster
    ) -> None:
        @tool(name="seite suchen!")
        def search() -> str:
            return "gefunden"

        def call_what_is_offered(request: ModelRequest) -> Script:
            if request.messages[-1]["role"] == "tool":
                return ["Da."]
            (offer,) = request.tools
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", offer.name)
            return [Call(offer.name)]

        engine = await cluster.enter(call_what_is_offered, tools=[search])
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded", turn.error
        steps = [event for event in await cluster.events(turn.id) if isinstance(event, Step)]
        assert [(step.name, step.status) for step in steps] == [
            ("seite suchen!", "running"),
            ("seite suchen!", "succeeded"),
        ]

    async def test_that_the_history_mentions_stays_declared_when_the_tool_is_gone(self, cluster: Cluster) -> None:
        @tool
        def old() -> str:
            return "used"

        before = await cluster.enter([[Call("old")], ["Done."]], tools=[old])
        first = await cluster.answer(before)
        provider = ScriptedProvider([["Hello again."]])
        after = await cluster.enter(provider)
        turn = await cluster.answer(after, "And now?", conversation_id=first.conversation_id)
        assert turn.status == "succeeded"
        assert [offer.name for offer in provider.requests[-1].tools] == ["old"]
