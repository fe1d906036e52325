"""Responses at /openai/v1, by OpenAI's own SDK with strict validation; events and objects also by Open Responses."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from msgspec import structs

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client
from tests.api.openai_events import OpenResponses
from tests.files.samples import PNG
from turnkeep.config import Settings
from turnkeep.errors import UnsupportedOption
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, OutOfTokens, Pause, Restart, Think, Until
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@tool(idempotent=True)
async def count(n: int) -> str:
    """Count."""
    return str(n + 1)


@tool(idempotent=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings, tools=ToolRegistry([count, pay])) as running:
        yield running


@pytest.fixture
async def sdk(server: ApiServer, user: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/openai/v1", api_key=user.key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def events_of(stream: Any) -> list[Any]:
    """All events of a stream. They are valid, their numbers rise, and every added item is done."""
    events = [event async for event in stream]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**53
    for event in events:
        OpenResponses.check_event(event.to_dict())
    return events


def said(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def kinds(events: list[Any]) -> list[str]:
    found: list[str] = []
    for event in events:
        name = event.type.removeprefix("response.")
        if not found or found[-1] != name:
            found.append(name)
    return found


class TestAnswers:
    @both
    async def test_an_answer_comes_whole(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Think("Hm."), "Hello ", "there.")
        done = await sdk.responses.create(model="scripted", input="Hi", instructions="Be kind.", metadata={"a": "b"})
        assert (done.status, done.output_text, done.instructions) == ("completed", "Hello there.", "Be kind.")
        assert [item.type for item in done.output] == ["reasoning", "message"]
        assert done.usage is not None
        assert done.usage.total_tokens == 15
        OpenResponses.check_response(done.to_dict())
        again = await sdk.responses.retrieve(done.id)
        assert again.to_dict() == done.to_dict()
        assert server.scripts.requests[-1].messages[0]["content"] == "Be kind."

    @both
    async def test_an_answer_comes_as_events(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Think("Hm."), "Hello ", "there.")
        events = await events_of(await sdk.responses.create(model="scripted", input="Hi", stream=True))
        assert kinds(events) == [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        assert said(events) == "Hello there."
        final = events[-1].response
        assert final.output_text == "Hello there."
        stored = await sdk.responses.retrieve(final.id)
        assert stored.output_text == "Hello there."
        assert [item.id for item in stored.output] == [item.id for item in final.output]

    async def test_the_helper_of_the_sdk_builds_the_same_response(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Think("Hm."), "Hello ", "there.")
        async with sdk.responses.stream(model="scripted", input="Hi") as stream:
            final = await stream.get_final_response()
        assert final.output_text == "Hello there."

    async def test_an_answer_at_its_limit_is_incomplete(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("Hel", OutOfTokens())
        events = await events_of(await sdk.responses.create(model="scripted", input="Hi", stream=True))
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.incomplete_details.reason == "max_output_tokens"
        assert [item.status for item in events[-1].response.output] == ["incomplete"]

    async def test_a_failure_ends_the_stream_as_failed(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("Hel", Fail(ProviderFailed("It broke.")))
        events = await events_of(await sdk.responses.create(model="scripted", input="Hi", stream=True))
        assert events[-1].type == "response.failed"
        assert (events[-1].response.error.code, events[-1].response.error.message) == ("server_error", "It broke.")
        assert events[-1].response.output_text == "Hel"

    async def test_after_a_reset_the_voided_item_is_incomplete_and_not_in_the_output(
        self, server: ApiServer, sdk: Any
    ) -> None:
        server.scripts.say(Think("Hm"), "Hel", Restart(), "Hello.")
        events = await events_of(await sdk.responses.create(model="scripted", input="Hi", stream=True))
        done = [event for event in events if event.type == "response.output_item.done"]
        assert [(event.item.type, event.item.status) for event in done] == [
            ("reasoning", "completed"),
            ("message", "incomplete"),
            ("message", "completed"),
        ]
        assert [event.output_index for event in done] == [0, 1, 2]
        final = events[-1].response
        assert [item.content[0].text for item in final.output if item.type == "message"] == ["Hello."]
        assert (await sdk.responses.retrieve(final.id)).output_text == "Hello."

    async def test_tools_of_the_server_are_mcp_calls(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        server.scripts.say("I count.", Call("count", {"n": 1}))
        server.scripts.say("Two.")
        events = await events_of(await sdk.responses.create(model="agent/Counter", input="Hi", stream=True))
        output = events[-1].response.output
        assert [item.type for item in output] == ["message", "mcp_call", "message"]
        assert (output[1].name, json.loads(output[1].arguments), output[1].output) == ("count", {"n": 1}, "2")
        assert [output[0].phase, output[2].phase] == ["commentary", "final_answer"]
        assert "mcp_call.completed" in kinds(events)


class TestResuming:
    @both
    async def test_a_reader_goes_on_after_any_event(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(
            Think(
                "Let me ",
            ),
            Think("see."),
            "Hello ",
            "there, ",
            "you.",
        )
        events = await events_of(await sdk.responses.create(model="scripted", input="Hi", stream=True))
        response = events[-1].response
        for place, event in enumerate(events[:-1]):
            rest = [
                each
                async for each in await sdk.responses.retrieve(
                    response.id, stream=True, starting_after=event.sequence_number
                )
            ]
            assert said(events[: place + 1]) + said(rest) == "Hello there, you."
            assert rest[0].sequence_number > event.sequence_number
            assert rest[-1].response.to_dict() == response.to_dict()
            opened = [each.item.id for each in (*events[: place + 1], *rest) if each.type.endswith("item.added")]
            assert len(opened) == len(set(opened)) == 2

    async def test_a_reader_goes_on_while_the_model_speaks(self, server: ApiServer, sdk: Any) -> None:
        go_on = asyncio.Event()
        server.scripts.say("Hello ", "there, ", Until(go_on.wait), "you.")
        events: list[Any] = []
        async with await sdk.responses.create(model="scripted", input="Hi", stream=True, background=True) as stream:
            async for event in stream:
                events.append(event)
                if said(events) == "Hello there, ":
                    break
        again = await sdk.responses.retrieve(
            events[0].response.id, stream=True, starting_after=events[-1].sequence_number
        )
        go_on.set()
        rest = [event async for event in again]
        assert said(events) + said(rest) == "Hello there, you."
        assert rest[-1].type == "response.completed"

    async def test_a_number_that_is_none_or_of_the_future_is_refused(self, sdk: Any) -> None:
        done = await sdk.responses.create(model="scripted", input="Hi")
        with pytest.raises(openai.BadRequestError):
            await sdk.responses.retrieve(done.id, stream=True, starting_after=2**52)
        for query in ({"starting_after": 1}, {"stream": "maybe"}):
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.retrieve(done.id, extra_query=query)
            assert refused.value.param == next(iter(query))

    async def test_the_end_of_a_response_can_be_read_again(self, sdk: Any) -> None:
        done = await sdk.responses.create(model="scripted", input="Hi")
        async with sdk.responses.stream(response_id=done.id) as stream:
            final = await stream.get_final_response()
        assert final.output_text == done.output_text


class TestSourcesFilesAndPictures:
    @pytest.fixture
    async def server(self, settings: Settings) -> AsyncIterator[ApiServer]:
        async with ApiServer.start(settings) as running:
            yield running

    @both
    async def test_sources_that_the_answer_cites_are_annotations(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        page = (await service.post("/v1/pages", json={"title": "Refunds", "content": "Within 30 days."})).json()
        await service.post("/v1/agents", json={"name": "Clerk", "tools": ["search_pages"]})
        server.scripts.say(Call("search_pages", {"query": "30 days"}))
        server.scripts.say("Within 30 days [1], and no more [2].")
        stream = await sdk.responses.create(model="agent/Clerk", input="How long?", stream=True)
        events = await events_of(stream)
        done = events[-1].response
        [cited] = done.output[-1].content[0].annotations
        assert (cited.type, cited.title, cited.url) == ("url_citation", "Refunds", f"urn:turnkeep:{page['id']}")
        assert done.output_text[cited.start_index : cited.end_index] == "[1]"
        assert "output_text.annotation.added" in kinds(events)
        stored = await sdk.responses.retrieve(done.id)
        assert stored.output[-1].to_dict() == done.output[-1].to_dict()

    @both
    async def test_sources_from_before_a_wait_are_annotations_too(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        await service.post("/v1/pages", json={"title": "Refunds", "content": "Within 30 days."})
        await service.post("/v1/agents", json={"name": "Clerk", "tools": ["search_pages"]})
        server.scripts.say(Call("search_pages", {"query": "30 days"}))
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="agent/Clerk", input="How long?", tools=[WEATHER])
        call_id = first.output[-1].to_dict()["call_id"]
        server.scripts.say("Within 30 days [1].")
        output: Any = [{"type": "function_call_output", "call_id": call_id, "output": "sun"}]
        done = await sdk.responses.create(model="agent/Clerk", input=output, previous_response_id=first.id)
        [cited] = done.output[-1].content[0].annotations
        assert cited.title == "Refunds"

    @both
    async def test_a_picture_reaches_the_model_and_is_listed(self, server: ApiServer, sdk: Any) -> None:
        data = base64.b64encode(PNG).decode()
        content: Any = [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"},
        ]
        done = await sdk.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert data in str(server.scripts.requests[-1].messages)
        [asked] = (await sdk.responses.input_items.list(done.id)).data
        assert [part.type for part in asked.content] == ["input_text", "input_image"]
        broken: Any = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]
        with pytest.raises(openai.BadRequestError):
            await sdk.responses.create(model="scripted", input=[{"role": "user", "content": broken}])


class TestConversations:
    @both
    async def test_a_response_follows_another(self, server: ApiServer, user: Client, sdk: Any) -> None:
        first = await sdk.responses.create(model="scripted", input="One")
        second = await sdk.responses.create(model="scripted", input="Two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert [each["content"] for each in server.scripts.requests[-1].messages] == ["One", "Hello there.", "Two"]
        other = await sdk.responses.create(model="scripted", input="Three", previous_response_id=first.id)
        assert [each["content"] for each in server.scripts.requests[-1].messages] == ["One", "Hello there.", "Three"]
        assert other.status == "completed"
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_a_response_that_is_deleted_takes_no_other_with_it(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        first = await sdk.responses.create(model="scripted", input="One")
        second = await sdk.responses.create(model="scripted", input="Two", conversation=first.conversation.id)
        await sdk.responses.delete(second.id)
        assert (await sdk.responses.retrieve(first.id)).id == first.id
        await sdk.conversations.update(first.conversation.id, metadata={"a": "b"})
        await user.patch(f"/v1/conversations/{first.conversation.id}", json={"metadata": {}})
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(second.id)

        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        called = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        output: Any = [
            {
                "type": "function_call_output",
                "call_id": called.output[0].to_dict()["call_id"],
                "output": "sun",
            }
        ]
        answered = await sdk.responses.create(model="scripted", input=output, previous_response_id=called.id)
        await sdk.responses.delete(called.id)
        assert (await sdk.responses.retrieve(answered.id)).output_text == "Hello there."

    async def test_a_body_of_very_many_values_is_refused(self, user: Client) -> None:
        body = b'{"model":"scripted","input":[' + b",".join([b"[]"] * 1_000_001) + b"]}"
        headers = {"content-type": "application/json"}
        refused = await user.post("/openai/v1/responses", content=body, headers=headers)
        assert (refused.status_code, "1,000,000 values" in refused.text) == (413, True)
        many = [{"role": "user", "content": "x"}] * 10_001
        refused = await user.post("/openai/v1/responses", json={"model": "scripted", "input": many})
        assert (refused.status_code, "at most 10,000" in refused.text) == (400, True)

    @both
    async def test_a_question_that_is_refused_changes_nothing(
        self, server: ApiServer, user: Client, sdk: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = (await sdk.conversations.create()).id
        first = await sdk.responses.create(model="scripted", input="One", conversation=made)
        await sdk.responses.create(model="scripted", input="Two", conversation=made)
        before = (await user.read(f"/v1/conversations/{made}/messages"))["data"]
        history: Any = [
            {"role": "user", "content": "Three"},
            {"role": "assistant", "content": "3."},
            {"role": "user", "content": "Four"},
        ]

        places: list[Any] = [{"previous_response_id": first.id}, {"conversation": made}]
        provider = server.runtime.providers.named("scripted")
        can = structs.replace(await provider.abilities("scripted"), options=frozenset())

        async def abilities(_: str) -> Any:
            return can

        with monkeypatch.context() as patched:
            patched.setattr(provider, "abilities", abilities)
            for place in places:
                with pytest.raises(openai.BadRequestError, match="cannot honour"):
                    await sdk.responses.create(model="scripted", input=history, temperature=0.5, **place)
        assert (await user.read(f"/v1/conversations/{made}/messages"))["data"] == before

        async def refuse(*_: Any, **__: Any) -> None:
            raise UnsupportedOption("No.", option="seed")

        with monkeypatch.context() as patched:
            patched.setattr(server.runtime.engine, "ask", refuse)
            for place in places:
                with pytest.raises(openai.APIStatusError):
                    await sdk.responses.create(model="scripted", input=history, **place)
        after = (await user.read(f"/v1/conversations/{made}/messages"))["data"]
        assert [each["id"] for each in after] == [each["id"] for each in before]

    @both
    async def test_a_history_that_is_sent_twice_at_once_is_stored_once(self, user: Client, sdk: Any) -> None:
        made = (await sdk.conversations.create()).id
        history = [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "1."},
            {"role": "user", "content": "Two"},
        ]
        body = {"model": "scripted", "input": history, "conversation": made}

        async def ask() -> Any:
            return await user.post("/openai/v1/responses", json=body, headers={"Idempotency-Key": "one"})

        sent = await asyncio.gather(*(ask() for _ in range(5)))
        assert {each.status_code for each in sent} <= {200, 400, 409}
        done = [each.json()["id"] for each in (*sent, await ask()) if each.status_code == 200]
        assert len(done) > 1
        assert len(set(done)) == 1
        assert (await user.read(f"/v1/conversations/{made}"))["turn_count"] == 2

    async def test_a_history_may_come_with_the_request(self, server: ApiServer, sdk: Any) -> None:
        history: Any = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "1."},
            {"role": "user", "content": [{"type": "input_text", "text": "Two"}]},
        ]
        done = await sdk.responses.create(model="scripted", input=history)
        said_before = [each["content"] for each in server.scripts.requests[-1].messages]
        assert said_before == ["Be short.", "One", "1.", "Two"]
        items = [item async for item in sdk.responses.input_items.list(done.id, order="asc")]
        assert [item.role for item in items] == ["developer", "user", "assistant", "user"]
        follow: Any = {"previous_response_id": done.id, "input": "Three"}
        await sdk.responses.create(model="scripted", **follow)
        assert [each["content"] for each in server.scripts.requests[-1].messages][:3] == ["One", "1.", "Two"]

    async def test_an_item_may_have_no_type(self, server: ApiServer, sdk: Any) -> None:
        history: Any = [
            {"type": None, "role": "user", "content": "One"},
            {"type": None, "role": "assistant", "content": "1."},
            {"type": None, "role": "user", "content": "Two"},
        ]
        await sdk.responses.create(model="scripted", input=history)
        assert [each["content"] for each in server.scripts.requests[-1].messages] == ["One", "1.", "Two"]
        made = await sdk.conversations.create(items=history)
        roles = [item.role async for item in sdk.conversations.items.list(made.id, order="asc")]
        assert roles == ["user", "assistant", "user"]
        with pytest.raises(openai.BadRequestError, match="'web_search_call' is not supported") as refused:
            await sdk.responses.create(model="scripted", input=[*history, {"type": "web_search_call", "id": "ws_1"}])
        assert refused.value.param == "input[3]"

    @both
    async def test_the_input_of_a_response_is_listed_as_it_was_sent(self, server: ApiServer, sdk: Any) -> None:
        words: Any = [
            {"role": "developer", "content": "Be kind."},
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [{"type": "input_text", "text": text} for text in ("One", "Two")]},
            {"role": "user", "content": "Three"},
        ]
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input=words, instructions="Be.", tools=[WEATHER])

        async def listed(response_id: str) -> list[Any]:
            items = [item.to_dict() async for item in sdk.responses.input_items.list(response_id, order="asc", limit=2)]
            assert len({item["id"] for item in items}) == len(items)
            return items

        said = [(item["role"], [part["text"] for part in item["content"]]) for item in await listed(first.id)]
        assert said == [
            ("developer", ["Be kind."]),
            ("system", ["Be short."]),
            ("user", ["One", "Two"]),
            ("user", ["Three"]),
        ]
        output: Any = [
            {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"},
            {"role": "user", "content": "In one word."},
        ]
        second = await sdk.responses.create(model="scripted", input=output, previous_response_id=first.id)
        result, beside = await listed(second.id)
        assert (result["type"], result["call_id"], result["output"]) == (*list(output[0].values()),)
        assert (beside["role"], beside["content"][0]["text"]) == ("user", "In one word.")

    async def test_a_decision_is_listed_as_input(self, server: ApiServer, service: Client, sdk: Any) -> None:
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.")
        decision: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": first.output[0].id,
            "approve": False,
            "reason": "Too much.",
        }
        second = await sdk.responses.create(model="agent/Payer", input=[decision], previous_response_id=first.id)
        [item] = (await sdk.responses.input_items.list(second.id)).data
        assert {key: value for key, value in item.to_dict().items() if key != "id"} == decision

    async def test_a_stored_conversation_that_is_busy_is_locked(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        made = (await user.post("/v1/conversations", json={})).json()["id"]
        go_on = asyncio.Event()
        server.scripts.say(Until(go_on.wait), "Done.")
        first = await sdk.responses.create(model="scripted", input="Hi", conversation=made, background=True)
        assert first.status in {"queued", "in_progress"}
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.responses.create(model="scripted", input="Hi", conversation=made)
        assert (busy.value.code, busy.value.param) == ("conversation_locked", "conversation")
        with pytest.raises(openai.BadRequestError, match="Wait for its end, or cancel") as busy:
            await sdk.responses.create(model="scripted", input="Hi", previous_response_id=first.id)
        assert busy.value.code == "conversation_locked"
        asked = (await sdk.conversations.items.list(made)).data[0]
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.conversations.items.delete(asked.id, conversation_id=made)
        assert busy.value.code == "conversation_locked"
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.conversations.items.create(made, items=[{"role": "user", "content": "x"}])
        assert busy.value.code == "conversation_locked"
        go_on.set()
        async with sdk.responses.stream(response_id=first.id) as stream:
            await stream.get_final_response()
        assert [each["id"] for each in (await user.read("/v1/conversations"))["data"]] == [made]


class TestReferences:
    @both
    async def test_stand_for_items_of_earlier_responses(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        """As Vercel's AI SDK sends them instead of the items."""
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        server.scripts.say(Think("Hm."), "I count.", Call("count", {"n": 1}))
        server.scripts.say("Two.")
        first = await sdk.responses.create(model="agent/Counter", input="Count.")
        assert [item.type for item in first.output] == ["reasoning", "message", "mcp_call", "message"]
        [asked] = (await sdk.responses.input_items.list(first.id)).data
        named: Any = [{"type": "item_reference", "id": item.id} for item in (asked, *first.output)]
        again: Any = {"role": "user", "content": "And?"}
        await sdk.responses.create(model="scripted", input=[*named, again])
        sent = server.scripts.requests[-1].messages
        assert [each["role"] for each in sent] == ["user", "assistant", "tool", "assistant", "user"]
        assert (sent[0]["content"], sent[2]["content"], sent[3]["content"]) == ("Count.", "2", "Two.")
        ben = await server.user(service, "ben")
        refused = await ben.post("/openai/v1/responses", json={"model": "scripted", "input": [*named, again]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        for wrong in (f"msg_{'0' * 32}_r0", f"{asked.id}_9", "mcpr_call_1", None):
            many = [{"type": "item_reference", "id": wrong}, again]
            refused = await user.post("/openai/v1/responses", json={"model": "scripted", "input": many})
            assert (refused.status_code, "there is no item" in refused.text) == (400, True)
        many = [{"type": "item_reference", "id": f"msg_{number:032x}_r0"} for number in range(101)]
        refused = await user.post("/openai/v1/responses", json={"model": "scripted", "input": many})
        assert refused.status_code == 400


class TestForks:
    """Requests that follow the same response do not wait for each other."""

    @both
    async def test_run_at_the_same_time_with_the_same_history(self, server: ApiServer, user: Client, sdk: Any) -> None:
        both_run, running = asyncio.Event(), list[str]()

        async def meet() -> None:
            running.append("")
            if len(running) == 3:
                both_run.set()
            await both_run.wait()

        first = await sdk.responses.create(model="scripted", input="One", instructions="Be kind.")
        second = await sdk.responses.create(model="scripted", input="Two", previous_response_id=first.id)
        file = await sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="user_data")
        content = [{"type": "input_file", "file_id": file.id}, {"type": "input_text", "text": "Three"}]
        third = await sdk.responses.create(
            model="scripted", input=[{"role": "user", "content": content}], previous_response_id=second.id
        )
        for _ in range(3):
            server.scripts.say(Until(meet), "Four.")
        asked = [
            sdk.responses.create(model="scripted", input=f"Fork {place}", previous_response_id=third.id)
            for place in range(3)
        ]
        forks = await asyncio.wait_for(asyncio.gather(*asked), 60)
        assert [each.output_text for each in forks] == ["Four."] * 3
        assert {each.previous_response_id for each in forks} == {third.id}
        assert len({each.id for each in forks}) == 3
        for request in server.scripts.requests[-3:]:
            texts = [str(each["content"]) for each in request.messages]
            assert [text for text in texts if text in {"One", "Two"}] == ["One", "Two"]
            assert "Buy milk." in str(texts)
            assert sum("Fork" in text for text in texts) == 1
        assert (await user.read("/v1/conversations"))["data"] == []
        for fork in forks:  # each goes on by itself
            after = await sdk.responses.create(model="scripted", input="Five", previous_response_id=fork.id)
            texts = [str(each["content"]) for each in server.scripts.requests[-1].messages]
            assert sum("Fork" in text for text in texts) == 1
            assert after.output_text == "Hello there."
        apart = [each for each in forks if each.conversation.id != first.conversation.id]
        assert len(apart) == 2

    @both
    async def test_follow_an_older_response_while_another_branch_runs_or_waits(
        self, server: ApiServer, sdk: Any
    ) -> None:
        first = await sdk.responses.create(model="scripted", input="One")
        left = await sdk.responses.create(model="scripted", input="Left", previous_response_id=first.id)
        await sdk.responses.create(model="scripted", input="Right", previous_response_id=first.id)
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        waits = await sdk.responses.create(
            model="scripted", input="Weather?", tools=[WEATHER], previous_response_id=first.id
        )
        assert waits.output[0].type == "function_call"
        key = {"Idempotency-Key": "fork"}
        options: Any = {"model": "scripted", "input": "Down", "previous_response_id": left.id, "extra_headers": key}
        down = await sdk.responses.create(**options)
        texts = [each["content"] for each in server.scripts.requests[-1].messages]
        assert texts == ["One", "Hello there.", "Left", "Hello there.", "Down"]
        assert (await sdk.responses.create(**options)).id == down.id
        assert (await sdk.responses.delete(down.id)) is None
        assert (await sdk.responses.retrieve(waits.id)).status == "completed"

    @both
    async def test_a_question_in_a_conversation_is_refused_while_it_is_busy(self, server: ApiServer, sdk: Any) -> None:
        made = await sdk.conversations.create()
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER], conversation=made.id)
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.responses.create(model="scripted", input="Hm?", conversation=made.id)
        assert busy.value.code == "conversation_locked"


