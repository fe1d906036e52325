"""Agents over the API: saved whole, checked when they are saved, frozen into each turn, and their secrets kept."""

import asyncio
import base64
import io
import itertools
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from PIL import Image

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id, settings_for
from tests.tools.web_server import WebServer, web_server
from turnkeep.api.telemetry.logs import configure_logging
from turnkeep.config import Settings
from turnkeep.errors import Unavailable
from turnkeep.model.principals import Principal
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, ScriptedProvider
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Toolbox
from turnkeep.tools.registry import ToolRegistry, open_tools
from turnkeep.tools.vault import Vault

KEYS = ("the secret key of this server",)
SECRET = "s3cr3t-4-th3-t00l"
OLD = [str(Path(__file__).parents[1] / "tools" / "old_mcp_server.py")]

AGENT: Json = {
    "name": "Clerk",
    "description": "Writes things down.",
    "starters": ["What is new?"],
    "instructions": "Be brief.",
    "model": "scripted",
    "tools": [
        "look",
        {
            "type": "http",
            "name": "weather",
            "description": "The weather",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
            "url": "https://8.8.8.8/weather",
            "method": "GET",
            "headers": {"x-api-key": SECRET},
            "timeout_seconds": 5.0,
            "idempotent": True,
        },
    ],
    "mcp_servers": [
        {"name": "old", "command": sys.executable, "args": OLD, "env": {"KEY": SECRET}, "tools": ["first"]}
    ],
    "skills": [{"name": "recipes", "files": {"SKILL.md": "How to", "recipes/x.sh": "echo"}}],
    "sandbox": False,
    "environment": {"variables": {"TOKEN": SECRET}, "setup_script": "true"},
    "limits": {"tool_rounds": 2, "tool_timeout_seconds": 5.0, "turn_timeout_seconds": 60.0},
}
_numbers = itertools.count(1)
MASKED: Json = json.loads(json.dumps(AGENT).replace(SECRET, "***"))


