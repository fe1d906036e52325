"""Replies as they come over the wire, in all three protocols, split at any byte."""

import asyncio
import subprocess
import sys
from contextlib import aclosing
from typing import Any

import pytest

from tests.providers.model_requests import WEATHER, answer, ask, request_for, row, shown
from tests.providers.wire import anthropic, openai_chat, openai_responses
from tests.providers.wire.openai_chat import chunk
from tests.providers.wire.script import Call, Hang, HangBeforeHeaders, Raw, Say, Stop, Think, Wait
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, VENDORS, Line, Vendor, connected
from turnkeep.model.sampling import ALL_OPTIONS, OutputFormat, Sampling
from turnkeep.model.truncation import MAX_DEPTH, TOO_DEEP
from turnkeep.providers.drafts import MAX_TOKENS, tokens
from turnkeep.providers.openai import OpenAIChatDraft
from turnkeep.providers.ports import Delta, ProviderEvent, Reply, ToolOffer
from turnkeep_client.wire.blocks import Image, Reasoning, Text, ToolResult, ToolUse, Usage, text_of

PICTURE = Image(media_type="image/png", data="iVBORw0KGgo=")
SENTENCE = 'Grüße aus Bern: 12 °C, 😀 "sunny"\n\tand\u2028bright.'


class TestAReply:
    async def test_is_shown_while_it_is_streamed(self, line: Line) -> None:
        was_shown = asyncio.Event()
        line.server.says([Say(SENTENCE, pieces=12), Wait(was_shown.wait), Say(" Bye.")])
        pieces: list[ProviderEvent] = []
        async for piece in line.provider.speak(await request_for(line)):
            pieces.append(piece)
            if shown(pieces) == SENTENCE:
                was_shown.set()
        assert shown(pieces) == SENTENCE + " Bye."
        assert isinstance(pieces[-1], Reply)
        assert text_of(pieces[-1].blocks) == SENTENCE + " Bye."

    @pytest.mark.parametrize("seed", range(5))
    async def test_is_the_same_wherever_its_bytes_are_split(self, seed: int) -> None:
        for vendor in VENDORS:
            async with connected(vendor, seed=seed) as line:
                line.server.says([Think("Hm, 😀."), Say(SENTENCE, pieces=9), Call("weather", {"city": "Zürich"})])
                pieces = await ask(line)
                assert shown(pieces) == SENTENCE
                assert shown(pieces, "reasoning") == "Hm, 😀."
                reply = pieces[-1]
                assert isinstance(reply, Reply)
                assert [type(block) for block in reply.blocks] == [Reasoning, Text, ToolUse]

    async def test_counts_tokens_with_those_of_the_cache(self, line: Line) -> None:
        """`input_tokens` is all that the model read; what came from the cache and went into it is a part of that."""
        line.server.says([Say("Hi")])
        reply = await answer(line)
        assert reply.usage == Usage(input_tokens=142, output_tokens=42, cache_read_tokens=100, cache_write_tokens=30)

    async def test_may_be_empty(self, line: Line) -> None:
        line.server.says([])
        reply = await answer(line)
        assert (reply.blocks, reply.finish) == ((), "complete")

    async def test_that_was_cut_off_keeps_its_text_and_says_so(self, line: Line) -> None:
        line.server.says([Say("And then"), Stop(line.vendor.cut_off)])
        reply = await answer(line)
        assert (reply.blocks, reply.finish) == ((Text(text="And then"),), "length")


