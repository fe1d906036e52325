"""Conversations, their items, and files at /openai/v1, by OpenAI's own SDK with strict validation."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call, Think
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

HELLO: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
ANSWER: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL: Any = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"n":1}'}
OUTPUT: Any = {"type": "function_call_output", "call_id": "call_1", "output": "one"}


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


def asking(text: str) -> Any:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def texts_of(sdk: Any, conversation_id: str, **query: Any) -> list[str]:
    found: list[str] = []
    async for item in sdk.conversations.items.list(conversation_id, order="asc", **query):
        fields: Any = item.to_dict()
        found.append(fields["content"][0]["text"] if fields["type"] == "message" else fields["type"])
    return found


class TestConversations:
    @both
    async def test_a_conversation_is_made_read_changed_and_deleted(self, user: Client, sdk: Any) -> None:
        made = await sdk.conversations.create(metadata={"topic": "a"})
        assert (await sdk.conversations.retrieve(made.id)).metadata == {"topic": "a"}
        changed = await sdk.conversations.update(made.id, metadata={"topic": "b"})
        assert changed.metadata == {"topic": "b"}
        assert [each["id"] for each in (await user.read("/v1/conversations"))["data"]] == [made.id]
        assert (await sdk.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.retrieve(made.id)

    async def test_a_change_without_metadata_keeps_it(self, user: Client, sdk: Any) -> None:
        made = await sdk.conversations.create(metadata={"a": "b"})
        for body in ({}, {"metadata": None}):
            changed = await user.post(f"/openai/v1/conversations/{made.id}", json=body)
            assert (changed.status_code, changed.json()["metadata"]) == (200, {"a": "b"})
        assert (await sdk.conversations.update(made.id, metadata={})).metadata == {}

    async def test_another_user_finds_nothing(self, server: ApiServer, service: Client, sdk: Any) -> None:
        made = await sdk.conversations.create(items=[HELLO])
        other = await server.user(service, "ben")
        path = f"/openai/v1/conversations/{made.id}"
        assert (await other.get(path)).status_code == 404
        assert (await other.get(f"{path}/items")).status_code == 404
        assert (await other.post(f"{path}/items", json={"items": [HELLO]})).status_code == 404


class TestItems:
    @both
    async def test_items_are_added_listed_and_seen_by_the_model(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        made = await sdk.conversations.create(items=[HELLO, ANSWER])
        added = await sdk.conversations.items.create(made.id, items=[HELLO, CALL, OUTPUT, ANSWER])
        assert [item.type for item in added.data] == ["message", "function_call", "function_call_output", "message"]
        wanted = ["Hello?", "Hi.", "Hello?", "function_call", "function_call_output", "Hi."]
        assert await texts_of(sdk, made.id) == wanted
        assert await texts_of(sdk, made.id, limit=2) == wanted
        newest = await sdk.conversations.items.list(made.id, limit=1)
        assert newest.data[0].id == added.data[-1].id
        one = await sdk.conversations.items.retrieve(added.data[1].id or "", conversation_id=made.id)
        assert one.type == "function_call"
        await sdk.responses.create(model="scripted", input="And?", conversation=made.id)
        roles = [each["role"] for each in server.scripts.requests[-1].messages]
        assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
        assert (await texts_of(sdk, made.id))[-2:] == ["And?", "Hello there."]
        read = await user.read(f"/v1/conversations/{made.id}/messages")
        assert [each["role"] for each in read["data"]] == ["user", "assistant"] * 3

    @both
    async def test_items_are_deleted_from_the_last_to_the_first(self, sdk: Any) -> None:
        made = await sdk.conversations.create(items=[HELLO, CALL, OUTPUT, ANSWER])
        left = ["Hello?", "function_call", "function_call_output", "Hi."]
        while left:
            [last] = (await sdk.conversations.items.list(made.id, limit=1)).data
            gone = await sdk.conversations.items.delete(last.id or "", conversation_id=made.id)
            assert gone.id == made.id
            left.pop()
            assert await texts_of(sdk, made.id) == left
        await sdk.conversations.items.create(made.id, items=[HELLO])
        assert await texts_of(sdk, made.id) == ["Hello?"]

    @both
    async def test_a_server_that_dies_leaves_all_items_or_all_but_the_last(
        self, server: ApiServer, sdk: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = await sdk.conversations.create(items=[HELLO, CALL, OUTPUT, ANSWER])
        [last] = (await sdk.conversations.items.list(made.id, limit=1)).data
        store, writes = server.runtime.store, list[str]()

        def dies_after_one_write(name: str) -> Any:
            write = getattr(store, name)

            async def wrapped(*args: Any) -> Any:
                writes.append(name)
                if len(writes) > 1:
                    raise RuntimeError("the server died")
                return await write(*args)

            return wrapped

        with monkeypatch.context() as patched:
            for name in ("change_conversation", "append"):
                patched.setattr(store, name, dies_after_one_write(name))
            await sdk.conversations.items.delete(last.id or "", conversation_id=made.id)
        assert await texts_of(sdk, made.id) == ["Hello?", "function_call", "function_call_output"]

    async def test_a_batch_has_at_most_20_items(self, sdk: Any) -> None:
        made = await sdk.conversations.create()
        with pytest.raises(openai.BadRequestError, match="1 to 20"):
            await sdk.conversations.items.create(made.id, items=[HELLO] * 21)
        assert await texts_of(sdk, made.id) == []

    async def test_calls_of_server_tools_that_come_back_are_calls_with_results(self, sdk: Any) -> None:
        called = {"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "count", "arguments": "{}"}
        asked = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "x", "name": "a", "arguments": "{}"}
        decided = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
        made = await sdk.conversations.create(items=[HELLO, asked, decided, {**called, "output": "2"}, ANSWER])
        assert await texts_of(sdk, made.id) == ["Hello?", "function_call", "function_call_output", "Hi."]
        assert (await sdk.conversations.items.create(made.id, items=[asked, decided])).data == []
        with pytest.raises(openai.BadRequestError, match="references"):
            await sdk.conversations.items.create(made.id, items=[{"type": "item_reference", "id": "msg_1"}])

    @both
    async def test_long_turns_are_listed_whole(self, sdk: Any) -> None:
        """More rows than one read of the store has."""
        steps = [{**item, "call_id": f"call_{number}"} for number in range(30) for item in (CALL, OUTPUT)]
        history: Any = [*[HELLO, *steps, ANSWER] * 40, HELLO]
        done = await sdk.responses.create(model="scripted", input=history)
        found = [item async for item in sdk.responses.input_items.list(done.id, limit=100)]
        assert len(found) == len(history)
        found = [item async for item in sdk.conversations.items.list(done.conversation.id, limit=100)]
        assert len({item.id for item in found}) == len(history) + 1

    @both
    async def test_items_of_responses_are_those_of_their_input_and_output(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        """Also after the turns were compacted."""
        tools = ["count", {"type": "native", "name": "pay", "approval": "always"}]
        await service.post("/v1/agents", json={"name": "Counter", "tools": tools})
        made = await sdk.conversations.create(items=[HELLO, ANSWER])
        options: Any = {"model": "agent/Counter", "conversation": made.id, "tools": [WEATHER]}
        server.scripts.say(Think("Hm."), "I count.", Call("count", {"n": 1}))
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        server.scripts.say(Call("pay", {"amount": 5}))
        words: Any = [{"role": "user", "content": "One"}, {"role": "user", "content": "Two"}]
        first = await sdk.responses.create(input=words, **options)
        output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "sun"}
        second = await sdk.responses.create(input=[output, {"role": "user", "content": "In a word."}], **options)
        decided = {"type": "mcp_approval_response", "approval_request_id": second.output[-1].id, "approve": False}
        third = await sdk.responses.create(input=[decided], **options)
        wanted: list[Any] = []
        for response in (first, second, third):
            inputs = [item.to_dict() async for item in sdk.responses.input_items.list(response.id, order="asc")]
            wanted += [*inputs, *(item.to_dict() for item in response.output)]
        kinds = [item["type"] for item in wanted]
        assert kinds == [
            *("message", "message", "reasoning", "message", "mcp_call", "function_call"),
            *("function_call_output", "message", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
            "message",
        ]
        for _ in range(2):
            listed = [item.to_dict() async for item in sdk.conversations.items.list(made.id, order="asc", limit=3)]
            assert listed[2:] == wanted
            assert len({item["id"] for item in listed}) == len(listed)
            newest = [item.to_dict() async for item in sdk.conversations.items.list(made.id, limit=1)]
            assert newest == listed[::-1]
            for item in listed:
                one = await sdk.conversations.items.retrieve(item["id"], conversation_id=made.id)
                assert one.to_dict() == item
            while await server.runtime.store.compact(settled_before=2**60):
                pass

    @both
    async def test_long_conversations_are_read_page_by_page(
        self, server: ApiServer, user: Client, sdk: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store is asked for the turns of the page, and for no others."""
        made = await sdk.conversations.create()
        for start in range(0, 120, 10):
            batch = [item for number in range(start, start + 10) for item in (asking(f"q{number}"), ANSWER)]
            await sdk.conversations.items.create(made.id, items=batch)
        forward = [item.id async for item in sdk.conversations.items.list(made.id, order="asc", limit=100)]
        assert len(set(forward)) == 240
        assert [item.id async for item in sdk.conversations.items.list(made.id, limit=100)] == forward[::-1]
        store, read = server.runtime.store, list[str]()
        turn_rows = store.turn_rows

        async def counted(turn_id: Any) -> Any:
            read.append(turn_id)
            return await turn_rows(turn_id)

        with monkeypatch.context() as patched:
            patched.setattr(store, "turn_rows", counted)
            page = await sdk.conversations.items.list(made.id, order="asc", limit=4, after=forward[199])
        assert [item.id for item in page.data] == forward[200:204]
        assert len(read) <= 4
        for wrong in ({"after": "msg_1"}, {"after": f"msg_{'0' * 32}_r0"}, {"limit": 0}, {"order": "up"}):
            refused = await user.get(f"/openai/v1/conversations/{made.id}/items", params=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
        other = await sdk.conversations.create(items=[HELLO])
        refused = await user.get(f"/openai/v1/conversations/{other.id}/items/{forward[0]}")
        assert refused.status_code == 404

    async def test_a_call_and_its_result_may_come_in_two_batches(self, server: ApiServer, sdk: Any) -> None:
        """As a session of the Agents SDK sends a long history: 20 items at a time."""
        made = await sdk.conversations.create(items=[HELLO, CALL])
        await sdk.conversations.items.create(made.id, items=[OUTPUT, ANSWER])
        await sdk.responses.create(model="scripted", input="And?", conversation=made.id)
        sent = server.scripts.requests[-1].messages
        assert [each["role"] for each in sent] == ["user", "assistant", "tool", "assistant", "user"]
        assert sent[2]["content"] == "one"
        items = (await sdk.conversations.items.list(made.id, order="asc")).data
        await sdk.conversations.items.delete(items[2].id, conversation_id=made.id)
        await sdk.responses.create(model="scripted", input="And?", conversation=made.id)
        sent = server.scripts.requests[-1].messages
        assert [each["role"] for each in sent] == ["user", "assistant", "user", "assistant", "user"]


class TestDeletedItems:
    """Any item can be deleted. What is left is a history that every provider accepts."""

    async def seen(self, server: ApiServer, sdk: Any, conversation_id: str) -> list[Any]:
        """What the model is sent with the next question, which is then deleted with its answer."""
        await sdk.responses.create(model="scripted", input="And?", conversation=conversation_id)
        for _ in range(2):
            [last] = (await sdk.conversations.items.list(conversation_id, limit=1)).data
            await sdk.conversations.items.delete(last.id, conversation_id=conversation_id)
        messages: list[Any] = server.scripts.requests[-1].messages
        assert messages[-1]["content"] == "And?"
        return messages[:-1]

    @both
    async def test_a_message_in_the_middle(self, server: ApiServer, user: Client, sdk: Any) -> None:
        made = await sdk.conversations.create(items=[asking("first"), ANSWER])
        done = [
            await sdk.responses.create(model="scripted", input=f"number {place}", conversation=made.id)
            for place in range(3)
        ]
        listed = [item async for item in sdk.conversations.items.list(made.id, order="asc")]
        question, answer = listed[4], listed[5]
        for item in (question, answer, listed[0]):
            assert (await sdk.conversations.items.delete(item.id, conversation_id=made.id)).id == made.id
            with pytest.raises(openai.NotFoundError):
                await sdk.conversations.items.delete(item.id, conversation_id=made.id)
            with pytest.raises(openai.NotFoundError):
                await sdk.conversations.items.retrieve(item.id, conversation_id=made.id)
        left = [item.id async for item in sdk.conversations.items.list(made.id, order="asc", limit=2)]
        assert left == [item.id for item in listed if item not in (question, answer, listed[0])]
        sent = str(await self.seen(server, sdk, made.id))
        assert ("first" in sent, "number 0" in sent, "number 1" in sent, "number 2" in sent) == (
            False,
            True,
            False,
            True,
        )
        assert (await sdk.responses.retrieve(done[1].id)).to_dict() == done[1].to_dict()
        read = (await user.read(f"/v1/conversations/{made.id}/messages"))["data"]
        said = [each["content"][0]["text"] for each in read]
        assert said == ["Hi.", "number 0", "Hello there.", "number 2", "Hello there."]
        assert (await user.read(f"/v1/conversations/{made.id}"))["message_count"] == len(said)
        assert (await user.read("/v1/conversations", params={"q": "first"}))["data"][0]["title"] == "first"
        assert (await user.read("/v1/conversations", params={"q": '"number 1"'}))["data"] == []

    @both
    async def test_a_call_and_its_result_are_not_sent_any_more_when_one_of_them_is_deleted(
        self, server: ApiServer, sdk: Any
    ) -> None:
        for place, kind in ((1, "function_call_output"), (2, "function_call")):
            made = await sdk.conversations.create(items=[HELLO, CALL, OUTPUT, ANSWER])
            items = (await sdk.conversations.items.list(made.id, order="asc")).data
            await sdk.conversations.items.delete(items[place].id, conversation_id=made.id)
            assert await texts_of(sdk, made.id) == ["Hello?", kind, "Hi."]
            sent = await self.seen(server, sdk, made.id)
            assert [each["role"] for each in sent] == ["user", "assistant"]
            await sdk.conversations.items.delete(items[3 - place].id, conversation_id=made.id)
            assert await texts_of(sdk, made.id) == ["Hello?", "Hi."]

    @both
    async def test_calls_and_reasoning_of_a_response(self, server: ApiServer, service: Client, sdk: Any) -> None:
        await service.post("/v1/agents", json={"name": "Counter", "tools": ["count"]})
        made = await sdk.conversations.create()
        server.scripts.say(Think("Hm."), "I count.", Call("count", {"n": 1}))
        server.scripts.say("Two.")
        done = await sdk.responses.create(model="agent/Counter", input="Count.", conversation=made.id)
        assert [item.type for item in done.output] == ["reasoning", "message", "mcp_call", "message"]
        roles = [each["role"] for each in await self.seen(server, sdk, made.id)]
        assert roles == ["user", "assistant", "tool", "assistant"]
        for place, left in ((2, ["Count.", "I count.\n\nTwo."]), (1, ["Count.", "Two."]), (3, ["Count."])):
            await sdk.conversations.items.delete(done.output[place].id, conversation_id=made.id)
            sent = await self.seen(server, sdk, made.id)
            words = [each["content"] for each in sent if isinstance(each["content"], str)]
            assert [text for text in words if not text.startswith("(")] == left
            assert "tool_calls" not in str(sent)
        assert [item.type async for item in sdk.conversations.items.list(made.id, order="asc")] == [
            "message",
            "reasoning",
        ]
        assert len((await sdk.responses.retrieve(done.id)).output) == 4

    async def test_a_file_goes_with_its_message(self, server: ApiServer, sdk: Any) -> None:
        made = await sdk.conversations.create(items=[naming(NOTES), ANSWER])
        assert "Buy milk." in str(await self.seen(server, sdk, made.id))
        first = (await sdk.conversations.items.list(made.id, order="asc")).data[0]
        await sdk.conversations.items.delete(first.id, conversation_id=made.id)
        assert "Buy milk." not in str(await self.seen(server, sdk, made.id))

    async def test_one_of_several_messages_of_a_question(self, server: ApiServer, sdk: Any) -> None:
        made = await sdk.conversations.create()
        words: Any = [{"role": "user", "content": text} for text in ("One", "Two")]
        await sdk.responses.create(model="scripted", input=words, conversation=made.id)
        first = (await sdk.conversations.items.list(made.id, order="asc")).data[0]
        await sdk.conversations.items.delete(first.id, conversation_id=made.id)
        assert (await texts_of(sdk, made.id))[0] == "Two"
        sent = await self.seen(server, sdk, made.id)
        assert ("One" in str(sent), "Two" in str(sent)) == (False, True)

    @both
    async def test_is_refused_while_a_turn_runs_or_waits(self, server: ApiServer, sdk: Any) -> None:
        made = await sdk.conversations.create(items=[HELLO, ANSWER])
        server.scripts.say(Call("get_weather", {"city": "Bern"}))
        await sdk.responses.create(model="scripted", input="Hi", tools=[WEATHER], conversation=made.id)
        first = (await sdk.conversations.items.list(made.id, order="asc")).data[0]
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.conversations.items.delete(first.id, conversation_id=made.id)
        assert refused.value.code == "conversation_locked"

    async def test_stay_deleted_when_the_conversation_is_moved(
        self, server: ApiServer, service: Client, sdk: Any
    ) -> None:
        made = await sdk.conversations.create(items=[asking("first"), ANSWER, asking("second"), ANSWER])
        first = (await sdk.conversations.items.list(made.id, order="asc")).data[0]
        await sdk.conversations.items.delete(first.id, conversation_id=made.id)
        exported = await service.get(f"/v1/conversations/{made.id}/export")
        headers = {"content-type": "application/json"}
        moved = await service.post("/v1/conversations/import", content=exported.content, headers=headers)
        own = moved.json()["conversation"]["id"]
        listed = (await service.read(f"/openai/v1/conversations/{own}/items?order=asc"))["data"]
        assert [item["content"][0]["text"] for item in listed] == ["Hi.", "second", "Hi."]
        asked = {"model": "scripted", "input": "And?", "conversation": own}
        assert (await service.post("/openai/v1/responses", json=asked)).status_code == 200
        assert "first" not in str(server.scripts.requests[-1].messages)


def naming(*parts: Any) -> Any:
    """A message of the user with these parts, and a text."""
    return {"type": "message", "role": "user", "content": [*parts, {"type": "input_text", "text": "Look."}]}


NOTES: Any = {
    "type": "input_file",
    "filename": "notes.txt",
    "file_data": f"data:text/plain;base64,{base64.b64encode(b'Buy milk.').decode()}",
}


class TestFilesInHistories:
    @both
    async def test_they_are_attachments_of_items(self, server: ApiServer, user: Client, sdk: Any) -> None:
        file = await sdk.files.create(file=("list.txt", b"Buy bread."), purpose="user_data")
        named: Any = {"type": "input_file", "file_id": file.id}
        for made in (
            await sdk.conversations.create(items=[naming(named, NOTES), ANSWER]),
            await sdk.conversations.create(),
        ):
            if not (await sdk.conversations.items.list(made.id)).data:
                added = await sdk.conversations.items.create(made.id, items=[naming(named, NOTES), ANSWER])
                assert [part.type for part in added.data[0].content] == ["input_text", "input_file", "input_file"]
            bag = (await user.read(f"/v1/conversations/{made.id}/files"))["data"]
            assert sorted(each["name"] for each in bag) == ["list.txt", "notes.txt"]
            [asked, _] = (await user.read(f"/v1/conversations/{made.id}/messages"))["data"]
            assert sorted(each["name"] for each in asked["attachments"]) == ["list.txt", "notes.txt"]
            await sdk.responses.create(model="scripted", input="And?", conversation=made.id)
            seen = str(server.scripts.requests[-1].messages)
            assert ("Buy bread." in seen, "Buy milk." in seen) == (True, True)
            last = (await sdk.conversations.items.list(made.id, limit=1)).data[0]
            await sdk.conversations.items.delete(last.id, conversation_id=made.id)
        assert (await sdk.files.retrieve(file.id)).filename == "list.txt"
        assert [each.id async for each in sdk.files.list()] == []

    @both
    async def test_they_are_attachments_of_the_history_of_a_request(
        self, server: ApiServer, user: Client, sdk: Any
    ) -> None:
        file = await sdk.files.create(file=("list.txt", b"Buy bread."), purpose="user_data")
        named: Any = {"type": "input_file", "file_id": file.id}
        history: Any = [naming(named, NOTES), ANSWER, naming(named)]
        made = await sdk.conversations.create()
        for place in ({}, {}, {"conversation": made.id}):
            done = await sdk.responses.create(model="scripted", input=history, **place)
            messages = server.scripts.requests[-1].messages
            assert "Buy bread." in str(messages[0])
            assert "Buy milk." in str(messages[0])
            assert "Buy bread." in str(messages[-1])
            bag = (await user.read(f"/v1/conversations/{done.conversation.id}/files"))["data"]
            assert sorted(each["name"] for each in bag) == ["list.txt", "notes.txt"]
        spoken: Any = [
            {"role": "user", "content": [{"type": "file", "file": {**NOTES, "type": None}}]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "And?"},
        ]
        await sdk.chat.completions.create(model="scripted", messages=spoken)
        assert "Buy milk." in str(server.scripts.requests[-1].messages[0])
        await sdk.chat.completions.create(model="scripted", messages=spoken[:1], metadata={"conversation_id": made.id})
        assert "Buy milk." in str(server.scripts.requests[-1].messages[-1])
        assert [each.id async for each in sdk.files.list()] == []

    @both
    async def test_what_cannot_be_had_is_refused_and_nothing_is_left(
        self, server: ApiServer, service: Client, user: Client, sdk: Any
    ) -> None:
        other = await server.user(service, "ben")
        foreign = (
            await other.post("/openai/v1/files", files={"file": ("a.txt", b"secret")}, data={"purpose": "user_data"})
        ).json()["id"]
        made = await sdk.conversations.create(items=[HELLO])
        refused: list[tuple[int, Any]] = [
            (404, {"type": "input_file", "file_id": foreign}),
            (404, {"type": "input_image", "file_id": foreign, "detail": "auto"}),
            (400, {"type": "input_file", "file_url": "https://example.com/a.pdf"}),
            (400, {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,%%%"}),
            (400, {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain,hello"}),
            (400, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        ]
        for status, part in refused:
            items = [naming(NOTES, part), ANSWER]
            history = {"model": "scripted", "input": [*items, HELLO]}
            for path, body in (
                ("conversations", {"items": items}),
                (f"conversations/{made.id}/items", {"items": items}),
                ("responses", history),
                ("responses", {**history, "conversation": made.id}),
                ("responses", {"model": "scripted", "input": [naming(part)]}),
            ):
                answer = await user.post(f"/openai/v1/{path}", json=body)
                assert (answer.status_code, part["type"]) == (status, part["type"]), answer.text
        assert await texts_of(sdk, made.id) == ["Hello?"]
        assert [each["id"] for each in (await user.read("/v1/conversations"))["data"]] == [made.id]
        assert [each.id async for each in sdk.files.list()] == []
        spoken = {"type": "message", "role": "assistant", "content": [NOTES]}
        with pytest.raises(openai.BadRequestError, match="only messages of the user"):
            await sdk.conversations.items.create(made.id, items=[spoken])

    async def test_a_message_and_a_request_have_so_many_files_at_most(self, user: Client) -> None:
        ids = [{"type": "input_file", "file_id": f"file_{number:032x}"} for number in range(110)]
        many = {"model": "scripted", "input": [naming(*ids[:11])]}
        refused = await user.post("/openai/v1/responses", json=many)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_files")
        many["input"] = [naming(*ids[:6]), naming(*ids[6:12])]  # two messages, and one question
        refused = await user.post("/openai/v1/responses", json=many)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_files")
        history = [item for start in range(0, 110, 10) for item in (naming(*ids[start : start + 10]), ANSWER)]
        refused = await user.post("/openai/v1/responses", json={"model": "scripted", "input": [*history, HELLO]})
        assert (refused.status_code, "over 100 files" in refused.text) == (400, True)

    async def test_a_key_without_files_sends_none(self, server: ApiServer, service: Client) -> None:
        token = {"user": "cy", "scopes": {"agents": "*", "models": "*", "features": []}}
        client = await server.client((await service.post("/v1/tokens", json=token)).json()["token"])
        refused = await client.post("/openai/v1/conversations", json={"items": [naming(NOTES)]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "out_of_scope")
        assert (await client.read("/v1/conversations"))["data"] == []


class TestFiles:
    @both
    async def test_a_purpose_that_openai_does_not_know_is_refused(self, user: Client, sdk: Any) -> None:
        for form in ({}, {"purpose": ""}, {"purpose": "cooking"}):
            refused = await user.post("/openai/v1/files", files={"file": ("a.txt", b"a")}, data=form)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "purpose")
        assert (await sdk.files.list()).data == []
        last: Any = [("file", ("a.txt", b"a")), ("purpose", (None, b"vision"))]
        made = (await user.post("/openai/v1/files", files=last)).json()
        assert made["purpose"] == "vision"

    @both
    async def test_a_purpose_is_kept_and_filters_the_list(self, server: ApiServer, user: Client, sdk: Any) -> None:
        purposes: Any = ("assistants", "batch", "fine-tune", "vision", "user_data")
        made = {each: await sdk.files.create(file=("a.jsonl", b"{}"), purpose=each) for each in purposes}
        assert {purpose: file.purpose for purpose, file in made.items()} == {each: each for each in purposes}
        for purpose, file in made.items():
            assert (await sdk.files.retrieve(file.id)).purpose == purpose
            assert [(each.id, each.purpose) async for each in sdk.files.list(purpose=purpose)] == [(file.id, purpose)]
        assert {each.id async for each in sdk.files.list(limit=2)} == {file.id for file in made.values()}
        assert [each.id async for each in sdk.files.list(purpose="cooking")] == []
        form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "evals"}}  # the SDK's types lack it
        assert (await user.post("/openai/v1/files", **form)).json()["purpose"] == "evals"
        native = (await user.post("/v1/files", json={"name": "b.txt", "size": 1, "mime_type": "text/plain"})).json()
        assert (await sdk.files.retrieve(native["file"]["id"])).purpose == "user_data"

    @both
    async def test_a_file_is_uploaded_listed_read_and_deleted(self, sdk: Any) -> None:
        made = await sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="user_data")
        assert (made.filename, made.bytes, made.purpose) == ("notes.txt", 9, "user_data")
        assert [file.id async for file in sdk.files.list()] == [made.id]
        assert (await sdk.files.retrieve(made.id)).id == made.id
        assert (await sdk.files.content(made.id)).read() == b"Buy milk."
        assert (await sdk.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await sdk.files.retrieve(made.id)
        assert [file.id async for file in sdk.files.list()] == []

    async def test_a_time_at_which_it_shall_expire_is_refused(self, sdk: Any) -> None:
        soon: Any = {"anchor": "created_at", "seconds": 3600}
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            await sdk.files.create(file=("a.txt", b"a"), purpose="user_data", expires_after=soon)
        assert [file.id async for file in sdk.files.list()] == []

    async def test_a_message_names_it(self, server: ApiServer, service: Client, sdk: Any) -> None:
        made = await sdk.files.create(file=("notes.txt", b"Buy milk."), purpose="user_data")
        content: Any = [{"type": "input_file", "file_id": made.id}, {"type": "input_text", "text": "What is it?"}]
        await sdk.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert "Buy milk." in str(server.scripts.requests[-1].messages)
        other = await server.user(service, "ben")
        assert (await other.get(f"/openai/v1/files/{made.id}")).status_code == 404
        assert (await other.get("/openai/v1/files")).json()["data"] == []
