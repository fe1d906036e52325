"""Turns that wait, over HTTP: approvals, client tools and steering, as the contract says it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import STREAM, ApiServer, Client, Json, code_of, data_of, fake_id, names, read_events
from turnkeep.api.native.schemas import check_args
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest
from turnkeep.providers.scripted import Call
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

PAY = {"type": "native", "name": "pay", "approval": "always"}
LOOKUP = {
    "type": "client",
    "name": "lookup",
    "description": "Looks something up on the device.",
    "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}},
}
paid: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay this amount."""
    paid.append(amount)
    return f"paid {amount}"


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    paid.clear()
    async with ApiServer.start(settings, tools=ToolRegistry([pay])) as running:
        yield running


async def payer(service: Client, **fields: Json) -> str:
    response = await service.post("/v1/agents", json={"name": "Payer", "tools": [PAY], **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def waiting(server: ApiServer, asker: Client, agent_id: str, **body: Json) -> Json:
    """A turn that waits for an approval of one call."""
    server.scripts.say(Call("pay", {"amount": 5}))
    answer = await asker.ask("Pay five.", agent_id=agent_id, **body)
    turn = answer["turn"]
    assert (turn["status"], answer["message"]) == ("waiting", None)
    return turn


async def decide(client: Client, turn: Json, decision: str = "allow", **more: Json) -> httpx.Response:
    [call] = turn["waiting_for"]["calls"]
    decisions = [{"call_id": call["id"], "decision": decision, **more}]
    return await client.post(f"/v1/turns/{turn['id']}/approvals", json={"decisions": decisions})


async def ended(client: Client, turn_id: str) -> Json:
    async with asyncio.timeout(60):
        while (turn := await client.read(f"/v1/turns/{turn_id}"))["status"] in {"running", "queued"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return turn


@both
class TestApprovals:
    async def test_a_call_waits_until_it_is_allowed(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        assert turn["waiting_for"]["type"] == "approval"
        [call] = turn["waiting_for"]["calls"]
        assert call == {"id": call["id"], "name": "pay", "args": {"amount": 5}}
        assert await user.read(f"/v1/turns/{turn['id']}") == turn
        [question] = (await user.read(f"/v1/conversations/{turn['conversation_id']}/messages"))["data"]
        assert question["status"] == "waiting"
        response = await decide(user, turn)
        assert response.status_code == 200, response.text
        assert "waiting_for" not in response.json()
        after = await ended(user, turn["id"])
        assert (after["status"], paid) == ("succeeded", [5])
        assert (await decide(user, turn)).status_code == 200
        other = await decide(user, turn, "deny")
        assert code_of(other) == (409, "already_decided")
        assert (other.json()["decision"], other.headers["x-should-retry"]) == ("allow", "false")
        assert paid == [5]

    async def test_the_stream_stays_open_and_goes_on(self, server: ApiServer, service: Client, user: Client) -> None:
        agent = await payer(service)
        server.scripts.say(Call("pay", {"amount": 5}))
        body = {"message": "Pay five.", "agent_id": agent}
        async with user.stream("POST", "/v1/turns", json=body, headers=STREAM) as response:
            turn_id = response.headers["turnkeep-turn"]
            reading = asyncio.create_task(read_events(response))
            async with asyncio.timeout(60):
                while (turn := await user.read(f"/v1/turns/{turn_id}"))["status"] != "waiting":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert not reading.done()
            await decide(user, turn, "deny", reason="too much")
            events = await reading
        assert names(events) == ["turn", "tool_calls", "approval", "turn", "step", "result"]
        assert [event.id for event in events if event.event != "delta"] == ["1", "2", "3", "4", "5", "6"]
        asked, step = data_of(events[2]), data_of(events[4])
        assert asked["calls"] == turn["waiting_for"]["calls"]
        assert asked["expires_at"] == turn["waiting_for"]["expires_at"]
        assert (step["status"], step["error"]) == ("failed", "Denied by ann: too much")

    async def test_the_conversation_is_busy_with_it(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        asked = {"message": "And?", "conversation_id": turn["conversation_id"]}
        busy = await user.post("/v1/turns", json=asked)
        assert code_of(busy) == (409, "conversation_busy")
        assert (busy.json()["turn_id"], busy.json()["waiting_for"]) == (turn["id"], "approval")
        conversation = await user.read(f"/v1/conversations/{turn['conversation_id']}")
        assert conversation["running_turn"]["id"] == turn["id"]
        assert conversation["running_turn"]["waiting_for"] == "approval"
        [listed] = (await user.read("/v1/conversations"))["data"]
        assert listed["running_turn"] == conversation["running_turn"]
        later = await user.ask("And?", conversation_id=turn["conversation_id"], if_busy="interrupt")
        assert later["turn"]["status"] == "succeeded"
        assert (await ended(user, turn["id"]))["status"] == "cancelled"
        assert paid == []

    async def test_cancel_settles_it(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        stopped = await user.post(f"/v1/turns/{turn['id']}/cancel")
        assert stopped.json()["status"] == "cancelled"
        assert code_of(await decide(user, turn)) == (409, "already_decided")
        assert paid == []

    async def test_it_counts_once(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        await decide(user, turn)
        await ended(user, turn["id"])
        assert (await service.read("/v1/usage"))["messages"] == 1


class TestDecisions:
    async def test_edited_arguments_must_fit_the_tool(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        assert code_of(await decide(user, turn, args={"amount": "much"})) == (422, "invalid_request")
        assert code_of(await decide(user, turn, "deny", args={"amount": 1})) == (422, "invalid_request")
        assert (await decide(user, turn, args={"amount": 3})).status_code == 200
        await ended(user, turn["id"])
        assert paid == [3]

    async def test_an_expression_in_a_schema_stops_nothing(self) -> None:
        """Python's `re` needs hours for it, and no other thread runs meanwhile."""
        schema = {
            "type": "object",
            "properties": {"amount": {"type": "integer"}, "note": {"pattern": "^(a+)+$"}},
            "patternProperties": {"^(a+)+$": {}},
            "additionalProperties": False,
        }
        check_args("pay", schema, {"amount": 5, "note": "a" * 60 + "!", "a" * 60 + "!": 1})
        with pytest.raises(InvalidRequest, match="do not fit"):
            check_args("pay", schema, {"amount": "five"})

    async def test_schemas_that_refer_to_each_other_end(self) -> None:
        steps = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(60)}
        with pytest.raises(InvalidRequest, match="cannot be followed"):
            check_args("pay", {"$ref": "#/$defs/s0", "$defs": {**steps, "s60": {}}}, {"amount": 5})

    async def test_remember_holds_for_the_conversation(self, server: ApiServer, service: Client, user: Client) -> None:
        agent = await payer(service)
        turn = await waiting(server, user, agent)
        await decide(user, turn, remember="conversation")
        await ended(user, turn["id"])
        server.scripts.say(Call("pay", {"amount": 7}))
        again = await user.ask("Pay seven.", conversation_id=turn["conversation_id"])
        assert (again["turn"]["status"], paid) == ("succeeded", [5, 7])
        await waiting(server, user, agent)

    async def test_foreign_and_unknown_ids(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        bob = await server.user(service, "bob")
        assert code_of(await decide(bob, turn)) == (404, "not_found")
        elsewhere = await server.tenant("other")
        assert code_of(await decide(elsewhere, turn)) == (404, "not_found")
        path = f"/v1/turns/{turn['id']}/approvals"
        unknown = await user.post(path, json={"decisions": [{"call_id": "call_x", "decision": "allow"}]})
        assert code_of(unknown) == (404, "not_found")
        bodies: list[Json] = [{}, {"decisions": []}, {"decisions": [{"call_id": "x", "decision": "maybe"}]}]
        for body in bodies:
            assert code_of(await user.post(path, json=body)) == (422, "invalid_request")
        missing = f"/v1/turns/{fake_id('turn')}/approvals"
        decision = {"decisions": [{"call_id": "x", "decision": "allow"}]}
        assert code_of(await user.post(missing, json=decision)) == (404, "not_found")

    @pytest.mark.parametrize(
        "approvers, who, status",
        [
            (["author"], "author", 200),
            (["author"], "admin", 404),
            (["author"], "service", 403),
            (["admin"], "author", 403),
            (["admin"], "admin", 200),
            (["admin"], "service", 200),
            (["author", "admin"], "author", 200),
            (["author", "admin"], "admin", 200),
        ],
    )
    async def test_the_agent_names_who_decides(
        self, server: ApiServer, service: Client, user: Client, approvers: list[str], who: str, status: int
    ) -> None:
        turn = await waiting(server, user, await payer(service, approvers=approvers))
        deciders = {"author": user, "admin": await server.user(service, "boss", role="admin"), "service": service}
        decider = deciders[who]
        seen = await decider.get(f"/v1/turns/{turn['id']}")
        assert seen.status_code == (404 if status == 404 else 200)
        assert (await decide(decider, turn)).status_code == status
        if status == 200:
            assert (await ended(user, turn["id"]))["status"] == "succeeded"
        if who == "admin":
            assert (await decider.get(f"/v1/turns/{turn['id']}")).status_code == 404

    async def test_agents_show_their_rules(self, server: ApiServer, service: Client) -> None:
        server_rules: dict[str, Any] = {"approval": {"delete": "always"}}
        agent = await payer(service, approvers=["admin"])
        shown = await service.read(f"/v1/agents/{agent}")
        assert (shown["tools"], shown["approvers"]) == ([PAY], ["admin"])
        for tools in (
            [{"type": "native", "name": "nothing"}],
            [{**PAY, "approval": "sometimes"}],
            ["pay", LOOKUP | {"name": "pay"}],
        ):
            response = await service.post("/v1/agents", json={"name": "x", "tools": tools})
            assert code_of(response) == (422, "invalid_request"), tools
        mcp = [{"name": "files", "url": "https://tools.example/mcp", **server_rules}]
        response = await service.post("/v1/agents", json={"name": "x", "mcp_servers": mcp})
        assert response.status_code in {201, 422}, response.text


@both
class TestClientTools:
    async def test_the_caller_runs_them(self, server: ApiServer, user: Client) -> None:
        server.scripts.say(Call("lookup", {"key": "a"}), Call("lookup", {"key": "b"}))
        turn = (await user.ask("Look.", tools=[LOOKUP]))["turn"]
        assert turn["waiting_for"]["type"] == "client_tools"
        one, two = turn["waiting_for"]["calls"]
        assert [tool.name for tool in server.scripts.requests[0].tools] == ["lookup"]
        path = f"/v1/turns/{turn['id']}/results"
        half = await user.post(path, json={"results": [{"call_id": one["id"], "result": {"found": 1}}]})
        assert [call["id"] for call in half.json()["waiting_for"]["calls"]] == [two["id"]]
        done = await user.post(path, json={"results": [{"call_id": two["id"], "error": "no such key"}]})
        assert done.status_code == 200, done.text
        assert (await ended(user, turn["id"]))["status"] == "succeeded"
        [*_, answer] = (await user.read(f"/v1/conversations/{turn['conversation_id']}/messages"))["data"]
        steps = [part for part in answer["content"] if part["type"] == "step"]
        assert [(step["status"], step.get("result"), step.get("error")) for step in steps] == [
            ("succeeded", {"found": 1}, None),
            ("failed", None, "no such key"),
        ]
        again = await user.post(path, json={"results": [{"call_id": one["id"], "result": {"found": 1}}]})
        assert again.status_code == 200
        other = await user.post(path, json={"results": [{"call_id": one["id"], "result": {"found": 2}}]})
        assert code_of(other) == (409, "already_decided")


class TestClientToolsThatCannotBe:
    async def test_names_are_those_of_no_other_tool(self, service: Client, user: Client) -> None:
        for tools in (
            [LOOKUP, LOOKUP],
            [LOOKUP | {"name": "pay"}],
            [LOOKUP | {"name": "a__b"}],
            [PAY],
        ):
            refused = await user.post("/v1/turns", json={"message": "Hi", "tools": tools})
            assert code_of(refused) == (422, "invalid_request"), tools

    async def test_schemas_are_limited_together(self, user: Client) -> None:
        schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}
        tools = [{**LOOKUP, "name": f"lookup{n}", "input_schema": schema} for n in range(10)]
        response = await user.post("/v1/turns", json={"message": "Hi", "tools": tools})
        assert code_of(response) == (422, "invalid_request")
        assert "262,144 bytes together" in response.json()["detail"]

    async def test_results_are_one_of_two(self, server: ApiServer, user: Client) -> None:
        server.scripts.say(Call("lookup", {"key": "a"}))
        turn = (await user.ask("Look.", tools=[LOOKUP]))["turn"]
        [call] = turn["waiting_for"]["calls"]
        path = f"/v1/turns/{turn['id']}/results"
        for sent in ({}, {"result": 1, "error": "x"}):
            refused = await user.post(path, json={"results": [{"call_id": call["id"], **sent}]})
            assert code_of(refused) == (422, "invalid_request")
        wrong = {"decisions": [{"call_id": call["id"], "decision": "allow"}]}
        assert code_of(await user.post(f"/v1/turns/{turn['id']}/approvals", json=wrong)) == (422, "invalid_request")
        assert (await user.post(path, json={"results": [{"call_id": call["id"], "result": None}]})).status_code == 200

    async def test_an_agent_may_have_client_tools(self, server: ApiServer, service: Client, user: Client) -> None:
        agent = await payer(service, tools=[LOOKUP])
        server.scripts.say(Call("lookup", {"key": "a"}))
        turn = (await user.ask("Look.", agent_id=agent))["turn"]
        assert turn["waiting_for"]["type"] == "client_tools"


@both
class TestSteering:
    async def test_words_are_stored_at_once(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        steered = await user.post(f"/v1/turns/{turn['id']}/steer", json={"message": "Be short."})
        assert steered.status_code == 202, steered.text
        server.scripts.say("Short.")
        await decide(user, turn)
        assert (await ended(user, turn["id"]))["response"] == "Short."
        assert "Be short." in repr(server.scripts.requests[-1].all_messages)
        messages = (await user.read(f"/v1/conversations/{turn['conversation_id']}/messages"))["data"]
        assert [message["role"] for message in messages] == ["user", "user", "assistant"]
        assert messages[1]["id"] == steered.json()["message_id"]

    async def test_what_is_refused(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        path = f"/v1/turns/{turn['id']}/steer"
        assert code_of(await user.post(path, json={"message": " "})) == (422, "invalid_request")
        assert code_of(await user.post(path, json={})) == (422, "invalid_request")
        bob = await server.user(service, "bob")
        assert code_of(await bob.post(path, json={"message": "Hi"})) == (404, "not_found")
        key = {"idempotency-key": "one"}
        first = await user.post(path, json={"message": "Hi"}, headers=key)
        assert (await user.post(path, json={"message": "Hi"}, headers=key)).json() == first.json()
        other = await user.post(path, json={"message": "Ho"}, headers=key)
        assert code_of(other) == (409, "idempotency_conflict")


@both
class TestWhatElseMayHappenToATurnThatWaits:
    async def test_it_can_be_traced_exported_and_asked_again(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        turn = await waiting(server, user, await payer(service))
        path = f"/v1/conversations/{turn['conversation_id']}"
        trace = await service.get(f"/v1/turns/{turn['id']}/trace")
        assert '"type":"approval"' in trace.text
        exported = await service.get(f"{path}/export")
        assert exported.status_code in {200, 409}, exported.text
        again = await user.post(f"{path}/turns/{turn['id']}/regenerate", json={"if_busy": "interrupt"})
        assert again.status_code == 200, again.text
        assert again.json()["turn"]["status"] == "succeeded"
        assert (await ended(user, turn["id"]))["status"] == "cancelled"
        assert paid == []

    @pytest.mark.parametrize("how", ["delete", "erase"])
    async def test_its_conversation_can_go(self, server: ApiServer, service: Client, user: Client, how: str) -> None:
        turn = await waiting(server, user, await payer(service))
        path = f"/v1/conversations/{turn['conversation_id']}"
        gone = await (user.delete(path) if how == "delete" else service.post(f"{path}/erase"))
        assert gone.status_code == 204, gone.text
        assert code_of(await decide(user, turn)) == (404, "not_found")
        async with asyncio.timeout(60):
            while server.runtime.engine.running:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert paid == []