class TestOddCounts:
    """Servers that speak a vendor's protocol write into `usage` what they like; the answer is not lost for it."""

    @pytest.mark.parametrize(
        "given, counted",
        [
            (5.0, 5),
            (5.7, 5),
            (-3, 0),
            (-0.5, 0),
            (2**63, MAX_TOKENS),
            (1e300, MAX_TOKENS),
            (float("inf"), 0),
            (float("nan"), 0),
            ("five", 0),
            (None, 0),
            ([5], 0),
        ],
        ids=repr,
    )
    async def test_are_limited_or_zero(
        self, line: Line, monkeypatch: pytest.MonkeyPatch, given: Any, counted: int
    ) -> None:
        odd = {
            anthropic: {"input_tokens": given, "cache_read_input_tokens": given},
            openai_chat: {"prompt_tokens": given, "prompt_tokens_details": {"cached_tokens": given}},
            openai_responses: {"input_tokens": given, "input_tokens_details": {"cached_tokens": given}},
        }
        for wire, usage in odd.items():
            monkeypatch.setattr(wire, "USAGE", usage)
        line.server.says([Say("Hi")])
        reply = await answer(line)
        assert reply.blocks == (Text(text="Hi"),)
        read_at_anthropic = 2 * counted  # which counts what came from the cache apart
        assert reply.usage.input_tokens == (read_at_anthropic if line.vendor is ANTHROPIC else counted)
        assert reply.usage.cache_read_tokens == counted
        assert type(reply.usage.input_tokens) is type(reply.usage.cache_read_tokens) is int

    def test_are_the_last_ones_that_a_chunk_has(self) -> None:
        """Some servers count in every chunk, or send a chunk without counts after that with them."""
        draft = OpenAIChatDraft()
        draft.add(b"", b'{"choices":[{"delta":{},"finish_reason":"stop"}]}')
        for count in (b"1", b"2", b"null"):
            usage = b'{"prompt_tokens":%b}' % count if count.isdigit() else count
            draft.add(b"", b'{"choices":[],"usage":%b}' % usage)
        assert draft.reply().usage.input_tokens == 2

    def test_are_not_read_into_what_is_no_number(self) -> None:
        assert [tokens(value) for value in (True, "5", None, [5], 1 + 2j)] == [0] * 5

    @pytest.mark.parametrize(
        "given", [[], "none", 7, {"prompt_tokens_details": "x", "input_tokens_details": 3}], ids=repr
    )
    async def test_are_none_where_there_is_nothing_to_count(
        self, line: Line, monkeypatch: pytest.MonkeyPatch, given: Any
    ) -> None:
        for wire in (openai_chat, openai_responses):
            monkeypatch.setattr(wire, "USAGE", given)
        monkeypatch.setattr(anthropic, "USAGE", {})
        line.server.says([Say("Hi")])
        reply = await answer(line)
        assert reply.blocks == (Text(text="Hi"),)
        assert reply.usage.input_tokens == 0