@tool(idempotent=True)
async def look(place: str = "") -> str:
    """Looks somewhere."""
    return f"looked at {place}"


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    more: Json = {"secret_keys": KEYS, "allow_mcp_commands": True}
    if getattr(request, "param", "sqlite") == "postgres":
        more["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **more)


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    """A server with one native tool, which knows two names: one public, one private."""

    async def resolve(host: str, port: int) -> list[str]:
        return {"public.example": ["8.8.8.8"], "private.example": ["8.8.8.8", "10.0.0.1"]}.get(host, [])

    async with (
        open_tools(Vault(KEYS), AddressGuard(resolve=resolve), native=[look]) as tools,
        ApiServer.start(settings, tools=tools) as running,
    ):
        yield running


@pytest.fixture
async def free(settings: Settings) -> AsyncIterator[ApiServer]:
    """A server whose tools may call this machine."""
    async with (
        open_tools(Vault(KEYS), AddressGuard(allow_private=True), native=[look]) as tools,
        ApiServer.start(settings, tools=tools) as running,
    ):
        yield running


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


async def saved(client: Client, **fields: Json) -> Json:
    response = await client.post("/v1/agents", json={"name": f"A{next(_numbers)}", **fields})
    assert response.status_code == 201, response.text
    return response.json()


def http_tool(url: str = "https://8.8.8.8/", **fields: Json) -> Json:
    return {"type": "http", "name": "t", "url": url, **fields}


class TestAnAgent:
    async def test_lists_a_tool_as_it_was_saved(self, service: Client) -> None:
        short = http_tool()
        whole = http_tool(method="POST", idempotent=False, description="d", input_schema={"type": "object"})
        for told in (short, whole):
            assert (await saved(service, tools=[told]))["tools"] == [told]

    @both
    async def test_is_saved_read_changed_and_deleted(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, **AGENT)
        assert {name: made[name] for name in AGENT} == MASKED
        assert made.pop("warnings") == []
        assert made.pop("tool_secret").startswith("tksec_")
        path = f"/v1/agents/{made['id']}"
        assert await service.read(path) == made
        patched = (await service.patch(path, json={"instructions": "Be long.", "model": None})).json()
        assert (patched["instructions"], patched["model"], patched["name"]) == ("Be long.", None, "Clerk")
        assert patched["tools"] == MASKED["tools"]
        replaced = (await service.put(path, json={"name": "Other"})).json()
        assert (replaced["name"], replaced["tools"], replaced["limits"]) == ("Other", [], {})
        assert [one["id"] for one in (await service.read("/v1/agents"))["data"]] == [made["id"]]
        assert (await service.delete(path)).status_code == 204
        assert code_of(await service.get(path)) == (404, "not_found")

    async def test_of_another_tenant_does_not_exist(self, server: ApiServer, service: Client) -> None:
        made = await saved(service)
        other = await server.tenant("another")
        for response in (
            await other.get(f"/v1/agents/{made['id']}"),
            await other.patch(f"/v1/agents/{made['id']}", json={"name": "Mine"}),
            await other.post("/v1/turns", json={"message": "?", "agent_id": made["id"]}),
            await other.post("/v1/turns", json={"message": "?", "agent_id": fake_id("agent")}),
        ):
            assert code_of(response) == (404, "not_found")

    async def test_gives_the_model_its_instructions_and_tools(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, **AGENT)
        await service.ask(agent_id=made["id"])
        request = server.scripts.requests[-1]
        assert "Be brief." in str(request)
        assert [offer.name for offer in request.tools] == ["look", "weather", "old__first"]

    async def test_with_a_command_is_for_service_keys(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        body = {"name": "A", "mcp_servers": AGENT["mcp_servers"]}
        assert code_of(await admin.post("/v1/agents", json=body)) == (403, "forbidden")
        made = await saved(service, **body)
        path = f"/v1/agents/{made['id']}"
        # An admin may save what a service key has allowed, but not change it.
        same = {"name": "B", "mcp_servers": made["mcp_servers"]}
        assert (await admin.put(path, json=same)).status_code == 200
        changes: list[Json] = [
            {"args": ["-c", "evil"]},
            {"command": "/bin/sh"},
            {"env": {"KEY": "mine"}},
            {"env": {}},
            {"name": "new"},
        ]
        for change in changes:
            server_changed = {**made["mcp_servers"][0], **change}
            response = await admin.patch(path, json={"mcp_servers": [server_changed]})
            assert code_of(response) == (403, "forbidden"), change


class TestACommand:
    """An MCP server that is a program of the server's own machine."""

    async def test_is_for_the_operator_alone(self, tmp_path: Path) -> None:
        body = {"name": "A", "mcp_servers": AGENT["mcp_servers"]}
        async with ApiServer.start(settings_for(tmp_path, secret_keys=KEYS)) as server:
            service = await server.tenant()
            path = f"/v1/agents/{(await saved(service))['id']}"
            for response in (
                await service.post("/v1/agents", json=body),
                await service.put(path, json=body),
                await service.patch(path, json={"mcp_servers": body["mcp_servers"]}),
            ):
                assert code_of(response) == (403, "forbidden")
                assert "TURNKEEP_ALLOW_MCP_COMMANDS" in response.json()["detail"]
            operator = await server.operator()
            made = await saved(operator, **body)
            await operator.ask(agent_id=made["id"])
            assert [offer.name for offer in server.scripts.requests[-1].tools] == ["old__first"]

    @both
    async def test_that_was_saved_under_other_rules_is_not_started_for_other_orgs(self, settings: Settings) -> None:
        async with ApiServer.start(settings) as server:
            service = await server.tenant()
            made = await saved(service, mcp_servers=AGENT["mcp_servers"])
            await service.ask(agent_id=made["id"])
            assert [offer.name for offer in server.scripts.requests[-1].tools] == ["old__first"]
        async with ApiServer.start(structs.replace(settings, allow_mcp_commands=False)) as server:
            answer = await (await server.client(service.key)).ask(agent_id=made["id"])
            assert answer["turn"]["status"] == "succeeded"
            assert server.scripts.requests[-1].tools == ()


class TestMembers:
    @both
    async def test_see_what_is_for_them_of_an_agent_and_no_more(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        made = await saved(service, **AGENT)
        path = f"/v1/agents/{made['id']}"
        for_members = {
            "id": made["id"],
            "name": "Clerk",
            "description": "Writes things down.",
            "starters": ["What is new?"],
            "model": "scripted",
        }
        as_user = await server.client(service.key, turnkeep_user="bob")
        admin = await server.user(service, "boss", role="admin")
        assert await user.read(path) == for_members
        assert (await user.read("/v1/agents"))["data"] == [for_members]
        for entitled in (service, as_user, admin):
            assert (await entitled.read(path))["instructions"] == "Be brief."


REFUSED: list[tuple[Json, str]] = [
    ({"name": ""}, ""),
    ({"instructions": "x" * 200_001}, "200000"),
    ({"model": "nobody/x"}, "No provider serves the model"),
    ({"tools": ["find"]}, "no native tool called 'find'. There are: look."),
    ({"tools": [{"type": "grpc"}]}, "grpc"),
    ({"tools": ["a b"]}, ""),
    ({"tools": ["look", "look"]}, "same name: look"),
    ({"tools": ["look", http_tool(name="look")]}, "same name: look"),
    ({"tools": [http_tool(name="a__b")]}, "__"),
    ({"tools": [http_tool(name=f"t{n}") for n in range(101)]}, "100"),
    ({"tools": [http_tool("ftp://x/")]}, "http://"),
    ({"tools": [http_tool("http://127.0.0.1/")]}, "TURNKEEP_ALLOW_PRIVATE_ADDRESSES"),
    ({"tools": [http_tool("http://2130706433/")]}, "unusual spelling"),
    ({"tools": [http_tool("http://169.254.169.254/latest/meta-data")]}, "not public"),
    ({"tools": [http_tool("http://private.example/")]}, "not public"),
    ({"tools": [http_tool("http://me:pw@public.example/")]}, "password"),
    ({"tools": [http_tool(timeout_seconds=0)]}, "timeout_seconds"),
    ({"tools": [http_tool(headers={"Host": "x"})]}, "must not set the header Host"),
    ({"tools": [http_tool(headers={"a b": "x"})]}, "impossible name"),
    ({"tools": [http_tool(headers={"a": f"{SECRET}\r\nX: y"})]}, "plain ASCII"),
    ({"tools": [http_tool(headers={"a": "ü" + SECRET})]}, "plain ASCII"),
    ({"tools": [http_tool(headers={"a": "1", "A": "2"})]}, "twice"),
    ({"tools": [http_tool(input_schema={"type": "array"})]}, "type object"),
    (
        {"tools": [http_tool(input_schema={"type": "object", "properties": {"a": {"type": "strin"}}})]},
        "no JSON",
    ),
    ({"tools": [http_tool(input_schema={"properties": {"a": {"$ref": "http://10.0.0.1/x"}}})]}, "not fetched"),
    ({"tools": [http_tool(input_schema={"description": "x" * 70_000})]}, "65,536"),
    ({"mcp_servers": [{"name": "x"}]}, "either a `url` or a `command`"),
    ({"mcp_servers": [{"name": "x", "url": "https://x", "command": "y"}]}, "either"),
    ({"mcp_servers": [{"name": "x", "url": "http://localhost/mcp"}]}, "the server itself"),
    ({"mcp_servers": [{"name": "x", "url": "https://x", "env": {"A": "1"}}]}, "no `args` and `env`"),
    ({"mcp_servers": [{"name": "x", "command": "y", "headers": {"A": "1"}}]}, "Use `env`"),
    ({"mcp_servers": [{"name": "x", "command": "y", "env": {"A=B": "1"}}]}, "impossible name"),
    ({"mcp_servers": [{"name": "x", "command": "y\0"}]}, "NUL"),
    ({"mcp_servers": [{"name": "x__y", "command": "y"}]}, "__"),
    ({"skills": [{"name": "x", "files": {}}]}, "SKILL.md"),
    ({"skills": [{"name": "x", "files": {"SKILL.md": "", "../x": ""}}]}, "impossible name"),
    ({"skills": [{"name": "x", "files": {"SKILL.md": "x" * 600_000}}]}, "524,288"),
    ({"skills": [{"name": name, "files": {"SKILL.md": ""}} for name in "xyX"]}, "`x` and `X` differ in case alone"),
    ({"environment": {"variables": {"A": 1}}}, "variables"),
    ({"environment": {"variables": {"1A": "x"}}}, "impossible name"),
    ({"limits": {"tool_rounds": 99}}, "at most 5 on this server, not 99"),
    ({"limits": {"tool_timeout_seconds": 31.0}}, "at most 30"),
    ({"limits": {"turn_timeout_seconds": 1e9}}, "at most 28800"),
    ({"limits": {"rounds": 1}}, "rounds"),
    ({"colour": "red"}, "colour"),
]


class TestWhatIsRefused:
    async def test_says_why_and_saves_nothing(self, service: Client) -> None:
        for change, words in REFUSED:
            response = await service.post("/v1/agents", json={"name": "A", **change})
            assert code_of(response) == (422, "invalid_request"), response.text
            assert words in response.json()["detail"], response.text
            assert SECRET not in response.text
        assert (await service.read("/v1/agents"))["data"] == []

    async def test_in_a_change_leaves_the_agent_as_it_was(self, service: Client) -> None:
        made = await saved(service, **AGENT)
        path = f"/v1/agents/{made['id']}"
        for change in ({"tools": ["find"]}, {"model": "nobody/x"}, {"limits": {"tool_rounds": 99}}):
            assert code_of(await service.patch(path, json=change)) == (422, "invalid_request")
            assert code_of(await service.put(path, json={"name": "B", **change})) == (422, "invalid_request")
        del made["warnings"], made["tool_secret"]
        assert await service.read(path) == made


class TestWarnings:
    async def test_tell_what_does_not_work_just_now(self, service: Client) -> None:
        made = await saved(
            service,
            model="scripted/unknown",
            tools=[http_tool("https://nowhere.example/")],
            mcp_servers=[
                {"name": "gone", "command": "/no/such/program"},
                {"name": "old", "command": sys.executable, "args": OLD, "tools": ["first", "second"]},
            ],
        )
        assert [any(word in warning for warning in made["warnings"]) for word in ("'scripted/unknown'",)] == [True]
        assert len(made["warnings"]) == 4
        for words in ("nowhere.example", "/no/such/program", "no tool called second"):
            assert any(words in warning for warning in made["warnings"]), made["warnings"]
        assert "warnings" not in await service.read(f"/v1/agents/{made['id']}")

    async def test_are_about_what_was_changed(self, service: Client) -> None:
        made = await saved(service, model="scripted/unknown")
        patched = await service.patch(f"/v1/agents/{made['id']}", json={"name": "B"})
        assert patched.json()["warnings"] == []

    async def test_tell_of_a_provider_that_is_away(self, settings: Settings) -> None:
        class Away(ScriptedProvider):
            async def models(self) -> list[str]:
                raise Unavailable("nobody there")

        async with ApiServer.start(settings, providers=ProviderRegistry([Away([])])) as server:
            made = await saved(await server.tenant(), model="scripted/x")
        assert "cannot be reached now" in made["warnings"][0]


class TestLimits:
    async def test_of_the_agent_end_its_tool_rounds(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, tools=["look"], limits={"tool_rounds": 1})
        server.scripts.always = lambda request: [Call("look")] if request.may_call else ["Enough."]
        answer = await service.ask(agent_id=made["id"])
        assert answer["turn"]["response"] == "Enough."
        assert [request.may_call for request in server.scripts.requests] == [True, False]

    async def test_of_the_agent_end_its_tools_and_its_turns(self, free: ApiServer, web: WebServer) -> None:
        service = await free.tenant()
        hang = http_tool(f"{web.url}/hang")
        slow = await saved(service, tools=[hang], limits={"tool_timeout_seconds": 0.3})
        free.scripts.say(Call("t"))
        await service.ask(agent_id=slow["id"])
        assert "did not answer within 0.3 seconds" in str(free.scripts.requests[-1].messages)
        long = await saved(service, tools=[hang], limits={"turn_timeout_seconds": 1.0})
        free.scripts.say(Call("t"))
        failed = await service.ask(agent_id=long["id"])
        assert failed["turn"]["error"]["code"] == "turn_timeout"
        assert "1 seconds" in failed["turn"]["error"]["message"]


class TestTheSnapshot:
    @both
    async def test_of_a_turn_is_in_its_trace_and_stays(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, **AGENT)
        turn = (await service.ask(agent_id=made["id"]))["turn"]["id"]
        await service.patch(f"/v1/agents/{made['id']}", json={"instructions": "Be long.", "tools": []})
        snapshot = (await _trace(service, turn))[0]["snapshot"]
        assert snapshot["agent_id"] == made["id"]
        assert snapshot["model"] == "scripted"
        shown = snapshot["agent"]
        masked = MASKED | {"approvers": ["author"]}
        assert {name: shown[name] for name in shown} == {name: masked[name] for name in shown}
        assert shown["instructions"] == "Be brief."

    async def test_tells_which_tools_the_key_allowed(self, server: ApiServer, service: Client) -> None:
        limited = await _key(server, service, ["look"])
        turn = (await limited.ask())["turn"]["id"]
        assert (await _trace(service, turn))[0]["snapshot"]["allowed_tools"] == ["look"]

    @both
    async def test_comes_with_a_note_of_a_server_that_was_left_out(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, tools=["look"], mcp_servers=[{"name": "gone", "command": "/no/such/program"}])
        answer = await service.ask(agent_id=made["id"])
        assert answer["turn"]["status"] == "succeeded"
        assert [offer.name for offer in server.scripts.requests[-1].tools] == ["look"]
        assert "gone" not in str(server.scripts.requests[-1])
        logs = [line for line in await _trace(service, answer["turn"]["id"]) if line["type"] == "log"]
        assert "The MCP server gone is left out" in logs[0]["message"]


class TestATurnThatWaitsForItsTools:
    async def test_can_be_stopped(self, settings: Settings) -> None:
        class Waiting(ToolRegistry):
            async def toolbox(self, *_: object, **__: object) -> Toolbox:
                reached.set()
                await asyncio.Event().wait()
                raise AssertionError("unreachable")

        reached = asyncio.Event()
        async with ApiServer.start(settings, tools=Waiting()) as server:
            service = await server.tenant()
            made = await saved(service, mcp_servers=[{"name": "slow", "url": "https://tools.example/mcp"}])
            turn = (await service.ask(agent_id=made["id"], background=True))["turn_id"]
            await reached.wait()
            stopped = await service.post(f"/v1/turns/{turn}/cancel")
            assert stopped.json()["status"] == "cancelled"


class TestAllowedToolsOfAKey:
    async def test_hold_for_the_key_and_for_the_users_it_vouches_for(self, server: ApiServer, service: Client) -> None:
        made = await saved(service, **AGENT)
        limited = await _key(server, service, ["weather", "old__*"])
        await server.user(service, "boss", role="admin")
        for client in (limited, await server.user(limited, "bob"), await server.user(limited, "boss", role="admin")):
            server.scripts.say(Call("look", {"place": "here"}))
            await client.ask(agent_id=made["id"])
            first, second = server.scripts.requests[-2:]
            assert [offer.name for offer in first.tools] == ["weather", "old__first"]
            assert "There is no tool called 'look'" in str(second.messages)

    async def test_are_part_of_the_turn_so_they_hold_on_another_worker(
        self, server: ApiServer, service: Client
    ) -> None:
        limited = await _key(server, service, ["weather"])
        turn_id = (await limited.ask())["turn"]["id"]
        snapshot = (await server.runtime.store.turn(await _tenant(server), turn_id)).snapshot
        assert snapshot.principal is not None
        assert snapshot.principal.allowed_tools == ("weather",)

    async def test_cannot_be_left_by_making_another_key(self, server: ApiServer, service: Client) -> None:
        limited = await _key(server, service, ["weather", "old__*"])
        same = (await limited.post("/v1/keys", json={"name": "same"})).json()
        assert same["allowed_tools"] == ["weather", "old__*"]
        fewer = await limited.post("/v1/keys", json={"name": "fewer", "allowed_tools": ["old__first"]})
        assert fewer.status_code == 201
        for wish in (["look"], ["*"], ["weather*"]):
            response = await limited.post("/v1/keys", json={"name": "more", "allowed_tools": wish})
            assert code_of(response) == (403, "forbidden"), wish


class TestSecrets:
    async def test_that_come_back_masked_stay_and_still_work(self, free: ApiServer, web: WebServer) -> None:
        service = await free.tenant()
        made = await saved(service, tools=[http_tool(f"{web.url}/a", headers={"Authorization": SECRET, "X-Team": "a"})])
        path = f"/v1/agents/{made['id']}"
        body = await service.read(path)
        assert body["tools"][0]["headers"] == {"Authorization": "***", "X-Team": "***"}
        kept = [http_tool(f"{web.url}/b", headers={"Authorization": "***", "X-Team": "b"})]
        for save in (service.patch, service.put):
            assert (await save(path, json={"name": "A", "tools": kept})).status_code == 200
            free.scripts.say(Call("t"))
            await service.ask(agent_id=made["id"])
            sent = web.requests[-1]
            assert (sent["headers"]["Authorization"], sent["headers"]["X-Team"]) == (SECRET, "b")

    async def test_are_not_sent_to_another_place_by_who_cannot_read_them(self, free: ApiServer, web: WebServer) -> None:
        service = await free.tenant()
        admin = await free.user(service, "boss", role="admin")
        mcp = {"name": "m", "url": f"{web.url}/mcp", "headers": {"X-Key": SECRET}}
        made = await saved(service, tools=[http_tool(f"{web.url}/a", headers={"X-Key": SECRET})], mcp_servers=[mcp])
        path = f"/v1/agents/{made['id']}"
        async with web_server() as mine:
            for change in (
                {"tools": [http_tool(f"{mine.url}/a", headers={"X-Key": "***"})]},
                {"tools": [http_tool(f"{web.url}/a", name="other", headers={"X-Key": "***"})]},
                {"tools": [http_tool(f"{web.url}/a", headers={"X-Other": "***"})]},
                {"mcp_servers": [{**mcp, "url": f"{mine.url}/mcp", "headers": {"X-Key": "***"}}]},
                {"environment": {"variables": {"X": "***"}}},
            ):
                response = await admin.patch(path, json=change)
                assert code_of(response) == (422, "invalid_request"), change
                assert "Send the value itself" in response.json()["detail"]
            assert mine.hits == 0

    async def test_cannot_be_masked_from_the_start(self, service: Client) -> None:
        response = await service.post("/v1/agents", json={"name": "A", "tools": [http_tool(headers={"X": "***"})]})
        assert code_of(response) == (422, "invalid_request")

    async def test_that_look_sealed_are_sealed_again(self, free: ApiServer, web: WebServer) -> None:
        """Otherwise a caller could send ciphertext of another tenant and have it decrypted."""
        service = await free.tenant()
        made = await saved(service, tools=[http_tool(web.url, headers={"X-Key": "tks1.AAAA"})])
        free.scripts.say(Call("t"))
        await service.ask(agent_id=made["id"])
        assert web.requests[-1]["headers"]["X-Key"] == "tks1.AAAA"

    async def test_are_nowhere_but_in_the_call(
        self, free: ApiServer, web: WebServer, settings: Settings, log: io.StringIO
    ) -> None:
        service = await free.tenant()
        user = await free.user(service)
        server = {"name": "old", "command": sys.executable, "args": OLD, "env": {"KEY": SECRET}}
        made = await service.post(
            "/v1/agents",
            json={
                "name": "A",
                "tools": [
                    http_tool(f"{web.url}/hello", headers={"Authorization": SECRET}),
                    http_tool("http://127.0.0.1:1/", name="gone", headers={"Authorization": SECRET}),
                    http_tool(f"{web.url}/headers", name="echo", headers={"Authorization": f"Bearer {SECRET}"}),
                ],
                "mcp_servers": [server],
                "environment": {"variables": {"TOKEN": SECRET}},
            },
        )
        agent = made.json()["id"]
        calls = [Call(name) for name in ("t", "echo", "gone", "old__first", "old__refuse", "old__blab")]
        free.scripts.say("Calling", *calls)
        answer = await user.ask(agent_id=agent)
        turn, conversation = answer["turn"]["id"], answer["conversation_id"]
        sent = {request["path"]: request["headers"]["Authorization"] for request in web.requests}
        assert sent == {"/hello": SECRET, "/headers": f"Bearer {SECRET}"}
        shown = [made.text, json.dumps(answer)]
        for path in (
            "/v1/agents",
            f"/v1/agents/{agent}",
            f"/v1/turns/{turn}/trace",
            f"/v1/turns/{turn}/events",
            f"/v1/conversations/{conversation}/trace",
            f"/v1/conversations/{conversation}/messages",
            f"/v1/conversations/{conversation}/export",
            f"/v1/conversations/{conversation}/replay?provider=anthropic",
            "/metrics",
        ):
            response = await service.get(path)
            assert response.status_code == 200, (path, response.text)
            shown.append(response.text)
        stored = repr(await free.runtime.store.agent(await _tenant(free), agent))
        for handler in logging.getLogger().handlers:
            handler.flush()
        for text in (*shown, stored, log.getvalue(), repr(free.scripts.requests), repr(free.runtime.settings)):
            assert SECRET not in text
        assert "tks1." in stored
        assert not any("tks1." in text for text in shown)
        for file in settings.data_dir.rglob("*"):
            if file.is_file():
                assert SECRET.encode() not in file.read_bytes(), file

    async def test_survive_a_change_of_the_servers_keys(self, settings: Settings, web: WebServer) -> None:
        agent = ""
        for keys, is_known in ((("old",), True), (("new", "old"), True), (("new",), False), (("other", "old"), True)):
            changed = settings_for(settings.data_dir, secret_keys=keys, allow_private_addresses=True)
            async with ApiServer.start(changed) as server:
                client = await server.operator()
                if not agent:
                    agent = (await saved(client, tools=[http_tool(web.url, headers={"X-Key": SECRET})]))["id"]
                web.requests.clear()
                server.scripts.say(Call("t"))
                await client.ask(agent_id=agent)
                assert [request["headers"]["X-Key"] for request in web.requests] == [SECRET] * is_known
                assert ("TURNKEEP_SECRET_KEYS" in str(server.scripts.requests[-1].messages)) is not is_known
        # A save with masked secrets seals them with the first key, so that the old one can go.
        for keys in (("newer", "old"), ("newer",)):
            changed = settings_for(settings.data_dir, secret_keys=keys, allow_private_addresses=True)
            async with ApiServer.start(changed) as server:
                client = await server.operator()
                shown = await client.read(f"/v1/agents/{agent}")
                await client.patch(f"/v1/agents/{agent}", json={"tools": shown["tools"]})
                server.scripts.say(Call("t"))
                await client.ask(agent_id=agent)
                assert web.requests[-1]["headers"]["X-Key"] == SECRET


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the server writes to standard error, at its most talkative."""
    root = logging.getLogger()
    before, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logging("debug", stream=stream)
    yield stream
    root.handlers = before
    root.setLevel(level)


async def _trace(service: Client, turn_id: str) -> list[Json]:
    response = await service.get(f"/v1/turns/{turn_id}/trace")
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


async def _key(server: ApiServer, service: Client, allowed_tools: list[str]) -> Client:
    made = await service.post("/v1/keys", json={"name": "limited", "allowed_tools": allowed_tools})
    assert made.status_code == 201, made.text
    return await server.client(made.json()["key"])


async def _tenant(server: ApiServer) -> Principal:
    """The tenant that was made last, as the engine sees it."""
    store = server.runtime.store
    org = max(await store.orgs(), key=lambda org: (org.created_at, org.id))
    workspace = await store.workspace(org.id)
    return Principal(org_id=org.id, workspace_id=workspace.id, user_id=None, role="service")


class TestADeletedAgent:
    @both
    async def test_leaves_its_conversations_to_go_on_without_it(self, server: ApiServer, service: Client) -> None:
        made = await service.post("/v1/agents", json={"name": "Gone", "instructions": "Be brief.", "model": "scripted"})
        agent = made.json()["id"]
        first = await service.ask("Hi", agent_id=agent)
        conversation = (await service.post("/v1/conversations", json={"agent_id": agent})).json()["id"]
        await service.ask("Hi", conversation_id=conversation)
        assert (await service.delete(f"/v1/agents/{agent}")).status_code == 204
        replay = await service.read(f"/v1/conversations/{conversation}/replay")
        assert replay["system"] is None
        again = await service.ask("And?", conversation_id=conversation)
        assert again["turn"]["status"] == "succeeded"
        assert server.scripts.requests[-1].system is None
        path = f"/v1/conversations/{conversation}/turns/{again['turn']['id']}/regenerate"
        assert (await service.post(path)).status_code == 200
        assert (await service.ask("On", conversation_id=first["conversation_id"]))["turn"]["status"] == "succeeded"

    async def test_is_not_found_by_a_turn_that_names_it(self, service: Client) -> None:
        agent = (await service.post("/v1/agents", json={"name": "Gone", "model": "scripted"})).json()["id"]
        conversation = (await service.ask("Hi"))["conversation_id"]
        await service.delete(f"/v1/agents/{agent}")
        for place in ({}, {"conversation_id": conversation}):
            refused = await service.post("/v1/turns", json={"message": "Hi", "agent_id": agent, **place})
            assert code_of(refused) == (404, "not_found")

    async def test_does_not_take_the_answer_from_a_request_that_is_repeated(self, service: Client) -> None:
        agent = (await service.post("/v1/agents", json={"name": "Gone", "model": "scripted"})).json()["id"]
        headers = {"idempotency-key": "once"}
        first = await service.ask("Hi", agent_id=agent, headers=headers)
        await service.delete(f"/v1/agents/{agent}")
        assert (await service.ask("Hi", agent_id=agent, headers=headers))["turn"]["id"] == first["turn"]["id"]
        other = await service.post("/v1/turns", json={"message": "Ho", "agent_id": agent}, headers=headers)
        assert code_of(other) == (409, "idempotency_conflict")

    @both
    async def test_and_a_model_can_be_taken_from_a_conversation(self, service: Client) -> None:
        agent = (await service.post("/v1/agents", json={"name": "Here", "model": "scripted"})).json()["id"]
        made = await service.post("/v1/conversations", json={"agent_id": agent, "model": "scripted"})
        path = f"/v1/conversations/{made.json()['id']}"
        changed = (await service.patch(path, json={"agent_id": None})).json()
        assert (changed["agent_id"], changed["model"]) == (None, "scripted")
        changed = (await service.patch(path, json={"agent_id": agent, "model": None})).json()
        assert (changed["agent_id"], changed["model"]) == (agent, None)
        assert code_of(await service.patch(path, json={"agent_id": "", "model": ""}))[0] == 422


class TestLargeSchemas:
    async def test_are_checked_while_others_are_answered(self, service: Client) -> None:
        properties = {f"p{n}": {"type": "string", "minLength": n} for n in range(1_300)}
        large = {"type": "object", "properties": properties}
        body = {"name": "A", "tools": [http_tool(name=f"t{n}", input_schema=large) for n in range(4)]}
        saving = asyncio.create_task(service.post("/v1/agents", json=body, timeout=120))
        ticks = 0
        while not saving.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert (await saving).status_code == 201, (await saving).text
        assert ticks > 20, "the server shares this loop"

    async def test_may_have_so_many_bytes_together(self, service: Client) -> None:
        large = {"type": "object", "description": "x" * 60_000}
        body = {"name": "A", "tools": [http_tool(name=f"t{n}", input_schema=large) for n in range(5)]}
        refused = await service.post("/v1/agents", json=body)
        assert code_of(refused) == (422, "invalid_request")
        assert "262,144 bytes together" in refused.json()["detail"]


class TestNames:
    @both
    async def test_can_be_given_once_in_a_workspace(self, server: ApiServer, service: Client) -> None:
        clerk, other = await saved(service, name="Clerk"), await saved(service, name="Other")
        for response in (
            await service.post("/v1/agents", json={"name": "CLERK"}),
            await service.patch(f"/v1/agents/{other['id']}", json={"name": "clerk"}),
            await service.put(f"/v1/agents/{other['id']}", json={"name": " Clerk"}),
        ):
            assert code_of(response) == (409, "conflict")
            assert "Choose another name" in response.json()["detail"]
        assert (await service.patch(f"/v1/agents/{clerk['id']}", json={"name": "CLERK"})).status_code == 200
        assert (await service.delete(f"/v1/agents/{clerk['id']}")).status_code == 204
        assert (await service.patch(f"/v1/agents/{other['id']}", json={"name": "clerk"})).status_code == 200
        assert (await (await server.tenant()).post("/v1/agents", json={"name": "Clerk"})).status_code == 201


class TestAnAvatar:
    @pytest.mark.parametrize("emoji", ["🦉", "👩🏽‍🚀", "🇨🇭", "❤️", "5️⃣"])
    async def test_is_an_emoji(self, server: ApiServer, service: Client, emoji: str) -> None:
        made = await saved(service, avatar=emoji)
        assert made["avatar"] == emoji
        user = await server.user(service)
        assert (await user.read(f"/v1/agents/{made['id']}"))["avatar"] == emoji

    async def test_is_a_picture_that_is_made_small_once(self, service: Client) -> None:
        made = await saved(service, avatar=_picture("PNG", (400, 300)))
        media_type, _, data = made["avatar"].partition(";base64,")
        assert media_type == "data:image/jpeg"
        assert _size(data) == (96, 96)
        again = await service.put(f"/v1/agents/{made['id']}", json={"name": made["name"], "avatar": made["avatar"]})
        assert again.json()["avatar"] == made["avatar"]
        gone = await service.patch(f"/v1/agents/{made['id']}", json={"avatar": ""})
        assert "avatar" not in gone.json()

    async def test_is_not_copied_into_turns(self, service: Client) -> None:
        made = await saved(service, avatar=_picture("PNG", (400, 300)))
        turn = (await service.ask(agent_id=made["id"]))["turn"]["id"]
        assert "avatar" not in (await _trace(service, turn))[0]["snapshot"]["agent"]

    @pytest.mark.parametrize(
        "avatar",
        [
            "an owl",
            "<b>",
            "🦉 🦉",
            "🦉" * 33,
            "https://example.org/owl.png",
            "data:image/svg+xml;base64,PHN2Zy8+",
            "data:image/png;base64,bm8gcGljdHVyZQ==",
            "data:image/png;base64,???",
            "data:,",
        ],
    )
    async def test_is_nothing_else(self, service: Client, avatar: str) -> None:
        refused = await service.post("/v1/agents", json={"name": "A", "avatar": avatar})
        assert code_of(refused) == (422, "invalid_request")
        assert "avatar" in refused.json()["detail"]


class TestATrial:
    async def asked(self, client: Client, message: str = "Hello?", **body: Json) -> Json:
        response = await client.post("/v1/agents/try", json={"message": message, **body})
        assert response.status_code == 202, response.text
        accepted = response.json()
        async with asyncio.timeout(60):
            while (turn := await client.read(f"/v1/turns/{accepted['turn_id']}"))["status"] == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return accepted | {"turn": turn}

    @both
    async def test_answers_with_settings_that_are_not_saved(self, server: ApiServer, service: Client) -> None:
        server.scripts.say(Call("look", {"place": "Bern"}))
        server.scripts.say("It is there.")
        agent: Json = {"name": "New", "instructions": "Be a poet.", "tools": ["look"]}
        first = await self.asked(service, agent=agent)
        assert (first["turn"]["status"], first["turn"]["response"]) == ("succeeded", "It is there.")
        assert "Be a poet." in str(server.scripts.requests[0])
        again = {"agent": agent | {"instructions": "Be a clerk."}, "conversation_id": first["conversation_id"]}
        second = await self.asked(service, "And now?", **again)
        assert second["conversation_id"] == first["conversation_id"]
        last = str(server.scripts.requests[-1])
        assert "Be a clerk." in last
        assert "It is there." in last
        assert (await service.read("/v1/agents"))["data"] == []
        assert (await service.read("/v1/conversations"))["data"] == []
        shown = await service.read(f"/v1/conversations/{first['conversation_id']}")
        assert shown["agent_id"] is None
        path = f"/v1/conversations/{first['conversation_id']}/turns/{second['turn_id']}/regenerate"
        assert (await service.post(path)).status_code == 200
        assert "Be a clerk." in str(server.scripts.requests[-1])

    async def test_uses_the_secrets_of_the_saved_agent(self, free: ApiServer, web: WebServer) -> None:
        service = await free.tenant()
        tools = [http_tool(f"{web.url}/echo", headers={"X-Key": SECRET})]
        made = await saved(service, tools=tools)
        shown = {"name": made["name"], "tools": made["tools"]}
        free.scripts.say(Call("t"))
        free.scripts.say("Done.")
        tried = await self.asked(service, agent=shown, agent_id=made["id"])
        assert tried["turn"]["status"] == "succeeded"
        refused = await service.post("/v1/agents/try", json={"message": "Hello?", "agent": shown})
        assert code_of(refused) == (422, "invalid_request")
        elsewhere = {**shown, "tools": [{**shown["tools"][0], "url": "https://8.8.8.8/"}]}
        refused = await service.post(
            "/v1/agents/try", json={"message": "Hello?", "agent": elsewhere, "agent_id": made["id"]}
        )
        assert code_of(refused) == (422, "invalid_request")

    async def test_is_for_admins_and_has_a_conversation_of_its_own(self, server: ApiServer, service: Client) -> None:
        member = await server.user(service)
        body: Json = {"message": "Hello?", "agent": {"name": "New"}}
        assert code_of(await member.post("/v1/agents/try", json=body)) == (403, "forbidden")
        conversation = (await service.ask())["conversation_id"]
        refused = await service.post("/v1/agents/try", json=body | {"conversation_id": conversation})
        assert code_of(refused) == (422, "invalid_request")
        unknown = await service.post("/v1/agents/try", json=body | {"conversation_id": fake_id("conv")})
        assert unknown.status_code == 404
        wrong = await service.post("/v1/agents/try", json=body | {"agent": {"name": "New", "tools": ["nothing"]}})
        assert code_of(wrong) == (422, "invalid_request")


def _picture(format: str, size: tuple[int, int]) -> str:
    made = io.BytesIO()
    Image.new("RGB", size, (47, 111, 94)).save(made, format)
    return f"data:image/{format.lower()};base64,{base64.b64encode(made.getvalue()).decode()}"


def _size(data: str) -> tuple[int, int]:
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.size