class TestChosenModels:
    @both
    async def test_a_plain_model_answers_without_the_agent_of_the_conversation(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        body = {"name": "Helper", "instructions": "Help kindly.", "model": "scripted/own", "tools": ["count"]}
        agent = (await service.post("/v1/agents", json=body)).json()["id"]
        made = (await user.post("/v1/conversations", json={"agent_id": agent})).json()["id"]
        chained = await sdk.responses.create(model="agent/Helper", input="Hi")
        spoken: Any = [{"role": "user", "content": "Hi"}]

        async def asked(model: str | None, **place: Any) -> tuple[str, bool, list[str]]:
            given = {} if model is None else {"model": model}
            await sdk.responses.create(input="Hi", **given, **place)
            request = server.scripts.requests[-1]
            return request.model, "Help kindly." in str(request), [each.name for each in request.tools]

        helper, plain = ("scripted/own", True, ["count"]), ("scripted", False, list[str]())
        for place in ({"conversation": made}, {"previous_response_id": chained.id}):
            assert await asked("scripted", **place) == plain
            assert await asked("agent/Helper", **place) == helper
            assert await asked(None, **place) == helper
        await sdk.chat.completions.create(model="scripted", messages=spoken, metadata={"conversation_id": made})
        assert "Help kindly." not in str(server.scripts.requests[-1])
        await sdk.chat.completions.create(model="agent/Helper", messages=spoken, metadata={"conversation_id": made})
        assert server.scripts.requests[-1].model == "scripted/own"
        begun = await sdk.responses.create(model="scripted", input="Hi")
        assert await asked("agent/Helper", previous_response_id=begun.id) == helper
        assert (await user.read(f"/v1/conversations/{made}"))["agent_id"] == agent

    async def test_a_turn_of_an_agent_goes_on_only_with_it(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Helper"})
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="agent/Helper", input="Hi", tools=[WEATHER])
        output: Any = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}]
        with pytest.raises(openai.BadRequestError, match="keeps the options"):
            await sdk.responses.create(model="scripted", input=output, previous_response_id=first.id)
        done = await sdk.responses.create(model="agent/Helper", input=output, previous_response_id=first.id)
        assert done.output_text == "Hello there."


