"""Chat Completions at /openai/v1, by OpenAI's own SDK with strict validation."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Scripts, settings_for
from turnkeep.api.openai import messages
from turnkeep.ids import ConversationId
from turnkeep.model.conversations import Conversation
from turnkeep.model.principals import Principal
from turnkeep.model.sampling import ALL_OPTIONS
from turnkeep.providers.ports import Abilities, ProviderFailed
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, Fail, OutOfTokens, Restart, ScriptedProvider, Think
from turnkeep.store.commands import Exported
from turnkeep.transfer.transcripts import read_history

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK: Any = [{"role": "user", "content": "Hello?"}]
ANSWER: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}


@pytest.fixture
async def sdk(server: ApiServer, user: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/openai/v1", api_key=user.key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@contextmanager
def made_conversations(server: ApiServer, *, at_once: int = 1) -> Iterator[list[ConversationId]]:
    """The conversations that are made meanwhile for the histories of requests. No request goes on before `at_once` of
    them are made."""
    made: list[ConversationId] = []
    store, all_made = server.runtime.store, asyncio.Barrier(at_once)

    async def remember(principal: Principal, exported: Exported, **options: Any) -> Conversation:
        conversation = await type(store).import_conversation(store, principal, exported, **options)
        made.append(conversation.id)
        await all_made.wait()
        return conversation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "import_conversation", remember, raising=False)
        yield made


class TestModels:
    async def test_models_and_agents_are_listed_and_found(self, service: Client, sdk: Any) -> None:
        made = (await service.post("/v1/agents", json={"name": "Helper"})).json()
        names = [model.id async for model in sdk.models.list()]
        assert names == ["scripted", "agent/Helper"]
        for name in ("scripted", "agent/Helper", made["id"]):
            assert (await sdk.models.retrieve(name)).id == name

    async def test_an_unknown_model_is_an_error_in_their_shape(self, sdk: Any) -> None:
        for name in ("openai/nothing", "agent/Nobody", "agent_1"):
            with pytest.raises(openai.NotFoundError) as refused:
                await sdk.models.retrieve(name)
            assert refused.value.code == "model_not_found"
            with pytest.raises(openai.NotFoundError):
                await sdk.chat.completions.create(model=name, messages=ASK)


class TestErrors:
    async def test_all_errors_below_the_path_have_their_shape(self, server: ApiServer, user: Client) -> None:
        stranger = await server.client("not-a-key")
        refused = [
            (401, await stranger.get("/openai/v1/models")),
            (404, await user.get("/openai/v1/nothing")),
            (405, await user.put("/openai/v1/models")),
            (400, await user.post("/openai/v1/chat/completions", content=b"{")),
            (400, await user.post("/openai/v1/chat/completions", json={"model": "scripted"})),
            (413, await user.post("/openai/v1/chat/completions", content=b" " * (33 * 1024 * 1024))),
        ]
        for status, response in refused:
            assert response.status_code == status
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]

    async def test_a_request_may_be_larger_than_a_native_one(self, server: ApiServer, user: Client) -> None:
        text = "x" * (2 * server.runtime.settings.max_body_bytes)
        body = {"model": "scripted", "messages": [{"role": "system", "content": text}, *ASK]}
        assert (await user.post("/openai/v1/chat/completions", json=body)).status_code == 200


class TestLargeRequests:
    async def test_long_histories_and_schemas_are_read_beside_the_event_loop(
        self, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A megabyte of short messages takes a second to read. Other requests must not wait for it."""
        threads: list[threading.Thread] = []

        def read(*args: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return read_history(*args, **options)

        monkeypatch.setattr(messages, "read_history", read)
        monkeypatch.setattr(messages, "check_all_declared", lambda _: threads.append(threading.current_thread()))
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 150
        body = {"model": "scripted", "messages": [*history, *ASK], "tools": [WEATHER]}
        assert (await user.post("/openai/v1/chat/completions", json=body)).status_code == 200
        parts = [{"type": "input_text", "text": "a"}] * 300
        asked = {"model": "scripted", "input": [{"role": "user", "content": parts}]}
        assert (await user.post("/openai/v1/responses", json=asked)).status_code == 200
        assert len(threads) == 3
        assert threading.main_thread() not in threads

    async def test_too_many_messages_or_tools_are_refused(self, user: Client) -> None:
        many = {"model": "scripted", "messages": ASK * 10_001}
        tools = {"model": "scripted", "messages": ASK, "tools": [WEATHER] * 101}
        for body, field in ((many, "messages"), (tools, "tools")):
            refused = await user.post("/openai/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


class TestAnswers:
    @both
    async def test_an_answer_comes_whole(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Think("Hm."), "Hello ", "there.")
        done = await sdk.chat.completions.create(model="scripted", messages=ASK)
        [choice] = done.choices
        assert (choice.message.content, choice.finish_reason) == ("Hello there.", "stop")
        assert choice.message.to_dict()["reasoning_content"] == "Hm."
        assert done.usage is not None
        assert (done.usage.prompt_tokens, done.usage.total_tokens) == (10, 15)

    @both
    async def test_an_answer_comes_in_chunks(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Think("Hm."), "Hello ", "there.")
        stream = await sdk.chat.completions.create(
            model="scripted", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert words == "Hello there."
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert len({chunk.id for chunk in chunks}) == 1

    async def test_reasoning_in_several_blocks_comes_once(self, server: ApiServer, sdk: Any) -> None:
        """The rest that readers get fits to what they were shown."""
        server.scripts.say(Think("One.", signature="s"), Think("Two.", signature="s"), "So. ", Think("Three."), "Done.")
        stream = await sdk.chat.completions.create(model="scripted", messages=ASK, stream=True)
        deltas = [chunk.choices[0].delta.to_dict() async for chunk in stream if chunk.choices]
        thoughts = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        assert thoughts == "One.\n\nTwo.\n\nThree."
        assert "".join(delta.get("content") or "" for delta in deltas) == "So. Done."

    async def test_a_reply_that_starts_again_says_so(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("Hel", Restart(), "Hello.")
        stream = await sdk.chat.completions.create(model="scripted", messages=ASK, stream=True)
        words = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert words == "Hel\n\n(The answer starts again.)\n\nHello."

    async def test_an_answer_at_its_limit_ends_with_length(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("Hel", OutOfTokens())
        done = await sdk.chat.completions.create(model="scripted", messages=ASK)
        assert done.choices[0].finish_reason == "length"

    async def test_a_failure_is_an_error(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Fail(ProviderFailed("It broke.")))
        with pytest.raises(openai.APIError, match=r"It broke\."):
            await sdk.chat.completions.create(model="scripted", messages=ASK)
        server.scripts.say(Fail(ProviderFailed("It broke.")))
        stream = await sdk.chat.completions.create(model="scripted", messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match=r"It broke\."):
            [_ async for _ in stream]

    async def test_an_agent_answers_with_its_instructions_before_those_of_the_caller(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        await service.post("/v1/agents", json={"name": "Helper", "instructions": "Be kind."})
        messages: Any = [{"role": "developer", "content": "Be short."}, *ASK]
        await sdk.chat.completions.create(model="agent/Helper", messages=messages)
        assert server.scripts.requests[-1].messages[0]["content"] == "Be kind.\n\nBe short."


class TestHistories:
    @both
    async def test_the_model_sees_the_history_of_the_request(self, server: ApiServer, sdk: Any) -> None:
        messages: Any = [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1."},
            {"role": "user", "content": [{"type": "text", "text": "Two?"}]},
        ]
        await sdk.chat.completions.create(model="scripted", messages=messages)
        said = [(each["role"], each["content"]) for each in server.scripts.requests[-1].messages]
        assert said == [("user", "One?"), ("assistant", "1."), ("user", "Two?")]

    @both
    async def test_an_agent_answers_a_history_too(self, server: ApiServer, service: Client, user: Client) -> None:
        body = {"name": "Helper", "instructions": "Help kindly.", "model": "scripted/own"}
        assert (await service.post("/v1/agents", json=body)).status_code == 201
        history = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "1."}, *ASK]
        for path, field in (("chat/completions", "messages"), ("responses", "input")):
            sent = await user.post(f"/openai/v1/{path}", json={"model": "agent/Helper", field: history})
            assert sent.status_code == 200, sent.text
            asked = server.scripts.requests[-1]
            assert (asked.model, "Help kindly." in str(asked)) == ("scripted/own", True), path

    @both
    async def test_no_list_and_no_search_shows_such_a_conversation(self, user: Client, sdk: Any) -> None:
        await sdk.chat.completions.create(
            model="scripted", messages=[*ASK, {"role": "assistant", "content": "A"}, *ASK]
        )
        raw = await sdk.chat.completions.with_raw_response.create(model="scripted", messages=ASK)
        assert (await user.read("/v1/conversations"))["data"] == []
        turn = await user.read(f"/v1/turns/{raw.headers['turnkeep-turn']}")
        assert turn["response"] == "Hello there."
        found = await user.read(f"/v1/conversations/{turn['conversation_id']}/messages")
        assert [each["role"] for each in found["data"]] == ["user", "assistant"]

    @both
    async def test_nothing_is_left_of_a_request_that_is_refused(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        """Over the limit of messages a user must not go on storing histories that no list shows."""
        assert (await service.patch("/v1/users/ann", json={"monthly_message_limit": 0})).status_code == 200
        history = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "1."}, *ASK]
        with made_conversations(server) as made:
            for path, field in (("chat/completions", "messages"), ("responses", "input")):
                refused = await user.post(f"/openai/v1/{path}", json={"model": "scripted", field: history})
                assert refused.status_code == 429, refused.text
        assert len(made) == 2
        for conversation_id in made:
            assert (await user.get(f"/v1/conversations/{conversation_id}")).status_code == 404

    async def test_the_same_idempotency_key_gives_the_same_answer(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("First.")
        server.scripts.say("Second.")
        messages: Any = [*ASK, {"role": "assistant", "content": "A"}, *ASK]
        headers = {"Idempotency-Key": "one"}
        for _ in range(2):
            done = await sdk.chat.completions.create(model="scripted", messages=messages, extra_headers=headers)
            assert done.choices[0].message.content == "First."

    @both
    @pytest.mark.parametrize("empty", ["", " ", None, [], [{"type": "text", "text": ""}]], ids=str)
    async def test_empty_messages_of_the_past_are_left_out(self, server: ApiServer, sdk: Any, empty: Any) -> None:
        history: Any = [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": empty},
            {"role": "user", "content": empty},
            {"role": "assistant", "content": "1."},
            {"role": "assistant"},
            {"role": "user", "content": "Two"},
        ]
        await sdk.chat.completions.create(model="scripted", messages=history)
        assert [each["content"] for each in server.scripts.requests[-1].messages] == ["One", "1.", "Two"]
        if empty is not None and not isinstance(empty, list):
            await sdk.responses.create(model="scripted", input=history[:4] + history[5:])
            assert [each["content"] for each in server.scripts.requests[-1].messages] == ["One", "1.", "Two"]
        with pytest.raises(openai.BadRequestError, match="has no content"):
            await sdk.chat.completions.create(model="scripted", messages=history[:3])

    async def test_an_empty_answer_may_be_sent_back(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(" ")
        first = await sdk.chat.completions.create(model="scripted", messages=ASK)
        again = [*ASK, first.choices[0].message.to_dict(), {"role": "user", "content": "And?"}]
        assert (await sdk.chat.completions.create(model="scripted", messages=again)).choices[0].finish_reason == "stop"

    @pytest.mark.parametrize("path, field", [("chat/completions", "messages"), ("responses", "input")])
    async def test_requests_at_once_with_one_idempotency_key_are_one_turn(
        self, server: ApiServer, user: Client, path: str, field: str
    ) -> None:
        """Each of them has stored the history before the first one claims its turn. One of these stays."""
        history = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "1."}, *ASK]
        body = {"model": "scripted", field: history}
        headers = {"Idempotency-Key": "one"}
        with made_conversations(server, at_once=5) as made:
            sent = await asyncio.gather(
                *(user.post(f"/openai/v1/{path}", json=body, headers=headers) for _ in range(5))
            )
        assert [each.status_code for each in sent] == [200] * 5
        [turn_id] = {each.headers["turnkeep-turn"] for each in sent}
        assert len({each.text for each in sent}) == 1
        assert len(server.scripts.requests) == 1
        kept = (await user.read(f"/v1/turns/{turn_id}"))["conversation_id"]
        found = [name for name in made if (await user.get(f"/v1/conversations/{name}")).status_code == 200]
        assert (len(made), found) == (5, [kept])

    async def test_a_history_that_ends_with_the_assistant_is_refused(self, sdk: Any) -> None:
        with pytest.raises(openai.BadRequestError, match="of the assistant"):
            await sdk.chat.completions.create(
                model="scripted", messages=[*ASK, {"role": "assistant", "content": "And"}]
            )


class TestTools:
    @both
    async def test_a_call_ends_the_answer_and_its_result_comes_with_the_next_request(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        server.scripts.say("Let me look.", Call("get_weather", {"city": "Bern"}))
        raw = await sdk.chat.completions.with_raw_response.create(model="scripted", messages=ASK, tools=[WEATHER])
        message = raw.parse().choices[0].message
        assert raw.parse().choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        [call] = message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Bern"}
        assert (await user.read(f"/v1/turns/{raw.headers['turnkeep-turn']}"))["status"] == "succeeded"

        server.scripts.say("Sunny.")
        messages: Any = [
            *ASK,
            message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "sun"},
        ]
        done = await sdk.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
        assert done.choices[0].message.content == "Sunny."
        roles = [each["role"] for each in server.scripts.requests[-1].messages]
        assert roles == ["user", "assistant", "tool"]

    async def test_calls_come_in_chunks(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}), Call("get_weather", {"city": "Basel"}))
        stream = await sdk.chat.completions.create(model="scripted", messages=ASK, tools=[WEATHER], stream=True)
        chunks = [chunk async for chunk in stream]
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert [call.index for call in calls] == [0, 1]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

    async def test_many_rounds_of_the_caller_do_not_count_as_rounds_of_the_turn(
        self, server: ApiServer, sdk: Any
    ) -> None:
        messages: list[Any] = list(ASK)
        for n in range(12):
            call = {"id": f"c{n}", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{n}", "content": str(n)},
            ]
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        done = await sdk.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
        assert done.choices[0].finish_reason == "tool_calls"

    async def test_a_call_without_a_result_is_refused(self, sdk: Any) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        messages: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, *ASK]
        done = await sdk.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
        assert done.choices[0].message.content == "Hello there."
        orphan: Any = [*ASK, {"role": "tool", "tool_call_id": "c2", "content": "x"}]
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            await sdk.chat.completions.create(model="scripted", messages=orphan)


