"""MCP servers that ask for authorization: a person agrees in the browser, and agents of the workspace use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, settings_for
from tests.tools.oauth_server import OAuthServer
from turnkeep.api.identity.authentication import COOKIE, hash_key
from turnkeep.api.native.signin import new_cookie
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest
from turnkeep.ids import OrgId, SessionId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.model.sessions import NewSession
from turnkeep.providers.scripted import Call
from turnkeep.tools.addresses import AddressGuard, AddressRefused
from turnkeep.tools.oauth import AuthorizationFailed, AuthorizationMissing, Authorizations

PAGES = {"accept": "text/html"}


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    more: Json = {"allow_private_addresses": True, "secret_keys": ("a key of these tests",)}
    if getattr(request, "param", "sqlite") == "postgres":
        more["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **more)


@pytest.fixture
async def tickets() -> AsyncIterator[OAuthServer]:
    async with OAuthServer.start() as running:
        yield running


@pytest.fixture
async def admin(server: ApiServer) -> Client:
    return await browser(server)


async def browser(server: ApiServer, name: str = "ann", *, role: str = "admin") -> Client:
    """A browser that is signed in to the page."""
    runtime = server.runtime
    workspace = await runtime.store.workspace(runtime.home_org)
    member = await runtime.store.ensure_member(runtime.home_org, workspace.id, name, role=role, name=name.title())
    cookie = new_cookie()
    session = NewSession(secret_hash=hash_key(cookie), method="link", browser="A test", seconds=600)
    await runtime.store.add_session(runtime.home_org, member.id, session)
    client = await server.client(None, origin=server.url)
    client.cookies.set(COOKIE, cookie)
    return client


def declared(tickets: OAuthServer, **more: Json) -> Json:
    return {"name": "tickets", "url": tickets.url, **more}


async def listed(client: Client, tickets: OAuthServer, **more: Json) -> Json:
    response = await client.post("/v1/mcp/tools", json={"server": declared(tickets, **more)})
    assert response.status_code == 200, response.text
    return response.json()


async def begin(client: Client, tickets: OAuthServer, **more: str) -> Json:
    response = await client.post("/v1/mcp/connections", json={"url": tickets.url, **more})
    assert response.status_code == 201, response.text
    return response.json()


async def agree(begun: Json, *, deny: bool = False) -> str:
    """What a person does at the authorization server. The address to which the browser is sent back."""
    async with httpx.AsyncClient(trust_env=False) as person:
        asked = await person.get(begun["authorization_url"])
        assert asked.status_code == 200, asked.text
        query = urlsplit(begun["authorization_url"]).query + ("&deny=1" if deny else "")
        path = begun["authorization_url"].replace("/authorize?", "/agree?").partition("?")[0]
        back = await person.get(f"{path}?{query}")
    assert back.status_code == 302
    return back.headers["location"]


async def connect(client: Client, tickets: OAuthServer, **more: str) -> Json:
    begun = await begin(client, tickets, **more)
    done = await client.get(await agree(begun), headers=PAGES)
    assert done.status_code == 200, done.text
    assert "is connected" in done.text
    return begun["connection"]


async def an_agent(client: Client, tickets: OAuthServer, **more: Json) -> str:
    body = {"name": f"Clerk {tickets.port}", "mcp_servers": [declared(tickets, auth="oauth", **more)]}
    response = await client.post("/v1/agents", json=body)
    assert response.status_code == 201, response.text
    agent_id: str = response.json()["id"]
    return agent_id


async def answered(server: ApiServer, client: Client, agent_id: str, *calls: Call) -> list[str]:
    """The results of these calls in one turn."""
    for each in calls:
        server.scripts.say(each)
    server.scripts.say("Done.")
    answer = await client.ask(agent_id=agent_id)
    assert answer["turn"]["status"] == "succeeded", answer
    return [
        str(part.get("result", part.get("error"))) for part in answer["message"]["content"] if part["type"] == "step"
    ]


SEARCH = Call("tickets__search_tickets", {"query": "rain"})


class TestAServerThatAsks:
    @both
    async def test_is_connected_by_a_person_and_used_by_agents(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        before = await listed(admin, tickets)
        assert (before["tools"], before["issuer"], before["can_register"]) == ([], tickets.issuer, True)
        assert before["redirect_uri"] == f"{server.url}/mcp/callback"
        connection = await connect(admin, tickets)
        after = await listed(admin, tickets, auth="oauth")
        assert (after["problem"], after["issuer"]) == (None, None)
        assert [tool["name"] for tool in after["tools"]] == ["search_tickets", "close_ticket", "leak_token"]
        assert after["tools"][0] == after["tools"][0] | {
            "description": "Search the tickets of your team.",
            "idempotent": True,
        }
        assert (after["connection"]["id"], after["connection"]["status"]) == (connection["id"], "connected")
        assert after["connection"]["user"]["name"] == "Ann"
        agent = await an_agent(admin, tickets)
        assert await answered(server, admin, agent, SEARCH) == ["3 tickets about rain"]
        offered = [tool.name for tool in server.scripts.requests[-1].tools]
        assert "tickets__search_tickets" in offered

    @both
    async def test_gets_tokens_that_nobody_sees(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        await connect(admin, tickets)
        agent = await an_agent(admin, tickets)
        [said] = await answered(server, admin, agent, Call("tickets__leak_token"))
        assert said == "your token is Bearer ***"
        secrets = [*tickets.tokens, *tickets.grants, *(each["client_secret"] for each in tickets.registered.values())]
        shown = [await admin.get("/v1/mcp/connections"), await admin.get(f"/v1/agents/{agent}")]
        runtime = server.runtime
        workspace = await runtime.store.workspace(runtime.home_org)
        stored = await runtime.store.mcp_connections(runtime.home_org, workspace.id)
        assert stored
        for secret in secrets:
            assert all(secret not in response.text for response in shown)
            assert secret not in repr(stored)

    async def test_is_asked_for_the_right_things(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        begun = await begin(admin, tickets)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(begun["authorization_url"]).query).items()}
        assert (asked["resource"], asked["scope"]) == (tickets.url, "tickets offline_access")
        assert (asked["code_challenge_method"], len(asked["code_challenge"])) == ("S256", 43)
        [client] = tickets.registered.values()
        assert client["redirect_uris"] == [asked["redirect_uri"]] == [f"{server.url}/mcp/callback"]
        assert client["token_endpoint_auth_method"] == "client_secret_basic"

    async def test_may_know_the_client_already(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        tickets.can_register = False
        assert not (await listed(admin, tickets))["can_register"]
        refused = await admin.post("/v1/mcp/connections", json={"url": tickets.url})
        assert refused.status_code == 422
        assert f"{server.url}/mcp/callback" in refused.json()["detail"]
        for secret in (None, "a:secret/with odd&characters"):
            client_id = tickets.add_client(f"{server.url}/mcp/callback", secret=secret)
            given = {"client_id": client_id} | ({} if secret is None else {"client_secret": secret})
            await connect(admin, tickets, **given)
        assert (await listed(admin, tickets, auth="oauth"))["tools"]

    async def test_may_have_no_metadata_of_its_own(self, admin: Client, tickets: OAuthServer) -> None:
        """Then its origin is the authorization server, which has none here."""
        tickets.has_metadata = False
        found = await listed(admin, tickets)
        assert (found["tools"], found["issuer"]) == ([], None)
        assert "write it into the headers" in found["problem"]

    async def test_without_authorization_is_not_connected(self, admin: Client, tickets: OAuthServer) -> None:
        refused = await admin.post("/v1/mcp/connections", json={"url": f"{tickets.origin}/login/authorize"})
        assert code_of(refused) == (422, "invalid_request")
        assert "does not ask for authorization" in refused.json()["detail"]


class TestTokens:
    @both
    async def test_that_have_ended_are_renewed(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        await connect(admin, tickets)
        agent = await an_agent(admin, tickets)
        assert await answered(server, admin, agent, SEARCH) == ["3 tickets about rain"]
        tickets.end_tokens()
        assert await answered(server, admin, agent, SEARCH, SEARCH) == ["3 tickets about rain"] * 2
        assert not tickets.ended_grants

    async def test_that_end_soon_are_renewed_before(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        tickets.token_seconds = 30
        await connect(admin, tickets)
        await listed(admin, tickets, auth="oauth")
        assert len(tickets.used_refresh_tokens) >= 1
        assert not tickets.ended_grants

    @both
    async def test_are_renewed_by_one_worker_at_a_time(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        made = await connect(admin, tickets)
        async with clients_of(server, 4) as workers:
            connection = (await workers[0][0]._store.mcp_connections(*workers[0][1]))[0]
            assert connection.id == made["id"]
            refused = (await workers[0][0].grant_of(connection)).access_token
            renewals = (each.grant_of(connection, refused=refused) for each, _ in workers for _ in range(3))
            found = await asyncio.gather(*renewals)
        assert {grant.access_token for grant in found} == {found[0].access_token} != {refused}
        assert not tickets.ended_grants

    @pytest.mark.parametrize("settings", ["postgres"], indirect=True)
    async def test_are_used_by_every_server(
        self, server: ApiServer, admin: Client, tickets: OAuthServer, settings: Settings, tmp_path: Path
    ) -> None:
        await connect(admin, tickets)
        agent = await an_agent(admin, tickets)
        other = settings_for(
            tmp_path / "other",
            database_url=settings.database_url,
            allow_private_addresses=True,
            secret_keys=settings.secret_keys,
        )
        async with ApiServer.start(other) as second:
            there = await browser(second)
            tickets.end_tokens()
            assert await answered(second, there, agent, SEARCH) == ["3 tickets about rain"]
            assert await answered(server, admin, agent, SEARCH) == ["3 tickets about rain"]
        assert not tickets.ended_grants

    async def test_that_cannot_be_renewed_ask_for_a_person(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        await connect(admin, tickets)
        agent = await an_agent(admin, tickets)
        tickets.end_grants()
        server.scripts.say("Done.")
        answer = await admin.ask(agent_id=agent)
        assert answer["turn"]["status"] == "succeeded"
        assert server.scripts.requests[-1].tools == ()
        [connection] = (await admin.read("/v1/mcp/connections"))["data"]
        assert (connection["status"], connection["id"]) == ("ended", connection["id"])
        assert "Connect the server again" in connection["problem"]
        found = await listed(admin, tickets, auth="oauth")
        assert (found["tools"], found["issuer"]) == ([], tickets.issuer)
        warned = await admin.patch(
            f"/v1/agents/{agent}", json={"mcp_servers": [declared(tickets, auth="oauth", timeout_seconds=9)]}
        )
        assert "Connect the server again" in warned.json()["warnings"][0]
        await connect(admin, tickets)
        assert await answered(server, admin, agent, SEARCH) == ["3 tickets about rain"]

    async def test_without_a_refresh_token_end(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        tickets.gives_refresh_tokens, tickets.token_seconds = False, None
        await connect(admin, tickets)
        assert (await listed(admin, tickets, auth="oauth"))["tools"]
        tickets.end_tokens()
        async with clients_of(server, 1) as [(client, where)]:
            [connection] = await client._store.mcp_connections(*where)
            grant = await client.grant_of(connection)
            with pytest.raises(AuthorizationMissing):
                await client.grant_of(connection, refused=grant.access_token)

    async def test_stay_while_the_authorization_server_is_away(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        await connect(admin, tickets)
        tickets.is_away = True
        async with clients_of(server, 1) as [(client, where)]:
            [connection] = await client._store.mcp_connections(*where)
            refused = (await client.grant_of(connection)).access_token
            with pytest.raises(AuthorizationFailed):
                await client.grant_of(connection, refused=refused)
            tickets.is_away = False
            assert (await client.grant_of(connection, refused=refused)).access_token != refused


class TestTheWayBack:
    async def test_is_open_to_the_same_session_alone(
        self, server: ApiServer, admin: Client, tickets: OAuthServer
    ) -> None:
        back = await agree(await begin(admin, tickets))
        member, nobody = await browser(server, "mia", role="member"), await server.client(None)
        others = [await browser(server, "bob"), await browser(server, "ann")]
        for client, status in [(member, 403), (nobody, 401), *((each, 401) for each in others)]:
            refused = await client.get(back, headers=PAGES)
            assert refused.status_code == status
            assert refused.headers["content-type"].startswith("text/html")
            assert "The server is not connected" in refused.text
        assert (await admin.get(back, headers=PAGES)).status_code == 200
        again = await admin.get(back, headers=PAGES)
        assert again.status_code == 401
        assert "connect the server again" in again.text
        assert (await admin.get(back)).headers["content-type"] == "application/problem+json"

    @pytest.mark.parametrize(
        "change, status",
        [
            ({"state": "nonsense"}, 401),
            ({"state": None}, 401),
            ({"iss": "https://another.example"}, 401),
            ({"iss": None}, 401),
            ({"code": "made-up"}, 503),
            ({"code": None}, 503),
        ],
    )
    async def test_refuses_what_does_not_fit(
        self, admin: Client, tickets: OAuthServer, change: dict[str, str | None], status: int
    ) -> None:
        back = urlsplit(await agree(await begin(admin, tickets)))
        answer: dict[str, str | None] = {name: values[0] for name, values in parse_qs(back.query).items()}
        sent = {name: value for name, value in (answer | change).items() if value is not None}
        refused = await admin.get(back.path, params=sent, headers=PAGES)
        assert refused.status_code == status
        assert "<script" not in refused.text
        assert (await admin.read("/v1/mcp/connections"))["data"][0]["status"] == "pending"

    async def test_of_a_person_who_does_not_agree(self, admin: Client, tickets: OAuthServer) -> None:
        refused = await admin.get(await agree(await begin(admin, tickets), deny=True), headers=PAGES)
        assert refused.status_code == 403
        assert "You did not agree" in refused.text

    async def test_belongs_to_the_attempt_that_was_begun_last(self, admin: Client, tickets: OAuthServer) -> None:
        first = await agree(await begin(admin, tickets))
        second = await agree(await begin(admin, tickets))
        assert (await admin.get(first, headers=PAGES)).status_code == 401
        assert (await admin.get(second, headers=PAGES)).status_code == 200

    async def test_is_for_people(self, server: ApiServer, tickets: OAuthServer) -> None:
        operator, member = await server.operator(), await browser(server, "mia", role="member")
        for client in (operator, member):
            refused = await client.post("/v1/mcp/connections", json={"url": tickets.url})
            assert code_of(refused) == (403, "forbidden")


class TestRemoving:
    @both
    async def test_forgets_and_revokes_the_tokens(self, server: ApiServer, admin: Client, tickets: OAuthServer) -> None:
        made = await connect(admin, tickets)
        agent = await an_agent(admin, tickets)
        refresh_token = next(iter(tickets.grants))
        stranger = await server.tenant()
        assert (await stranger.delete(f"/v1/mcp/connections/{made['id']}")).status_code == 404
        assert (await admin.delete(f"/v1/mcp/connections/{made['id']}")).status_code == 204
        assert (await admin.delete(f"/v1/mcp/connections/{made['id']}")).status_code == 404
        assert tickets.revoked == [refresh_token]
        server.scripts.say("Done.")
        await admin.ask(agent_id=agent)
        assert server.scripts.requests[-1].tools == ()


class TestWhatIsDeclared:
    @pytest.mark.parametrize(
        "change",
        [
            {"url": "https://8.8.8.8/{{user.id}}"},
            {"headers": {"Authorization": "Bearer x"}},
            {"url": None, "command": "/bin/true"},
        ],
    )
    async def test_must_make_sense(self, server: ApiServer, tickets: OAuthServer, change: Json) -> None:
        operator = await server.operator()
        body = {"name": "A", "mcp_servers": [declared(tickets, auth="oauth") | change]}
        assert code_of(await operator.post("/v1/agents", json=body)) == (422, "invalid_request")


class TestAddresses:
    async def test_of_this_network_are_not_asked(self, tmp_path: Path, tickets: OAuthServer) -> None:
        async with ApiServer.start(settings_for(tmp_path)) as server:
            admin = await browser(server)
            for path, body in (
                ("/v1/mcp/tools", {"server": declared(tickets)}),
                ("/v1/mcp/connections", {"url": tickets.url}),
            ):
                refused = await admin.post(path, json=body)
                assert refused.status_code == 422
                assert "may not be called" in refused.json()["detail"]
        assert tickets.requests == []

    @pytest.mark.parametrize("place", ["resource", "server"])
    async def test_in_metadata_are_checked_too(self, server: ApiServer, tickets: OAuthServer, place: str) -> None:
        """A public MCP server must not lead this server to a private one."""
        private = f"http://127.0.0.2:{tickets.port}/login"
        if place == "resource":
            tickets.resource_metadata = {"authorization_servers": [private]}
        else:
            tickets.metadata = {"token_endpoint": f"{private}/token"}
        guard = OnlyThisAddress(is_public=lambda ip: ip == ip_address("127.0.0.1"))
        client = Authorizations(server.runtime.store, server.runtime.vault, guard)
        try:
            with pytest.raises(AddressRefused):
                await client.demand_of(tickets.url)
        finally:
            await client.close()

    @pytest.mark.parametrize(
        "change, reason",
        [
            ({"issuer": "https://another.example"}, "is for another one"),
            ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
            ({"code_challenge_methods_supported": []}, "PKCE"),
        ],
    )
    async def test_of_an_authorization_server_that_cannot_be_trusted(
        self, admin: Client, tickets: OAuthServer, change: Json, reason: str
    ) -> None:
        tickets.metadata = change
        refused = await admin.post("/v1/mcp/connections", json={"url": tickets.url})
        assert code_of(refused) == (503, "authorization_failed")
        assert reason in refused.json()["detail"]

    async def test_of_another_resource_are_refused(self, admin: Client, tickets: OAuthServer) -> None:
        tickets.resource_metadata = {"resource": "https://another.example/mcp"}
        refused = await admin.post("/v1/mcp/connections", json={"url": tickets.url})
        assert code_of(refused) == (503, "authorization_failed")

    async def test_without_tls_get_no_token(self, server: ApiServer, tickets: OAuthServer) -> None:
        guard = AddressGuard(is_public=lambda ip: True)
        client = Authorizations(server.runtime.store, server.runtime.vault, guard)
        workspace = await server.runtime.store.workspace(server.runtime.home_org)
        by = Principal(org_id=workspace.org_id, workspace_id=workspace.id, user_id=None, role="service")
        try:
            with pytest.raises((AuthorizationFailed, InvalidRequest), match="TLS"):
                await client.begin(by, SessionId("session_1"), tickets.url, redirect_uri="https://x.example/")
        finally:
            await client.close()


class OnlyThisAddress(AddressGuard):
    """A guard that allows plain HTTP, as on the machine of a developer, and not every address."""

    @property
    def allows_private(self) -> bool:
        return True


@asynccontextmanager
async def clients_of(
    server: ApiServer, count: int
) -> AsyncIterator[list[tuple[Authorizations, tuple[OrgId, WorkspaceId]]]]:
    """As many clients as if there were so many workers, and the workspace."""
    runtime = server.runtime
    workspace = await runtime.store.workspace(runtime.home_org)
    guard = AddressGuard(allow_private=True)
    made = [Authorizations(runtime.store, runtime.vault, guard) for _ in range(count)]
    try:
        yield [(each, (runtime.home_org, workspace.id)) for each in made]
    finally:
        for each in made:
            await each.close()