class TestEndings:
    @both
    async def test_a_response_is_cancelled_once(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say("Hello ", Pause(600), "there.")
        stream = await sdk.responses.create(model="scripted", input="Hi", background=True, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                for _ in range(2):
                    stopped = await sdk.responses.cancel(events[0].response.id)
                    assert stopped.status == "cancelled"
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.status == "cancelled"
        stopped = await sdk.responses.retrieve(events[0].response.id)
        assert stopped.output_text == "Hello "
        assert [item.status for item in (*stopped.output, *events[-1].response.output)] == ["incomplete"] * 2
        replayed = await events_of(await sdk.responses.retrieve(stopped.id, stream=True))
        for seen in (events, replayed):
            done = [event.item for event in seen if event.type == "response.output_item.done"]
            assert [(item.status, item.content[0].text) for item in done] == [("incomplete", "Hello ")]
            OpenResponses.check_response(seen[-1].response.to_dict())
        for event in events:
            rest = await sdk.responses.retrieve(stopped.id, stream=True, starting_after=event.sequence_number)
            numbers = [each.sequence_number async for each in rest]
            assert not numbers or numbers[0] > event.sequence_number

    @both
    async def test_only_the_item_that_was_cut_is_incomplete(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        server.scripts.say("I count.", Call("count", {"n": 1}))
        server.scripts.say(Think("Hm."), "Tw", Pause(600), "o.")
        stream = await sdk.responses.create(model="agent/Counter", input="Hi", background=True, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and event.delta == "Tw":
                await sdk.responses.cancel(events[0].response.id)
        done = [event.item for event in events if event.type == "response.output_item.done"]
        wanted = [("message", "completed"), ("mcp_call", "completed"), ("reasoning", "completed")]
        assert [(item.type, item.status) for item in done] == [*wanted, ("message", "incomplete")]
        assert [item.to_dict() for item in events[-1].response.output] == [item.to_dict() for item in done]
        stored = await sdk.responses.retrieve(events[0].response.id)
        assert stored.to_dict() == events[-1].response.to_dict()

    @both
    async def test_a_response_that_waits_for_outputs_is_cancelled(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        server.scripts.say("Let me look.", Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        place: Any = {"conversation": first.conversation.id}
        with pytest.raises(openai.BadRequestError) as busy:
            await sdk.responses.create(model="scripted", input="Hm?", **place)
        assert busy.value.code == "conversation_locked"
        assert f"Send the output of each call, or cancel the response {first.id}." in busy.value.message
        with pytest.raises(openai.BadRequestError, match=f"or cancel the response {first.id} first"):
            await sdk.responses.create(model="scripted", input="Hm?", previous_response_id=first.id)
        for _ in range(2):
            assert (await sdk.responses.cancel(first.id)).status == "cancelled"
        assert (await user.read(f"/v1/turns/{first.id.replace('resp_', 'turn_')}"))["status"] == "cancelled"
        stopped = await sdk.responses.retrieve(first.id)
        assert (stopped.status, [item.type for item in stopped.output]) == ("cancelled", ["message", "function_call"])
        OpenResponses.check_response(stopped.to_dict())
        events = await events_of(await sdk.responses.retrieve(first.id, stream=True))
        assert (events[-1].type, events[-1].response.to_dict()) == ("response.incomplete", stopped.to_dict())
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(f"{first.id}_1")
        late: Any = [{"type": "function_call_output", "call_id": first.output[1].call_id, "output": "sun"}]
        with pytest.raises(openai.APIStatusError):
            await sdk.responses.create(model="scripted", input=late, previous_response_id=first.id)
        for after in (place, {"previous_response_id": first.id}):
            assert (await sdk.responses.create(model="scripted", input="Hm?", **after)).status == "completed"

    async def test_a_response_that_waits_for_an_approval_is_cancelled(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}), Call("pay", {"amount": 6}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.")
        turn_id = first.id.replace("resp_", "turn_")
        [call, _] = (await user.read(f"/v1/turns/{turn_id}"))["waiting_for"]["calls"]
        decisions = [{"call_id": call["id"], "decision": "deny"}]
        await user.post(f"/v1/turns/{turn_id}/approvals", json={"decisions": decisions})
        with pytest.raises(openai.BadRequestError, match="Send its `mcp_approval_response`, or cancel"):
            await sdk.responses.create(model="agent/Payer", input="Hm?", conversation=first.conversation.id)
        assert (await sdk.responses.cancel(first.id)).status == "cancelled"
        done = await sdk.responses.create(model="agent/Payer", input="Hm?", conversation=first.conversation.id)
        assert done.output_text == "Hello there."

    async def test_a_turn_that_went_on_is_stopped_as_its_last_response(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.", background=True)
        async with sdk.responses.stream(response_id=first.id) as stream:
            first = await stream.get_final_response()
        decision: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": first.output[0].id,
            "approve": False,
        }
        reached = asyncio.Event()
        server.scripts.say(Until(reached.wait), "No.")
        second = await sdk.responses.create(
            model="agent/Payer", input=[decision], previous_response_id=first.id, background=True
        )
        assert (await sdk.responses.cancel(first.id)).status == "completed"
        assert (await sdk.responses.cancel(second.id)).status == "cancelled"
        assert (await sdk.responses.retrieve(first.id)).status == "completed"

    async def test_a_deleted_response_is_gone(self, sdk: Any) -> None:
        first = await sdk.responses.create(model="scripted", input="One")
        second = await sdk.responses.create(model="scripted", input="Two", previous_response_id=first.id)
        for response in (second, first):
            await sdk.responses.delete(response.id)
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.retrieve(response.id)

    async def test_a_response_that_goes_on_is_stopped_and_deleted(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        made = (await sdk.conversations.create()).id
        server.scripts.say("Hello ", Pause(600), "there.")
        running = await sdk.responses.create(model="scripted", input="Hi", conversation=made, background=True)
        await sdk.responses.delete(running.id)
        assert (await user.read(f"/v1/turns/{running.id.replace('resp_', 'turn_')}"))["status"] == "cancelled"
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(running.id)
        assert (await sdk.responses.create(model="scripted", input="Hi", conversation=made)).status == "completed"

    async def test_what_is_not_stored_cannot_be_read(self, server: ApiServer, sdk: Any) -> None:
        done = await sdk.responses.create(model="scripted", input="One", store=False)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(done.id)
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        called = await sdk.responses.create(model="scripted", input="One", store=False, tools=[WEATHER])
        assert [item.type for item in called.output] == ["function_call"]
        output = {"type": "function_call_output", "call_id": called.output[0].to_dict()["call_id"], "output": "sun"}
        again: Any = [{"role": "user", "content": "One"}, *(item.to_dict() for item in called.output), output]
        done = await sdk.responses.create(model="scripted", input=again, store=False, tools=[WEATHER])
        assert done.output_text == "Hello there."
        assert [each["role"] for each in server.scripts.requests[-1].messages] == ["user", "assistant", "tool"]

    async def test_another_user_finds_nothing(self, server: ApiServer, service: Client, sdk: Any) -> None:
        done = await sdk.responses.create(model="scripted", input="One")
        other = await server.user(service, "ben")
        assert (await other.get(f"/openai/v1/responses/{done.id}")).status_code == 404
        assert (await other.post(f"/openai/v1/responses/{done.id}/cancel")).status_code == 404
        body = {"model": "scripted", "input": "x", "previous_response_id": done.id}
        refused = await other.post("/openai/v1/responses", json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "previous_response_not_found")
        assert error["param"] == "previous_response_id"


class TestTools:
    @both
    async def test_a_call_ends_the_response_and_its_output_goes_on(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        server.scripts.say("Let me look.", Call("get_weather", {"city": "Bern"}))
        events = await events_of(
            await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER], stream=True)
        )
        first = events[-1].response
        assert first.status == "completed"
        assert [item.type for item in first.output] == ["message", "function_call"]
        called = first.output[1]
        assert json.loads(called.arguments) == {"city": "Bern"}
        with pytest.raises(openai.BadRequestError, match="No tool output found"):
            await sdk.responses.create(model="scripted", input="Hm?", previous_response_id=first.id)

        server.scripts.say("Sunny.")
        output: Any = [
            {"type": "function_call_output", "call_id": called.call_id, "output": "sun"},
            {"role": "user", "content": "In one word."},
        ]
        events = await events_of(
            await sdk.responses.create(
                model="scripted", input=output, tools=[WEATHER], previous_response_id=first.id, stream=True
            )
        )
        second = events[-1].response
        assert second.output_text == "Sunny."
        assert second.previous_response_id == first.id
        assert second.id != first.id
        assert (second.usage.total_tokens, first.usage.total_tokens) == (15, 15)
        assert [each["role"] for each in server.scripts.requests[-1].messages] == [
            "user",
            "assistant",
            "tool",
            "user",
        ]
        for one in (first, second):
            stored = await sdk.responses.retrieve(one.id)
            assert [item.to_dict() for item in stored.output] == [item.to_dict() for item in one.output]

    @both
    async def test_results_that_are_sent_again_get_the_same_response(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        call_id = first.output[0].to_dict()["call_id"]
        output: Any = [
            {"type": "function_call_output", "call_id": call_id, "output": "sun"},
            {"role": "user", "content": "In one word."},
        ]
        go_on = asyncio.Event()
        server.scripts.say(Until(go_on.wait), "Sunny.")
        lost: Any = sdk.with_options(timeout=1, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await lost.responses.create(model="scripted", input=output, previous_response_id=first.id)
        again = asyncio.create_task(sdk.responses.create(model="scripted", input=output, previous_response_id=first.id))
        go_on.set()
        second = await again
        assert second.output_text == "Sunny."
        third = await sdk.responses.create(model="scripted", input=output, previous_response_id=first.id)
        assert third.to_dict() == second.to_dict()
        roles = [each["role"] for each in server.scripts.requests[-1].messages]
        assert roles == ["user", "assistant", "tool", "user"]
        by_conversation = await sdk.responses.create(model="scripted", input=output, conversation=first.conversation.id)
        assert by_conversation.id == second.id
        other = [output[0], {"role": "user", "content": "In two words."}]
        with pytest.raises(openai.BadRequestError, match="with other words"):
            await sdk.responses.create(model="scripted", input=other, previous_response_id=first.id)
        output[0]["output"] = "rain"
        for place in ({"previous_response_id": first.id}, {"conversation": first.conversation.id}):
            with pytest.raises(openai.ConflictError, match="has its result already"):
                await sdk.responses.create(model="scripted", input=output, **place)

    async def test_a_turn_that_goes_on_keeps_its_options(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Other"})
        options: Any = {
            "model": "scripted",
            "instructions": "Be kind.",
            "tools": [WEATHER],
            "tool_choice": "required",
            "temperature": 0.5,
            "max_output_tokens": 100,
            "metadata": {"a": "b"},
            "text": {"format": {"type": "text"}},
            "store": True,
        }
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        words: Any = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Weather?"}]
        first = await sdk.responses.create(input=words, **options)
        output: Any = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}]
        place: Any = {"input": output, "previous_response_id": first.id}
        changes: list[tuple[str, Any]] = [
            ("temperature", 99),
            ("temperature", 1),
            ("max_output_tokens", 2),
            ("text", {"format": {"type": "json_object"}}),
            ("store", False),
            ("background", "yes"),
            ("tools", [{**WEATHER, "name": "get_time"}]),
            ("tool_choice", "none"),
            ("parallel_tool_calls", False),
            ("frequency_penalty", 0.5),
            ("seed", 7),
            ("stop", ["END"]),
            ("metadata", {"openai": "x"}),
        ]
        for name, value in changes:
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.create(extra_body={**options, **place, name: value})
            assert str(refused.value.param).startswith(name), name
        with pytest.raises(openai.BadRequestError, match="keeps the options with which it began") as refused:
            await sdk.responses.create(**{**options, **place, "model": "agent/Other"})
        assert refused.value.param == "model"
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(**{**options, **place, "model": "nope/none"})

        done = await sdk.responses.create(**options, **place)
        assert (done.output_text, done.temperature, done.metadata) == ("Hello there.", 0.5, {"a": "b"})
        again = await sdk.responses.create(**{**options, **place, "tool_choice": "auto"})
        assert again.to_dict() == done.to_dict()
        for change in ({"temperature": 1}, {"metadata": {"a": "c"}}):
            with pytest.raises(openai.BadRequestError, match="keeps the options"):
                await sdk.responses.create(**{**options, **place, **change})

    @both
    async def test_instructions_may_change_between_the_steps_of_a_turn(self, server: ApiServer, sdk: Any) -> None:
        """As dynamic instructions of OpenAI's Agents SDK do. Messages that instruct the model stay."""

        def told() -> Any:
            return server.scripts.requests[-1].messages[0]["content"]

        for _ in range(3):
            server.scripts.say(Call("get_weather", {"city": "Bern"}))
        options: Any = {"model": "scripted", "tools": [WEATHER]}
        words: Any = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Weather?"}]
        done = [await sdk.responses.create(input=words, instructions="Step 1.", **options)]
        assert told() == "Step 1.\n\nBe short."
        steps: list[tuple[Any, list[Any], str]] = [
            ({"instructions": "Step 2."}, [], "Step 2.\n\nBe short."),
            ({}, [{"role": "system", "content": "Be kind."}], "Step 2.\n\nBe short.\n\nBe kind."),
            ({"instructions": ""}, words[:1], "Be short.\n\nBe kind."),
        ]
        for given, more, wanted in steps:
            last = done[-1]
            output = {"type": "function_call_output", "call_id": last.output[-1].call_id, "output": "sun"}
            place = {"input": [output, *more], "previous_response_id": last.id, **given, **options}
            done.append(await sdk.responses.create(**place))
            assert told() == wanted
            assert (await sdk.responses.create(**place)).to_dict() == done[-1].to_dict(), "the same request again"
            with pytest.raises(openai.BadRequestError, match="keeps the options"):
                await sdk.responses.create(**{**place, "instructions": "Another step."})
        assert done[-1].output_text == "Hello there."
        stored = [await sdk.responses.retrieve(each.id) for each in done]
        assert [each.to_dict() for each in stored] == [each.to_dict() for each in done]
        assert [each.instructions for each in stored] == ["Step 1.\n\nBe short.", *(wanted for *_, wanted in steps)]

    @both
    async def test_each_response_of_a_turn_has_its_metadata(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Hi", tools=[WEATHER], metadata={"a": "1", "b": "1"})
        output: Any = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}]
        place: Any = {"input": output, "previous_response_id": first.id, "metadata": {"a": "2"}}
        second = await sdk.responses.create(model="scripted", **place)
        assert second.metadata == {"a": "2"}
        assert (await sdk.responses.create(model="scripted", **place)).to_dict() == second.to_dict()
        stored = [await sdk.responses.retrieve(each.id) for each in (first, second)]
        assert [each.metadata for each in stored] == [{"a": "1", "b": "1"}, {"a": "2"}]

    async def test_files_beside_results_are_refused(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        file = await sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="user_data")
        output: Any = [
            {"type": "function_call_output", "call_id": first.output[0].to_dict()["call_id"], "output": "sun"},
            {"role": "user", "content": [{"type": "input_file", "file_id": file.id}]},
        ]
        with pytest.raises(openai.BadRequestError, match="files cannot be sent beside"):
            await sdk.responses.create(model="scripted", input=output, previous_response_id=first.id)

    async def test_a_person_approves_a_call(self, server: ApiServer, service: Client, sdk: Any) -> None:
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        for approve, outcome in ((True, "completed"), (False, "failed")):
            server.scripts.say(Call("pay", {"amount": 5}))
            first = await sdk.responses.create(model="agent/Payer", input="Pay.")
            [request] = first.output
            assert request.type == "mcp_approval_request"
            assert json.loads(request.arguments) == {"amount": 5}
            decision: Any = {
                "type": "mcp_approval_response",
                "approval_request_id": request.id,
                "approve": approve,
            }
            events = await events_of(
                await sdk.responses.create(
                    model="agent/Payer", input=[decision], previous_response_id=first.id, stream=True
                )
            )
            call = events[-1].response.output[0]
            assert (call.type, call.status) == ("mcp_call", outcome)

    async def test_another_device_may_decide_about_one_of_several_calls(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        """A decision begins no response: the first one stays the last until the turn goes on."""
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}), Call("pay", {"amount": 6}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.")
        _, second = first.output
        turn_id = first.id.replace("resp_", "turn_")
        turn = await user.read(f"/v1/turns/{turn_id}")
        decisions = [{"call_id": turn["waiting_for"]["calls"][0]["id"], "decision": "deny"}]
        await user.post(f"/v1/turns/{turn_id}/approvals", json={"decisions": decisions})
        assert (await sdk.responses.retrieve(first.id)).output == first.output
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(f"{first.id}_1")
        rest: Any = {"type": "mcp_approval_response", "approval_request_id": second.id, "approve": True}
        done = await sdk.responses.create(model="agent/Payer", input=[rest], previous_response_id=first.id)
        assert [call.status for call in done.output if call.type == "mcp_call"] == ["failed", "completed"]

    @both
    async def test_a_decision_that_is_sent_again_gets_the_same_response(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.")
        decision: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": first.output[0].id,
            "approve": True,
        }
        places: list[Any] = [{"previous_response_id": first.id}, {"conversation": first.conversation.id}]
        asked = [sdk.responses.create(model="agent/Payer", input=[decision], **place) for place in (*places, *places)]
        [done, *others] = await asyncio.gather(*asked)
        assert (done.output[0].status, done.output_text) == ("completed", "Hello there.")
        assert [other.to_dict() for other in others] == [done.to_dict()] * 3
        assert len(server.scripts.requests) == 2
        again = await sdk.responses.create(model="agent/Payer", input=[decision], **places[0])
        assert again.to_dict() == done.to_dict()
        for place in places:
            with pytest.raises(openai.ConflictError, match="decided already") as refused:
                await sdk.responses.create(model="agent/Payer", input=[{**decision, "approve": False}], **place)
            assert refused.value.code == "already_decided"

    async def test_a_decision_about_nothing_is_refused(self, server: ApiServer, service: Client, sdk: Any) -> None:
        words: Any = {"role": "user", "content": "Hi"}
        decision: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_call_1", "approve": True}
        with pytest.raises(openai.BadRequestError, match="No approval request"):
            await sdk.responses.create(model="scripted", input=[decision, words])
        tools = [{"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Payer", "tools": tools})
        server.scripts.say(Call("pay", {"amount": 5}))
        first = await sdk.responses.create(model="agent/Payer", input="Pay.")
        unclear = {**decision, "approval_request_id": first.output[0].id, "approve": "perhaps"}
        with pytest.raises(openai.BadRequestError, match="true or false"):
            await sdk.responses.create(model="agent/Payer", input=[unclear, words], previous_response_id=first.id)
        stray = {"type": "function_call_output", "call_id": "call_none", "output": "x"}
        answers: Any = [{**unclear, "approve": True}, stray]
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            await sdk.responses.create(model="agent/Payer", input=answers, previous_response_id=first.id)
        listed = (await sdk.conversations.items.list(first.conversation.id)).data
        assert [item.type for item in listed] == ["mcp_approval_request", "message"]
        past = {
            "id": "mcpr_call_1",
            "type": "mcp_approval_request",
            "server_label": "x",
            "name": "pay",
            "arguments": "{}",
        }
        done = await sdk.responses.create(model="scripted", input=[past, decision, words])
        assert done.status == "completed"

    async def test_it_is_the_same_turn_natively(self, server: ApiServer, user: Client, sdk: Any) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        turn_id = first.id.replace("resp_", "turn_")
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert turn["status"] == "waiting"
        server.scripts.say("Sunny.")
        results = [{"call_id": turn["waiting_for"]["calls"][0]["id"], "result": "sun"}]
        await user.post(f"/v1/turns/{turn_id}/results", json={"results": results})
        async with sdk.responses.stream(response_id=f"{first.id}_1") as stream:
            assert (await stream.get_final_response()).output_text == "Sunny."


class TestUsage:
    @both
    async def test_responses_count_as_turns_do(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        call_id = first.output[0].to_dict()["call_id"]
        output: Any = [{"type": "function_call_output", "call_id": call_id, "output": "sun"}]
        second = await sdk.responses.create(model="scripted", input=output, previous_response_id=first.id)
        used = await user.read("/v1/usage")
        assert used["messages"] == 1
        assert used["input_tokens"] == first.usage.input_tokens + second.usage.input_tokens
        assert used["output_tokens"] == first.usage.output_tokens + second.usage.output_tokens
        await service.patch("/v1/users/ann", json={"monthly_message_limit": 1})
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.responses.create(model="scripted", input="Hi")
        assert refused.value.code == "insufficient_quota"

    @both
    async def test_a_stopped_response_says_what_it_has_used(
        self, server: ApiServer, user: Client, service: Client, sdk: Any
    ) -> None:
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        server.scripts.say(Call("count", {"n": 1}))
        server.scripts.say("Two ", Pause(600))
        stream = await sdk.responses.create(model="agent/Counter", input="Hi", tools=[WEATHER], stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                await sdk.responses.cancel(events[0].response.id)
        stopped = await sdk.responses.retrieve(events[0].response.id)
        used = await user.read("/v1/usage")
        assert used["output_tokens"] > 0
        for response in (stopped, events[-1].response):
            assert response.status == "cancelled"
            assert response.usage.input_tokens == used["input_tokens"]
            assert response.usage.output_tokens == used["output_tokens"]

    async def test_a_response_that_is_stopped_while_it_waits_says_what_it_has_used(
        self, server: ApiServer, sdk: Any
    ) -> None:
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        first = await sdk.responses.create(model="scripted", input="Weather?", tools=[WEATHER])
        assert (await sdk.responses.cancel(first.id)).usage == first.usage


class TestOptions:
    async def test_options_reach_the_provider_and_are_shown_again(self, server: ApiServer, sdk: Any) -> None:
        server.scripts.say('{"n": 1}')
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        done = await sdk.responses.create(
            model="scripted",
            input="Hi",
            temperature=0.5,
            top_p=0.9,
            max_output_tokens=100,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            text={"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
            extra_body={"stop": ["END"], "seed": 7, "frequency_penalty": 0.1, "presence_penalty": 0.2},
        )
        given = server.scripts.requests[-1].sampling
        assert (given.stop, given.seed, given.frequency_penalty, given.presence_penalty) == (("END",), 7, 0.1, 0.2)
        assert (given.temperature, given.top_p, given.max_tokens) == (0.5, 0.9, 100)
        assert (given.tool_choice, given.parallel_tool_calls) == ("required", False)
        assert given.output is not None
        assert given.output.schema == schema
        assert (done.temperature, done.top_p, done.max_output_tokens) == (0.5, 0.9, 100)
        assert (done.tool_choice, done.parallel_tool_calls) == ("required", False)

    async def test_one_call_at_a_time_is_shown_without_tools_too(self, server: ApiServer, sdk: Any) -> None:
        done = await sdk.responses.create(model="scripted", input="Hi", parallel_tool_calls=False)
        assert (done.parallel_tool_calls, server.scripts.requests[-1].sampling.parallel_tool_calls) == (False, False)

    async def test_a_tool_of_the_agent_may_be_chosen(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        server.scripts.say(Call("count", {"n": 1}))
        choice: Any = {"type": "function", "name": "count"}
        await sdk.responses.create(model="agent/Counter", input="Hi", tools=[WEATHER], tool_choice=choice)
        assert server.scripts.requests[-2].sampling.tool == "count"
        with pytest.raises(openai.BadRequestError, match="no tool called 'pay'"):
            await sdk.responses.create(
                model="agent/Counter", input="Hi", tools=[WEATHER], tool_choice={**choice, "name": "pay"}
            )

    @pytest.mark.parametrize(
        "given",
        [
            {"truncation": "auto"},
            {"include": ["message.output_text.logprobs"]},
            {"top_logprobs": 3},
            {"reasoning": {"effort": "high"}},
            {"tools": [{"type": "web_search"}]},
            {"input": []},
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            {"background": True, "store": False},
            {"text": {"verbosity": "low"}},
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "name": "get_time"}, "tools": [WEATHER]},
            {"input": [{"role": "user", "content": "Hi"}, {"type": "web_search_call", "id": "ws_1"}]},
            {"temperature": 3},
            {"top_p": "high"},
            {"max_output_tokens": 0},
            {"parallel_tool_calls": "no", "tools": [WEATHER]},
            {"stop": ["a", "b", "c", "d", "e"]},
            {"seed": 1.5},
            {"metadata": {"openai": "x"}},
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
        ],
        ids=str,
    )
    async def test_what_cannot_be_honoured_is_refused(self, sdk: Any, given: Any) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="scripted", extra_body={"input": "Hi", **given})
        assert str(refused.value.param).startswith(next(iter(given)))
