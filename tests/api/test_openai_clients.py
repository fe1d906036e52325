"""Programs that are written for OpenAI, unchanged: the sync SDK, the Agents SDK, and the `llm` command."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from tests.api.harness import ApiServer, Client, settings_for
from tests.server_process import clean_environment
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.registry import ProviderRegistry

ROOT = Path(__file__).parents[2]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    providers = ProviderRegistry([DemoProvider(word_seconds=0)])
    async with ApiServer.start(settings_for(tmp_path, model="demo"), providers=providers) as running:
        yield running


@pytest.fixture
async def base_url(server: ApiServer) -> str:
    return f"{server.url}/openai/v1"


@pytest.fixture
async def sdk(base_url: str, user: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=user.key, _strict_response_validation=True) as client:
        yield client


class TestSyncSdk:
    async def test_it_asks_streams_calls_and_sends_files(self, base_url: str, user: Client) -> None:
        await asyncio.to_thread(self._use, base_url, user.key)

    def _use(self, base_url: str, key: str) -> None:
        with openai.OpenAI(base_url=base_url, api_key=key, _strict_response_validation=True) as sdk:
            assert "demo" in [model.id for model in sdk.models.list()]
            hello: Any = [{"role": "user", "content": "hello"}]
            said = sdk.chat.completions.create(model="demo", messages=hello).choices[0].message.content
            chunks = sdk.chat.completions.create(model="demo", messages=hello, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
            with sdk.responses.stream(model="demo", input="hello") as stream:
                assert stream.get_final_response().output_text == said
            file = sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="user_data")
            content: Any = [{"type": "file", "file": {"file_id": file.id}}, {"type": "text", "text": "What is it?"}]
            read = sdk.chat.completions.create(model="demo", messages=[{"role": "user", "content": content}])
            assert "Buy milk." in (read.choices[0].message.content or "")

    async def test_it_follows_stops_and_deletes_responses(self, base_url: str, user: Client) -> None:
        await asyncio.to_thread(self._follow, base_url, user.key)

    def _follow(self, base_url: str, key: str) -> None:
        with openai.OpenAI(base_url=base_url, api_key=key, _strict_response_validation=True) as sdk:
            first = sdk.responses.create(model="demo", input="write 60 words", background=True)
            events = list(sdk.responses.retrieve(first.id, stream=True))
            done = sdk.responses.retrieve(first.id)
            assert (done.status, len(done.output_text.split())) == ("completed", 60)
            half = events[len(events) // 2].sequence_number
            rest = list(sdk.responses.retrieve(first.id, stream=True, starting_after=half))
            assert [event.type for event in rest][-1] == "response.completed"
            assert min(event.sequence_number for event in rest) > half
            second = sdk.responses.create(model="demo", input="hello", previous_response_id=first.id)
            [asked] = sdk.responses.input_items.list(second.id)
            assert asked.type == "message"
            assert sdk.responses.cancel(second.id).status == sdk.responses.cancel(second.id).status == "completed"
            sdk.responses.delete(second.id)
            with pytest.raises(openai.NotFoundError):
                sdk.responses.retrieve(second.id)

    async def test_it_keeps_conversations_and_their_items(self, base_url: str, user: Client) -> None:
        await asyncio.to_thread(self._converse, base_url, user.key)

    def _converse(self, base_url: str, key: str) -> None:
        with openai.OpenAI(base_url=base_url, api_key=key, _strict_response_validation=True) as sdk:
            hello: Any = {"type": "message", "role": "user", "content": "hello"}
            made = sdk.conversations.create(items=[hello], metadata={"topic": "a"})
            sdk.responses.create(model="demo", input="hello", conversation=made.id)
            sdk.conversations.items.create(made.id, items=[hello])
            items = list(sdk.conversations.items.list(made.id, order="asc", limit=2))
            assert [item.to_dict()["role"] for item in items] == ["user", "user", "assistant", "user"]
            for item in (items[-1], items[1]):
                sdk.conversations.items.delete(item.id or "", conversation_id=made.id)
            left = list(sdk.conversations.items.list(made.id, order="asc"))
            assert [item.id for item in left] == [items[0].id, items[2].id]
            done = sdk.responses.create(model="demo", input="hello", conversation=made.id)
            newest = sdk.conversations.items.list(made.id, limit=1).data[0]
            assert newest.to_dict() == done.output[-1].to_dict()
            assert sdk.conversations.update(made.id, metadata={"topic": "b"}).metadata == {"topic": "b"}
            assert sdk.conversations.delete(made.id).deleted
            file = sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="assistants")
            assert [each.purpose for each in sdk.files.list()] == ["assistants"]
            assert [each.id for each in sdk.files.list(purpose="assistants")] == [file.id]
            assert list(sdk.files.list(purpose="vision")) == []
            assert sdk.files.content(file.id).read() == b"Buy milk."
            assert sdk.files.delete(file.id).deleted

    async def test_the_demo_model_calls_an_offered_tool(self, sdk: Any) -> None:
        messages: list[Any] = [{"role": "user", "content": "What's the weather in Paris?"}]
        first = await sdk.chat.completions.create(model="demo", messages=messages, tools=[WEATHER])
        message = first.choices[0].message
        assert message.tool_calls is not None
        [call] = message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
        second = await sdk.chat.completions.create(model="demo", messages=messages, tools=[WEATHER])
        assert "18 degrees" in (second.choices[0].message.content or "")

    async def test_the_demo_model_honours_the_form_of_the_output(self, sdk: Any) -> None:
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
            "required": ["city", "days"],
        }
        done = await sdk.responses.create(
            model="demo",
            input="Plan a trip.",
            text={"format": {"type": "json_schema", "name": "trip", "schema": schema, "strict": True}},
        )
        assert set(json.loads(done.output_text)) == {"city", "days"}
        short = await sdk.responses.create(model="demo", input="write 300 words", max_output_tokens=16)
        assert short.status == "incomplete"


@function_tool  # type: ignore[untyped-decorator]
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 18 degrees"


class TestAgentsSdk:
    async def test_a_run_streams_and_calls_tools(self, sdk: Any) -> None:
        set_tracing_disabled(True)
        agent = Agent(name="Helper", tools=[get_weather], model=OpenAIResponsesModel("demo", sdk))
        run = Runner.run_streamed(agent, "What's the weather in Paris?")
        words = [
            event.data.delta
            async for event in run.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert "Paris: 18 degrees" in str(run.final_output)
        assert "Paris: 18 degrees" in "".join(words)

    async def test_a_session_is_kept_resumed_popped_and_cleared(self, sdk: Any, user: Client) -> None:
        set_tracing_disabled(True)
        agent = Agent(name="Helper", tools=[get_weather], model=OpenAIResponsesModel("demo", sdk))
        session = OpenAIConversationsSession(openai_client=sdk)
        config = RunConfig(tracing_disabled=True)
        await Runner.run(agent, "What's the weather in Paris?", session=session, run_config=config)
        kinds = [item.get("type") for item in await session.get_items()]
        assert kinds[0] == "message"
        assert {"function_call", "function_call_output"} <= set(kinds)
        assert kinds[-1] == "message"

        resumed = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=sdk)
        done = await Runner.run(agent, "hello", session=resumed, run_config=config)
        assert "demo model" in str(done.final_output)
        items = await resumed.get_items()
        assert len(items) == len(kinds) + 2

        popped: Any = await resumed.pop_item()
        assert popped["role"] == "assistant"
        assert await resumed.get_items() != []
        assert len(await resumed.get_items()) == len(items) - 1
        await resumed.add_items([{"role": "user", "content": "One more."}])
        assert len(await resumed.get_items()) == len(items)
        conversation_id = resumed.session_id
        left = await resumed.get_items()
        while left:
            assert await resumed.pop_item() == left.pop()
            assert await resumed.get_items() == left
        assert await resumed.pop_item() is None
        done = await Runner.run(agent, "What's the weather in Paris?", session=resumed, run_config=config)
        assert "Paris: 18 degrees" in str(done.final_output)
        await resumed.clear_session()
        assert (await user.get(f"/v1/conversations/{conversation_id}")).status_code == 404

    async def test_a_conversation_of_the_server_may_hold_the_history(self, sdk: Any) -> None:
        set_tracing_disabled(True)
        made = await sdk.conversations.create()
        agent = Agent(name="Helper", tools=[get_weather], model=OpenAIResponsesModel("demo", sdk))
        config = RunConfig(tracing_disabled=True)
        for _ in range(2):
            done = await Runner.run(agent, "What's the weather in Paris?", conversation_id=made.id, run_config=config)
            assert "Paris: 18 degrees" in str(done.final_output)

    async def test_instructions_may_change_with_every_step(self, sdk: Any, user: Client) -> None:
        """They are a function in the Agents SDK, which is called before each request."""
        set_tracing_disabled(True)
        told: list[str] = []

        def instructions(_context: Any, _agent: Any) -> str:
            told.append(f"Step {len(told)}.")
            return told[-1]

        agent = Agent(
            name="Helper", instructions=instructions, tools=[get_weather], model=OpenAIResponsesModel("demo", sdk)
        )
        config = RunConfig(tracing_disabled=True)
        made = await sdk.conversations.create()
        for place in ({"conversation_id": made.id}, {"auto_previous_response_id": True}, {}):
            told.clear()
            done = await Runner.run(agent, "What's the weather in Paris?", run_config=config, **place)
            assert "Paris: 18 degrees" in str(done.final_output)
            assert told == ["Step 0.", "Step 1."]
            given = [await sdk.responses.retrieve(each.response_id) for each in done.raw_responses]
            assert [each.instructions for each in given] == told

    async def test_runs_in_one_conversation_are_its_items(self, sdk: Any) -> None:
        set_tracing_disabled(True)
        made = await sdk.conversations.create()
        agent = Agent(name="Helper", tools=[get_weather], model=OpenAIResponsesModel("demo", sdk))
        config = RunConfig(tracing_disabled=True)
        wanted: list[Any] = []
        for _ in range(2):
            done = await Runner.run(agent, "What's the weather in Paris?", conversation_id=made.id, run_config=config)
            wanted += [item.id for each in done.raw_responses for item in each.output]
        listed = [item async for item in sdk.conversations.items.list(made.id, order="asc", limit=3)]
        assert [item.id for item in listed if item.id in wanted] == wanted
        kinds = [item.type for item in listed]
        assert (kinds.count("function_call"), kinds.count("function_call_output")) == (2, 2)
        assert (kinds[0], kinds[-1]) == ("message", "message")
        session = OpenAIConversationsSession(conversation_id=made.id, openai_client=sdk)
        assert [item.get("id") for item in await session.get_items()] == [item.id for item in listed]
        done = await Runner.run(agent, "hello", session=session, run_config=config)
        assert "demo model" in str(done.final_output)


class TestNode:
    """The OpenAI SDK for JavaScript, and a suite of checks of OpenAI's API, on Node."""

    async def test_the_sdk_asks_streams_calls_and_sends_files(self, base_url: str, user: Client) -> None:
        code, output = await run_node("openai.mjs", base_url, user.key)
        assert (code, output.splitlines()[-1:]) == (0, ["ok"]), output

    async def test_llmprobe_finds_nothing_wrong(self, base_url: str, user: Client) -> None:
        probe = "node_modules/llmprobe/bin/dist/llmprobe.mjs"
        options = ("-m", "demo", "--quick", "--no-bench", "--no-save", "--json")
        _, output = await run_node(probe, base_url, "-k", user.key, *options)
        found = json.loads(output[output.index("{") :])["conformance"]["results"]
        assert len(found) > 30
        assert [each for each in found if each["outcome"] == "fail"] == []


async def run_node(*arguments: str) -> tuple[int | None, str]:
    """A file of tests/wires/node, to its end: its code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        ROOT / "scripts/web",
        "clients-run",
        *arguments,
        env=clean_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


class TestLlmCommand:
    @pytest.mark.parametrize("api", [(), ("--responses",)], ids=["chat", "responses"])
    async def test_it_lists_models_and_asks(
        self, base_url: str, user: Client, tmp_path: Path, api: tuple[str, ...]
    ) -> None:
        env = clean_environment(LLM_USER_PATH=str(tmp_path / "llm"), OPENAI_API_KEY=user.key)
        assert "demo" in await self._run(env, "openai", "endpoint", base_url, "--models", "--key", user.key)
        said = await self._run(env, "openai", "endpoint", base_url, "-m", "demo", "--key", user.key, *api, "hello")
        assert "demo model" in said

    async def _run(self, env: dict[str, str], *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "llm",
            *arguments,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()
