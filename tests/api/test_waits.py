"""Turns that wait, over HTTP: approvals, client tools and steering, as the contract says it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

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
    settings_for,
)
from tests.tools.web_server import web_server
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest
from turnkeep.providers.scripted import Call
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep.tools.schemas import check_args

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
    response = await service.post("/v1/agents", json={"name": fake_id("agent"), "tools": [PAY], **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def waiting(
    server: ApiServer, asker: Client, agent_id: str, *, amounts: Sequence[int] = (5,), **body: Json
) -> Json:
    """A turn that waits for an approval of a call for each of these amounts."""
    server.scripts.say(*(Call("pay", {"amount": amount}) for amount in amounts))
    answer = await asker.ask("Pay five.", agent_id=agent_id, **body)
    turn = answer["turn"]
    assert (turn["status"], answer["message"]) == ("waiting", None)
    return turn


async def decide(client: Client, turn: Json, decision: str = "allow", **more: Json) -> httpx.Response:
    [call, *_] = turn["waiting_for"]["calls"]
    decisions = [{"call_id": call["id"], "decision": decision, **more}]
    return await client.post(f"/v1/turns/{turn['id']}/approvals", json={"decisions": decisions})


async def ended(client: Client, turn_id: str) -> Json:
    async with asyncio.timeout(60):
        while (turn := await client.read(f"/v1/turns/{turn_id}"))["status"] in {"running", "queued"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return turn


def remembered(asked: list[str], verb: str, method: Any) -> Any:
    def call(*args: Any, **fields: Any) -> Any:
        asked.append(verb)
        return method(*args, **fields)

    return call


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

    async def test_it_tells_what_was_decided_of_several_calls(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        calls = [Call("pay", {"amount": amount}) for amount in (1, 2, 3)]
        server.scripts.say(*calls)
        server.scripts.say(calls[0], calls[1])
        turn = (await user.ask("Pay.", agent_id=await payer(service)))["turn"]
        assert "decided" not in turn["waiting_for"]
        one, two, three = (call["id"] for call in turn["waiting_for"]["calls"])
        body = {
            "decisions": [
                {"call_id": one, "decision": "allow", "args": {"amount": 4}},
                {"call_id": two, "decision": "deny", "reason": "No."},
            ]
        }
        after = (await user.post(f"/v1/turns/{turn['id']}/approvals", json=body)).json()
        for found in (after, await user.read(f"/v1/turns/{turn['id']}")):
            assert [call["id"] for call in found["waiting_for"]["calls"]] == [three]
            told = found["waiting_for"]["decided"]
            assert [each.pop("at") >= turn["started_at"] for each in told] == [True, True]
            assert told == [
                {"call_id": one, "decision": "allow", "by": "ann", "args": {"amount": 4}},
                {"call_id": two, "decision": "deny", "by": "ann", "reason": "No."},
            ]
        last = {"decisions": [{"call_id": three, "decision": "deny"}]}
        await user.post(f"/v1/turns/{turn['id']}/approvals", json=last)
        async with asyncio.timeout(60):
            while (again := await user.read(f"/v1/turns/{turn['id']}"))["status"] != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "decided" not in again["waiting_for"], "those were decisions of the wait before"

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
        assert names(events) == ["turn", "tool_calls", "approval", "decided", "turn", "step", "result"]
        assert [event.id for event in events if event.event != "delta"] == ["1", "2", "3", "4", "5", "6", "7"]
        asked, decided, step = data_of(events[2]), data_of(events[3]), data_of(events[5])
        assert asked["calls"] == turn["waiting_for"]["calls"]
        assert asked["expires_at"] == turn["waiting_for"]["expires_at"]
        [made] = decided["decisions"]
        assert made.pop("at") > 0
        call_id = turn["waiting_for"]["calls"][0]["id"]
        assert made == {"call_id": call_id, "decision": "deny", "by": "ann", "reason": "too much"}
        assert (step["status"], step["error"]) == ("failed", "Denied by ann: too much")

    async def test_a_stream_tells_each_of_several_decisions(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        turn = await waiting(server, user, await payer(service), amounts=(5, 6))
        async with user.stream("GET", f"/v1/turns/{turn['id']}/events?after=3", headers=STREAM) as response:
            reading = asyncio.create_task(read_events(response))
            async with asyncio.timeout(60):
                while turn["id"] not in server.runtime.hub.followed_turns():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await decide(user, turn)
            assert (await user.read(f"/v1/turns/{turn['id']}"))["status"] == "waiting"
            await decide(user, await user.read(f"/v1/turns/{turn['id']}"), "deny")
            events = await reading
        assert [name for name in names(events) if name != "step"] == ["decided", "decided", "turn", "result"]
        told = [data_of(event)["decisions"] for event in events[:2]]
        assert [[made["decision"] for made in decisions] for decisions in told] == [["allow"], ["deny"]]

    async def test_heartbeats_go_on_and_no_reader_asks_the_store_for_itself(
        self, server: ApiServer, service: Client, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.runtime.streams.heartbeat_seconds = 0.1
        turn = await waiting(server, user, await payer(service))
        asked: list[str] = []
        beats = 0
        async with user.stream("GET", f"/v1/turns/{turn['id']}/events", headers=STREAM) as response:
            async for line in response.aiter_lines():
                if line.startswith(":"):
                    beats += 1
                if beats == 2:
                    for verb in ("events", "turn", "claimed_turn", "running_turn"):
                        method = getattr(server.runtime.store, verb)
                        monkeypatch.setattr(server.runtime.store, verb, remembered(asked, verb, method))
                if beats == 12:
                    break
        assert asked == []
        await decide(user, turn, "deny")
        await ended(user, turn["id"])  # the next server on this database would go on with it

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

    async def test_a_repeat_that_remembers_is_remembered(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        """“Always” on a second device, after “Allow” on the first."""
        turn = await waiting(server, user, await payer(service))
        await decide(user, turn)
        await ended(user, turn["id"])
        again = await decide(user, turn, remember="conversation")
        assert (again.status_code, again.json()["status"]) == (200, "succeeded")
        server.scripts.say(Call("pay", {"amount": 7}))
        answer = await user.ask("Pay seven.", conversation_id=turn["conversation_id"])
        assert (answer["turn"]["status"], paid) == ("succeeded", [5, 7])

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
        assert turn["waiting_for"].get("approvers", ["author"]) == approvers
        deciders = {"author": user, "admin": await server.user(service, "boss", role="admin"), "service": service}
        decider = deciders[who]
        seen = await decider.get(f"/v1/turns/{turn['id']}")
        assert seen.status_code == (404 if status == 404 else 200)
        assert (await decide(decider, turn)).status_code == status
        if status == 200:
            assert (await ended(user, turn["id"]))["status"] == "succeeded"
        if who == "admin":
            assert (await decider.get(f"/v1/turns/{turn['id']}")).status_code == 404

    async def test_scopes_hold_when_calls_are_answered(self, server: ApiServer, service: Client, user: Client) -> None:
        agent, other = await payer(service, approvers=["author", "admin"], tools=[PAY, LOOKUP]), await payer(service)
        turn = await waiting(server, user, agent)
        elsewhere: Json = {"agents": [other], "models": [], "features": "*"}
        for role in ("member", "admin"):
            narrow = await server.user(service, "ann" if role == "member" else "boss", role=role, scopes=elsewhere)
            assert code_of(await decide(narrow, turn)) == (404, "not_found")
        key = (await service.post("/v1/keys", json={"name": "k", "allowed_tools": ["lookup"]})).json()["key"]
        limited = await server.client(key, turnkeep_user="ann")
        refused = await decide(limited, turn)
        assert code_of(refused) == (403, "forbidden")
        assert "may not use the tool pay" in refused.json()["detail"]
        assert paid == []
        assert (await decide(limited, turn, "deny")).status_code == 200, "to deny needs no right to use it"
        await ended(user, turn["id"])  # else it might take the words of the next turn
        server.scripts.say(Call("lookup", {"key": "a"}))
        asked = (await user.ask("Look.", agent_id=agent))["turn"]
        [call] = asked["waiting_for"]["calls"]
        results = {"results": [{"call_id": call["id"], "result": 1}]}
        narrow = await server.user(service, "ann", scopes=elsewhere)
        assert code_of(await narrow.post(f"/v1/turns/{asked['id']}/results", json=results)) == (404, "not_found")
        steer = {"message": "Be short."}
        assert code_of(await narrow.post(f"/v1/turns/{asked['id']}/steer", json=steer)) == (404, "not_found")
        bob = await server.user(service, "bob")
        assert code_of(await bob.post(f"/v1/turns/{asked['id']}/results", json=results)) == (404, "not_found")
        assert (await user.post(f"/v1/turns/{asked['id']}/results", json=results)).status_code == 200

    @pytest.mark.parametrize("who", ["author", "admin"])
    async def test_a_disabled_user_decides_nothing(
        self, server: ApiServer, service: Client, user: Client, who: str
    ) -> None:
        turn = await waiting(server, user, await payer(service, approvers=["author", "admin"]))
        boss = await server.user(service, "boss", role="admin")
        name, client = ("ann", user) if who == "author" else ("boss", boss)
        assert (await service.patch(f"/v1/users/{name}", json={"is_disabled": True})).status_code == 200
        assert code_of(await decide(client, turn)) == (403, "forbidden")
        assert code_of(await decide(await server.client(service.key, turnkeep_user=name), turn)) == (403, "forbidden")
        assert paid == []
        if who == "author":
            stopped = await service.read(f"/v1/turns/{turn['id']}")
            assert stopped["status"] == "cancelled", "turns of a disabled user are stopped"
        else:
            assert (await decide(user, turn)).status_code == 200

    async def test_an_admin_who_is_a_member_again_decides_nothing(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        turn = await waiting(server, user, await payer(service, approvers=["admin"]))
        boss = await server.user(service, "boss", role="admin")
        assert (await service.patch("/v1/users/boss", json={"role": "member"})).status_code == 200
        assert code_of(await decide(boss, turn)) == (404, "not_found")

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


class TestToolsOfOthers:
    """HTTP tools and MCP servers in the loop of the server."""

    @pytest.mark.parametrize("decision, runs", [("allow", 1), ("deny", 0)])
    async def test_an_http_tool_waits(self, tmp_path: Path, decision: str, runs: int) -> None:
        async with web_server() as web, ApiServer.start(settings_for(tmp_path, allow_private_addresses=True)) as server:
            service = await server.tenant()
            user = await server.user(service)
            crm = {"type": "http", "name": "crm", "url": f"{web.url}/headers", "approval": "always"}
            agent = await payer(service, tools=[crm])
            server.scripts.say(Call("crm", {"name": "Ann"}))
            turn = (await user.ask("Look.", agent_id=agent))["turn"]
            assert (turn["status"], web.hits) == ("waiting", 0)
            assert (await decide(user, turn, decision)).status_code == 200
            assert (await ended(user, turn["id"]))["status"] == "succeeded"
            assert web.hits == runs

    @pytest.mark.parametrize(
        "rule, waits", [("always", True), ({"count": "always"}, True), ({"first": "always"}, False)]
    )
    async def test_a_tool_of_an_mcp_server_waits(self, tmp_path: Path, rule: Json, waits: bool) -> None:
        file = tmp_path / "calls"
        async with ApiServer.start(settings_for(tmp_path, allow_mcp_commands=True)) as server:
            service = await server.tenant()
            user = await server.user(service)
            program = str(Path(__file__).parents[1] / "tools" / "old_mcp_server.py")
            old = {"name": "old", "command": sys.executable, "args": [program], "approval": rule}
            agent = await payer(service, tools=[], mcp_servers=[old])
            for decision in ("deny", "allow"):
                server.scripts.say(Call("old__count", {"file": str(file)}))
                turn = (await user.ask("Count.", agent_id=agent))["turn"]
                assert turn["status"] == ("waiting" if waits else "succeeded")
                if waits:
                    assert (await decide(user, turn, decision)).status_code == 200
                assert (await ended(user, turn["id"]))["status"] == "succeeded"
            assert file.read_text() == ("x" if waits else "xx")


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

    async def test_results_have_a_size(self, settings: Settings) -> None:
        settings = structs.replace(settings, max_body_bytes=8 * 1024 * 1024)
        async with ApiServer.start(settings, tools=ToolRegistry([pay])) as server:
            user = await server.user(await server.tenant())
            server.scripts.say(*(Call("lookup", {"key": str(n)}) for n in range(6)))
            turn = (await user.ask("Look.", tools=[LOOKUP]))["turn"]
            calls, path = turn["waiting_for"]["calls"], f"/v1/turns/{turn['id']}/results"

            async def send(call: Json, size: int) -> httpx.Response:
                return await user.post(path, json={"results": [{"call_id": call["id"], "result": "x" * size}]})

            large = await send(calls[0], 1024 * 1024)
            assert large.status_code == 413, large.text
            assert "takes 1,048,578 bytes; at most 1,048,576 are allowed" in large.json()["detail"]
            sizes = [(await send(call, 1_000_000)).status_code for call in calls]
            assert sizes == [200, 200, 200, 200, 413, 413]
            for call in calls[4:]:
                assert (await send(call, 1_000)).status_code == 200
            assert (await ended(user, turn["id"]))["status"] == "succeeded"
            assert (await send(calls[0], 1_000_000)).status_code == 200, "a repeat"

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
        assert exported.status_code == 200, exported.text
        imported = await service.post("/v1/import", content=exported.content, headers=dict(exported.headers))
        assert code_of(imported)[0] in {409, 422}, imported.text
        assert "waits" in imported.json()["detail"]
        again = await user.post(f"{path}/turns/{turn['id']}/regenerate", json={"if_busy": "interrupt"})
        assert again.status_code == 200, again.text
        assert again.json()["turn"]["status"] == "succeeded"
        assert (await ended(user, turn["id"]))["status"] == "cancelled"
        assert paid == []

    async def test_its_question_can_be_edited(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        path = f"/v1/conversations/{turn['conversation_id']}/turns/{turn['id']}/edit"
        assert code_of(await user.post(path, json={"message": "Pay six."})) == (409, "conversation_busy")
        edited = await user.post(path, json={"message": "Pay six.", "if_busy": "interrupt"})
        assert edited.json()["turn"]["status"] == "succeeded"
        assert (await ended(user, turn["id"]))["status"] == "cancelled"
        assert code_of(await decide(user, turn)) == (409, "already_decided")
        assert paid == []

    async def test_a_queue_behind_it_and_words_for_it(self, server: ApiServer, service: Client, user: Client) -> None:
        turn = await waiting(server, user, await payer(service))
        later: Json = {"message": "Later.", "conversation_id": turn["conversation_id"], "if_busy": "enqueue"}
        queued = (await user.post("/v1/turns", json=later | {"background": True})).json()["turn_id"]
        steered = await user.post(f"/v1/turns/{turn['id']}/steer", json={"message": "Be short."})
        assert steered.status_code == 202
        assert (await user.read(f"/v1/turns/{queued}"))["status"] == "queued"
        server.scripts.say("Short.")
        await decide(user, turn)
        assert (await ended(user, turn["id"]))["response"] == "Short."
        async with asyncio.timeout(60):
            while (await user.read(f"/v1/turns/{queued}"))["status"] != "succeeded":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await service.read("/v1/usage"))["messages"] == 2, "words that became part of a turn are none"

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


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
class TestSeveralServers:
    async def test_any_server_takes_the_answer_and_goes_on(self, settings: Settings, tmp_path: Path) -> None:
        """The request that began the turn is over. Another request, at another server, continues it."""
        async with (
            ApiServer.start(settings, tools=ToolRegistry([pay])) as one,
            ApiServer.start(structs.replace(settings, data_dir=tmp_path / "two"), tools=ToolRegistry([pay])) as two,
        ):
            service = await one.tenant()
            user = await one.user(service)
            there = await two.client(service.key, turnkeep_user="ann")
            one.scripts.say(Call("lookup", {"key": "a"}))
            turn = (await user.ask("Look.", tools=[LOOKUP]))["turn"]
            two.scripts.say("Found at the other one.")
            [call] = turn["waiting_for"]["calls"]
            results = {"results": [{"call_id": call["id"], "result": 1}]}
            sent = await there.post(f"/v1/turns/{turn['id']}/results", json=results)
            assert sent.status_code == 200, sent.text
            assert (await ended(there, turn["id"]))["response"] == "Found at the other one."
            assert [offer.name for offer in two.scripts.requests[0].tools] == ["lookup"]