class TestToolCalls:
    async def test_get_ids_of_ours(self, line: Line) -> None:
        line.server.says([Say("Let me see."), Call("weather", {"city": "Bern"})])
        reply = await answer(line)
        text, call = reply.blocks
        assert text == Text(text="Let me see.")
        assert isinstance(call, ToolUse)
        assert call.id.startswith("call_")
        assert (call.name, call.input) == ("weather", {"city": "Bern"})
        assert not reply.malformed

    async def test_may_be_many_at_once(self, line: Line) -> None:
        cities = ["Bern", "Basel", "Genf"]
        line.server.says([Call("weather", {"city": city}) for city in cities])
        reply = await answer(line)
        assert [block.input["city"] for block in reply.blocks if isinstance(block, ToolUse)] == cities
        assert len({block.id for block in reply.blocks if isinstance(block, ToolUse)}) == 3

    async def test_with_the_same_index_are_distinguished_by_their_ids(self) -> None:
        calls = [
            {"index": 0, "id": f"call_{city}", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
            for city in ("Bern", "Basel")
        ]
        chunks = b"".join(chunk({"model": "m"}, {"tool_calls": [call]}) for call in calls)
        async with connected(CHAT) as line:
            line.server.says([Raw(chunks)])
            reply = await answer(line)
        assert [block.input["city"] for block in reply.blocks if isinstance(block, ToolUse)] == ["Bern", "Basel"]

    async def test_without_arguments_have_none(self, line: Line) -> None:
        line.server.says([Call("weather", "")])
        reply = await answer(line)
        assert isinstance(reply.blocks[0], ToolUse)
        assert reply.blocks[0].input == {}
        assert not reply.malformed

    @pytest.mark.parametrize(
        "arguments, wrong",
        [
            ('{"city": "Be', "not JSON"),
            ('["Bern"]', "a JSON object is expected"),
            ("nope", "not JSON"),
            *[('{"a":' * levels + "1" + "}" * levels, TOO_DEEP) for levels in (MAX_DEPTH + 1, 500, 990, 3_000)],
            ('{"a":"\n' + '","b":[' * 1 + "[" * 3_000, TOO_DEEP),
        ],
        ids=lambda value: value[:20],
    )
    async def test_that_cannot_be_parsed_have_the_reason(self, line: Line, arguments: str, wrong: str) -> None:
        line.server.says([Call("weather", arguments), Call("weather", {"city": "Bern"})])
        reply = await answer(line)
        bad, good = reply.blocks
        assert isinstance(bad, ToolUse)
        assert isinstance(good, ToolUse)
        assert bad.input == {}
        assert wrong in reply.malformed[bad.id]
        assert good.id not in reply.malformed

    async def test_may_be_deeply_nested(self, line: Line) -> None:
        line.server.says([Call("weather", '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH)])
        assert not (await answer(line)).malformed

    async def test_with_bare_line_breaks_in_their_texts_are_understood(self, line: Line) -> None:
        line.server.says([Call("weather", '{"city": "Be\nrn"}')])
        reply = await answer(line)
        assert isinstance(reply.blocks[0], ToolUse)
        assert reply.blocks[0].input == {"city": "Be\nrn"}

    async def test_that_were_cut_off_say_so(self, line: Line) -> None:
        line.server.says([Call("weather", '{"city": "Be'), Stop(line.vendor.cut_off)])
        reply = await answer(line)
        assert "output limit" in next(iter(reply.malformed.values()))

    async def test_show_signs_of_life_while_they_are_written(self, line: Line) -> None:
        """Else a long call would look like silence, and run into the time limit."""
        line.server.says([Call("weather", {"city": "B" * 400})])
        pieces = await ask(line)
        assert Delta(text="") in pieces

    @pytest.mark.parametrize(
        "schema", [{}, {"type": "object"}, {"oneOf": [{"required": ["a"]}]}, {"type": None, "properties": {"a": {}}}]
    )
    async def test_are_offered_with_any_schema(self, line: Line, schema: dict[str, Any]) -> None:
        line.server.says([Say("a")])
        offer = ToolOffer(name="odd", description="Odd.", input_schema=schema)
        await answer(line, tools=(offer,))
        assert line.wire.refused == []

    async def test_are_offered_and_forbidden(self, line: Line) -> None:
        line.server.says([Say("a")], [Say("b")], [Say("c")])
        await ask(line)
        await ask(line, may_call=False)
        await ask(line, tools=())
        offered, forbidden, without = line.server.bodies
        assert "tool_choice" not in offered
        assert len(offered["tools"]) == len(forbidden["tools"]) == 1
        assert forbidden["tool_choice"] in ("none", {"type": "none"})
        assert "tools" not in without
        assert "tool_choice" not in without


class TestOptions:
    ALL = Sampling(
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        max_tokens=100,
        stop=("END",),
        seed=7,
        tool="weather",
        parallel_tool_calls=False,
        output=OutputFormat(name="a", schema={"type": "object"}),
    )

    async def test_stand_in_the_request_as_each_provider_names_them(self) -> None:
        schema = {"name": "a", "schema": {"type": "object"}, "strict": False}
        shared = {"temperature": 0.5, "top_p": 0.9}
        for vendor, expected in (
            (
                CHAT,
                {
                    **shared,
                    "frequency_penalty": 0.1,
                    "presence_penalty": 0.2,
                    "max_tokens": 100,
                    "stop": ["END"],
                    "seed": 7,
                    "tool_choice": {"type": "function", "function": {"name": "weather"}},
                    "parallel_tool_calls": False,
                    "response_format": {"type": "json_schema", "json_schema": schema},
                },
            ),
            (
                RESPONSES,
                {
                    **shared,
                    "max_output_tokens": 100,
                    "tool_choice": {"type": "function", "name": "weather"},
                    "parallel_tool_calls": False,
                    "text": {"format": {"type": "json_schema", **schema}},
                },
            ),
            (
                ANTHROPIC,
                {
                    "max_tokens": 100,
                    "stop_sequences": ["END"],
                    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
                },
            ),
        ):
            async with connected(vendor) as line:
                line.server.says([Say("a")])
                await ask(line, sampling=self.ALL)
                [body] = line.server.bodies
                assert {name: body.get(name) for name in expected} == expected

    async def test_are_known_beforehand(self) -> None:
        for vendor, missing in (
            (CHAT, set()),
            (RESPONSES, {"stop", "seed", "frequency_penalty", "presence_penalty"}),
            (ANTHROPIC, {"seed", "frequency_penalty", "presence_penalty", "output", "temperature", "top_p"}),
        ):
            async with connected(vendor) as line:
                model = (await request_for(line)).model
                assert ALL_OPTIONS - (await line.provider.abilities(model)).options == missing


class TestReasoning:
    async def test_comes_with_what_its_provider_wants_back(self) -> None:
        for vendor, expected in (
            (ANTHROPIC, Reasoning(text="Hm.", provider="anthropic", signature="cHJvb2Y=")),
            (CHAT, Reasoning(text="Hm.", provider="openai")),
            (RESPONSES, Reasoning(text="Hm.", provider="openai", data="cHJvb2Y=", item_id="rs_0")),
        ):
            async with connected(vendor) as line:
                line.server.says([Think("Hm.", "cHJvb2Y="), Say("Sunny.")])
                pieces = await ask(line)
                assert shown(pieces, "reasoning") == "Hm."
                assert isinstance(pieces[-1], Reply)
                assert pieces[-1].blocks == (expected, Text(text="Sunny."))

    async def test_may_be_hidden(self) -> None:
        for vendor, expected in (
            (ANTHROPIC, Reasoning(provider="anthropic", data="c2VjcmV0")),
            (RESPONSES, Reasoning(provider="openai", data="c2VjcmV0", item_id="rs_0")),
        ):
            async with connected(vendor) as line:
                line.server.says([Think("", "c2VjcmV0"), Say("Sunny.")])
                assert (await answer(line)).blocks[0] == expected

    async def test_of_compatible_servers_comes_under_either_name(self) -> None:
        async with connected(CHAT, wire=CHAT.wire(thinks_as="reasoning")) as line:
            line.server.says([Think("Hm."), Say("Sunny.")])
            assert (await answer(line)).blocks[0] == Reasoning(text="Hm.", provider="openai")

    @pytest.mark.parametrize("vendor", [ANTHROPIC, RESPONSES], ids=lambda vendor: vendor.name)
    async def test_goes_back_unchanged_in_the_tool_loop(self, vendor: Vendor) -> None:
        async with connected(vendor) as line:
            line.server.says([Think("Hm.", "cHJvb2Y="), Call("weather", {"city": "Bern"})], [Say("Sunny.")])
            question = row("user", Text(text="How is Bern?"))
            first = await answer(line, question)
            call = first.blocks[-1]
            assert isinstance(call, ToolUse)
            result = row("user", ToolResult(call_id=call.id, content="12 °C"), number=2)
            await answer(line, question, row("assistant", *first.blocks, number=1), result)
            assert "cHJvb2Y=" in str(line.server.bodies[1])
            assert line.wire.violations == []

    @pytest.mark.parametrize(
        "model, effort, expected",
        [
            ("claude-adaptive", "auto", {"type": "adaptive", "display": "summarized"}),
            ("claude-budget", "auto", {"type": "enabled", "budget_tokens": 4096}),
            ("claude-budget", "high", {"type": "enabled", "budget_tokens": 16000}),
            ("claude-adaptive", "off", {"type": "disabled"}),
            ("claude-plain", "auto", None),
            ("claude-unheard-of", "auto", None),
        ],
    )
    async def test_is_asked_of_claude_as_the_model_knows_it(self, model: str, effort: str, expected: Any) -> None:
        async with connected(ANTHROPIC, effort=effort) as line:
            request = await request_for(line, model=f"anthropic/{model}")
            body = await line.provider._body(request)
            assert body.get("thinking") == expected
            assert body["max_tokens"] == {"claude-plain": 4096, "claude-unheard-of": 8192}.get(model, 32_000)

    async def test_is_not_asked_of_models_that_have_none(self) -> None:
        async with connected(RESPONSES) as line:
            line.server.says([Say("Sunny.")])
            await answer(line, model="openai/gpt-4o-test")
            assert "reasoning" not in line.server.bodies[0]
            assert len(line.server.bodies) == 1


class TestPictures:
    async def test_are_sent_to_models_that_see(self, line: Line) -> None:
        line.server.says([Say("A cat.")])
        await answer(line, row("user", PICTURE, Text(text="What is it?")))
        assert "iVBORw0KGgo=" in str(line.server.bodies[0])

    async def test_are_named_to_models_that_are_known_not_to(self) -> None:
        async with connected(ANTHROPIC) as line:
            line.server.says([Say("I cannot see.")])
            await answer(line, row("user", PICTURE, Text(text="What?")), model="anthropic/claude-blind")
            assert "iVBORw0KGgo=" not in str(line.server.bodies[0])
            assert len(line.server.bodies) == 1


class TestStopping:
    @pytest.mark.parametrize("script", [[Say("Well"), Hang()], [HangBeforeHeaders()]], ids=["in the middle", "before"])
    async def test_a_cancelled_call_closes_the_connection_at_once(self, line: Line, script: Any) -> None:
        line.server.says(script)
        request = await request_for(line)

        async def listen() -> None:
            async with aclosing(line.provider.speak(request)) as pieces:
                async for _ in pieces:
                    pass

        task = asyncio.create_task(listen())
        async with asyncio.timeout(20):
            while not line.server.bodies:  # noqa: ASYNC110 - the server is another program
                await asyncio.sleep(0.005)
            task.cancel()
            await line.server.gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_reader_who_leaves_closes_the_stream(self, line: Line) -> None:
        line.server.says([Say("Well"), Hang()])
        async with aclosing(line.provider.speak(await request_for(line))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Delta) and piece.text:
                    break
        async with asyncio.timeout(20):
            await line.server.gone.wait()


class TestTheOfficialSdks:
    def test_are_not_needed_at_run_time(self) -> None:
        """They are large, slow to import and slow to read a stream. Only tests use them, to compare."""
        code = """
import asyncio, sys
import turnkeep.runtime
from turnkeep.providers.registry import configured_providers

nowhere = "http://127.0.0.1:9"
registry = configured_providers({"ANTHROPIC_BASE_URL": nowhere, "OPENAI_BASE_URL": nowhere})

async def listed():
    print(await registry.models())
    await registry.close()

asyncio.run(listed())
print(sorted({"anthropic", "openai", "httpx2", "pydantic"} & set(sys.modules)))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["['demo']", "[]"]


class TestNames:
    async def test_of_models_may_contain_slashes(self) -> None:
        async with connected(CHAT) as line:
            line.server.says([Say("Hi")])
            await answer(line, model="openai/org/with-a-slash", tools=(WEATHER,))
            assert line.server.bodies[0]["model"] == "org/with-a-slash"
