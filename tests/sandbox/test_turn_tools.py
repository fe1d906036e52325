"""The agent's own tools in a sandbox: called by the server, with its credentials, for this turn alone."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ApiServer, Client, fake_id, settings_for
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, result
from tests.sandbox_runner.box_processes import eventually
from tests.sandbox_runner.harness import SMALL
from tests.tools.web_server import WebServer, web_server
from turnkeep.providers.scripted import Call
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap
from turnkeep.sandbox.server import RunnerServer, bind, open_runner
from turnkeep_client.tool_calls import verify_tool_call

Json = Any

SECRET = "s3cr3t-4-th3-t00l"
OLD = [str(Path(__file__).parents[1] / "tools" / "old_mcp_server.py")]


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@pytest.fixture
async def server(tmp_path: Path, runner: ScriptedRunner) -> AsyncIterator[ApiServer]:
    settings = settings_for(tmp_path, allow_private_addresses=True, allow_mcp_commands=True)
    async with ApiServer.start(settings, runner_url=runner.url) as running:
        yield running


def http_tool(web: WebServer, path: str = "/headers", **more: Json) -> Json:
    return {"type": "http", "name": "crm", "url": f"{web.url}{path}", "headers": {"x-key": SECRET}, **more}


async def an_agent(service: Client, **fields: Json) -> str:
    response = await service.post("/v1/agents", json={"name": fake_id("agent"), "sandbox": True, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def call_tool(visit: Visit, config: Json, name: str, /, token: str | None = None, **arguments: Json) -> Any:
    gateway = config["gateway"]
    body = {"call_id": "call_1", "name": name, "arguments": arguments}
    headers = {"Authorization": f"Bearer {token or gateway['token']}"}
    async with visit._session.post(f"{gateway['base_url']}/tools", json=body, headers=headers) as response:
        return response.status, await response.json()


async def in_a_turn(client: Client, runner: ScriptedRunner, agent_id: str, work: Any) -> Json:
    failures: list[BaseException] = []

    async def part(visit: Visit) -> None:
        try:
            await work(visit, await visit.config())
        except Exception as exc:
            failures.append(exc)
        await visit.write(result("done"))

    runner.plays(part)
    answer = await client.ask("Go.", agent_id=agent_id)
    if failures:
        raise failures[0]
    return answer


class TestTheConfiguration:
    async def test_offers_what_the_agent_has_and_hides_its_secrets(
        self, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        mcp = {"name": "old", "command": sys.executable, "args": OLD, "env": {"KEY": SECRET}, "tools": ["first"]}
        away = {"name": "away", "command": "/no/such/program"}
        agent = await an_agent(service, tools=["search_pages", http_tool(web)], mcp_servers=[mcp, away])
        configs: list[Json] = []

        async def work(visit: Visit, config: Json) -> None:
            configs.append(config)

        await in_a_turn(user, runner, agent, work)
        (config,) = configs
        assert [tool["name"] for tool in config["gateway"]["tools"]] == ["search_pages", "crm", "old__first"]
        assert config["gateway"]["tools"][0]["input_schema"]["type"] == "object"
        assert any("away" in note for note in config["gateway"]["notes"])
        assert SECRET not in str(config)
        assert config["agent"]["allowed_tools"] is None

    async def test_lists_what_the_key_allows(
        self, server: ApiServer, service: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        agent = await an_agent(service, tools=["search_pages", http_tool(web)])
        key = (await service.post("/v1/keys", json={"name": "k", "allowed_tools": ["crm", "read_*"]})).json()["key"]
        limited = await server.client(key)

        async def work(visit: Visit, config: Json) -> None:
            assert config["agent"]["allowed_tools"] == ["crm", "read_*"]
            assert [tool["name"] for tool in config["gateway"]["tools"]] == ["crm"]
            status, outcome = await call_tool(visit, config, "search_pages", q="x")
            assert (status, outcome["result"]) == (200, None)
            assert "There is no tool called 'search_pages'" in outcome["error"]

        await in_a_turn(limited, runner, agent, work)
        assert web.hits == 0


class TestACall:
    async def test_is_made_with_the_credentials_of_the_server(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        agent = await an_agent(service, tools=[http_tool(web)])

        async def work(visit: Visit, config: Json) -> None:
            status, outcome = await call_tool(visit, config, "crm", name="Ann")
            assert (status, outcome["error"]) == (200, None)
            assert outcome["result"]["x-key"] == "***", "an echo of the credential is masked"
            assert outcome["result"]["idempotency-key"] == "call_1"

        await in_a_turn(user, runner, agent, work)
        (asked,) = web.requests
        assert asked["headers"]["X-Key"] == SECRET
        assert asked["body"] == '{"name":"Ann"}'
        metrics = (await user.get("/metrics")).text
        assert 'turnkeep_tool_call_seconds_count{outcome="succeeded"} 1' in metrics, metrics

    async def test_names_the_user_of_the_turn_under_a_signature(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        """The runner cannot choose the user: it has no secret of the agent, and no say in the headers."""
        tool = http_tool(web, "/of/{{user.external_id}}", arguments={"conversation": "{{conversation.id}}"})
        made = await service.post("/v1/agents", json={"name": fake_id("agent"), "sandbox": True, "tools": [tool]})

        async def work(visit: Visit, config: Json) -> None:
            assert made.json()["tool_secret"] not in str(config)
            status, outcome = await call_tool(visit, config, "crm", conversation="conv_of_another")
            assert (status, outcome["error"]) == (200, None)

        answer = await in_a_turn(user, runner, made.json()["id"], work)
        (asked,) = web.requests
        caller = verify_tool_call(made.json()["tool_secret"], asked["headers"], asked["body"].encode())
        assert (caller.user, caller.turn_id, caller.call_id) == ("ann", answer["turn"]["id"], "call_1")
        assert asked["path"] == "/of/ann"
        assert asked["body"] == f'{{"conversation":"{answer["conversation_id"]}"}}'

    async def test_acts_for_the_user_of_the_turn(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        """Pages of the workspace are found, with their titles; those of another tenant are not."""
        await service.post("/v1/pages", json={"title": "Refunds", "content": "Refunds take nine days."})
        other = await server.tenant("another")
        await other.post("/v1/pages", json={"title": "Theirs", "content": "Refunds take one day."})
        agent = await an_agent(service, tools=["search_pages"])

        async def work(visit: Visit, config: Json) -> None:
            (tool,) = config["gateway"]["tools"]
            question = next(iter(tool["input_schema"]["required"]))
            status, outcome = await call_tool(visit, config, "search_pages", **{question: "refunds"})
            assert (status, outcome["error"]) == (200, None), outcome
            (found,) = outcome["passages"]
            assert (found["source"]["title"], found["text"]) == ("Refunds", "Refunds take nine days.")
            assert "one day" not in str(outcome)

        await in_a_turn(user, runner, agent, work)

    async def test_that_fails_has_a_response_too(
        self, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        slow = http_tool(web, "/hang", timeout_seconds=0.3)
        agent = await an_agent(service, tools=[slow])

        async def work(visit: Visit, config: Json) -> None:
            status, outcome = await call_tool(visit, config, "crm")
            assert (status, outcome["result"]) == (200, None)
            assert outcome["error"]
            for body in ({}, {"call_id": "a b", "name": "crm"}, {"call_id": "c", "name": "crm", "arguments": []}):
                headers = {"Authorization": f"Bearer {config['gateway']['token']}"}
                url = f"{config['gateway']['base_url']}/tools"
                async with visit._session.post(url, json=body, headers=headers) as response:
                    assert response.status == 422

        await in_a_turn(user, runner, agent, work)


class TestTheToken:
    async def test_is_valid_only_for_its_running_turn(
        self, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        agent = await an_agent(service, tools=[http_tool(web)])
        kept: list[tuple[Visit, Json]] = []

        async def keep(visit: Visit, config: Json) -> None:
            kept.append((visit, config))

        async def work(visit: Visit, config: Json) -> None:
            stale = kept[0][1]["gateway"]["token"]
            for token in (stale, "tkg_", config["gateway"]["token"][:-1] + "x", visit.envelope["otp_run"]):
                status, problem = await call_tool(visit, config, "crm", token=token)
                assert (status, problem["code"]) == (401, "unauthorized"), token

        await in_a_turn(user, runner, agent, keep)
        status, _ = await call_tool(*kept[0], "crm")
        assert status == 401, "the turn has ended"
        await in_a_turn(user, runner, agent, work)
        assert web.hits == 0

    async def test_expires_with_the_turn_and_ends_a_call(
        self, service: Client, user: Client, runner: ScriptedRunner, web: WebServer
    ) -> None:
        agent = await an_agent(service, tools=[http_tool(web, "/hang")])
        calls: list[asyncio.Task[Any]] = []

        async def work(visit: Visit, config: Json) -> None:
            calls.append(asyncio.create_task(call_tool(visit, config, "crm")))
            await eventually(lambda: web.hits > 0)

        await in_a_turn(user, runner, agent, work)
        async with asyncio.timeout(20):
            status, problem = await calls[0]
        assert (status, problem["code"]) == (401, "unauthorized")


@asynccontextmanager
async def a_real_runner() -> AsyncIterator[str]:
    listener = bind(SMALL)
    async with open_runner(Bubblewrap(), SMALL) as app:
        serving = RunnerServer(app)
        task = asyncio.create_task(serving.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            serving.stop()
            await task
            listener.close()


class TestARealBox:
    async def test_has_its_own_tools_and_those_of_the_server_and_no_credential(
        self, tmp_path: Path, web: WebServer
    ) -> None:
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with a_real_runner() as url, ApiServer.start(settings, runner_url=url) as server:
            service = await server.tenant()
            agent = await an_agent(service, tools=[http_tool(web)])
            server.scripts.say(Call("crm", {"name": "Ann"}))
            server.scripts.say(Call("shell", {"command": "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"}))
            server.scripts.say("Ann lives in Bern.")
            answer = await (await server.user(service)).ask("Where does Ann live?", agent_id=agent)
            trace = (await service.get(f"/v1/turns/{answer['turn']['id']}/trace")).text
        assert answer["turn"]["status"] == "succeeded", answer
        steps = [part for part in answer["message"]["content"] if part["type"] == "step"]
        assert [(step["name"], step["status"]) for step in steps] == [("crm", "succeeded"), ("shell", "succeeded")]
        assert steps[0]["result"]["x-key"] == "***"
        assert web.requests[0]["headers"]["X-Key"] == SECRET
        assert SECRET not in str(answer) + trace
        assert "tkg_" not in steps[1]["result"]
        assert "PATH=" in steps[1]["result"]

    async def test_cites_what_the_server_found_for_it(self, tmp_path: Path) -> None:
        async with a_real_runner() as url, ApiServer.start(settings_for(tmp_path), runner_url=url) as server:
            service = await server.tenant()
            page = {"title": "Returns", "content": "# Refunds\n\nThey take nine days."}
            page_id = (await service.post("/v1/pages", json=page)).json()["id"]
            agent = await an_agent(service, tools=["search_pages"])
            server.scripts.say(Call("search_pages", {"query": "refunds"}))
            server.scripts.say("Nine days [1].")
            answer = await (await server.user(service)).ask("How long?", agent_id=agent)
            told = str(server.scripts.requests[-1].messages[-1])
        assert answer["turn"]["status"] == "succeeded", answer
        (source,) = answer["message"]["sources"]
        assert (source["number"], source["page_id"], source["place"]) == (1, page_id, "Refunds")
        assert "[1] Returns, Refunds" in told

    async def test_has_only_what_the_key_allows(self, tmp_path: Path, web: WebServer) -> None:
        settings = settings_for(tmp_path, allow_private_addresses=True)
        async with a_real_runner() as url, ApiServer.start(settings, runner_url=url) as server:
            service = await server.tenant()
            agent = await an_agent(service, tools=[http_tool(web)])
            allowed = {"name": "k", "allowed_tools": ["list_files"]}
            limited = await server.client((await service.post("/v1/keys", json=allowed)).json()["key"])
            server.scripts.say(Call("shell", {"command": "id"}), Call("crm", {}))
            server.scripts.say("I cannot.")
            answer = await (await server.user(limited)).ask("Who are you?", agent_id=agent)
            first = server.scripts.requests[0]
        assert [offer.name for offer in first.tools] == ["list_files"]
        steps = [part for part in answer["message"]["content"] if part["type"] == "step"]
        assert [step["status"] for step in steps] == ["failed", "failed"]
        assert web.hits == 0
