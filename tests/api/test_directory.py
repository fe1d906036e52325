"""Users: how they are shown, found, changed, limited and disabled."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from aiohttp import web

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id, settings_for
from tests.tools.test_mcp import a_http_server
from tests.tools.web_server import web_server
from turnkeep.api.native import agents
from turnkeep.config import Settings
from turnkeep.model.principals import Principal
from turnkeep.providers.scripted import Call, Pause
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import CallContext
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.tool_calls import verify_tool_call

PRICES = {"scripted": {"input": 1_000, "output": 2_000}}
"""A turn of the scripted model has 10 tokens in and 5 out: 0.02."""


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(PRICES), encoding="utf-8")
    more: Json = {"prices": prices, "allow_private_addresses": True}
    if getattr(request, "param", "sqlite") == "postgres":
        more["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **more)


@pytest.fixture
async def admin(server: ApiServer, service: Client) -> Client:
    return await server.user(service, "boss", role="admin")


@both
class TestAUserIsShown:
    async def test_wherever_something_is_theirs(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/tokens", json={"user": "ann@example.com"})).json()
        user = await server.client(made["token"])
        ann = made["user"]
        assert ann == {"id": ann["id"], "external_id": "ann@example.com"}
        assert (await user.read("/v1/me"))["user"] == ann
        answer = await user.ask()
        conversation = f"/v1/conversations/{answer['conversation_id']}"
        for caller in (user, service, await server.client(service.key, turnkeep_user="ann@example.com")):
            assert (await caller.read(conversation))["user"] == ann
            [listed] = (await caller.read("/v1/conversations"))["data"]
            assert (listed["user"], listed["user_id"]) == (ann, ann["id"])
        trace = await service.get(f"/v1/turns/{answer['turn']['id']}/trace")
        assert json.loads(trace.text.splitlines()[0])["user"] == ann
        assert [row["user"] for row in (await service.read(f"{conversation}/trace"))["data"]] == [ann, ann]
        assert (await service.read(f"{conversation}/export"))["exported"]["user"] == ann
        assert (await user.read("/v1/usage"))["user"] == ann

    async def test_by_name_once_there_is_one(self, server: ApiServer, service: Client, user: Client) -> None:
        me = (await user.read("/v1/me"))["user"]
        await service.patch(f"/v1/users/{me['id']}", json={"name": "Ann"})
        assert (await user.read("/v1/me"))["user"] == {**me, "name": "Ann"}

    async def test_as_none_for_what_belongs_to_a_service(self, service: Client) -> None:
        assert (await service.read("/v1/me"))["user"] is None
        conversation = (await service.post("/v1/conversations")).json()
        assert (conversation["user"], conversation["user_id"]) == (None, None)
        assert (await service.read("/v1/usage"))["user"] is None

    async def test_in_an_export_that_can_be_imported(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        exported = await service.get(f"/v1/conversations/{answer['conversation_id']}/export")
        bob = await server.client(service.key, turnkeep_user="bob")
        imported = await bob.post("/v1/conversations/import", content=exported.content)
        assert imported.json()["conversation"]["user"]["external_id"] == "bob", "an import belongs to the importer"


@both
class TestTheList:
    async def test_has_all_users_of_the_workspace_and_is_searched(
        self, server: ApiServer, service: Client, admin: Client
    ) -> None:
        for name in ("ann", "bob", "10%_off"):
            await server.user(service, name)
        await service.patch("/v1/users/bob", json={"name": "Robert Tables"})
        second = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        await server.user(service, "elsewhere", workspace_id=second)
        for caller in (service, admin):
            listed = (await caller.read("/v1/users"))["data"]
            assert [user["external_id"] for user in listed] == ["boss", "ann", "bob", "10%_off"]
            assert listed[0]["role"] == "admin"
        for query, found in (
            ("BO", ["boss", "bob"]),
            ("robert", ["bob"]),
            ("%_", ["10%_off"]),
            ("zz", []),
            (" ", None),
        ):
            listed = (await admin.read("/v1/users", params={"q": query}))["data"]
            expected = ["boss", "ann", "bob", "10%_off"] if found is None else found
            assert [user["external_id"] for user in listed] == expected, query
        first = await admin.read("/v1/users", params={"limit": 3})
        rest = await admin.read("/v1/users", params={"limit": 3, "cursor": first["next_cursor"]})
        assert [len(page["data"]) for page in (first, rest)] == [3, 1]
        assert rest["next_cursor"] is None

    async def test_are_found_by_ids_with_slashes(self, server: ApiServer, service: Client) -> None:
        """An identity provider may have a path in its address, and so in the ids of its users."""
        user = await server.user(service, "idp.example/realms/x#4/2")
        me = await user.read("/v1/me")
        address = "/v1/users/idp.example%2Frealms%2fx%234%2F2"
        assert (await service.read(address))["id"] == me["user_id"]
        assert (await service.read(f"{address}/sessions"))["data"] == []
        assert (await service.post(f"{address}/erase")).status_code == 202
        assert (await service.get("/v1/users/idp.example/realms/x")).status_code == 404
        assert (await service.get("/v1%2Fusers")).status_code == 404

    async def test_finds_one_by_id_or_by_the_hosts_id(self, server: ApiServer, service: Client, admin: Client) -> None:
        me = (await (await server.user(service, "ann+x@example.com")).read("/v1/me"))["user"]
        by_id = await admin.read(f"/v1/users/{me['id']}")
        assert by_id == await admin.read("/v1/users/ann%2Bx@example.com")
        assert by_id == {
            "id": me["id"],
            "external_id": "ann+x@example.com",
            "workspace_id": by_id["workspace_id"],
            "name": None,
            "role": "member",
            "is_disabled": False,
            "monthly_message_limit": None,
            "monthly_token_limit": None,
            "monthly_cost_limit": None,
            "stored_byte_limit": None,
            "parallel_turn_limit": None,
            "created_at": by_id["created_at"],
        }
        other = await server.tenant("another")
        for response in (
            await other.get(f"/v1/users/{me['id']}"),
            await other.patch(f"/v1/users/{me['id']}", json={"is_disabled": True}),
            await admin.get("/v1/users/nobody"),
            await admin.get(f"/v1/users/{'x' * 300}"),
        ):
            assert code_of(response) == (404, "not_found")

    async def test_of_one_whose_name_is_the_id_of_another_shows_the_one_with_the_id(
        self, server: ApiServer, service: Client
    ) -> None:
        ann = (await (await server.user(service, "ann")).read("/v1/me"))["user"]
        twin = await server.client(service.key, turnkeep_user=ann["id"])
        me = (await twin.read("/v1/me"))["user"]
        assert me["external_id"] == ann["id"]
        assert me["id"] != ann["id"], "a name that the host gives never acts for another user"
        assert (await service.read(f"/v1/users/{ann['id']}"))["external_id"] == "ann"


@both
class TestADisabledUser:
    async def test_can_do_nothing_at_once(self, server: ApiServer, service: Client, admin: Client) -> None:
        user = await server.user(service, "ann")
        acting = await server.client(service.key, turnkeep_user="ann")
        answer = await user.ask()
        assert (await admin.patch("/v1/users/ann", json={"is_disabled": True})).json()["is_disabled"]
        for caller in (user, acting):
            for response in (
                await caller.get("/v1/me"),
                await caller.get(f"/v1/conversations/{answer['conversation_id']}"),
                await caller.get(f"/v1/turns/{answer['turn']['id']}/events"),
                await caller.post("/v1/turns", json={"message": "?"}),
            ):
                assert code_of(response) == (403, "forbidden")
        assert code_of(await service.post("/v1/tokens", json={"user": "ann"})) == (403, "forbidden")
        await admin.patch("/v1/users/ann", json={"is_disabled": False})
        assert (await user.ask())["turn"]["status"] == "succeeded"

    async def test_has_running_turns_stopped(self, server: ApiServer, service: Client, admin: Client) -> None:
        user = await server.user(service, "ann")
        server.scripts.say("One ", Pause(60.0), "two.")
        turn = (await user.ask(background=True))["turn_id"]
        await admin.patch("/v1/users/ann", json={"is_disabled": True})
        assert (await service.read(f"/v1/turns/{turn}"))["status"] == "cancelled"

    async def test_cannot_be_the_admin_who_asks(self, admin: Client) -> None:
        for change in ({"is_disabled": True}, {"role": "member"}):
            assert code_of(await admin.patch("/v1/users/boss", json=change)) == (403, "forbidden")


@both
class TestARole:
    async def test_that_is_taken_away_is_gone_from_tokens_made_before(
        self, server: ApiServer, service: Client, admin: Client
    ) -> None:
        other = await server.user(service, "deputy", role="admin")
        assert (await other.get("/v1/users")).status_code == 200
        await admin.patch("/v1/users/deputy", json={"role": "member"})
        assert code_of(await other.get("/v1/users")) == (403, "forbidden")
        assert (await other.read("/v1/me"))["role"] == "member"

    async def test_of_one_token_does_not_change_another(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "ann", role="admin")
        for body in ({"role": "member"}, {}):
            narrow = await server.user(service, "ann", **body)
            assert (await narrow.read("/v1/me"))["role"] == "member"
            assert (await admin.read("/v1/me"))["role"] == "admin"


@both
class TestLimits:
    @pytest.mark.parametrize(
        "limits, allowed",
        [
            ({"monthly_message_limit": 2}, 2),
            ({"monthly_token_limit": 20}, 2),
            ({"monthly_token_limit": 0}, 0),
            ({"monthly_cost_limit": 0.03}, 2),
        ],
    )
    async def test_of_a_user_end_in_a_refusal(
        self, server: ApiServer, service: Client, admin: Client, limits: Json, allowed: int
    ) -> None:
        user, other = await server.user(service, "ann"), await server.user(service, "bob")
        assert (await admin.patch("/v1/users/ann", json=limits)).status_code == 200
        for _ in range(allowed):
            await user.ask()
        refused = await user.post("/v1/turns", json={"message": "?"})
        assert code_of(refused) == (429, "quota_exceeded")
        await other.ask()
        await admin.patch("/v1/users/ann", json=dict.fromkeys(limits))
        await user.ask()

    async def test_of_a_user_replace_those_of_the_workspace(
        self, server: ApiServer, service: Client, admin: Client
    ) -> None:
        user, other = await server.user(service, "ann"), await server.user(service, "bob")
        workspace = (await admin.read("/v1/me"))["workspace_id"]
        await service.patch(f"/v1/workspaces/{workspace}", json={"user_monthly_message_limit": 1})
        await admin.patch("/v1/users/ann", json={"monthly_message_limit": 2})
        await user.ask()
        await user.ask()
        assert (await user.read("/v1/usage"))["limit"] == 2
        await other.ask()
        assert (await other.read("/v1/usage"))["limit"] == 1
        for caller in (user, other):
            assert code_of(await caller.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")

    @pytest.mark.parametrize(
        "change",
        [
            {"monthly_message_limit": -1},
            {"monthly_token_limit": 1.5},
            {"monthly_cost_limit": -0.1},
            {"monthly_cost_limit": "1"},
            {"role": "service"},
            {"is_disabled": None},
            {"external_id": "x"},
        ],
    )
    async def test_that_make_no_sense_are_refused(self, user: Client, admin: Client, change: Json) -> None:
        assert code_of(await admin.patch("/v1/users/ann", json=change)) == (422, "invalid_request")

    async def test_cannot_be_changed_by_the_user(self, user: Client) -> None:
        for response in (
            await user.patch("/v1/users/ann", json={"monthly_message_limit": 1_000}),
            await user.get("/v1/users/ann"),
            await user.get("/v1/users"),
        ):
            assert code_of(response) == (403, "forbidden")


class TestTools:
    async def test_of_an_agent_work_for_the_user_who_asked(
        self, server: ApiServer, service: Client, admin: Client
    ) -> None:
        async with web_server() as crm:
            declared = {"type": "http", "name": "crm", "url": f"{crm.url}/{{{{user.external_id}}}}"}
            made = (await service.post("/v1/agents", json={"name": fake_id("agent"), "tools": [declared]})).json()
            path = f"/v1/agents/{made['id']}"
            users = {name: await server.user(service, name) for name in ("ann", "bob")}
            secret = made["tool_secret"]
            for name, user in users.items():
                server.scripts.say(Call("crm", {}))
                answer = await user.ask(agent_id=made["id"])
                request = crm.requests[-1]
                caller = verify_tool_call(secret, request["headers"], request["body"].encode())
                assert (caller.user, caller.conversation_id) == (name, answer["conversation_id"])
                assert request["path"] == f"/{name}"
                rotated = (await admin.post(f"{path}/tool_secret")).json()["tool_secret"]
                assert rotated not in {secret, made["tool_secret"]}
                secret = rotated
            assert secret not in str(await service.read(path))
            assert "tool_secret" not in (await service.patch(path, json={"name": "B"})).json()
            assert code_of(await users["ann"].post(f"{path}/tool_secret")) == (403, "forbidden")

    @pytest.mark.parametrize("method", ["PATCH", "PUT"])
    async def test_keep_a_secret_that_is_rotated_while_their_agent_is_saved(
        self, server: ApiServer, service: Client, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = (await service.post("/v1/agents", json={"name": fake_id("agent")})).json()
        path, rotated = f"/v1/agents/{made['id']}", ""

        async def check_slowly(*_: object) -> list[str]:
            """As an MCP server that takes its time."""
            nonlocal rotated
            rotated = (await service.post(f"{path}/tool_secret")).json()["tool_secret"]
            return []

        monkeypatch.setattr(agents, "_find_warnings", check_slowly)
        assert (await service.request(method, path, json={"name": "B"})).json()["name"] == "B"
        org_id = (await server.runtime.store.orgs())[-1].id
        principal = Principal(org_id=org_id, workspace_id=made["workspace_id"], user_id=None, role="service")
        stored = (await server.runtime.store.agent(principal, made["id"])).spec
        assert stored.tool_secret is not None
        assert server.runtime.vault.open(org_id, stored.tool_secret) == rotated

    async def test_of_an_agent_that_is_changed_twice_at_once_have_both_changes(
        self, server: ApiServer, service: Client
    ) -> None:
        path = f"/v1/agents/{(await service.post('/v1/agents', json={'name': 'A'})).json()['id']}"
        for number in range(5):
            changes = {"name": f"A{number}", "instructions": f"I{number}", "description": f"D{number}"}
            await asyncio.gather(*(service.patch(path, json={name: text}) for name, text in changes.items()))
            stored = await service.read(path)
            assert {name: stored[name] for name in changes} == changes

    async def test_of_the_server_are_listed_for_admins(self, server: ApiServer, service: Client, user: Client) -> None:
        listed = (await service.read("/v1/tools"))["data"]
        assert {tool["name"] for tool in listed} >= {"search_pages", "read_file"}
        assert set(listed[0]) == {"name", "description", "input_schema", "idempotent"}
        assert code_of(await user.get("/v1/tools")) == (403, "forbidden")

    async def test_of_the_operator_know_the_user(self, settings: Settings) -> None:
        @tool
        async def whoami(context: CallContext) -> str:
            """Who asks."""
            return "no user" if context.user is None else context.user.external_id

        async with ApiServer.start(settings, tools=ToolRegistry([whoami], offered_to_all=["whoami"])) as server:
            service = await server.tenant()
            assert [each["name"] for each in (await service.read("/v1/tools"))["data"]] == ["whoami"]
            for caller, expected in ((await server.user(service, "ann"), "ann"), (service, "no user")):
                server.scripts.say(Call("whoami", {}))
                answer = await caller.ask()
                [step] = [part for part in answer["message"]["content"] if part["type"] == "step"]
                assert step["result"] == expected

    @pytest.mark.parametrize(
        "fields",
        [
            {"url": "https://8.8.8.8/{{user.email}}"},
            {"url": "https://{{user.id}}.example.com/"},
            {"url": "https://8.8.8.8/", "headers": {"X-A": "{{secret}}"}},
            {"url": "https://8.8.8.8/", "headers": {"Turnkeep-User": "ann"}},
            {"url": "https://8.8.8.8/", "arguments": {"a": [{"b": "{{nothing}}"}]}},
        ],
    )
    async def test_with_unknown_placeholders_are_refused_when_the_agent_is_saved(
        self, service: Client, fields: Json
    ) -> None:
        for body in (
            {"tools": [{"type": "http", "name": "t", **fields}]},
            {"mcp_servers": [{"name": "t", **fields}]},
        ):
            response = await service.post("/v1/agents", json={"name": fake_id("agent"), **body})
            assert code_of(response) == (422, "invalid_request")


class TestTheManual:
    """The examples of `docs/howto/let-tools-act-for-the-user.md`, as they stand there."""

    PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "let-tools-act-for-the-user.md").read_text("utf-8")

    def _block(self, language: str, words: str) -> str:
        blocks = re.findall(rf"^```{language}\n(.*?)^```", self.PAGE, re.MULTILINE | re.DOTALL)
        [found] = [block for block in blocks if words in block]
        return str(found)

    async def test_an_mcp_server_with_accounts_of_users(self, server: ApiServer, service: Client) -> None:
        """Composio's address and header, against a server of the official MCP library on this machine."""
        agent = json.loads(self._block("json", "composio"))
        async with a_http_server() as (port, _):
            address = agent["mcp_servers"][0]["url"]
            assert address.startswith("https://backend.composio.dev/")
            agent["mcp_servers"][0]["url"] = f"http://127.0.0.1:{port}/mcp?{address.partition('?')[2]}"
            response = await service.post("/v1/agents", json=agent)
            assert response.status_code == 201, response.text
            made = response.json()
            assert made["warnings"] == []
            for name in ("ann@example.com", "bob"):
                server.scripts.say(Call("composio__request", {}))
                user = await server.user(service, name)
                answer = await user.ask(agent_id=made["id"])
                [step] = [part for part in answer["message"]["content"] if part["type"] == "step"]
                seen = step["result"]
                assert seen["query"] == f"user_id={name.replace('@', '%40')}"
                assert seen["headers"]["x-api-key"][::-1] == "YOUR_COMPOSIO_KEY"
                headers = {key: value[::-1] for key, value in seen["headers"].items()}
                caller = verify_tool_call(made["tool_secret"], headers, seen["body"].encode())
                assert caller.user == seen["context"]["user"] == name

    async def test_an_endpoint_that_checks_the_signature(
        self, server: ApiServer, service: Client, user: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        declared = {"type": "http", "name": "orders", "url": "http://127.0.0.1:9/"}
        made = (await service.post("/v1/agents", json={"name": fake_id("agent"), "tools": [declared]})).json()
        Path("tool_secret").write_text(made["tool_secret"], encoding="utf-8")
        program: Json = {}
        exec(compile(self._block("python", "verify_tool_call"), "howto", "exec"), program)
        runner = web.AppRunner(program["app"])
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        try:
            await site.start()
            port = runner.addresses[0][1]
            declared["url"] = f"http://127.0.0.1:{port}/orders"
            await service.patch(f"/v1/agents/{made['id']}", json={"tools": [declared]})
            results = []
            for _ in range(2):
                server.scripts.say(Call("orders", {"n": 1}))
                answer = await user.ask(agent_id=made["id"])
                [step] = [part for part in answer["message"]["content"] if part["type"] == "step"]
                results.append(step.get("result") or step["error"])
                await service.post(f"/v1/agents/{made['id']}/tool_secret")
            assert results[0] == {"orders_of": "ann"}
            assert "401" in results[1], "the endpoint does not know the new secret yet"
        finally:
            await runner.cleanup()

    async def test_a_native_tool(self, settings: Settings) -> None:
        program: Json = {}
        exec(compile(self._block("python", "my_orders"), "howto", "exec"), program)
        tools = ToolRegistry([program["my_orders"]], offered_to_all=["my_orders"])
        async with ApiServer.start(settings, tools=tools) as server:
            server.scripts.say(Call("my_orders", {}))
            answer = await (await server.user(await server.tenant(), "ann")).ask()
            assert "orders of ann" in str(answer["message"]["content"])