class TestBoundConversations:
    @both
    async def test_a_request_may_name_a_stored_conversation(self, server: ApiServer, user: Client, sdk: Any) -> None:
        made = (await user.post("/v1/conversations", json={})).json()["id"]
        for headers, metadata in (({}, {"conversation_id": made}), ({"Turnkeep-Conversation": made}, {})):
            await sdk.chat.completions.create(
                model="scripted", messages=ASK, metadata=metadata, extra_headers=headers, tools=[WEATHER]
            )
        assert (await user.read(f"/v1/conversations/{made}"))["message_count"] == 4
        assert len(server.scripts.requests[-1].messages) == 3

    @both
    async def test_its_instructions_may_change_with_the_result_of_a_call(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        made = (await user.post("/v1/conversations", json={})).json()["id"]
        bound: Any = {"model": "scripted", "metadata": {"conversation_id": made}, "tools": [WEATHER]}
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        server.scripts.say(Call("get_weather", {"city": "Rome"}))
        messages: list[Any] = [*ASK]
        said: list[str | None] = []
        for place in range(3):
            told = {"role": "system", "content": f"Step {place}."}
            done = await sdk.chat.completions.create(messages=[told, *messages], **bound)
            assert server.scripts.requests[-1].messages[0]["content"] == f"Step {place}."
            message = done.choices[0].message
            said.append(message.content)
            for call in message.tool_calls or ():
                messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
        assert said[-1] == "Hello there."

    async def test_its_turn_waits_for_the_result_of_a_call(self, server: ApiServer, user: Client, sdk: Any) -> None:
        made = (await user.post("/v1/conversations", json={})).json()["id"]
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        bound: Any = {"model": "scripted", "metadata": {"conversation_id": made}, "tools": [WEATHER]}
        first = await sdk.chat.completions.create(messages=ASK, **bound)
        message = first.choices[0].message
        assert message.tool_calls is not None
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.chat.completions.create(messages=ASK, **bound)
        assert (busy.value.code, busy.value.param) == ("conversation_locked", "conversation")
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
        server.scripts.say("Sunny.")
        messages: Any = [*ASK, message.to_dict(), result]
        for change in ({"temperature": 0.5}, {"max_tokens": 5}, {"tool_choice": "none"}):
            with pytest.raises(openai.BadRequestError, match="keeps the options") as refused:
                await sdk.chat.completions.create(**{**bound, "messages": messages, **change})
            assert refused.value.param == next(iter(change))
        stream = await sdk.chat.completions.create(messages=messages, stream=True, **bound)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Sunny."
        again = await sdk.chat.completions.create(messages=messages, **bound)
        assert again.choices[0].message.content == "Sunny."
        result["content"] = "rain"
        with pytest.raises(openai.ConflictError, match="has its result already"):
            await sdk.chat.completions.create(messages=messages, **bound)
        assert (await user.read(f"/v1/conversations/{made}"))["turn_count"] == 1

    async def test_it_takes_all_results_or_none(self, server: ApiServer, user: Client, sdk: Any) -> None:
        made = (await user.post("/v1/conversations", json={})).json()["id"]
        server.scripts.say(Call("get_weather", {"city": "Bern"}), Call("get_weather", {"city": "Rome"}))
        bound: Any = {"model": "scripted", "metadata": {"conversation_id": made}, "tools": [WEATHER]}
        first = await sdk.chat.completions.create(messages=ASK, **bound)
        message = first.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
        stray = {"role": "tool", "tool_call_id": "call_none", "content": "sun"}
        for sent, problem in ((results[:1], "No tool output found"), ([*results, stray], "No tool call found")):
            with pytest.raises(openai.BadRequestError, match=problem):
                await sdk.chat.completions.create(messages=sent, **bound)
        done = await sdk.chat.completions.create(messages=results, **bound)
        assert done.choices[0].message.content == "Hello there."


class TestOptions:
    async def test_options_reach_the_provider(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say('{"n": 1}')
        await sdk.chat.completions.create(
            model="scripted",
            messages=ASK,
            tools=[WEATHER],
            temperature=0.5,
            top_p=0.9,
            max_completion_tokens=100,
            stop=["END"],
            seed=7,
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            parallel_tool_calls=False,
            frequency_penalty=0.1,
            presence_penalty=0.2,
            response_format=ANSWER,
        )
        given = server.scripts.requests[-1].sampling
        assert (given.temperature, given.top_p, given.max_tokens, given.seed) == (0.5, 0.9, 100, 7)
        assert (given.stop, given.tool, given.parallel_tool_calls) == (("END",), "get_weather", False)
        assert (given.frequency_penalty, given.presence_penalty) == (0.1, 0.2)
        assert given.output is not None
        assert given.output.name == "answer"

    @pytest.mark.parametrize(
        "given",
        [
            {"n": 2},
            {"logprobs": True},
            {"temperature": 3},
            {"top_p": "high"},
            {"max_tokens": 0},
            {"stop": ["a", "b", "c", "d", "e"]},
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "function": {"name": "get_time"}}, "tools": [WEATHER]},
            {"response_format": {"type": "yaml"}},
            {"logit_bias": {"1": 5}},
            {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        ],
        ids=lambda given: next(iter(given)),
    )
    async def test_what_cannot_be_honoured_is_refused(self, sdk: Any, given: Any) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model="scripted", messages=ASK, extra_body=given)
        assert str(refused.value.param).startswith(next(iter(given)))


