"""The wires of the AI SDK and of AG-UI, without their clients: who may, what is refused, and what a shutdown does.

`tests/wires` runs the clients themselves.
"""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, Scripts, code_of, fake_id, settings_for
from tests.api.test_turns import ModelPause
from turnkeep.api import wires
from turnkeep.api.openai import items as openai_items
from turnkeep.config import Settings
from turnkeep.engine import worker
from turnkeep.fair_queue import Owner
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Until
from turnkeep.runtime import LARGE_BODIES_AT_ONCE
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.sse import SseParser

REMOTE = {"type": "file", "url": "https://example.org/a.pdf"}
LOCATE = {"name": "locate", "description": "Where the user is.", "inputSchema": {"type": "object"}}


@tool
def pay(amount: int) -> str:
    """Pay this amount."""
    return f"paid {amount}"


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings, tools=ToolRegistry([pay])) as running:
        yield running


def message(text: str, id_: str = "m1") -> Json:
    return {"id": id_, "role": "user", "parts": [{"type": "text", "text": text}]}


def sent_file(data: bytes, name: str = "a.txt") -> Json:
    url = "data:text/plain;base64," + base64.b64encode(data).decode()
    return {"type": "file", "mediaType": "text/plain", "filename": name, "url": url}


def chunks_of(response: httpx.Response) -> list[Any]:
    """The data of all frames but the last, which says that there are no more."""
    frames = SseParser().feed(response.content)
    assert frames[-1].data == "[DONE]"
    return [httpx.Response(200, content=frame.data).json() for frame in frames[:-1]]


def run_events(response: httpx.Response) -> list[Any]:
    """The events of a run of AG-UI."""
    assert response.status_code == 200, response.text
    return [httpx.Response(200, content=frame.data).json() for frame in SseParser().feed(response.content)]


async def chat(client: Client, *messages: Json, chat_id: str = "c1", query: str = "", **body: Json) -> httpx.Response:
    return await client.post(f"/ai-sdk/chat{query}", json={"id": chat_id, "messages": messages, **body})


async def run(client: Client, *messages: Json, thread: str = "t1", **body: Json) -> httpx.Response:
    given = {"threadId": thread, "runId": "r1", "messages": messages, "protocolVersion": "1.0", **body}
    return await client.post("/ag-ui", json=given)


