"""Calls of a turn in a sandbox that wait: for a person who allows them, and for the caller who runs them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.api.harness import STREAM, ApiServer, Client, code_of, names, read_events, settings_for
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, delta, result, running, succeeded
from tests.sandbox.test_turn_tools import a_real_runner, an_agent, call_tool, http_tool
from tests.tools.web_server import WebServer, web_server
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call
from turnkeep.sandbox.tools import BoxTools
from turnkeep_client.wire.agents import BoxToolName

Json = Any

SECONDS = 90.0
SHELL = {"type": "sandbox", "name": "shell", "approval": "always"}
LOOKUP = {"type": "client", "name": "lookup", "description": "Looks it up.", "input_schema": {"type": "object"}}
SKILL: Json = {
    "name": "charts",
    "files": {
        "SKILL.md": "Draws charts.",
        "recipes/draw.sh": "#!/bin/bash\necho drawn $1",
        "recipes/look.sh": "#!/bin/bash\necho seen",
    },
    "approval": {"recipes/draw.sh": "always"},
}


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as running_server:
        yield running_server


@asynccontextmanager
async def a_site(settings: Settings) -> AsyncIterator[tuple[ApiServer, Client, Client]]:
    """A server with a real runner and real boxes: the server, its service key, and a user."""
    async with a_real_runner() as url, ApiServer.start(settings, runner_url=url) as server:
        service = await server.tenant()
        yield server, service, await server.user(service)


async def begin(user: Client, agent_id: str, **body: Json) -> Json:
    """The turn, once it waits. The request itself is answered then."""
    answer = await user.ask("Go.", agent_id=agent_id, **body)
    turn = answer["turn"]
    assert (turn["status"], answer["message"]) == ("waiting", None), answer
    return turn


async def decide(client: Client, turn: Json, decision: str = "allow", **more: Json) -> Json:
    [call, *_] = turn["waiting_for"]["calls"]
    body = {"decisions": [{"call_id": call["id"], "decision": decision, **more}]}
    response = await client.post(f"/v1/turns/{turn['id']}/approvals", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def state(client: Client, turn_id: str, *wanted: str) -> Json:
    async with asyncio.timeout(SECONDS):
        while (turn := await client.read(f"/v1/turns/{turn_id}"))["status"] not in wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return turn


async def ended(client: Client, turn_id: str) -> Json:
    return await state(client, turn_id, "succeeded", "failed", "cancelled")


async def steps_of(user: Client, turn: Json) -> list[tuple[str, str, Json]]:
    [*_, message] = (await user.read(f"/v1/conversations/{turn['conversation_id']}/messages"))["data"]
    parts = [part for part in message["content"] if part["type"] == "step"]
    return [(part["name"], part["status"], part.get("error") or part.get("result")) for part in parts]


@both
class TestACommand:
    async def test_runs_once_after_it_was_allowed(self, settings: Settings) -> None:
        async with a_site(settings) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say("I will count.", Call("shell", {"command": "echo x >> assets/log; cat assets/log"}))
            server.scripts.say("Counted.")
            turn = await begin(user, agent)
            waiting_for = turn["waiting_for"]
            assert waiting_for["type"] == "approval"
            assert waiting_for["calls"][0]["args"] == {"command": "echo x >> assets/log; cat assets/log"}
            conversation = await user.read(f"/v1/conversations/{turn['conversation_id']}")
            assert conversation["running_turn"]["waiting_for"] == "approval"
            busy = await user.post("/v1/turns", json={"message": "?", "conversation_id": turn["conversation_id"]})
            assert (code_of(busy), busy.json()["waiting_for"]) == ((409, "conversation_busy"), "approval")
            await decide(user, turn)
            assert (await ended(user, turn["id"]))["response"] == "Counted."
            assert await steps_of(user, turn) == [("shell", "succeeded", "x")]
            response = await user.get(f"/v1/turns/{turn['id']}/events", headers=STREAM)
            kinds = [line.split(": ")[1] for line in response.text.splitlines() if line.startswith("event: ")]
        assert [kind for kind in kinds if kind != "delta"] == [
            "turn", "tool_calls", "approval", "decided", "turn", "step", "step", "files", "result",
        ]  # fmt: skip

    async def test_never_runs_after_it_was_denied(self, settings: Settings) -> None:
        async with a_site(settings) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "touch assets/ran"}))
            server.scripts.say("I see.")
            turn = await begin(user, agent)
            await decide(user, turn, "deny", reason="Too risky.")
            after = await ended(user, turn["id"])
            assert (after["status"], after["files"]) == ("succeeded", [])
            assert await steps_of(user, turn) == [("shell", "failed", "Denied by ann: Too risky.")]
            assert "Too risky." in str(server.scripts.requests[-1].all_messages)

    async def test_is_run_with_the_arguments_that_were_edited(self, settings: Settings) -> None:
        async with a_site(settings) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "echo five"}))
            server.scripts.say("Done.")
            turn = await begin(user, agent)
            await decide(user, turn, args={"command": "echo three"})
            await ended(user, turn["id"])
            assert await steps_of(user, turn) == [("shell", "succeeded", "three")]
            assert "ann changed the arguments" in str(server.scripts.requests[-1].all_messages)


class TestWhatAsks:
    def test_the_wire_knows_every_tool_of_a_box(self) -> None:
        there = {name for name in vars(BoxTools) if not name.startswith("_") and name != "all"}
        assert there == set(get_args(BoxToolName))

    async def test_a_recipe_by_its_name(self, tmp_path: Path) -> None:
        async with a_site(settings_for(tmp_path)) as (server, service, user):
            agent = await an_agent(service, skills=[SKILL])
            draw = Call("run_recipe", {"skill": "charts", "recipe": "recipes/draw.sh", "arguments": ["one"]})
            look = Call("run_recipe", {"skill": "charts", "recipe": "recipes/look.sh"})
            server.scripts.say(look)
            server.scripts.say(draw)
            server.scripts.say(draw)
            server.scripts.say("Drawn.")
            turn = await begin(user, agent)
            assert turn["waiting_for"]["calls"][0]["args"]["recipe"] == "recipes/draw.sh"
            await decide(user, turn, remember="conversation")
            await ended(user, turn["id"])
            assert await steps_of(user, turn) == [
                ("charts/recipes/look.sh", "succeeded", "seen"),
                ("charts/recipes/draw.sh", "succeeded", "drawn one"),
                ("charts/recipes/draw.sh", "succeeded", "drawn one"),
            ]
            server.scripts.say(draw)
            server.scripts.say("Again.")
            again = await user.ask("Again.", conversation_id=turn["conversation_id"])
            assert again["turn"]["status"] == "succeeded"
            changed = {**SKILL, "files": {**SKILL["files"], "recipes/draw.sh": "#!/bin/bash\necho other"}}
            assert (await service.patch(f"/v1/agents/{agent}", json={"skills": [changed]})).status_code == 200
            server.scripts.say(draw)
            other = await user.ask("Once more.", conversation_id=turn["conversation_id"])
            assert other["turn"]["status"] == "waiting", "what was trusted is another program now"
            await user.post(f"/v1/turns/{other['turn']['id']}/cancel")

    async def test_a_tool_of_the_server_in_the_loop_of_a_box(self, tmp_path: Path, web: WebServer) -> None:
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with a_site(settings) as (server, service, user):
            agent = await an_agent(service, tools=[http_tool(web, approval="always")])
            for decision, hits in (("deny", 0), ("allow", 1)):
                server.scripts.say(Call("crm", {"name": "Ann"}))
                server.scripts.say("Done.")
                turn = await begin(user, agent)
                await decide(user, turn, decision)
                assert (await ended(user, turn["id"]))["status"] == "succeeded"
                assert web.hits == hits

    async def test_client_tools_of_the_caller(self, tmp_path: Path) -> None:
        async with a_site(settings_for(tmp_path)) as (server, service, user):
            agent = await an_agent(service)
            server.scripts.say(Call("lookup", {"key": "a"}))
            server.scripts.say("It rains.")
            turn = await begin(user, agent, tools=[LOOKUP])
            assert turn["waiting_for"]["type"] == "client_tools"
            [call] = turn["waiting_for"]["calls"]
            body = {"results": [{"call_id": call["id"], "result": {"sky": "rain"}}]}
            assert (await user.post(f"/v1/turns/{turn['id']}/results", json=body)).status_code == 200
            assert (await ended(user, turn["id"]))["response"] == "It rains."
            assert await steps_of(user, turn) == [("lookup", "succeeded", {"sky": "rain"})]
            refused = await user.post(
                "/v1/turns", json={"message": "Go.", "agent_id": agent, "tools": [LOOKUP | {"name": "shell"}]}
            )
            assert code_of(refused) == (422, "invalid_request")

    async def test_rules_that_cannot_be(self, server: ApiServer, service: Client) -> None:
        for tools in ([{**SHELL, "name": "format"}], [{**SHELL, "approval": "sometimes"}]):
            response = await service.post("/v1/agents", json={"name": "A", "sandbox": True, "tools": tools})
            assert code_of(response) == (422, "invalid_request")


class TestTimeAndEnds:
    async def test_a_box_waits_so_long_and_then_the_call_counts_as_denied(self, tmp_path: Path) -> None:
        async with a_site(settings_for(tmp_path, sandbox_approval_seconds=1.0)) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "touch assets/ran"}))
            server.scripts.say("Nobody was there.")
            turn = await begin(user, agent)
            after = await ended(user, turn["id"])
            assert (after["status"], after["files"]) == ("succeeded", [])
            [(_, _, said)] = await steps_of(user, turn)
            assert said.startswith("Denied: nobody decided in time")
            late = {"decisions": [{"call_id": turn["waiting_for"]["calls"][0]["id"], "decision": "allow"}]}
            refused = await user.post(f"/v1/turns/{turn['id']}/approvals", json=late)
            assert code_of(refused) == (409, "already_decided")

    async def test_the_time_of_a_wait_is_none_of_the_turn(self, tmp_path: Path) -> None:
        async with a_site(settings_for(tmp_path, turn_timeout_seconds=8.0)) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "echo x"}))
            server.scripts.say("Done.")
            turn = await begin(user, agent)
            await asyncio.sleep(9.0)
            await decide(user, turn)
            assert (await ended(user, turn["id"]))["status"] == "succeeded"

    @pytest.mark.parametrize("how", ["cancel", "interrupt", "delete"])
    async def test_a_stop_kills_the_box(self, tmp_path: Path, how: str) -> None:
        async with a_site(settings_for(tmp_path)) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "touch assets/ran"}))
            turn = await begin(user, agent)
            if how == "cancel":
                await user.post(f"/v1/turns/{turn['id']}/cancel")
            elif how == "interrupt":
                server.scripts.say("Hello.")
                later = await user.ask("Hi", conversation_id=turn["conversation_id"], if_busy="interrupt")
                assert later["turn"]["status"] == "succeeded"
            else:
                await user.delete(f"/v1/conversations/{turn['conversation_id']}")
            async with asyncio.timeout(SECONDS):
                while server.runtime.engine.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            if how == "delete":
                return
            after = await ended(user, turn["id"])
            assert (after["status"], after["files"]) == ("cancelled", [])
            trace = (await service.get(f"/v1/turns/{turn['id']}/trace")).text
            assert "not answered: the turn was stopped before anyone answered this call" in trace

    async def test_words_that_steer_a_turn_in_a_box_are_the_next_turn(self, tmp_path: Path) -> None:
        async with a_site(settings_for(tmp_path)) as (server, service, user):
            agent = await an_agent(service, tools=[SHELL])
            server.scripts.say(Call("shell", {"command": "echo x"}))
            server.scripts.say("Done.")
            turn = await begin(user, agent)
            steering = await user.post(f"/v1/turns/{turn['id']}/steer", json={"message": "In French, please."})
            assert steering.status_code == 202, steering.text
            server.scripts.say("Voilà.")
            await decide(user, turn)
            assert (await ended(user, turn["id"]))["response"] == "Done."
            after = await ended(user, steering.json()["queued_turn_id"])
            assert (after["status"], after["response"]) == ("succeeded", "Voilà.")
            [*_, last] = server.scripts.requests
            assert "In French, please." in str(last.messages[-1])


def wait_line(*ids: str, name: str = "shell", **fields: Json) -> Json:
    calls = [{"id": each, "name": name, "args": {"command": "id"}, "reason": "approval", **fields} for each in ids]
    return {"type": "wait", "calls": calls}


async def answers(visit: Visit, config: Json, *ids: str, token: str | None = None) -> tuple[int, Json]:
    gateway = config["gateway"]
    headers = {"Authorization": f"Bearer {token or gateway['token']}"}
    url = f"{gateway['base_url']}/answers"
    async with visit._session.post(url, json={"call_ids": list(ids)}, headers=headers) as response:
        return response.status, await response.json()


class TestTheContractWithARunner:
    async def test_readers_stay_while_the_box_waits(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service, tools=[SHELL])

        async def part(visit: Visit) -> None:
            config = await visit.config()
            await visit.write(delta("Let me see. "), wait_line("c1"))
            status, found = await answers(visit, config, "c1")
            assert (status, found["answers"][0]["verdict"]) == (200, "allow")
            await visit.write(running("c1", args={"command": "id"}), succeeded("c1", result="root"), result("Done."))

        runner.plays(part)
        body = {"message": "Go.", "agent_id": agent}
        async with user.stream("POST", "/v1/turns", json=body, headers=STREAM) as response:
            turn_id = response.headers["turnkeep-turn"]
            reading = asyncio.create_task(read_events(response))
            turn = await state(user, turn_id, "waiting")
            assert not reading.done()
            await decide(user, turn)
            events = await reading
        told = [name for name in names(events) if name != "delta"]
        assert told == ["turn", "tool_calls", "approval", "decided", "turn", "step", "step", "result"]

    async def test_readers_hear_of_each_of_several_decisions(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service, tools=[SHELL])

        async def part(visit: Visit) -> None:
            config = await visit.config()
            await visit.write(wait_line("c1", "c2", "c3"))
            await answers(visit, config, "c1", "c2", "c3")
            await visit.write(result("Done."))

        runner.plays(part)
        turn = await begin(user, agent)
        told: list[list[str]] = []
        async with (
            asyncio.timeout(SECONDS),
            user.stream("GET", f"/v1/turns/{turn['id']}/events", headers=STREAM) as response,
        ):
            kind = ""
            async for line in response.aiter_lines():
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                if kind == "approval" and line.startswith("data: "):
                    await decide(user, turn, "deny")
                if kind == "decided" and line.startswith("data: "):
                    made = json.loads(line.removeprefix("data: "))["decisions"]
                    told.append([each["call_id"] for each in made])
                    if len(told) == 1:  # this reader has heard of the first decision, and the turn still waits
                        rest = [{"call_id": each, "decision": "allow"} for each in ("c2", "c3")]
                        await user.post(f"/v1/turns/{turn['id']}/approvals", json={"decisions": rest})
        assert told == [["c1"], ["c2", "c3"]]

    async def test_a_runner_that_does_not_know_approvals_gets_no_configuration(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service, tools=[SHELL])
        heard: list[tuple[int, Json]] = []

        async def part(visit: Visit) -> None:
            heard.append(await visit.get("config", visit.envelope["otp_run"]))
            await visit.write(result("I know nothing."))

        runner.plays(part)
        await user.ask("Go.", agent_id=agent)
        [(status, problem)] = heard
        assert status == 409
        assert "does not know approvals" in problem["detail"]

    async def test_a_runner_that_is_lost_while_it_waits(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service)

        async def part(visit: Visit) -> None:
            await visit.write(running("s1"), succeeded("s1", result="kept"), wait_line("c1"))
            await state(user, (await user.read("/v1/conversations"))["data"][0]["running_turn"]["id"], "waiting")
            await visit.break_off()

        runner.plays(part)
        answer = await user.ask("Go.", agent_id=agent)
        after = await ended(user, answer["turn"]["id"])
        assert (after["status"], after["error"]["code"]) == ("failed", "sandbox_lost")
        assert [(name, status) for name, status, _ in await steps_of(user, after)] == [
            ("shell", "succeeded"),
            ("shell", "failed"),
        ]
        late = {"decisions": [{"call_id": "c1", "decision": "allow"}]}
        refused = await user.post(f"/v1/turns/{after['id']}/approvals", json=late)
        assert code_of(refused) == (409, "already_decided")
        assert "ended" in refused.json()["detail"]

    @pytest.mark.parametrize("is_answered", [True, False])
    async def test_a_runner_that_falls_silent_does_not_keep_the_turn(
        self, tmp_path: Path, runner: ScriptedRunner, is_answered: bool
    ) -> None:
        settings = settings_for(tmp_path, sandbox_approval_seconds=5.0, turn_timeout_seconds=8.0)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            service = await server.tenant()
            user = await server.user(service)
            over = asyncio.Event()

            async def part(visit: Visit) -> None:
                await visit.write(wait_line("c1"))
                await over.wait()

            runner.plays(part)
            try:
                turn = await begin(user, await an_agent(service))
                if is_answered:
                    await decide(user, turn)
                after = await ended(user, turn["id"])
            finally:
                over.set()
            assert (after["status"], after["error"]["code"]) == ("failed", "turn_timeout")

    async def test_the_server_runs_no_call_that_was_not_allowed_with_these_arguments(
        self, tmp_path: Path, runner: ScriptedRunner, web: WebServer
    ) -> None:
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            service = await server.tenant()
            user = await server.user(service)
            agent = await an_agent(service, tools=[http_tool(web, approval="always")])
            failures: list[BaseException] = []

            async def attack(visit: Visit) -> None:
                config = await visit.config()
                assert [tool["waits_for"] for tool in config["gateway"]["tools"]] == ["approval"]
                _, outcome = await call_tool(visit, config, "crm", name="Ann")
                assert "nobody has allowed" in outcome["error"]
                calls = [{"id": "call_1", "name": "crm", "args": {"name": "Ann"}, "reason": "approval"}]
                await visit.write({"type": "wait", "calls": calls})
                status, found = await answers(visit, config, "call_1")
                assert (status, found["answers"][0]["verdict"]) == (200, "allow")
                for wrong in ({"name": "Bob"}, {"name": "Ann", "more": 1}, {}):
                    _, outcome = await call_tool(visit, config, "crm", **wrong)
                    assert "nobody has allowed" in outcome["error"]
                assert web.hits == 0
                outcomes = await asyncio.gather(*(call_tool(visit, config, "crm", name="Ann") for _ in range(20)))
                assert [outcome["error"] for _, outcome in outcomes].count(None) == 1
                _, outcome = await call_tool(visit, config, "crm", name="Ann")
                assert "has begun before" in outcome["error"]
                status, _ = await answers(visit, config, "call_1", token="tkg_x")
                assert status == 401

            async def part(visit: Visit) -> None:
                try:
                    await attack(visit)
                except BaseException as exc:
                    failures.append(exc)
                await visit.write(result("Done."))

            runner.plays(part)
            turn = await begin(user, agent)
            await decide(user, turn)
            await ended(user, turn["id"])
            assert not failures, failures
            assert web.hits == 1

    async def test_a_denial_holds_for_a_tool_that_is_trusted(
        self, tmp_path: Path, runner: ScriptedRunner, web: WebServer
    ) -> None:
        """Of two calls of a tool one is allowed, always, and the other is denied."""
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            service = await server.tenant()
            user = await server.user(service)
            agent = await an_agent(service, tools=[http_tool(web, approval="always")])
            outcomes: list[Json] = []

            async def part(visit: Visit) -> None:
                config = await visit.config()
                [tool] = config["gateway"]["tools"]
                fields = {"name": "crm", "reason": "approval", "identity": tool["identity"]}
                calls = [{"id": each, "args": {"name": each}, **fields} for each in ("call_0", "call_1")]
                await visit.write({"type": "wait", "calls": calls})
                await answers(visit, config, "call_0", "call_1")
                outcomes.append((await call_tool(visit, config, "crm", name="call_1"))[1])
                await visit.write(result("Done."))

            runner.plays(part)
            turn = await begin(user, agent)
            await decide(user, turn, remember="conversation")
            await decide(user, await state(user, turn["id"], "waiting"), "deny")
            await ended(user, turn["id"])
            assert ["nobody has allowed" in outcome["error"] for outcome in outcomes] == [True]
            assert web.hits == 0

    async def test_who_always_allows_a_tool_trusts_no_other(
        self, tmp_path: Path, runner: ScriptedRunner, web: WebServer
    ) -> None:
        """A runner shows one tool, and says that it is another one."""
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            service = await server.tenant()
            user = await server.user(service)
            agent = await an_agent(service, tools=[SHELL, http_tool(web, approval="always")])
            outcomes: list[Json] = []

            async def part(visit: Visit) -> None:
                config = await visit.config()
                [tool] = config["gateway"]["tools"]
                await visit.write(wait_line("c1", identity=tool["identity"]))
                await answers(visit, config, "c1")
                outcomes.append((await call_tool(visit, config, "crm", name="Ann"))[1])
                await visit.write(result("Done."))

            runner.plays(part)
            turn = await begin(user, agent)
            await decide(user, turn, remember="conversation")
            await ended(user, turn["id"])
            assert ["nobody has allowed" in outcome["error"] for outcome in outcomes] == [True]
            assert web.hits == 0

    async def test_a_run_shows_the_line_and_ends_with_its_answer(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service)

        async def part(visit: Visit) -> None:
            await visit.write(wait_line("c1"))
            config = await visit.config()
            await answers(visit, config, "c1")
            await visit.write(running("c1"), succeeded("c1"), result("Done."))

        runner.plays(part)
        async with user.stream("POST", f"/v1/agents/{agent}/runs", json={"prompt": "Go."}) as response:
            turn_id = response.headers["turnkeep-turn"]
            reading = asyncio.create_task(response.aread())
            await decide(user, await state(user, turn_id, "waiting"))
            lines = (await reading).decode().splitlines()
        assert '"type":"wait"' in lines[0]
        assert '"type":"result"' in lines[-1]
