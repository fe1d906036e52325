import json
import re
from pathlib import Path

import pytest

from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.ports import Delta, ModelRequest, Reply, ToolOffer
from turnkeep_client.wire.blocks import JsonObject, Text, ToolUse

LANGUAGES = Path(__file__).parents[2] / "web/src/languages"

SEARCH = ToolOffer(
    name="search_pages",
    description="Find pages.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)


def asking(*messages: JsonObject, tools: tuple[ToolOffer, ...] = (), may_call: bool = True) -> ModelRequest:
    return ModelRequest(model="demo", messages=list(messages), tools=tools, may_call=may_call)


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


async def reply_to(request: ModelRequest) -> tuple[list[str], Reply]:
    spoken = [piece async for piece in DemoProvider(word_seconds=0).speak(request)]
    reply = spoken[-1]
    assert isinstance(reply, Reply)
    return [piece.text for piece in spoken if isinstance(piece, Delta)], reply


class TestReplies:
    async def test_streams_word_by_word_exactly_what_the_reply_holds(self) -> None:
        words, reply = await reply_to(asking(user("Tell me something")))
        assert len(words) > 5
        assert "".join(words) == "".join(block.text for block in reply.blocks if isinstance(block, Text))

    async def test_is_deterministic(self) -> None:
        first = await reply_to(asking(user("show me a table")))
        assert first == await reply_to(asking(user("show me a table")))

    @pytest.mark.parametrize("language", ["german", "french", "spanish", "chinese", "arabic"])
    async def test_answers_what_the_page_suggests_in_each_language(self, language: str) -> None:
        ideas = re.search(r"ideas: (\[.*?\]),\n", (LANGUAGES / f"{language}.ts").read_text(encoding="utf-8"))
        assert ideas is not None
        answers = ["".join((await reply_to(asking(user(idea))))[0]) for idea in json.loads(ideas[1])]
        asked = ("what can you do?", "show me a table", "show me some code", "show me maths")
        assert answers == ["".join((await reply_to(asking(user(each))))[0]) for each in asked]

    async def test_says_that_it_is_not_a_real_model(self) -> None:
        words, _ = await reply_to(asking(user("What can you do?")))
        assert "demo model" in "".join(words)

    async def test_writes_as_many_words_as_it_is_asked_for(self) -> None:
        words, _ = await reply_to(asking(user("write 300 words")))
        assert len("".join(words).split()) == 300

    async def test_counts_input_and_output(self) -> None:
        _, reply = await reply_to(asking(user("x" * 400)))
        assert reply.usage.input_tokens == 100
        assert reply.usage.output_tokens > 0


class TestCallingTools:
    async def test_calls_a_tool_that_is_named_with_the_words_that_follow(self) -> None:
        _, reply = await reply_to(asking(user("Please use search_pages to find blue whales"), tools=(SEARCH,)))
        (call,) = [block for block in reply.blocks if isinstance(block, ToolUse)]
        assert (call.name, call.input) == ("search_pages", {"query": "blue whales"})

    async def test_takes_arguments_that_are_written_as_json(self) -> None:
        _, reply = await reply_to(asking(user('search_pages {"query": "a", "limit": 3}'), tools=(SEARCH,)))
        (call,) = [block for block in reply.blocks if isinstance(block, ToolUse)]
        assert call.input == {"query": "a", "limit": 3}

    async def test_understands_the_words_of_a_tool_name(self) -> None:
        _, reply = await reply_to(asking(user("Use the pages search for whales"), tools=(SEARCH,)))
        assert any(isinstance(block, ToolUse) for block in reply.blocks)

    async def test_calls_nothing_when_it_may_not(self) -> None:
        _, reply = await reply_to(asking(user("use search_pages"), tools=(SEARCH,), may_call=False))
        assert not any(isinstance(block, ToolUse) for block in reply.blocks)

    async def test_reports_the_result_of_the_tool(self) -> None:
        words, reply = await reply_to(
            asking(user("use search_pages"), {"role": "tool", "content": "3 whales"}, tools=(SEARCH,))
        )
        assert "3 whales" in "".join(words)
        assert not any(isinstance(block, ToolUse) for block in reply.blocks)


class TestReading:
    async def test_repeats_the_text_of_an_attachment(self) -> None:
        content = [{"type": "text", "text": "Look at this"}, {"type": "text", "text": "notes.txt: seven whales"}]
        words, _ = await reply_to(asking({"role": "user", "content": content}))
        assert "seven whales" in "".join(words)

    async def test_mentions_an_image(self) -> None:
        content = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
        words, _ = await reply_to(asking({"role": "user", "content": content}))
        assert "a picture" in "".join(words)
