"""Every route with every kind of caller, from the route table itself."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route, Router

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, fake_id
from turnkeep.api.app import all_endpoints
from turnkeep.api.http.endpoints import Endpoint, PathEndpoints, Policy
from turnkeep.api.identity.authentication import Authenticator
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.identity.tokens import UserTokens
from turnkeep.api.telemetry.metrics import Metrics

ENDPOINTS = all_endpoints(UserTokens(["secret"]), SigninLinks(Path("."), ["secret"]), Metrics())
GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.policy is not Policy.PUBLIC]

PUBLIC = {
    "/",
    "/healthz",
    "/mcp/callback",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/signin",
    "/signin/oidc",
    "/signin/oidc/callback",
    "/v1/shared",
    "/v1/shared/file",
    "/v1/signin",
    "/v1/signin/invite",
    "/v1/signout",
}
"""Routes that need no key. A new route in this set needs a good reason."""

BODIES: dict[str, Any] = {
    "create_turn": {"message": "Hi"},
    "edit_turn": {"message": "Hi"},
    "decide_calls": {"decisions": [{"call_id": "c", "decision": "allow"}]},
    "send_results": {"results": [{"call_id": "c", "result": 1}]},
    "steer_turn": {"message": "Hi"},
    "rate_turn": {"rating": "up"},
    "promise_file": {"name": "f.txt", "size": 1},
    "create_key": {"name": "k"},
    "create_key_of_org": {"name": "k"},
    "create_token": {"user": "u"},
    "create_invite": {"user": "u"},
    "create_workspace": {"name": "w"},
    "rename_folder": {"name": "Travel", "new_name": "Journeys"},
    "create_webhook": {"url": "https://example.com/hook", "events": ["turn.failed"]},
    "create_org": {"name": "o"},
    "create_agent": {"name": "a"},
    "run_agent": {"prompt": "Go."},
    "try_agent": {"agent": {"name": "a"}, "message": "Hi"},
    "list_mcp_tools": {"server": {"name": "s", "url": "https://8.8.8.8:1/"}},
    "begin_mcp_connection": {"url": "https://8.8.8.8:1/"},
    "replace_agent": {"name": "a"},
    "change_agent": {"name": "a"},
    "create_page": {"title": "t"},
    "replace_page": {"title": "t"},
    "create_table": {"name": "t", "columns": [{"name": "c"}]},
    "add_rows": {"rows": [{}]},
    "replace_row": {"values": {}},
    "change_row": {"values": {}},
    "call_turn_tool": {"call_id": "c", "name": "t"},
    "await_answers": {"call_ids": ["c"]},
}


EXTERNAL_ID = "chat-of-the-user"
A_SKILLED_AGENT = {"name": "A", "skills": [{"name": "s", "files": {"SKILL.md": "How to"}}]}

OWN_CHATS = {"resume_by_ai_sdk": 204, "connect_by_ag_ui": 200}
"""Routes that name a chat of the caller by an id of the caller. One of another caller does not exist for this one,
and there is nothing in it."""

SPEAKS_OPENAI = {"complete_chat"} | {each.name for each in ENDPOINTS if each.path.startswith("/openai/")}
"""What has OpenAI's errors, since OpenAI's clients read them."""

OPENAI_CODES = {"unauthorized": "invalid_api_key"}
"""What OpenAI calls a code."""


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


async def things(service: Client, user: Client) -> dict[str, str]:
    """One of everything that a path can name, owned by that user or tenant."""
    answer = await user.ask(external_id=EXTERNAL_ID)
    files = f"/v1/conversations/{answer['conversation_id']}/files"
    hook = {"url": "https://example.com/hook", "events": ["file.created"]}
    webhook = f"/v1/webhooks/{(await service.post('/v1/webhooks', json=hook)).json()['id']}"
    file_id = (await user.post(files, files={"file": ("f.txt", b"x")})).json()["data"][0]["id"]
    table = (await service.post("/v1/tables", json={"name": fake_id("table"), "columns": [{"name": "c"}]})).json()["id"]
    await service.post(f"/v1/tables/{table}/rows", json={"rows": [{}]})
    agent_id = (await service.post("/v1/agents", json=A_SKILLED_AGENT | {"name": fake_id("agent")})).json()["id"]
    return {
        "page_id": (await service.post("/v1/pages", json={"title": "P"})).json()["id"],
        "table_id": table,
        "row": "1",
        "skill": "s",
        "file_id": file_id,
        "response_id": answer["turn"]["id"].replace("turn_", "resp_"),
        "item_id": "msg_none",
        "webhook_id": webhook.rpartition("/")[2],
        "delivery_id": (await service.read(f"{webhook}/deliveries"))["data"][0]["id"],
        "conversation_id": answer["conversation_id"],
        "turn_id": answer["turn"]["id"],
        "span_id": "model-0",
        "agent_id": agent_id,
        "model": agent_id,
        "workspace_id": (await service.read("/v1/workspaces"))["data"][0]["id"],
        "key_id": (await service.post("/v1/keys", json={"name": "K"})).json()["id"],
        "org_id": fake_id("org"),
        "connection_id": fake_id("mcp"),
        "user": "nobody-here",
        "erasure_id": fake_id("erasure"),
        "session_id": fake_id("session"),
        "chat_id": EXTERNAL_ID,
        "thread_id": EXTERNAL_ID,
        "share_id": (await user.post(f"/v1/conversations/{answer['conversation_id']}/shares", json={})).json()["id"],
        "invite_id": (await service.post("/v1/invites", json={"user": "guest"})).json()["id"],
    }


async def call(client: Client, endpoint: Endpoint, ids: dict[str, str]) -> int:
    return (await response_of(client, endpoint, ids)).status_code


async def response_of(client: Client, endpoint: Endpoint, ids: dict[str, str], query: str = "") -> httpx.Response:
    path = re.sub(r"{(\w+)(?::path)?}", lambda match: ids[match[1]], endpoint.path) + query
    body = BODIES.get(endpoint.name, {}) if endpoint.body is not None else None
    response = await client.request(endpoint.method, path, json=body)
    assert response.status_code < 500 or response.json()["code"] == "sandbox_unavailable", response.text
    if response.status_code >= 400 and endpoint.name not in SPEAKS_OPENAI:
        assert response.headers["content-type"] == "application/problem+json"
    return response


class TestEveryRouteHasAPolicy:
    def test_each_route_of_the_app_is_a_declared_endpoint(self, server: ApiServer) -> None:
        app = server.server.config.app
        assert isinstance(app, Router)
        found = 0
        for route in app.routes:
            assert isinstance(route, Route)
            assert isinstance(route.endpoint, PathEndpoints), f"{route.path} has no declaration"
            for endpoint in route.endpoint.endpoints:
                assert isinstance(endpoint, Endpoint), f"{route.path} has no declaration"
                assert isinstance(endpoint.policy, Policy), f"{route.path} has no policy"
                assert endpoint.path == route.path
                found += 1
        assert found == len(ENDPOINTS)

    def test_only_these_need_no_key(self) -> None:
        assert {endpoint.path for endpoint in ENDPOINTS if endpoint.policy is Policy.PUBLIC} == PUBLIC

    def test_whatever_names_a_thing_is_guarded(self) -> None:
        assert all("{" not in endpoint.path for endpoint in ENDPOINTS if endpoint.policy is Policy.PUBLIC)


@both
class TestOtherCallers:
    """One server for each kind of caller without access; every guarded route is tried on it."""

    async def test_no_key_is_401_everywhere(self, server: ApiServer, service: Client, user: Client) -> None:
        ids = await things(service, user)
        anonymous = await server.client(None)
        assert {name_of(one): await call(anonymous, one, ids) for one in GUARDED} == dict.fromkeys(
            map(name_of, GUARDED), 401
        )

    async def test_a_revoked_key_is_401_everywhere(self, server: ApiServer, service: Client, user: Client) -> None:
        ids = await things(service, user)
        made = (await service.post("/v1/keys", json={"name": "gone"})).json()
        await service.delete(f"/v1/keys/{made['id']}")
        revoked = await server.client(made["key"])
        assert {name_of(one): await call(revoked, one, ids) for one in GUARDED} == dict.fromkeys(
            map(name_of, GUARDED), 401
        )

    async def test_what_a_revoked_key_has_made_is_401_everywhere(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        maker = (await service.post("/v1/keys", json={"name": "maker"})).json()
        by_maker = await server.client(maker["key"])
        made = (await by_maker.post("/v1/keys", json={"name": "made"})).json()
        by_made = await server.client(made["key"])
        callers = [
            await server.user(by_maker, "boss", role="admin"),
            by_made,
            await server.user(by_made, "boss", role="admin"),
            await server.client((await by_made.post("/v1/keys", json={"name": "of the made one"})).json()["key"]),
        ]
        assert [(await caller.get("/v1/users")).status_code for caller in callers] == [200] * 4
        await service.delete(f"/v1/keys/{maker['id']}")
        for caller in callers:
            assert {name_of(one): await call(caller, one, ids) for one in GUARDED} == dict.fromkeys(
                map(name_of, GUARDED), 401
            )

    async def test_a_key_can_be_replaced_by_one_that_it_has_made(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        old = (await service.post("/v1/keys", json={"name": "old"})).json()
        by_old = await server.client(old["key"])
        new = await server.client((await by_old.post("/v1/keys", json={"name": "new"})).json()["key"])
        token = await server.user(by_old)
        assert (await new.delete(f"/v1/keys/{old['id']}?keep_made=true")).status_code == 204
        assert [(await caller.get("/v1/me")).status_code for caller in (by_old, token, new)] == [401, 401, 200]
        assert (await new.post("/v1/keys", json={"name": "next"})).status_code == 201

    async def test_another_users_token_reaches_nothing_of_this_user(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        before = await user.read(f"/v1/conversations/{ids['conversation_id']}")
        other = await server.user(service, "mallory")
        for endpoint in GUARDED:
            status = await call(other, endpoint, ids)
            if endpoint.policy in {Policy.ADMIN, Policy.KEY, Policy.SERVICE, Policy.OPERATOR}:
                assert status == 403, name_of(endpoint)
            elif not endpoint.policy.identifies:
                assert status == 401, name_of(endpoint)
            elif any(name in endpoint.path for name in ("{conversation_id}", "{turn_id}", "{file_id}")):
                assert status == 404, name_of(endpoint)
        assert await user.read(f"/v1/conversations/{ids['conversation_id']}") == before

    async def test_another_tenants_key_reaches_nothing_of_this_tenant(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        before = await user.read(f"/v1/conversations/{ids['conversation_id']}")
        keys = await service.read("/v1/keys")
        other = await server.tenant("another")
        for endpoint in GUARDED:
            status = await call(other, endpoint, ids)
            if endpoint.policy is Policy.OPERATOR:
                assert status == 403, name_of(endpoint)
            elif not endpoint.policy.identifies:
                assert status == 401, name_of(endpoint)
            elif "{" in endpoint.path:
                assert status == OWN_CHATS.get(endpoint.name, 404), name_of(endpoint)
        assert await user.read(f"/v1/conversations/{ids['conversation_id']}") == before
        assert await service.read("/v1/keys") == keys

    async def test_a_key_of_another_workspace_reaches_nothing_of_this_workspace(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        before = await user.read(f"/v1/conversations/{ids['conversation_id']}")
        second = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        admin = await server.user(service, "boss", role="admin", workspace_id=second)
        pinned = await server.client((await admin.post("/v1/keys", json={"name": "K"})).json()["key"])
        keys = {key["id"] for key in (await service.read("/v1/keys"))["data"] if key["revoked_at"] is None}
        for endpoint in GUARDED:
            status = await call(pinned, endpoint, ids)
            if endpoint.policy in {Policy.SERVICE, Policy.OPERATOR}:
                assert status == 403, name_of(endpoint)
            elif not endpoint.policy.identifies:
                assert status == 401, name_of(endpoint)
            elif "{" in endpoint.path:
                assert status == OWN_CHATS.get(endpoint.name, 404), name_of(endpoint)
        assert await user.read(f"/v1/conversations/{ids['conversation_id']}") == before
        assert keys < {key["id"] for key in (await service.read("/v1/keys"))["data"] if key["revoked_at"] is None}


class TestQueryParameters:
    async def test_that_are_unknown_are_refused_on_every_route(self, service: Client, user: Client) -> None:
        ids = await things(service, user)
        tried = [endpoint for endpoint in GUARDED if endpoint.policy in ROLES["key"]]
        assert len(tried) > 100
        assert not any(endpoint.has_foreign_query for endpoint in tried)
        for endpoint in tried:
            response = await response_of(service, endpoint, ids, "?surely_unknown=1")
            if endpoint.name in SPEAKS_OPENAI:
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, "surely_unknown"), name_of(endpoint)
                continue
            assert (response.status_code, response.json()["code"]) == (422, "invalid_request"), name_of(endpoint)
            assert "surely_unknown" in response.json()["detail"], name_of(endpoint)


class TestRememberedIdentities:
    async def test_callers_without_an_identity_cannot_make_the_server_forget_them(
        self, server: ApiServer, service: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forgotten = 0

        def forget(_: Authenticator) -> None:
            nonlocal forgotten
            forgotten += 1

        monkeypatch.setattr(Authenticator, "forget", forget)
        anonymous, user = await server.client(None), await server.user(service)
        before = forgotten
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET" and "{" not in endpoint.path:
                await anonymous.request(endpoint.method, endpoint.path, json={})
                if endpoint.policy is Policy.ADMIN:
                    assert (await user.request(endpoint.method, endpoint.path, json={})).status_code == 403
        assert forgotten == before
        await service.post("/v1/keys", json={"name": "K"})
        assert forgotten == before + 1


FEATURES: tuple[str, ...] = ("files", "runs", "knowledge", "export")
MANAGES = {Policy.ADMIN, Policy.SERVICE, Policy.OPERATOR}
ROLES = {
    "member": {Policy.MEMBER},
    "admin": {Policy.MEMBER, Policy.ADMIN},
    "key": {Policy.MEMBER, Policy.ADMIN, Policy.KEY, Policy.SERVICE},
}
"""The policies that each kind of caller fulfils without scopes."""


def refusal(endpoint: Endpoint, role: str, features: tuple[str, ...], *, reaches_agent: bool) -> tuple[int, str] | None:
    """What must be answered to a caller with these scopes; None if the scopes allow the route."""
    if not endpoint.policy.identifies:
        return 401, "unauthorized"
    if endpoint.policy not in ROLES[role]:
        return 403, "forbidden"
    if "{agent_id}" in endpoint.path and not reaches_agent:
        return 404, "not_found"
    if endpoint.feature is not None:
        return None if endpoint.feature in features else (403, "out_of_scope")
    return (403, "out_of_scope") if endpoint.policy in MANAGES else None


@both
@pytest.mark.parametrize("role", ROLES)
class TestScopes:
    """Every route with every role and every feature, for a token or key that reaches the agent or another one."""

    async def test_leave_out_what_they_do_not_name(
        self, server: ApiServer, service: Client, user: Client, role: str
    ) -> None:
        for features in ((), *((feature,) for feature in FEATURES), FEATURES):
            for reaches_agent in (True, False):
                await self._try_every_route(server, service, user, role, features, reaches_agent=reaches_agent)

    async def _try_every_route(
        self,
        server: ApiServer,
        service: Client,
        user: Client,
        role: str,
        features: tuple[str, ...],
        *,
        reaches_agent: bool,
    ) -> None:
        ids = await things(service, user)
        agent = ids["agent_id"] if reaches_agent else fake_id("agent")
        scopes = {"agents": [agent], "models": [], "features": features}
        if role == "key":
            made = (await service.post("/v1/keys", json={"name": "scoped", "scopes": scopes})).json()
            caller = await server.client(made["key"])
        else:
            caller = await server.user(service, "ann", role=role, scopes=scopes)
        for endpoint in GUARDED:
            response = await response_of(caller, endpoint, ids)
            expected = refusal(endpoint, role, features, reaches_agent=reaches_agent)
            if endpoint.name == "complete_chat":
                assert response.status_code == 401, name_of(endpoint)
            elif endpoint.name in SPEAKS_OPENAI and expected is not None:
                status, code = expected
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (status, OPENAI_CODES.get(code, code)), name_of(
                    endpoint
                )
            elif endpoint.name in SPEAKS_OPENAI:
                assert response.status_code not in {401, 403}, name_of(endpoint)
            elif expected is not None:
                assert (response.status_code, response.json()["code"]) == expected, name_of(endpoint)
            elif endpoint.name not in TURNS and response.status_code >= 400:
                assert response.json()["code"] != "out_of_scope", name_of(endpoint)
                assert response.status_code not in {401, 403}, name_of(endpoint)


TURNS = {"create_turn", "edit_turn", "regenerate_turn", "change_conversation"}
"""What these may do depends on the agent of the turn: tests/api/test_scopes.py."""
