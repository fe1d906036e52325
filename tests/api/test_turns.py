"""`POST /v1/turns` and what follows it, as the contract says it."""

import asyncio
from typing import Any

import httpx
import pytest
from msgspec import convert, structs, to_builtins
from msgspec.json import decode, encode

from tests.api.conftest import both
from tests.api.harness import (
    STREAM,
    ApiServer,
    Client,
    Json,
    code_of,
    data_of,
    fake_id,
    names,
    read_events,
    said,
)
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, OutOfTokens, Pause, Think, Until
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import Step, TurnBegan, TurnEvent

TURN_FIELDS = {
    "id",
    "conversation_id",
    "status",
    "attempt",
    "model",
    "usage",
    "error",
    "started_at",
    "settled_at",
    "response",
    "files",
    "metadata",
}
MESSAGE_FIELDS = {
    "id",
    "conversation_id",
    "turn_id",
    "role",
    "content",
    "attachments",
    "sources",
    "usage",
    "status",
    "error",
    "model",
    "metadata",
    "created_at",
    "finish",
}


class ModelPause:
    """Makes the scripted model wait until `opened` is set."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.opened.wait()

    def __call__(self) -> Until:
        return Until(self.wait)


class TestWaiting:
    @both
    async def test_the_answer_is_the_settled_turn_and_its_message(self, server: ApiServer, user: Client) -> None:
        answer = await user.ask("Hello?")
        assert set(answer) == {"conversation_id", "turn", "message"}
        turn, message = answer["turn"], answer["message"]
        assert set(turn) == TURN_FIELDS
        assert set(message) == MESSAGE_FIELDS
        assert turn["status"] == message["status"] == "succeeded"
        assert turn["response"] == "Hello there."
        assert message["content"] == [{"type": "text", "text": "Hello there."}]
        assert message["turn_id"] == turn["id"]
        assert answer["conversation_id"] == turn["conversation_id"] == message["conversation_id"]
        assert turn["usage"]["output_tokens"] == 5

    @both
    async def test_the_answer_is_what_is_read_later(self, server: ApiServer, user: Client) -> None:
        server.scripts.say(Think("Hm."), "One.")
        first = await user.ask("First?")
        server.scripts.say("Half", Fail(ProviderFailed("broken")))
        second = await user.ask("Second?", conversation_id=first["conversation_id"])
        base = f"/v1/conversations/{first['conversation_id']}"
        third = (await user.post(f"{base}/turns/{second['turn']['id']}/regenerate")).json()
        await user.patch(base, json={"head_turn_id": first["turn"]["id"]})
        fourth = await user.ask("Fourth?", conversation_id=first["conversation_id"])
        assert fourth["message"]["siblings"] == [each["turn"]["id"] for each in (second, third, fourth)]
        for answer in (first, second, third, fourth):
            turn_id = answer["turn"]["id"]
            await user.patch(base, json={"head_turn_id": turn_id})
            assert (await user.get(f"/v1/turns/{turn_id}")).json() == answer["turn"]
            [*_, message] = (await user.get(f"{base}/messages")).json()["data"]
            now, then = message.pop("siblings", []), answer["message"].pop("siblings", [])
            assert sorted(turn for group in message.pop("versions", []) for turn in group) == sorted(now)
            answer["message"].pop("versions", None)
            assert message == answer["message"]
            assert set(then) <= set(now)

    async def test_a_failing_turn_answers_200_with_its_error(self, server: ApiServer, user: Client) -> None:
        server.scripts.say("Half an ", Fail(RuntimeError("boom")))
        answer = await user.ask()
        assert answer["turn"]["status"] == "failed"
        assert answer["turn"]["error"]["code"] in {"internal", "provider_error"}
        assert answer["message"]["content"] == [{"type": "text", "text": "Half an "}]

    async def test_a_cancelled_turn_answers_200_with_code_cancelled(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say("Wait… ", pause())
        asking = asyncio.create_task(user.ask())
        await pause.reached.wait()
        conversations = (await user.read("/v1/conversations"))["data"]
        cancelled = await user.post(f"/v1/turns/{conversations[0]['running_turn']['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        answer = await asking
        assert answer["turn"]["status"] == "cancelled"
        assert answer["turn"]["error"]["code"] == "cancelled"
        assert answer["message"]["content"] == [{"type": "text", "text": "Wait… "}]

    async def test_a_caller_who_hangs_up_detaches_from_the_turn(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "Done.")
        asking = asyncio.create_task(user.ask())
        await pause.reached.wait()
        turn_id = (await user.read("/v1/conversations"))["data"][0]["running_turn"]["id"]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        pause.opened.set()
        async with user.stream("GET", f"/v1/turns/{turn_id}/events") as response:
            assert names(await read_events(response))[-1] == "result"

    @both
    async def test_polling_does_not_keep_a_turn_attached(self, settings: Settings) -> None:
        async with ApiServer.start(structs.replace(settings, disconnect_grace_seconds=0.0)) as server:
            user = await server.user(await server.tenant())
            pause = ModelPause()
            server.scripts.say("Half of ", pause())
            asking = asyncio.create_task(user.ask())
            await pause.reached.wait()
            [conversation] = (await user.read("/v1/conversations"))["data"]
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            turn = f"/v1/turns/{conversation['running_turn']['id']}"
            async with asyncio.timeout(30):
                while (await user.read(turn))["status"] == "running":
                    await user.read(f"/v1/conversations/{conversation['id']}")
                    await user.read(f"/v1/conversations/{conversation['id']}/messages")
                    await asyncio.sleep(0.05)
            assert (await user.read(turn))["error"]["code"] == "cancelled"

    async def test_blocks_may_be_sent_instead_of_a_text(self, user: Client) -> None:
        answer = await user.post("/v1/turns", json={"message": [{"type": "text", "text": "Hi"}]})
        assert answer.status_code == 200
        messages = await user.read(f"/v1/conversations/{answer.json()['conversation_id']}/messages")
        assert messages["data"][0]["content"] == [{"type": "text", "text": "Hi"}]


LONG_STEPS, LONG_CHARS = 60, 15_000


@tool
def letters(count: int) -> str:
    """Many letters."""
    return "z" * count


class TestWhatAMessageSays:
    """Its own answer, the transcript, and the turn say the same."""

    async def read_message(self, user: Client, answer: Json) -> Json:
        """The newest message of the conversation."""
        path = f"/v1/conversations/{answer['conversation_id']}/messages"
        message = (await user.read(path, params={"order": "desc"}))["data"][0]
        if answer["message"] is not None:
            assert message == answer["message"]
        return message

    @both
    async def test_metadata_and_model_are_those_of_the_turn(self, user: Client) -> None:
        answer = await user.ask("Hello?", metadata={"ticket": 7})
        assert answer["turn"]["metadata"] == {"ticket": 7}
        assert (await user.read(f"/v1/turns/{answer['turn']['id']}"))["metadata"] == {"ticket": 7}
        messages = (await user.read(f"/v1/conversations/{answer['conversation_id']}/messages"))["data"]
        assert [message["metadata"] for message in messages] == [{"ticket": 7}] * 2
        assert [message["model"] for message in messages] == ["scripted"] * 2
        assert [message["error"] for message in messages] == [None] * 2

    @both
    async def test_a_failed_turn_says_why_on_every_message(self, server: ApiServer, user: Client) -> None:
        server.scripts.say(Fail(ProviderFailed("out of order")))
        silent = await user.ask("First?")
        assert silent["message"] is None
        server.scripts.say("Half", Fail(ProviderFailed("out of order")))
        await user.ask("Second?", conversation_id=silent["conversation_id"])
        messages = (await user.read(f"/v1/conversations/{silent['conversation_id']}/messages"))["data"]
        assert [message["role"] for message in messages] == ["user", "user", "assistant"]
        for message in messages:
            assert message["error"] == {"code": "provider_error", "message": "out of order"}
            assert "finish" not in message

    @pytest.mark.parametrize(
        "script, finish",
        [
            (["Done."], "complete"),
            (["Half of a sen", OutOfTokens()], "length"),
            ([], "empty"),
            (["  "], "empty"),
            ([Think("Hm.")], "empty"),
        ],
        ids=["whole", "cut off", "nothing", "spaces", "reasoning alone"],
    )
    async def test_how_the_answer_ended(self, server: ApiServer, user: Client, script: list[Any], finish: str) -> None:
        server.scripts.say(*script)
        answer = await user.ask("Hello?")
        assert answer["turn"]["status"] == "succeeded"
        assert (await self.read_message(user, answer))["finish"] == finish
        events = await read_events(await user.get(f"/v1/turns/{answer['turn']['id']}/events"))
        assert decode(events[-1].data).get("finish", "complete") == finish

    async def test_other_formats_say_it_in_their_words(self, server: ApiServer, user: Client) -> None:
        server.scripts.say("Half of a sen", OutOfTokens())
        turn_id = (await user.ask("Hello?"))["turn"]["id"]
        path = f"/v1/turns/{turn_id}/events"
        assert '"finish_reason":"length"' in (await user.get(path, params={"format": "openai"})).text
        assert '"stop_reason":"max_tokens"' in (await user.get(path, params={"format": "anthropic"})).text

    @pytest.mark.parametrize("ending", ["Done.", Fail(ProviderFailed("broken"))], ids=["answered", "failed"])
    async def test_a_long_one_is_cut_as_little_as_possible_live_and_later(
        self, settings: Settings, ending: Any
    ) -> None:
        settings = structs.replace(settings, tool_calls=100)
        tools = ToolRegistry([letters], offered_to_all=["letters"])
        async with ApiServer.start(settings, tools=tools) as server:
            user = await server.user(await server.tenant())
            server.scripts.say(*(Call("letters", {"count": LONG_CHARS}) for _ in range(LONG_STEPS)))
            server.scripts.say(ending)
            stream = await user.post("/v1/turns", json={"message": "Go"}, headers={"accept": "text/event-stream"})
            events = await recorded_events(stream)
            live, began = fold(events).content, events[0]
            assert isinstance(began, TurnBegan)
            turn_id, answer = began.turn_id, {"conversation_id": began.conversation_id, "message": None}
            content = (await self.read_message(user, answer))["content"]
            assert content == list(to_builtins(live)), "a reload shows what was live"
            steps = [part for part in content if part["type"] == "step"]
            assert len(steps) == LONG_STEPS
            assert all(part["is_cut"] for part in steps)
            assert min(len(part["result"]) for part in steps) > 12_000
            assert 790_000 < len(encode(content)) < 801_000
            again = await recorded_events(await user.get(f"/v1/turns/{turn_id}/events"))
            assert again == events, "the stream is the same a week later"
            assert sum(isinstance(each, Step) and each.result == "z" * LONG_CHARS for each in again) == LONG_STEPS


async def recorded_events(response: httpx.Response) -> list[TurnEvent]:
    """The events of a stream, without the previews between them."""
    frames = [frame for frame in await read_events(response) if frame.event != "delta"]
    return [convert({"type": frame.event, **decode(frame.data)}, TurnEvent) for frame in frames]


class TestStreaming:
    @both
    async def test_the_stream_begins_with_the_turn_and_ends_with_the_result(
        self, server: ApiServer, user: Client
    ) -> None:
        # The reader must be there before the end, else it is given the result alone, and rightly so.
        server.scripts.say(Think("Hm."), "One ", "two.", Pause(2.0))
        async with user.stream("POST", "/v1/turns", json={"message": "Count"}, headers=STREAM) as response:
            assert response.headers["content-type"] == "text/event-stream"
            events = await read_events(response)
        assert names(events) == ["turn", "result"]
        assert set(data_of(events[0])) - {"type"} == {
            "turn_id",
            "conversation_id",
            "user_message_id",
            "status",
            "attempt",
        }
        assert said(events) == "Hm.One two."
        result = data_of(events[-1])
        assert set(result) - {"type"} == {"message_id", "message", "content", "usage"}
        assert result["message"] == "One two."
        history = await user.read(f"/v1/conversations/{data_of(events[0])['conversation_id']}/messages")
        assert history["data"][1]["content"] == result["content"]
        assert history["data"][1]["id"] == result["message_id"]

    async def test_a_stream_goes_on_after_any_cursor(self, server: ApiServer, user: Client) -> None:
        async with user.stream("POST", "/v1/turns", json={"message": "Hi"}, headers=STREAM) as response:
            events = await read_events(response)
        url = f"/v1/turns/{data_of(events[0])['turn_id']}/events"
        for place, event in enumerate(events):
            by_query = await user.get(url, params={"after": event.id})
            by_header = await user.get(url, headers={"last-event-id": event.id}, params={"after": "1"})
            if place == len(events) - 1:
                assert by_query.status_code == by_header.status_code == 204
                assert by_query.content == b""
            else:
                assert by_query.content == by_header.content
                assert b"event: result" in by_query.content

    async def test_malformed_and_future_cursors_are_refused(self, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        for cursor in ("x", "-1", "1.", "99", "1.99999", "2.7", "1e3", "9" * 40):
            response = await user.get(f"/v1/turns/{turn}/events", params={"after": cursor})
            assert code_of(response) == (422, "invalid_request"), cursor

    async def test_a_place_that_a_live_turn_has_not_reached_is_refused(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say("Half of ", pause(), "it.")
        accepted = await user.ask(background=True)
        await pause.reached.wait()
        for cursor in ("1.100000", "1.9", "2"):
            refused = await user.get(accepted["events_url"], params={"after": cursor})
            assert code_of(refused) == (422, "invalid_request"), cursor
        pause.opened.set()
        rest = await user.get(accepted["events_url"], params={"after": "1.8"})
        assert b"event: result" in rest.content

    async def test_a_place_of_another_format_is_refused(self, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        for cursor in ("1~2", "1.1~1.0"):
            refused = await user.get(f"/v1/turns/{turn}/events", params={"after": cursor})
            assert code_of(refused) == (422, "invalid_request"), cursor
        resumed = await user.get(f"/v1/turns/{turn}/events", params={"after": "1.1~1.0", "format": "openai"})
        assert resumed.status_code == 200

    async def test_a_settled_turn_replays_the_same_events(self, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        first = await user.get(f"/v1/turns/{turn}/events")
        second = await user.get(f"/v1/turns/{turn}/events")
        assert first.content == second.content

    async def test_other_formats_are_offered_on_both_routes(self, server: ApiServer, user: Client) -> None:
        response = await user.post("/v1/turns?format=openai", json={"message": "Hi"}, headers=STREAM)
        assert b"chat.completion.chunk" in response.content
        turn = response.headers["turnkeep-turn"]
        anthropic = await user.get(f"/v1/turns/{turn}/events?format=anthropic")
        assert b"content_block_delta" in anthropic.content
        assert code_of(await user.get(f"/v1/turns/{turn}/events?format=xml")) == (422, "invalid_request")

    async def test_a_refusal_before_the_claim_is_a_problem_also_for_a_stream(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": ""}, headers=STREAM)
        assert code_of(response) == (422, "invalid_request")

    async def test_a_queued_turn_says_so_and_says_again_when_it_runs(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "First.")
        first = await user.ask(background=True)
        conversation = {"conversation_id": first["conversation_id"], "message": "Next", "if_busy": "enqueue"}
        async with user.stream("POST", "/v1/turns", json=conversation, headers=STREAM) as response:
            pause.opened.set()
            events = await read_events(response)
        assert [data_of(event)["status"] for event in events if event.event == "turn"] == ["queued", "running"]


class TestBackground:
    async def test_the_answer_comes_at_once_and_wins_over_accept(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "Later.")
        response = await user.post("/v1/turns", json={"message": "Hi", "background": True}, headers=STREAM)
        assert response.status_code == 202
        accepted = response.json()
        assert set(accepted) == {"conversation_id", "turn_id", "events_url"}
        pause.opened.set()
        events = await user.get(accepted["events_url"])
        assert b"event: result" in events.content
        turn = await user.read(f"/v1/turns/{accepted['turn_id']}")
        assert turn["status"] == "succeeded"


class TestBusy:
    async def test_reject_names_the_running_turn_and_where_to_follow_it(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "First.")
        first = await user.ask(background=True)
        response = await user.post("/v1/turns", json={"message": "?", "conversation_id": first["conversation_id"]})
        assert code_of(response) == (409, "conversation_busy")
        assert response.headers["x-should-retry"] == "false"
        problem = response.json()
        assert problem["turn_id"] == first["turn_id"]
        assert problem["events_url"] == first["events_url"]
        assert isinstance(problem["started_at"], int)
        conversation = await user.read(f"/v1/conversations/{first['conversation_id']}")
        assert conversation["running_turn"] == {"id": first["turn_id"], "events_url": first["events_url"]}
        pause.opened.set()

    async def test_interrupt_stops_what_runs_and_keeps_what_waits(self, server: ApiServer, user: Client) -> None:
        gates = [ModelPause() for _ in range(3)]
        for pause in gates:
            server.scripts.say("So ", pause(), "it is.")
        first = await user.ask("One", background=True)
        await gates[0].reached.wait()
        again = {"conversation_id": first["conversation_id"], "background": True}
        await user.ask("Two", **again, if_busy="enqueue")
        urgent = await user.ask("Stop that", **again, if_busy="interrupt")
        await gates[1].reached.wait()
        assert (await user.read(f"/v1/turns/{first['turn_id']}"))["status"] == "cancelled"
        conversation = await user.read(f"/v1/conversations/{first['conversation_id']}")
        assert conversation["running_turn"]["id"] == urgent["turn_id"]
        assert texts_of(conversation) == ["Two"]
        for pause in gates:
            pause.opened.set()

    @both
    async def test_interrupt_may_drop_what_waits(self, server: ApiServer, user: Client) -> None:
        gates = [ModelPause() for _ in range(2)]
        for pause in gates:
            server.scripts.say("So ", pause(), "it is.")
        first = await user.ask("One", background=True)
        await gates[0].reached.wait()
        again = {"conversation_id": first["conversation_id"], "background": True}
        waiting = [await user.ask(text, **again, if_busy="enqueue") for text in ("Two", "Three")]
        urgent = await user.ask("Stop all that", **again, if_busy="interrupt", drop_queue=True)
        await gates[1].reached.wait()
        conversation = await user.read(f"/v1/conversations/{first['conversation_id']}")
        assert conversation["running_turn"]["id"] == urgent["turn_id"]
        assert texts_of(conversation) == []
        for one in waiting:
            assert (await user.read(f"/v1/turns/{one['turn_id']}"))["status"] == "cancelled"
        for pause in gates:
            pause.opened.set()

    async def test_only_an_interruption_drops_what_waits(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "Hi", "if_busy": "enqueue", "drop_queue": True})
        assert code_of(response) == (422, "invalid_request")
        assert "interrupt" in response.json()["detail"]


class TestTheQueue:
    @both
    async def test_the_conversation_shows_what_waits_until_it_starts(self, server: ApiServer, user: Client) -> None:
        gates = [ModelPause() for _ in range(4)]
        for pause in gates:
            server.scripts.say(pause(), "Answered.")
        first = await user.ask("One", background=True)
        path = f"/v1/conversations/{first['conversation_id']}"
        waiting = [await in_queue(user, first, text) for text in ("Two", "Three", "Four")]
        queued = (await user.read(path))["queued_turns"]
        assert [(turn["id"], turn["events_url"]) for turn in queued] == [
            (turn["turn_id"], turn["events_url"]) for turn in waiting
        ]
        message = queued[0]["message"]
        assert set(message) == MESSAGE_FIELDS - {"finish"}
        assert (message["role"], message["status"], message["turn_id"]) == ("user", "queued", waiting[0]["turn_id"])
        assert message["content"] == [{"type": "text", "text": "Two"}]
        assert texts_of((await user.patch(path, json={"title": "T"})).json()) == ["Two", "Three", "Four"]
        [listed] = (await user.read("/v1/conversations"))["data"]
        assert "queued_turns" not in listed

        gates[0].opened.set()
        await gates[1].reached.wait()
        conversation = await user.read(path)
        assert conversation["running_turn"]["id"] == waiting[0]["turn_id"]
        assert texts_of(conversation) == ["Three", "Four"]
        [*_, shown] = (await user.read(f"{path}/messages"))["data"]
        assert shown == message | {"status": "running"}

        assert (await user.post(f"/v1/turns/{waiting[1]['turn_id']}/cancel")).json()["status"] == "cancelled"
        assert texts_of(await user.read(path)) == ["Four"]
        await user.delete(path)
        assert code_of(await user.get(path)) == (404, "not_found")
        assert (await user.post(f"{path}/restore")).json()["queued_turns"] == []
        assert texts_of(await user.read(path)) == []

    async def test_it_is_shown_to_those_who_see_the_conversation(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "Answered.")
        first = await user.ask("One", background=True)
        await in_queue(user, first, "Two")
        path = f"/v1/conversations/{first['conversation_id']}"
        assert texts_of(await service.read(path)) == ["Two"]
        other = await server.user(service, "bob")
        assert code_of(await other.get(path)) == (404, "not_found")
        pause.opened.set()


async def in_queue(user: Client, first: Json, text: str) -> Json:
    return await user.ask(text, conversation_id=first["conversation_id"], if_busy="enqueue", background=True)


def texts_of(conversation: Json) -> list[str]:
    return [turn["message"]["content"][0]["text"] for turn in conversation["queued_turns"]]


class TestIdempotency:
    @both
    async def test_the_same_key_and_body_is_the_same_turn(self, server: ApiServer, user: Client) -> None:
        headers = {"idempotency-key": "once"}
        first = await user.ask("Hi", headers=headers)
        again = await user.ask("Hi", headers=headers)
        assert again["turn"]["id"] == first["turn"]["id"]
        streamed = await user.post("/v1/turns", json={"message": "Hi"}, headers=headers | STREAM)
        assert streamed.headers["turnkeep-turn"] == first["turn"]["id"]

    async def test_another_body_or_route_is_a_conflict(self, user: Client) -> None:
        headers = {"idempotency-key": "once"}
        first = await user.ask("Hi", headers=headers)
        other = await user.post("/v1/turns", json={"message": "Ho"}, headers=headers)
        assert code_of(other) == (409, "idempotency_conflict")
        assert other.headers["x-should-retry"] == "false"
        path = f"/v1/conversations/{first['conversation_id']}/turns/{first['turn']['id']}/regenerate"
        assert code_of(await user.post(path, headers=headers)) == (409, "idempotency_conflict")

    async def test_keys_of_two_users_do_not_meet(self, server: ApiServer, service: Client, user: Client) -> None:
        other = await server.user(service, "bob")
        headers = {"idempotency-key": "once"}
        first, second = await user.ask(headers=headers), await other.ask(headers=headers)
        assert first["turn"]["id"] != second["turn"]["id"]

    async def test_a_refused_request_leaves_the_key_free(self, user: Client) -> None:
        headers = {"idempotency-key": "once"}
        refused = await user.post("/v1/turns", json={"message": ""}, headers=headers)
        assert refused.status_code == 422
        assert (await user.ask("Hi", headers=headers))["turn"]["status"] == "succeeded"


class TestCancelling:
    async def test_it_is_idempotent_and_keeps_the_partial_text(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say("So far ", pause())
        accepted = await user.ask(background=True)
        await pause.reached.wait()
        first = await user.post(f"/v1/turns/{accepted['turn_id']}/cancel")
        second = await user.post(f"/v1/turns/{accepted['turn_id']}/cancel")
        assert first.json() == second.json()
        assert set(first.json()) == TURN_FIELDS
        messages = (await user.read(f"/v1/conversations/{accepted['conversation_id']}/messages"))["data"]
        assert messages[-1]["content"] == [{"type": "text", "text": "So far "}]
        assert messages[-1]["status"] == "cancelled"
        assert "code" in (await user.get(accepted["events_url"])).text


class TestModelsAndAgents:
    async def test_a_model_on_the_first_turn_becomes_the_conversations(self, server: ApiServer, user: Client) -> None:
        first = await user.ask(model="scripted/special")
        assert first["turn"]["model"] == "scripted/special"
        conversation = await user.read(f"/v1/conversations/{first['conversation_id']}")
        assert conversation["model"] == "scripted/special"
        later = await user.ask(conversation_id=first["conversation_id"], model="scripted/once")
        assert later["turn"]["model"] == "scripted/once"
        third = await user.ask(conversation_id=first["conversation_id"])
        assert third["turn"]["model"] == "scripted/special"

    async def test_an_unknown_model_is_refused_with_the_names_there_are(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "Hi", "model": "nobody/x"})
        assert code_of(response) == (422, "invalid_request")
        assert "scripted" in response.json()["detail"]

    async def test_precedence_is_turn_conversation_agent_workspace_server(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        workspace = (await user.read("/v1/workspaces"))["data"][0]["id"]
        await service.patch(f"/v1/workspaces/{workspace}", json={"model": "scripted/workspace"})
        assert (await user.ask())["turn"]["model"] == "scripted/workspace"
        agent = (await service.post("/v1/agents", json={"name": "A", "model": "scripted/agent"})).json()["id"]
        first = await user.ask(agent_id=agent)
        assert first["turn"]["model"] == "scripted/agent"
        await user.patch(f"/v1/conversations/{first['conversation_id']}", json={"model": "scripted/conversation"})
        second = await user.ask(conversation_id=first["conversation_id"])
        assert second["turn"]["model"] == "scripted/conversation"


class TestRefusals:
    async def test_unknown_ids_are_404(self, user: Client) -> None:
        for body in (
            {"conversation_id": fake_id("conv")},
            {"conversation_id": "nonsense"},
            {"agent_id": fake_id("agent")},
            {"attachment_ids": [fake_id("file")]},
            {"attachment_ids": ["file_nope"]},
        ):
            response = await user.post("/v1/turns", json={"message": "Hi", **body})
            assert code_of(response) == (404, "not_found"), body
        for path in (f"/v1/turns/{fake_id('turn')}", "/v1/turns/nope", f"/v1/turns/{fake_id('turn')}/events"):
            assert code_of(await user.get(path)) == (404, "not_found"), path
        assert code_of(await user.post(f"/v1/turns/{fake_id('turn')}/cancel")) == (404, "not_found")

    async def test_words_that_do_not_exist_and_wrong_types_are_422(self, user: Client) -> None:
        bodies: tuple[dict[str, object], ...] = (
            {"if_busy": "wait"},
            {"kind": "run"},
            {"background": "yes"},
            {"message": 5},
            {"message": [{"type": "video"}]},
            {"message": [{"type": "image", "media_type": "image/png"}]},
            {"metadata": []},
            {"colour": "red"},
            {"attachment_ids": "file_1"},
        )
        for body in bodies:
            response = await user.post("/v1/turns", json={"message": "Hi", **body})
            assert code_of(response) == (422, "invalid_request"), body
            assert next(iter(body)) in response.json()["detail"] or "image" in response.json()["detail"]

    async def test_kind_and_workflow_are_the_conversations_for_good(self, user: Client) -> None:
        made = (await user.post("/v1/conversations", json={"workflow_id": "w1"})).json()["id"]
        for body in ({"kind": "sandbox"}, {"workflow_id": "w2"}, {"kind": "chat", "workflow_id": "w2"}):
            response = await user.post("/v1/turns", json={"message": "Hi", "conversation_id": made, **body})
            assert code_of(response) == (422, "invalid_request")
            assert list(body)[-1] in response.json()["detail"]
        assert (await user.read(f"/v1/conversations/{made}"))["turn_count"] == 0
        await user.ask(conversation_id=made, kind="chat", workflow_id="w1")
        other = (await user.ask())["conversation_id"]
        response = await user.post("/v1/turns", json={"message": "Hi", "conversation_id": other, "workflow_id": "w"})
        assert "not set" in response.json()["detail"]

    async def test_too_many_files_and_an_empty_message(self, user: Client) -> None:
        many = [fake_id("file") for _ in range(11)]
        response = await user.post("/v1/turns", json={"message": "Hi", "attachment_ids": many})
        assert code_of(response) == (422, "too_many_files")
        assert code_of(await user.post("/v1/turns", json={})) == (422, "invalid_request")

    async def test_a_sandbox_without_a_runner_is_refused_before_the_claim(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "Hi", "kind": "sandbox"})
        assert code_of(response) == (503, "sandbox_unavailable")
        assert (await user.read("/v1/conversations"))["data"] == []
        made = (await user.post("/v1/conversations", json={"kind": "sandbox"})).json()["id"]
        again = await user.post("/v1/turns", json={"message": "Hi", "conversation_id": made})
        assert code_of(again) == (503, "sandbox_unavailable")

    async def test_text_that_no_database_can_keep(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "a\0b"})
        assert code_of(response) == (422, "invalid_request")


class TestBranches:
    @both
    async def test_regenerate_and_edit_make_siblings_and_move_the_head(self, server: ApiServer, user: Client) -> None:
        first = await user.ask("One")
        base = f"/v1/conversations/{first['conversation_id']}"
        server.scripts.say("Another answer.")
        again = (await user.post(f"{base}/turns/{first['turn']['id']}/regenerate")).json()
        assert again["turn"]["response"] == "Another answer."
        siblings = [first["turn"]["id"], again["turn"]["id"]]
        assert again["message"]["siblings"] == siblings
        edited = (await user.post(f"{base}/turns/{first['turn']['id']}/edit", json={"message": "Two"})).json()
        messages = (await user.read(f"{base}/messages"))["data"]
        assert messages[0]["content"] == [{"type": "text", "text": "Two"}]
        assert all(message["siblings"] == [*siblings, edited["turn"]["id"]] for message in messages)
        assert all(message["versions"] == [siblings, [edited["turn"]["id"]]] for message in messages)
        conversation = (await user.patch(base, json={"head_turn_id": first["turn"]["id"]})).json()
        assert conversation["head_turn_id"] == first["turn"]["id"]
        assert conversation["message_count"] == 2
        messages = (await user.read(f"{base}/messages"))["data"]
        assert messages[0]["content"] == [{"type": "text", "text": "One"}]

    async def test_they_have_the_answers_of_a_turn(self, user: Client) -> None:
        first = await user.ask("One")
        path = f"/v1/conversations/{first['conversation_id']}/turns/{first['turn']['id']}"
        streamed = await user.post(f"{path}/regenerate", headers=STREAM)
        assert b"event: result" in streamed.content
        accepted = await user.post(f"{path}/edit", json={"message": "Two", "background": True})
        assert accepted.status_code == 202

    @both
    async def test_a_turn_that_runs_makes_the_conversation_busy(self, server: ApiServer, user: Client) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "First.")
        first = await user.ask(background=True)
        path = f"/v1/conversations/{first['conversation_id']}/turns/{first['turn_id']}"
        for response in (await user.post(f"{path}/regenerate"), await user.post(f"{path}/edit", json={"message": "?"})):
            assert code_of(response) == (409, "conversation_busy")
            assert response.json()["turn_id"] == first["turn_id"]
            assert response.json()["events_url"] == first["events_url"]
        base = path.partition("/turns/")[0]
        switching = await user.patch(base, json={"head_turn_id": first["turn_id"]})
        assert code_of(switching) == (409, "conversation_busy")
        assert "if_busy" not in switching.json()["detail"], "a PATCH cannot wait in the queue"
        pause.opened.set()

    async def test_a_turn_of_another_conversation_is_not_found(self, user: Client) -> None:
        first, second = await user.ask("One"), await user.ask("Two")
        path = f"/v1/conversations/{first['conversation_id']}/turns/{second['turn']['id']}/regenerate"
        assert code_of(await user.post(path)) == (404, "not_found")


class TestTrace:
    async def test_it_is_ndjson_for_services_alone(self, service: Client, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        assert code_of(await user.get(f"/v1/turns/{turn}/trace")) == (403, "forbidden")
        response = await service.get(f"/v1/turns/{turn}/trace")
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [httpx.Response(200, content=line).json() for line in response.content.splitlines()]
        assert [line["type"] for line in lines] == ["turn", "result"]
        assert [line["seq"] for line in lines] == [1, 2]
        assert lines[0]["snapshot"]["model"] == "scripted"

    async def test_it_has_the_whole_of_a_long_result(self, settings: Settings) -> None:
        tools = ToolRegistry([letters], offered_to_all=["letters"])
        async with ApiServer.start(settings, tools=tools) as server:
            service = await server.tenant()
            user = await server.user(service)
            server.scripts.say(Call("letters", {"count": 100_000}))
            turn = (await user.ask())["turn"]["id"]
            lines = [decode(line) for line in (await service.get(f"/v1/turns/{turn}/trace")).content.splitlines()]
            [result] = [line["result"] for line in lines if line.get("status") == "succeeded"]
            assert result == "z" * 100_000
            stream = await read_events(await user.get(f"/v1/turns/{turn}/events"))
            [shown] = [decode(event.data) for event in stream if event.event == "step" and "result" in event.data]
            assert len(shown["result"]) <= 16_000