class TestOutputOfModelsThatCannotBeBound:
    async def test_the_model_is_told_the_form_and_its_answer_is_checked(self, tmp_path: Path) -> None:
        scripts = Scripts()
        provider = ScriptedProvider(scripts.next, abilities=Abilities(options=ALL_OPTIONS - {"output", "seed"}))
        async with ApiServer.start(settings_for(tmp_path), providers=ProviderRegistry([provider])) as server:
            key = (await server.tenant()).key
            async with openai.AsyncOpenAI(base_url=f"{server.url}/openai/v1", api_key=key, max_retries=0) as sdk:
                scripts.say('{"n": 1}')
                asked: Any = {"model": "scripted", "messages": ASK, "response_format": ANSWER}
                done = await sdk.chat.completions.create(**asked)
                assert done.choices[0].message.content == '{"n": 1}'
                assert '"required":["n"]' in provider.requests[-1].messages[0]["content"]
                for answer, problem in (("Hello.", "no JSON"), ('{"n": "one"}', "does not fit the schema at n")):
                    scripts.say(answer)
                    with pytest.raises(openai.APIError, match=problem):
                        await sdk.chat.completions.create(**asked)
                with pytest.raises(openai.BadRequestError) as refused:
                    await sdk.chat.completions.create(model="scripted", messages=ASK, seed=1)
                assert (refused.value.param, refused.value.code) == ("seed", "unsupported_parameter")