async def payer(service: Client, **fields: Json) -> str:
    tools = [{"type": "native", "name": "pay", "approval": "always"}]
    response = await service.post("/v1/agents", json={"name": "Payer", "tools": tools, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def answered(chunks: list[Any], **approval: Json) -> Json:
    """The assistant's message of a turn that waits for an approval, with the answer in it."""
    [asked] = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
    part = {"type": "dynamic-tool", "toolCallId": asked["toolCallId"], "state": "approval-responded"}
    return {"id": chunks[0]["messageId"], "role": "assistant", "parts": [part | {"approval": {"id": "x", **approval}}]}


@both
class TestChats:
    async def test_a_chat_is_a_conversation_of_its_user(self, server: ApiServer, service: Client, user: Client) -> None:
        other = await server.user(service, "mallory")
        for client in (user, other):
            response = await chat(client, message("Hi"))
            assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            assert [chunk["type"] for chunk in chunks_of(response)][-2:] == ["finish-step", "finish"]
        [mine], [others] = [(await client.read("/v1/conversations?external_id=c1"))["data"] for client in (user, other)]
        assert mine["id"] != others["id"]
        assert (await other.get("/ai-sdk/chat/unknown/messages")).status_code == 404
        assert (await other.get("/ai-sdk/chat/c1/stream")).status_code == 204

    async def test_one_started_on_one_wire_goes_on_on_another(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        await chat(user, message("Hi"), chat_id="shared")
        await run(user, {"id": "m2", "role": "user", "content": "Again"}, thread="shared")
        conversation = (await user.read("/v1/conversations?external_id=shared"))["data"][0]
        assert conversation["turn_count"] == 2
        shown = (await user.read("/ai-sdk/chat/shared/messages"))["messages"]
        assert [each["id"] for each in shown if each["role"] == "user"] == ["m1", "m2"]

    async def test_a_message_that_is_sent_twice_at_once_makes_one_turn(self, server: ApiServer, user: Client) -> None:
        responses = await asyncio.gather(*(chat(user, message("Hi")) for _ in range(4)))
        turns = {response.headers["turnkeep-turn"] for response in responses}
        assert len(turns) == 1
        assert len({response.content for response in responses if b"text-delta" in response.content}) >= 1
        conversation = (await user.read("/v1/conversations?external_id=c1"))["data"][0]
        assert conversation["turn_count"] == 1

    async def test_the_messages_before_may_have_pictures(self, server: ApiServer, user: Client) -> None:
        """The SDK sends the whole chat each time. Only the last message counts."""
        url = "data:image/png;base64," + "A" * (server.runtime.settings.max_body_bytes + 1)
        before = {"id": "m0", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": url}]}
        assert (await chat(user, before, message("Hi"))).status_code == 200
        asked = server.scripts.requests[-1].messages
        assert [each["content"] for each in asked if each["role"] == "user"] == ["Hi"]

    async def test_half_a_character_in_any_message_does_not_block_a_chat(self, server: ApiServer, user: Client) -> None:
        """Clients in JavaScript cut emoji in two, and send the whole chat with each message."""
        cut, whole = "cut \ud83d, \\ud83d, \ud83d\ud83d\ude00 \ude00", "cut \ufffd, \\ud83d, \ufffd\U0001f600 \ufffd"
        by_sdk = {"id": "c1", "messages": [message(cut, "m1"), message(cut, "m2")]}
        said = [{"id": "m1", "role": "user", "content": cut}, {"id": "m2", "role": "user", "content": cut}]
        by_ag_ui = {"threadId": "t1", "runId": "r1", "messages": said}
        by_openai = {"model": "scripted", "messages": [{"role": "user", "content": cut}]}
        asked = (("/ai-sdk/chat", by_sdk), ("/ag-ui", by_ag_ui), ("/openai/v1/chat/completions", by_openai))
        for path, body in asked:
            content = json.dumps(body).encode()
            response = await user.post(path, content=content, headers={"content-type": "application/json"})
            assert response.status_code == 200, response.text
            [heard] = [each["content"] for each in server.scripts.requests[-1].messages if each["role"] == "user"]
            assert heard == whole

    async def test_its_files_are_discarded_when_it_is_refused(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(Until(pause.wait), "Done.")
        first = asyncio.create_task(chat(user, message("Wait")))
        await pause.reached.wait()
        part = sent_file(b"milk")
        refused = await chat(user, {"id": "m2", "role": "user", "parts": [part]})
        assert code_of(refused) == (409, "conversation_busy")
        pause.opened.set()
        await first
        accepted = await chat(user, {"id": "m2", "role": "user", "parts": [part]})
        assert accepted.status_code == 200
        conversation = (await user.read("/v1/conversations?external_id=c1"))["data"][0]
        files = (await user.read(f"/v1/conversations/{conversation['id']}/files"))["data"]
        assert [file["name"] for file in files] == ["a.txt"]

    async def test_an_edit_that_only_changes_files_is_asked(self, server: ApiServer, user: Client) -> None:
        await chat(user, message("What is it?"))
        edited = {**message("What is it?"), "parts": [*message("What is it?")["parts"], sent_file(b"milk")]}
        first = await chat(user, edited, messageId="m1")
        again = await chat(user, edited, messageId="m1")
        assert first.headers["turnkeep-turn"] == again.headers["turnkeep-turn"]
        [asked, _] = (await user.read("/ai-sdk/chat/c1/messages"))["messages"]
        known = [part for part in asked["parts"] if part["type"] == "file"]
        assert [part["filename"] for part in known] == ["a.txt"]
        kept = await chat(user, {**message("What is it?"), "parts": asked["parts"]}, messageId="m1")
        assert kept.headers["turnkeep-turn"] == first.headers["turnkeep-turn"]
        without = await chat(user, message("What is it?"), messageId="m1")
        assert without.headers["turnkeep-turn"] != first.headers["turnkeep-turn"]
        [asked, _] = (await user.read("/ai-sdk/chat/c1/messages"))["messages"]
        assert [part["type"] for part in asked["parts"]] == ["text"]
        assert len(server.scripts.requests) == 3

    async def test_the_client_may_call_its_messages_as_it_likes(self, server: ApiServer, user: Client) -> None:
        for name in ("turn_1", "msg_1", "42"):
            await chat(user, message("Hi", name), chat_id=name)
            edited = await chat(user, message("Hello", name), chat_id=name, messageId=name)
            assert edited.status_code == 200, edited.text
            [asked, _] = (await user.read(f"/ai-sdk/chat/{name}/messages"))["messages"]
            assert (asked["id"], asked["parts"]) == (name, [{"type": "text", "text": "Hello"}])

    async def test_a_repeated_message_of_a_deleted_chat_is_not_shown(self, server: ApiServer, user: Client) -> None:
        await chat(user, message("Hi"))
        [conversation] = (await user.read("/v1/conversations?external_id=c1"))["data"]
        assert (await user.delete(f"/v1/conversations/{conversation['id']}")).is_success
        assert code_of(await chat(user, message("Hi"))) == (404, "not_found")


WIRES = ("native", "openai", "ai-sdk", "ag-ui")


@both
class TestOneTurnOnEveryWire:
    """A turn that was started on one wire is followed, approved, stopped and read on any other, under the id of its
    conversation."""

    async def start(self, wire: str, user: Client, agent: str) -> tuple[str, str]:
        """The ids of a turn that waits for an approval, and of its conversation."""
        if wire == "native":
            turn_id = (await user.ask("Pay", agent_id=agent))["turn"]["id"]
        elif wire == "openai":
            response = await user.post("/openai/v1/responses", json={"model": agent, "input": "Pay"})
            turn_id = response.json()["id"].replace("resp_", "turn_")
        elif wire == "ai-sdk":
            turn_id = (await chat(user, message("Pay"), query=f"?agent={agent}")).headers["turnkeep-turn"]
        else:
            given = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "Pay"}]}
            turn_id = (await user.post(f"/ag-ui?agent={agent}", json=given)).headers["turnkeep-turn"]
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert turn["status"] == "waiting"
        return turn_id, turn["conversation_id"]

    async def approve(self, wire: str, user: Client, turn_id: str, conversation_id: str) -> None:
        """Find what the turn waits for on this wire, and allow it there."""
        if wire == "native":
            [call] = (await user.read(f"/v1/turns/{turn_id}"))["waiting_for"]["calls"]
            decisions = [{"call_id": call["id"], "decision": "allow"}]
            response = await user.post(f"/v1/turns/{turn_id}/approvals", json={"decisions": decisions})
        elif wire == "openai":
            response_id = turn_id.replace("turn_", "resp_")
            waiting = await user.read(f"/openai/v1/responses/{response_id}")
            *_, request = waiting["output"]
            assert request["type"] == "mcp_approval_request"
            answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
            body = {"model": waiting["model"], "input": [answer], "previous_response_id": response_id}
            response = await user.post("/openai/v1/responses", json=body)
        elif wire == "ai-sdk":
            followed = chunks_of(await user.get(f"/ai-sdk/chat/{conversation_id}/stream"))
            response = await chat(user, answered(followed, approved=True), chat_id=conversation_id)
        else:
            followed = run_events(await user.get(f"/ag-ui/threads/{conversation_id}/connect"))
            [interrupt] = followed[-1]["outcome"]["interrupts"]
            resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
            response = await run(user, thread=conversation_id, resume=resume)
        assert response.status_code == 200, response.text

    @pytest.mark.parametrize("approved", WIRES)
    @pytest.mark.parametrize("started", WIRES)
    async def test_approved_and_read(
        self, server: ApiServer, service: Client, user: Client, started: str, approved: str
    ) -> None:
        server.scripts.say("I pay. ", Call("pay", {"amount": 5}))
        turn_id, conversation_id = await self.start(started, user, await payer(service))
        server.scripts.say("Done.")
        await self.approve(approved, user, turn_id, conversation_id)
        await user.get(f"/v1/turns/{turn_id}/events")  # to its end
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert (turn["status"], turn["response"]) == ("succeeded", "Done.")
        shown = await user.read(f"/ai-sdk/chat/{conversation_id}/messages")
        assert [each["id"] for each in shown["messages"]][1:] == [turn_id]
        assert shown["id"] == conversation_id
        assert [each["text"] for each in shown["messages"][1]["parts"] if each["type"] == "text"] == [
            "I pay. ",
            "Done.",
        ]
        snapshot = run_events(await user.get(f"/ag-ui/threads/{conversation_id}/connect"))[1]["messages"]
        assert [each["role"] for each in snapshot] == ["user", "assistant", "tool", "assistant"]
        items = (await user.read(f"/openai/v1/conversations/{conversation_id}/items?order=asc"))["data"]
        said = [item for item in items if item["type"] == "message"]
        assert [item["role"] for item in said] == ["user", "assistant", "assistant"]
        assert "Done." in str(said[-1]["content"])

    async def test_followed_and_stopped(self, server: ApiServer, service: Client, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say("One ", Until(pause.wait), "two")
        accepted = await user.ask("Count", background=True)
        await pause.reached.wait()
        place = accepted["conversation_id"]
        paths = (f"/ai-sdk/chat/{place}/stream", f"/ag-ui/threads/{place}/connect?protocol_version=1.0")
        async with AsyncExitStack() as stack:
            streams = [user.stream("GET", path) for path in (*paths, paths[1].partition("?")[0])]
            sdk, current, older = [await stack.enter_async_context(stream) for stream in streams]
            cancelled = await user.post(f"/v1/turns/{accepted['turn_id']}/cancel")
            assert cancelled.json()["status"] == "cancelled"
            for response in (sdk, current, older):
                await response.aread()
        assert chunks_of(sdk)[-1]["type"] == "abort"
        assert run_events(current)[-1]["outcome"] == {"type": "cancelled"}
        assert run_events(older)[-1]["code"] == "cancelled"

    async def test_goes_on_in_the_same_conversation(self, server: ApiServer, user: Client) -> None:
        place = (await user.ask("One"))["conversation_id"]
        assert (await chat(user, message("Two", "m2"), chat_id=place)).status_code == 200
        assert (await run(user, {"id": "m3", "role": "user", "content": "Three"}, thread=place)).status_code == 200
        assert (await chat(user, message("Two", "m2"), chat_id=place)).status_code == 200  # the same turn again
        conversation = await user.read(f"/v1/conversations/{place}")
        assert (conversation["turn_count"], conversation["external_id"]) == (3, None)

    async def test_the_conversation_of_another_user_is_not_found(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        place = (await user.ask("My secret"))["conversation_id"]
        other = await server.user(service, "mallory")
        for unknown in (place, fake_id("conv")):
            assert code_of(await other.get(f"/ai-sdk/chat/{unknown}/stream")) == (404, "not_found")
            assert code_of(await other.get(f"/ai-sdk/chat/{unknown}/messages")) == (404, "not_found")
            assert code_of(await other.get(f"/ag-ui/threads/{unknown}/connect")) == (404, "not_found")
            assert code_of(await chat(other, message("Hi"), chat_id=unknown)) == (404, "not_found")
            asked = {"id": "m1", "role": "user", "content": "Hi"}
            assert code_of(await run(other, asked, thread=unknown)) == (404, "not_found")
        assert (await other.read("/v1/conversations"))["data"] == []


class StubbornPause(ModelPause):
    """A model that does not stop at once."""

    async def wait(self) -> None:
        try:
            await super().wait()
        except asyncio.CancelledError:
            await self.opened.wait()
            raise


async def until_queued(user: Client) -> None:
    """Wait until a question waits in the chat."""
    [conversation] = (await user.read("/v1/conversations?external_id=c1"))["data"]
    while not (await user.read(f"/v1/conversations/{conversation['id']}"))["queued_turns"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@both
class TestAQuestionThatInterrupts:
    """Its client has shown it before it runs, and may lose its connection in between."""

    @pytest.fixture
    async def pause(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[StubbornPause]:
        """A chat whose last turn ends when `opened` is set, and not before. A question waits for that."""
        monkeypatch.setattr(worker, "SETTLE_PATIENCE_SECONDS", 600)
        await chat(user, message("Zero", "m0"))
        pause = StubbornPause()
        server.scripts.say(pause(), "Late.")
        server.scripts.say("Sooner.")
        first = asyncio.create_task(chat(user, message("One", "m1")))
        await pause.reached.wait()
        second = asyncio.create_task(chat(user, message("Two", "m2"), query="?if_busy=interrupt"))
        await until_queued(user)
        yield pause
        pause.opened.set()
        await asyncio.gather(first, second)

    async def test_is_there_for_a_client_that_attaches(self, pause: StubbornPause, user: Client) -> None:
        paths = ("/ai-sdk/chat/c1/stream", "/ai-sdk/chat/c1/messages", "/ag-ui/threads/c1/connect")
        requests = [asyncio.create_task(user.get(path)) for path in paths]
        await asyncio.wait(requests, timeout=0.3)
        assert not any(request.done() for request in requests)
        pause.opened.set()
        resumed, loaded, connected = await asyncio.gather(*requests)
        chunks = chunks_of(resumed)
        assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta") == "Sooner."
        shown = loaded.json()["messages"]
        assert [each["id"] for each in shown if each["role"] == "user"] == ["m0", "m1", "m2"]
        [snapshot, *_] = [event for event in run_events(connected) if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [each["id"] for each in snapshot["messages"] if each["role"] == "user"] == ["m0", "m1", "m2"]

    async def test_is_not_awaited_for_ever(
        self, pause: StubbornPause, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wires, "INTERRUPT_SECONDS", 0.05)
        shown = (await user.read("/ai-sdk/chat/c1/messages"))["messages"]
        assert [each["id"] for each in shown if each["role"] == "user"] == ["m0", "m1"]

    async def test_is_not_awaited_for_a_client_that_has_left(
        self, pause: StubbornPause, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wires, "INTERRUPT_SECONDS", 600)
        loading = asyncio.create_task(user.get("/ai-sdk/chat/c1/messages"))
        await asyncio.wait([loading], timeout=0.3)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        async with asyncio.timeout(30):
            # A request is counted when it is over.
            while 'route="/ai-sdk/chat/{chat_id}/messages"' not in (await user.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def test_is_not_awaited_for_older_messages(
        self, pause: StubbornPause, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wires, "INTERRUPT_SECONDS", 600)
        [conversation] = (await user.read("/v1/conversations?external_id=c1"))["data"]
        newest = await user.read(f"/v1/conversations/{conversation['id']}/messages?order=desc&limit=1")
        async with asyncio.timeout(30):
            older = await user.read("/ai-sdk/chat/c1/messages", params={"cursor": newest["next_cursor"]})
        assert [each["id"] for each in older["messages"] if each["role"] == "user"] == ["m0"]


@both
class TestTurnsThatEndWithoutAWord:
    async def test_have_a_message_after_a_reload_too(self, server: ApiServer, user: Client) -> None:
        server.scripts.say(Fail(ProviderFailed("The model broke.")))
        failed = chunks_of(await chat(user, message("One", "m1")))
        assert failed[-1]["type"] == "error"
        pause = ModelPause()
        server.scripts.say(Until(pause.wait), "Late.")
        asking = asyncio.create_task(chat(user, message("Two", "m2")))
        await pause.reached.wait()
        [conversation] = (await user.read("/v1/conversations?external_id=c1"))["data"]
        turn_id = conversation["running_turn"]["id"]
        assert (await user.post(f"/v1/turns/{turn_id}/cancel")).is_success
        assert chunks_of(await asking)[-1]["type"] == "abort"
        assert (await chat(user, message("Three", "m3"))).status_code == 200
        shown = (await user.read("/ai-sdk/chat/c1/messages"))["messages"]
        assert [each["role"] for each in shown] == ["user", "assistant"] * 3
        assert [each["parts"] for each in shown[1:4:2]] == [[{"type": "step-start"}]] * 2
        assert [each["id"] for each in shown[1:4:2]] == [failed[0]["messageId"], turn_id]
        native = (await user.read(f"/v1/conversations/{conversation['id']}/messages"))["data"]
        errors = {each["turn_id"]: each["error"] for each in native}
        assert [each["metadata"].get("error") for each in shown[1::2]] == [errors[each["id"]] for each in shown[1::2]]
        assert [(errors[each["id"]] or {}).get("code") for each in shown[1::2]][1:] == ["cancelled", None]


@both
class TestLongChats:
    async def test_the_newest_messages_come_first(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wires, "MESSAGES_AT_ONCE", 2)
        monkeypatch.setattr(wires, "MOST_MESSAGES", 4)
        monkeypatch.setattr(wires, "TURNS_AT_ONCE", 1)
        for number in range(5):
            assert (await chat(user, message(f"No. {number}", f"m{number}"))).status_code == 200
        pages: list[list[str]] = []
        query: dict[str, str] = {}
        while True:
            page = await user.read("/ai-sdk/chat/c1/messages", params=query)
            assert [each["role"] for each in page["messages"]] == ["user", "assistant"] * (len(page["messages"]) // 2)
            pages.append([each["id"] for each in page["messages"] if each["role"] == "user"])
            if page["next_cursor"] is None:
                break
            query = {"cursor": page["next_cursor"]}
        assert pages == [["m3", "m4"], ["m1", "m2"], ["m0"]]
        connected = await user.get("/ag-ui/threads/c1/connect")
        [snapshot] = [
            frame.data for frame in SseParser().feed(connected.content) if '"MESSAGES_SNAPSHOT"' in frame.data
        ]
        shown = httpx.Response(200, content=snapshot).json()["messages"]
        assert [each["id"] for each in shown if each["role"] == "user"] == ["m3", "m4"]
        assert len(shown) == 4


@both
class TestApprovers:
    async def test_only_those_whom_the_agent_names_decide(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        agent = await payer(service, approvers=["admin"])
        server.scripts.say(Call("pay", {"amount": 5}))
        chunks = chunks_of(await chat(user, message("Pay"), query=f"?agent={agent}"))
        assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
        assert code_of(await chat(user, answered(chunks, approved=True))) == (403, "forbidden")
        turn = await user.read(f"/v1/turns/{chunks[0]['messageId']}")
        assert turn["status"] == "waiting"

    async def test_the_first_answer_holds(self, server: ApiServer, service: Client, user: Client) -> None:
        server.scripts.say(Call("pay", {"amount": 5}))
        chunks = chunks_of(await chat(user, message("Pay"), query=f"?agent={await payer(service)}"))
        first, second = await asyncio.gather(*(chat(user, answered(chunks, approved=True)) for _ in range(2)))
        assert chunks_of(first)[-1]["type"] == chunks_of(second)[-1]["type"] == "finish"
        again = await chat(user, answered(chunks, approved=True))
        outputs = [chunk["output"] for chunk in chunks_of(again) if chunk["type"] == "tool-output-available"]
        assert outputs == ["paid 5"]
        assert code_of(await chat(user, answered(chunks, approved=False))) == (409, "already_decided")

    async def test_a_message_without_an_answer_ends_where_the_turn_waits(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        agent = await payer(service)
        server.scripts.say(Call("pay", {"amount": 5}), Call("locate"))
        chunks = chunks_of(await chat(user, message("Pay"), query=f"?agent={agent}", tools=[LOCATE]))
        half = chunks_of(await chat(user, answered(chunks, approved=True)))
        assert [chunk["type"] for chunk in half] == ["start", "tool-approval-response", "finish-step", "finish"]
        turn = await user.read(f"/v1/turns/{chunks[0]['messageId']}")
        assert turn["waiting_for"]["type"] == "client_tools"


@both
class TestDecisionsOfOthers:
    """Two calls wait, and one of them is decided on another wire."""

    async def ask(
        self, server: ApiServer, service: Client, user: Client, *, decision: str, **more: Json
    ) -> tuple[str, str, str]:
        """The turn, the call that was decided, and the one that is open."""
        server.scripts.say(Call("pay", {"amount": 5}), Call("pay", {"amount": 6}))
        asked = await chat(user, message("Pay"), query=f"?agent={await payer(service)}")
        turn_id = asked.headers["turnkeep-turn"]
        first, second = (await user.read(f"/v1/turns/{turn_id}"))["waiting_for"]["calls"]
        await self.decide(user, turn_id, first["id"], decision, **more)
        return turn_id, first["id"], second["id"]

    async def decide(self, user: Client, turn_id: str, call_id: str, decision: str, **more: Json) -> None:
        decisions = [{"call_id": call_id, "decision": decision, **more}]
        assert (await user.post(f"/v1/turns/{turn_id}/approvals", json={"decisions": decisions})).is_success

    def sdk_answer(self, turn_id: str, **approved: bool) -> Json:
        parts = [
            {"type": "dynamic-tool", "toolCallId": id_, "state": "approval-responded", "approval": {"approved": said}}
            for id_, said in approved.items()
        ]
        return {"id": turn_id, "role": "assistant", "parts": parts}

    def resume(self, **approved: bool) -> list[Json]:
        return [{"interruptId": id_, "status": "resolved", "payload": said} for id_, said in approved.items()]

    @pytest.mark.parametrize("decision", ["allow", "deny"])
    async def test_the_ai_sdk_shows_them(self, server: ApiServer, service: Client, user: Client, decision: str) -> None:
        _, decided, still_open = await self.ask(server, service, user, decision=decision)
        chunks = chunks_of(await user.get("/ai-sdk/chat/c1/stream"))
        [said] = [chunk for chunk in chunks if chunk["type"] == "tool-approval-response"]
        assert (said["approvalId"], said["approved"]) == (decided, decision == "allow")
        parts = (await user.read("/ai-sdk/chat/c1/messages"))["messages"][1]["parts"]
        states = {part["toolCallId"]: part["state"] for part in parts if "toolCallId" in part}
        assert states == {decided: "approval-responded", still_open: "approval-requested"}

    @pytest.mark.parametrize("wire", ["ai-sdk", "ag-ui"])
    @pytest.mark.parametrize("is_allowed", [True, False])
    async def test_another_decision_is_refused_and_changes_nothing(
        self, server: ApiServer, service: Client, user: Client, wire: str, *, is_allowed: bool
    ) -> None:
        turn_id, decided, still_open = await self.ask(server, service, user, decision="allow" if is_allowed else "deny")
        given = {still_open: True, decided: not is_allowed}
        words = {"id": "m2", "role": "user", "content": "Quick"}
        if wire == "ai-sdk":
            refused = await chat(user, self.sdk_answer(turn_id, **given))
        else:
            refused = await run(user, words, thread="c1", resume=self.resume(**given))
        assert code_of(refused) == (409, "already_decided")
        assert refused.json()["decision"] == ("allow" if is_allowed else "deny")
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert [call["id"] for call in turn["waiting_for"]["calls"]] == [still_open]
        again = {still_open: True, decided: is_allowed}
        if wire == "ai-sdk":
            assert chunks_of(await chat(user, self.sdk_answer(turn_id, **again)))[-1]["type"] == "finish"
        else:
            events = run_events(await run(user, thread="c1", resume=self.resume(**again)))
            assert events[-1]["outcome"] == {"type": "success"}
        assert (await user.read(f"/v1/turns/{turn_id}"))["status"] == "succeeded"
        assert "Quick" not in str(server.scripts.requests[-1].messages)

    @pytest.mark.parametrize("wire", ["ai-sdk", "ag-ui"])
    async def test_another_decision_is_refused_when_the_turn_has_ended(
        self, server: ApiServer, service: Client, user: Client, wire: str
    ) -> None:
        turn_id, first, second = await self.ask(server, service, user, decision="allow", args={"amount": 1})
        await self.decide(user, turn_id, second, "deny")
        await user.get(f"/v1/turns/{turn_id}/events")  # to its end
        for given, is_refused in (({first: True, second: True}, True), ({first: True, second: False}, False)):
            if wire == "ai-sdk":
                response = await chat(user, self.sdk_answer(turn_id, **given))
            else:
                response = await run(user, thread="c1", resume=self.resume(**given))
            assert (response.status_code == 409) == is_refused, response.text
            assert response.status_code in {200, 409}

    async def test_ag_ui_asks_something_new_when_it_cancels_what_has_ended(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        """Its client refuses to run until each interrupt that it has is named."""
        turn_id, first, second = await self.ask(server, service, user, decision="allow")
        await self.decide(user, turn_id, second, "allow")
        await user.get(f"/v1/turns/{turn_id}/events")  # to its end
        cancelled = [{"interruptId": id_, "status": "cancelled"} for id_ in (first, second)]
        assert code_of(await run(user, thread="c1", resume=cancelled)) == (409, "already_decided")
        words = {"id": "m2", "role": "user", "content": "And now?"}
        assert run_events(await run(user, words, thread="c1", resume=cancelled))[-1]["outcome"] == {"type": "success"}
        unknown = self.resume(**{fake_id("call"): True})
        assert code_of(await run(user, thread="c1", resume=unknown)) == (409, "conflict")


NO_DECISIONS: list[Json] = [
    *("no", "deny", "true", 0, 1, [], None, {}),
    *({"decision": "deny"}, {"accepted": False}, {"approved": None}, {"approved": "no"}, {"approved": 1}),
    *({"args": "amount=1"}, {"approved": True, "args": [1]}, {"approved": "no", "args": {"amount": 1}}),
]
"""Payloads of AG-UI that do not say whether a call is allowed."""


@both
class TestDecisionsByAgUi:
    async def ask(self, server: ApiServer, service: Client, user: Client) -> tuple[str, str]:
        """A turn that waits for an approval, and the id of its interrupt."""
        server.scripts.say(Call("pay", {"amount": 5}))
        given = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "Pay"}]}
        response = await user.post(f"/ag-ui?agent={await payer(service)}", json=given)
        [interrupt] = run_events(response)[-1]["outcome"]["interrupts"]
        return response.headers["turnkeep-turn"], interrupt["id"]

    async def test_an_approval_must_be_said(self, server: ApiServer, service: Client, user: Client) -> None:
        turn_id, interrupt_id = await self.ask(server, service, user)
        entry = {"interruptId": interrupt_id, "status": "resolved"}
        for wrong in (entry, *({**entry, "payload": payload} for payload in NO_DECISIONS)):
            refused = await run(user, resume=[wrong])
            assert code_of(refused) == (422, "invalid_request"), wrong
            assert "does not say whether the call is allowed" in refused.json()["detail"]
        for wrong in ({**entry, "status": "done", "payload": True}, {**entry, "status": None}):
            assert code_of(await run(user, resume=[wrong])) == (422, "invalid_request"), wrong
        both_ways = [{**entry, "payload": False}, {**entry, "payload": True}]
        assert code_of(await run(user, resume=both_ways)) == (422, "invalid_request")
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert (turn["status"], len(turn["waiting_for"]["calls"])) == ("waiting", 1)

    @pytest.mark.parametrize(
        "answer, result",
        [
            ({"payload": True}, "paid 5"),
            ({"payload": {"approved": True}}, "paid 5"),
            ({"payload": {"args": {"amount": 7}}}, "paid 7"),
            ({"payload": {"approved": True, "args": {"amount": 7}}}, "paid 7"),
            ({"payload": False}, "Denied by"),
            ({"payload": {"approved": False, "args": {"amount": 7}}}, "Denied by"),
            ({"status": "cancelled"}, "Denied by"),
            ({"status": "cancelled", "payload": {"approved": True}}, "Denied by"),
        ],
    )
    async def test_these_are_decisions(
        self, server: ApiServer, service: Client, user: Client, answer: Json, result: str
    ) -> None:
        _, interrupt_id = await self.ask(server, service, user)
        events = run_events(await run(user, resume=[{"interruptId": interrupt_id, "status": "resolved", **answer}]))
        [said] = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
        assert said.startswith(result)

    async def test_null_is_the_same_as_nothing(self, server: ApiServer, user: Client) -> None:
        asked = await run(user, {"id": "m1", "role": "user", "content": "Hi"}, resume=None, tools=None)
        assert run_events(asked)[-1]["outcome"] == {"type": "success"}


class TestFiles:
    @pytest.mark.parametrize("wire", ["ai-sdk", "ag-ui"])
    async def test_they_are_decoded_beside_the_event_loop(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch, wire: str
    ) -> None:
        """A file of many megabytes would hold up all others."""
        decode, threads = base64.b64decode, set[threading.Thread]()

        def noted(*args: Any, **options: Any) -> bytes:
            found = decode(*args, **options)
            if found == b"milk":
                threads.add(threading.current_thread())
            return found

        sent = sent_file(b"milk")
        monkeypatch.setattr(base64, "b64decode", noted)
        if wire == "ai-sdk":
            response = await chat(user, {"id": "m1", "role": "user", "parts": [sent]})
        else:
            data = sent["url"].partition(",")[2]
            part = {"type": "binary", "mimeType": "text/plain", "filename": "a.txt", "data": data}
            response = await run(user, {"id": "m1", "role": "user", "content": [part]})
        assert response.status_code == 200, response.text
        assert threads
        assert threading.current_thread() not in threads

    @both
    async def test_ag_ui_has_their_addresses_when_it_attaches(self, server: ApiServer, user: Client) -> None:
        files = {"text/plain": b"milk", "image/png": b"\x89PNG\r\n\x1a\n" + bytes(24), "text/csv": b"a,b\n1,2\n"}
        sent = [
            {"type": "binary", "mimeType": kind, "filename": f"a.{n}", "data": base64.b64encode(data).decode()}
            for n, (kind, data) in enumerate(files.items())
        ]
        question = {"id": "m1", "role": "user", "content": [{"type": "text", "text": "Look"}, *sent]}
        first = await run(user, question)
        assert first.status_code == 200, first.text
        [shown, _] = run_events(await user.get("/ag-ui/threads/t1/connect"))[1]["messages"]
        words, *parts = shown["content"]
        assert words == {"type": "text", "text": "Look"}
        assert [(part["type"], part["source"]["mimeType"], part["metadata"]) for part in parts] == [
            ("document", "text/plain", {"filename": "a.0"}),
            ("image", "image/png", {"filename": "a.1"}),
            ("document", "text/csv", {"filename": "a.2"}),
        ]
        path = httpx.URL(parts[0]["source"]["value"]).path
        assert (await user.get(path)).content == b"milk"
        again = await run(user, shown)
        assert again.headers["turnkeep-turn"] == first.headers["turnkeep-turn"]


@both
class TestWordsWithAnswers:
    async def test_files_are_refused_before_anything_is_stored(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        """They would be lost: words that reach a turn while it waits have no files."""
        server.scripts.say(Call("locate"))
        tools = [{"name": "locate", "description": "", "parameters": {"type": "object"}}]
        question = {"id": "m1", "role": "user", "content": "Where?"}
        path = f"/v1/turns/{(await run(user, question, tools=tools)).headers['turnkeep-turn']}"
        [waited] = (await user.read(path))["waiting_for"]["calls"]
        result = {"id": "r1", "role": "tool", "toolCallId": waited["id"], "content": "Paris"}
        data = base64.b64encode(b"milk").decode()
        file = {"type": "binary", "mimeType": "text/plain", "filename": "a.txt", "data": data}
        for content in ([file], [{"type": "text", "text": "Look"}, file]):
            refused = await run(user, question, result, {"id": "m2", "role": "user", "content": content})
            assert code_of(refused) == (422, "invalid_request")
            assert (await user.read(path))["status"] == "waiting"
        words = {"id": "m2", "role": "user", "content": "Look"}
        assert (await run(user, question, result, words)).status_code == 200
        assert (await user.read(path))["status"] == "succeeded"

    async def test_a_repeated_request_asks_nothing_again(self, server: ApiServer, user: Client) -> None:
        """The client has lost the connection, and does not know that its words were taken."""
        server.scripts.say(Call("locate"))
        tools = [{"name": "locate", "description": "", "parameters": {"type": "object"}}]
        question = {"id": "m1", "role": "user", "content": "Where?"}
        path = f"/v1/turns/{(await run(user, question, tools=tools)).headers['turnkeep-turn']}"
        [waited] = (await user.read(path))["waiting_for"]["calls"]
        result = {"id": "r1", "role": "tool", "toolCallId": waited["id"], "content": "Paris"}
        words = {"id": "m2", "role": "user", "content": "Look"}
        first = await run(user, question, result, words, tools=tools)
        again = await run(user, question, result, words, tools=tools)
        assert '"role":"user"' not in first.text  # the client has its own words
        [conversation] = (await user.read("/v1/conversations?external_id=t1"))["data"]
        assert conversation["turn_count"] == 1
        assert len(server.scripts.requests) == 2
        assert again.status_code == 200
        assert '"RUN_FINISHED"' in again.text


class TestRefusals:
    @pytest.mark.parametrize(
        "body, words",
        [
            ({"id": "c", "messages": []}, "`messages` is empty"),
            ({"id": "", "messages": [message("Hi")]}, "1 to 200 characters"),
            ({"id": "c", "messages": [{"role": "system", "parts": []}]}, "must be `user` or `assistant`"),
            ({"id": "c", "messages": [{"parts": []}]}, "not one of the AI SDK"),
            ({"messages": [message("Hi")]}, "`id`"),
            ({"id": "c", "messages": [message("Hi")], "tools": [{"name": "a b"}]}, "`tools` cannot be used"),
            (
                {"id": "c", "messages": [{"role": "user", "parts": [{"type": "file", "url": "data:x;base64,§"}]}]},
                "not valid base64",
            ),
            (
                {"id": "c", "messages": [{"role": "user", "parts": [REMOTE | {"mediaType": "application/pdf"}]}]},
                "`parts[0]` has the address of a file that is no picture (application/pdf). Send the file itself",
            ),
        ],
    )
    async def test_a_request_of_the_ai_sdk_that_cannot_be_read(
        self, server: ApiServer, user: Client, body: Json, words: str
    ) -> None:
        response = await user.post("/ai-sdk/chat", json=body)
        assert code_of(response) == (422, "invalid_request")
        assert words in response.json()["detail"]
        assert (await user.read("/v1/conversations"))["data"] == []

    @pytest.mark.parametrize(
        "part", [{"type": "text", "text": text} for text in (None, 5, True, ["a"])] + [{"type": "text"}]
    )
    async def test_a_text_that_is_none(self, server: ApiServer, user: Client, part: Json) -> None:
        words = {"type": "text", "text": "Hi"}
        by_sdk = await chat(user, {"id": "m1", "role": "user", "parts": [words, part]})
        by_ag_ui = await run(user, {"id": "m1", "role": "user", "content": [words, part]})
        for response, place in ((by_sdk, "parts[1].text"), (by_ag_ui, "content[1].text")):
            assert code_of(response) == (422, "invalid_request")
            assert f"`{place}` is not a text" in response.json()["detail"]
        assert (await user.read("/v1/conversations"))["data"] == []

    @pytest.mark.parametrize("id_", [".", ".."])
    async def test_an_id_that_no_address_can_have(self, server: ApiServer, user: Client, id_: str) -> None:
        """A chat of this id could be asked, and never read."""
        by_sdk = await chat(user, message("Hi"), chat_id=id_)
        by_ag_ui = await run(user, {"id": "m1", "role": "user", "content": "Hi"}, thread=id_)
        for response in (by_sdk, by_ag_ui):
            assert code_of(response) == (422, "invalid_request")
            assert "is not `.` or `..`" in response.json()["detail"]
        assert (await user.read("/v1/conversations"))["data"] == []

    @pytest.mark.parametrize("id_", ["a/b", "/", "a\\b", "a%2Fb"])
    async def test_no_id_that_an_address_can_have(self, server: ApiServer, user: Client, id_: str) -> None:
        assert (await chat(user, message("Hi"), chat_id=id_)).status_code == 200
        address = f"/ai-sdk/chat/{quote(id_, safe='')}"
        assert len((await user.read(f"{address}/messages"))["messages"]) == 2
        assert (await user.get(f"{address}/stream")).status_code == 204

    async def test_answers_to_what_was_never_asked(self, server: ApiServer, user: Client) -> None:
        strange = {"id": fake_id("turn"), "role": "assistant", "parts": []}
        assert code_of(await chat(user, strange)) == (404, "not_found")
        first = chunks_of(await chat(user, message("Hi")))
        known = {"id": first[0]["messageId"], "role": "assistant", "parts": []}
        assert code_of(await chat(user, known)) == (409, "conflict")

    async def test_an_id_of_a_message_that_was_sent_with_other_words(self, server: ApiServer, user: Client) -> None:
        """The client has sent no Idempotency-Key, so the error is about the message."""
        first = await chat(user, message("Hi"))
        by_sdk = await chat(user, message("Hello"))
        await run(user, {"id": "m1", "role": "user", "content": "Hi"})
        by_ag_ui = await run(user, {"id": "m1", "role": "user", "content": "Hello"})
        for response in (by_sdk, by_ag_ui):
            assert code_of(response) == (409, "idempotency_conflict")
            assert "The message 'm1' was already sent with other words" in response.json()["detail"]
        assert by_sdk.json()["turn_id"] == first.headers["turnkeep-turn"]
        bodies = [{"id": "c1", "messages": [message(words, "m2")]} for words in ("Hey", "Hey!")]
        keyed = [await user.post("/ai-sdk/chat", json=body, headers={"idempotency-key": "k"}) for body in bodies]
        assert "This Idempotency-Key was already used" in keyed[1].json()["detail"]

    async def test_a_run_without_a_question(self, server: ApiServer, user: Client) -> None:
        response = await run(user)
        assert code_of(response) == (422, "invalid_request")
        assert "no message of the user" in response.json()["detail"]


class TestLargeRequests:
    """What a client sends may be large. Reading it must not stop the server for others, or fill its memory."""

    async def test_schemas_of_tools_are_checked_beside_the_event_loop(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[threading.Thread] = []
        monkeypatch.setattr(wires, "check_all_declared", lambda tools: threads.append(threading.current_thread()))
        assert (await chat(user, message("Hi"), tools=[LOCATE])).status_code == 200
        tool = {"name": "locate", "description": "Where the user is.", "parameters": {"type": "object"}}
        assert (await run(user, {"id": "m2", "role": "user", "content": "Hi"}, tools=[tool])).status_code == 200
        assert len(threads) == 2
        assert threading.main_thread() not in threads

    async def test_a_request_has_as_many_tools_and_files_as_a_native_one(self, server: ApiServer, user: Client) -> None:
        many = [{**LOCATE, "name": f"locate{n}"} for n in range(101)]
        assert code_of(await chat(user, message("Hi"), tools=many)) == (422, "invalid_request")
        most = server.runtime.settings.max_files_per_message
        part = {"type": "file", "mediaType": "text/plain", "filename": "a.txt", "url": "data:text/plain,milk"}
        asked = {"id": "m1", "role": "user", "parts": [part] * (most + 1)}
        assert code_of(await chat(user, asked)) == (422, "too_many_files")
        source = {"type": "data", "value": "bWlsaw==", "mimeType": "text/plain"}
        content = [{"type": "document", "source": source}] * (most + 1)
        assert code_of(await run(user, {"id": "m1", "role": "user", "content": content})) == (422, "too_many_files")
        assert (await chat(user, {**asked, "parts": [part] * most})).status_code == 200

    async def test_millions_of_values_and_thousands_of_parts_are_refused(self, server: ApiServer, user: Client) -> None:
        empty = b"[" + b"{}," * 600_000 + b"{}]"
        for path in ("/ai-sdk/chat", "/ag-ui", "/openai/v1/chat/completions", "/openai/v1/responses"):
            body = b'{"id": "c1", "threadId": "c1", "runId": "r1", "model": "scripted", "messages": ' + empty + b"}"
            refused = await user.post(path, content=body)
            assert refused.status_code == 413, path
            assert "values" in refused.text
        many = [{"type": "text", "text": "a"}] * 10_001
        assert code_of(await chat(user, {"id": "m1", "role": "user", "parts": many})) == (422, "invalid_request")
        assert code_of(await run(user, {"id": "m1", "role": "user", "content": many})) == (422, "invalid_request")
        assert code_of(await run(user, *[{"role": "user", "content": "a"}] * 10_001)) == (422, "invalid_request")
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_a_chat_that_is_too_large_for_one_answer_is_refused_while_it_is_collected(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            assert (await chat(user, message("x" * 1_000, f"m{number}"))).status_code == 200
        [conversation] = (await user.read("/v1/conversations?external_id=c1"))["data"]
        items = f"/openai/v1/conversations/{conversation['id']}/items"
        paths = ("/ai-sdk/chat/c1/messages", "/ag-ui/threads/c1/connect", items)
        assert [(await user.get(path)).status_code for path in paths] == [200] * 3
        whole = [item["id"] for item in (await user.read(items))["data"]]
        monkeypatch.setattr(wires, "READ_BYTES", 2_500)
        monkeypatch.setattr(openai_items, "READ_BYTES", 2_500)
        for path in paths[:2]:
            refused = await user.get(path)
            assert (refused.status_code, "in pages" in refused.text) == (413, True), path
        page = await user.read(items)
        found = [item["id"] for item in page["data"]]
        assert 0 < len(found) < len(whole)
        while page["has_more"] and len(found) < len(whole):
            page = await user.read(f"{items}?after={page['last_id']}")
            found += [item["id"] for item in page["data"]]
        assert found == whole

    async def test_large_bodies_wait_for_a_place_and_others_do_not(self, server: ApiServer, user: Client) -> None:
        places = server.runtime.large_bodies
        large = message("x" * 2 * server.runtime.settings.max_body_bytes)
        async with AsyncExitStack() as held:
            for _ in range(LARGE_BODIES_AT_ONCE):
                await held.enter_async_context(places.place(Owner()))
            waiting = asyncio.create_task(chat(user, large))
            async with asyncio.timeout(30):
                while not places.waiting:  # noqa: ASYNC110 - the body arrives a moment later
                    await asyncio.sleep(0.02)
            assert (await chat(user, message("Hi"), chat_id="c2")).status_code == 200
        assert (await waiting).status_code == 200
        assert places.taken == places.waiting == 0


class TestShutdown:
    @pytest.mark.parametrize("wire", ["ai-sdk", "ag-ui"])
    async def test_a_stream_is_cut_so_that_the_client_knows(
        self, tmp_path_factory: pytest.TempPathFactory, wire: str
    ) -> None:
        """A clean end would look like the end of the answer."""
        pause, scripts = ModelPause(), Scripts()
        scripts.say("Half of ", Until(pause.wait))
        async with ApiServer.start(settings_for(tmp_path_factory.mktemp("cut")), scripts=scripts) as server:
            user = await server.user(await server.tenant())
            question = message("Wait") if wire == "ai-sdk" else {"id": "m1", "role": "user", "content": "Wait"}
            asked = chat(user, question) if wire == "ai-sdk" else run(user, question)
            reading = asyncio.create_task(asked)
            await pause.reached.wait()
            server.server.stop()
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await reading

    async def test_a_client_that_attaches_is_not_kept(
        self, tmp_path_factory: pytest.TempPathFactory, api_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits for the end of a turn that another worker runs."""
        monkeypatch.setattr(wires, "INTERRUPT_SECONDS", 600)
        folder = tmp_path_factory.mktemp("attaching")
        shared: dict[str, Any] = {"database_url": api_database, "secret_keys": ("a secret that both servers share",)}
        pause, scripts = StubbornPause(), Scripts()
        scripts.say(pause(), "Late.")
        first, second = (settings_for(folder / name, **shared) for name in "12")
        async with ApiServer.start(first, scripts=scripts) as runs, ApiServer.start(second) as leaves:
            user = await runs.user(await runs.tenant())
            asked = [asyncio.create_task(chat(user, message("One", "m1")))]
            await pause.reached.wait()
            asked.append(asyncio.create_task(chat(user, message("Two", "m2"), query="?if_busy=interrupt")))
            await until_queued(user)
            reader = await leaves.client(user.key)
            loading = asyncio.create_task(reader.get("/ai-sdk/chat/c1/messages"))
            await asyncio.wait([loading], timeout=0.3)
            leaves.server.stop()
            assert code_of(await loading) == (503, "unavailable")
            pause.opened.set()
            await asyncio.gather(*asked)
