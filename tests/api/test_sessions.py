"""Sessions on the page and invites: who is signed in where, until when, and who ends it."""

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of, fake_id, settings_for
from tests.api.test_access_matrix import GUARDED, call, name_of, things
from turnkeep.api.identity.authentication import COOKIE
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.config import Settings
from turnkeep.model.principals import LIMITS
from turnkeep.store.sqlite import SqliteStore


async def a_browser(server: ApiServer, agent: str = "Firefox") -> Client:
    return await server.client(None, origin=server.url, user_agent=agent)


async def sign_in(server: ApiServer, agent: str = "Firefox") -> Client:
    """A browser that opened the link of `turnkeep serve`."""
    browser = await a_browser(server, agent)
    token = SigninLinks.of(server.runtime.settings).make()
    response = await browser.get("/signin", params={"token": token})
    assert response.status_code == 303, response.text
    return browser


async def invited(server: ApiServer, admin: Client, user: str = "ann", agent: str = "Chrome", **body: object) -> Client:
    """A browser that accepted an invite."""
    browser = await a_browser(server, agent)
    response = await accept(browser, await link_for(admin, user, **body))
    assert response.status_code == 204, response.text
    return browser


async def link_for(admin: Client, user: str = "ann", **body: object) -> str:
    response = await admin.post("/v1/invites", json={"user": user, **body})
    assert response.status_code == 201, response.text
    url: str = response.json()["url"]
    return url


async def accept(browser: Client, url: str) -> httpx.Response:
    return await browser.post("/v1/signin/invite", json={"token": urlsplit(url).fragment})


@both
class TestSessions:
    async def test_a_browser_knows_who_it_is_and_where_else_it_is_signed_in(self, server: ApiServer) -> None:
        first, second = await sign_in(server, "Firefox"), await sign_in(server, "Safari")
        me = await first.read("/v1/me")
        assert me["user"] == {"id": me["user_id"], "external_id": "local", "name": "Operator"}
        assert (me["role"], me["session"]["method"], me["session"]["browser"]) == ("admin", "link", "Firefox")
        listed = (await first.read("/v1/me/sessions"))["data"]
        assert [(one["browser"], one["is_current"]) for one in listed if one["browser"] in {"Firefox", "Safari"}][
            :2
        ] == [("Safari", False), ("Firefox", True)]
        assert me["session"] in listed
        assert (await second.read("/v1/me"))["session"]["id"] != me["session"]["id"]
        for one in listed:
            assert one["expires_at"] - one["created_at"] == 7 * 24 * 3600 * 1000

    async def test_one_ends_another_at_once(self, server: ApiServer) -> None:
        first, second = await sign_in(server), await sign_in(server)
        ended = (await second.read("/v1/me"))["session"]["id"]
        assert (await first.delete(f"/v1/me/sessions/{ended}")).status_code == 204
        response = await second.get("/v1/me")
        assert code_of(response) == (401, "unauthorized")
        assert "Sign in again" in response.json()["detail"]
        assert code_of(await first.delete(f"/v1/me/sessions/{ended}")) == (404, "not_found")
        assert (await first.get("/v1/me")).status_code == 200

    async def test_sign_out_everywhere_else(self, server: ApiServer) -> None:
        browsers = [await sign_in(server) for _ in range(3)]
        assert (await browsers[1].delete("/v1/me/sessions")).status_code == 204
        assert [(await one.get("/v1/me")).status_code for one in browsers] == [401, 200, 401]
        assert len((await browsers[1].read("/v1/me/sessions"))["data"]) == 1

    async def test_sign_out_ends_the_session_and_takes_the_cookie(self, server: ApiServer) -> None:
        browser = await sign_in(server)
        cookie = browser.cookies[COOKIE]
        response = await browser.post("/v1/signout")
        assert (response.status_code, response.json()) == (200, {"provider_url": None})
        assert COOKIE not in browser.cookies
        assert (await browser.post("/v1/signout")).status_code == 200, "twice does no harm"
        thief = await server.client(None, cookie=f"{COOKIE}={cookie}")
        assert code_of(await thief.get("/v1/me")) == (401, "unauthorized")

    async def test_a_new_sign_in_ends_the_session_that_the_browser_had(self, server: ApiServer) -> None:
        browser = await sign_in(server)
        before = browser.cookies[COOKIE]
        token = SigninLinks.of(server.runtime.settings).make()
        await browser.get("/signin", params={"token": token})
        assert browser.cookies[COOKIE] != before
        assert (await (await server.client(None, cookie=f"{COOKIE}={before}")).get("/v1/me")).status_code == 401

    async def test_an_admin_sees_and_ends_those_of_a_user(self, server: ApiServer, service: Client) -> None:
        ann = await invited(server, service)
        bob = await invited(server, service, "bob", role="admin")
        [listed] = (await bob.read("/v1/users/ann/sessions"))["data"]
        assert (listed["browser"], listed["method"], listed["is_current"]) == ("Chrome", "invite", False)
        assert code_of(await ann.get("/v1/users/bob/sessions")) == (403, "forbidden")
        assert (await bob.delete(f"/v1/users/ann/sessions/{listed['id']}")).status_code == 204
        assert (await ann.get("/v1/me")).status_code == 401
        again = await invited(server, service)
        assert (await bob.delete("/v1/users/ann/sessions")).status_code == 204
        assert (await again.get("/v1/me")).status_code == 401
        assert code_of(await bob.delete(f"/v1/users/bob/sessions/{fake_id('session')}")) == (404, "not_found")

    async def test_of_another_user_cannot_be_ended(self, server: ApiServer, service: Client) -> None:
        ann, bob = await invited(server, service), await invited(server, service, "bob")
        session = (await ann.read("/v1/me"))["session"]["id"]
        assert code_of(await bob.delete(f"/v1/me/sessions/{session}")) == (404, "not_found")
        assert (await bob.read("/v1/me/sessions"))["data"][0]["id"] != session
        other = await server.tenant("another")
        assert code_of(await other.get("/v1/users/ann/sessions")) == (404, "not_found")
        assert (await ann.get("/v1/me")).status_code == 200

    async def test_a_disabled_user_is_signed_out_everywhere(self, server: ApiServer, service: Client) -> None:
        ann = await invited(server, service)
        await service.patch("/v1/users/ann", json={"is_disabled": True})
        assert code_of(await ann.get("/v1/me")) == (401, "unauthorized")
        await service.patch("/v1/users/ann", json={"is_disabled": False})
        assert code_of(await ann.get("/v1/me")) == (401, "unauthorized")

    async def test_a_role_counts_from_the_next_request_on(self, server: ApiServer, service: Client) -> None:
        ann = await invited(server, service)
        assert code_of(await ann.get("/v1/users")) == (403, "forbidden")
        await service.patch("/v1/users/ann", json={"role": "admin"})
        assert (await ann.get("/v1/users")).status_code == 200

    async def test_a_service_key_without_a_user_has_none(self, server: ApiServer, service: Client) -> None:
        assert (await service.read("/v1/me/sessions"))["data"] == []
        assert (await service.read("/v1/me"))["session"] is None
        assert code_of(await service.delete("/v1/me/sessions")) == (404, "not_found")


class TestCost:
    async def test_a_request_with_a_cookie_takes_one_look_up(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        browser = await sign_in(server)
        asked: list[str] = []
        for verb in ("signed_in", "workspace", "members_by_id", "member", "use_session", "key_by_hash"):
            real = getattr(SqliteStore, verb)

            async def counted(*given: object, verb: str = verb, real: object = real, **named: object) -> object:
                asked.append(verb)
                return await real(*given, **named)  # type: ignore[operator]

            monkeypatch.setattr(SqliteStore, verb, counted)
        assert (await browser.get("/v1/models")).status_code == 200
        assert asked == ["signed_in"]

    async def test_the_last_use_is_noted_every_few_minutes(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        browser = await sign_in(server)
        before = (await browser.read("/v1/me/sessions"))["data"][0]["last_used_at"]
        assert (await browser.read("/v1/me/sessions"))["data"][0]["last_used_at"] == before
        monkeypatch.setattr("turnkeep.api.identity.authentication.USE_SECONDS", -1)
        await browser.read("/v1/me")
        assert (await browser.read("/v1/me/sessions"))["data"][0]["last_used_at"] > before


class TestTheEnd:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings_for(settings.data_dir, session_seconds=1.0)

    async def test_a_session_expires(self, server: ApiServer) -> None:
        browser = await sign_in(server)
        cookie = browser.cookies[COOKIE]
        thief = await server.client(None, cookie=f"{COOKIE}={cookie}")
        while (response := await thief.get("/v1/me")).status_code == 200:
            pass
        assert code_of(response) == (401, "unauthorized")


class TestEveryRoute:
    async def test_a_session_that_has_ended_is_401_everywhere(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        browser = await invited(server, service, role="admin")
        cookie = f"{COOKIE}={browser.cookies[COOKIE]}"
        await browser.post("/v1/signout")
        ended = await server.client(None, cookie=cookie, origin=server.url)
        assert {name_of(one): await call(ended, one, ids) for one in GUARDED} == dict.fromkeys(
            map(name_of, GUARDED), 401
        )

    async def test_with_a_cookie_of_another_page_nothing_can_be_changed(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        ids = await things(service, user)
        browser = await invited(server, service, role="admin")
        cookie = f"{COOKIE}={browser.cookies[COOKIE]}"
        for origin in ("https://evil.example", "null"):
            evil = await server.client(None, cookie=cookie, origin=origin)
            for endpoint in GUARDED:
                if endpoint.method != "GET" and endpoint.policy.identifies:
                    assert await call(evil, endpoint, ids) == 403, name_of(endpoint)
            for path in ("/v1/signout", "/v1/signin/invite"):
                response = await evil.post(path, json={"token": "x"})
                assert code_of(response) == (403, "forbidden"), path
        assert (await browser.get("/v1/me")).status_code == 200


@both
class TestInvites:
    async def test_a_link_signs_a_person_in_once(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/invites", json={"user": "ann@example.com", "name": "Ann"})).json()
        assert made["user"]["external_id"] == "ann@example.com"
        assert made["expires_at"] - made["created_at"] == 3 * 24 * 3600 * 1000
        parts = urlsplit(made["url"])
        assert (f"{parts.scheme}://{parts.netloc}", parts.path, parts.query) == (server.url, "/invite", "")
        listed = (await service.read("/v1/invites"))["data"]
        assert listed == [{name: value for name, value in made.items() if name != "url"}]
        browser, other = await a_browser(server), await a_browser(server)
        assert (await accept(browser, made["url"])).status_code == 204
        me = await browser.read("/v1/me")
        assert (me["user"]["name"], me["role"], me["session"]["method"]) == ("Ann", "member", "invite")
        refused = await accept(other, made["url"])
        assert code_of(refused) == (401, "unauthorized")
        assert COOKIE not in other.cookies
        assert (await service.read("/v1/invites"))["data"] == []

    async def test_the_same_person_may_be_invited_again(self, server: ApiServer, service: Client) -> None:
        first = await invited(server, service, "ann", name="Ann", role="admin")
        second = await invited(server, service, "ann")
        mine, other = await first.read("/v1/me"), await second.read("/v1/me")
        assert mine["user"] == other["user"], "also the name"
        assert (mine["role"], other["role"]) == ("admin", "admin"), "and the role"

    async def test_without_a_name_the_id_is_the_name(self, server: ApiServer, service: Client) -> None:
        browser = await invited(server, service, "ann@example.com")
        assert (await browser.read("/v1/me"))["user"]["name"] == "ann@example.com"

    async def test_one_can_be_taken_back(self, server: ApiServer, service: Client) -> None:
        url = await link_for(service)
        [listed] = (await service.read("/v1/invites"))["data"]
        assert (await service.delete(f"/v1/invites/{listed['id']}")).status_code == 204
        assert code_of(await accept(await a_browser(server), url)) == (401, "unauthorized")
        assert code_of(await service.delete(f"/v1/invites/{listed['id']}")) == (404, "not_found")

    async def test_an_admin_invites_into_their_own_workspace(self, server: ApiServer, service: Client) -> None:
        second = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        boss = await server.user(service, "boss", role="admin", workspace_id=second)
        ann = await invited(server, boss)
        assert (await ann.read("/v1/me"))["workspace_id"] == second
        member = await server.user(service, "bob")
        assert code_of(await member.post("/v1/invites", json={"user": "x"})) == (403, "forbidden")
        assert (await service.read("/v1/invites"))["data"] == []

    async def test_a_disabled_user_is_not_invited(self, server: ApiServer, service: Client) -> None:
        url = await link_for(service)
        await service.patch("/v1/users/ann", json={"is_disabled": True})
        assert code_of(await service.post("/v1/invites", json={"user": "ann"})) == (403, "forbidden")
        assert code_of(await accept(await a_browser(server), url)) == (401, "unauthorized")

    async def test_a_key_with_bounds_cannot_invite(self, server: ApiServer, service: Client) -> None:
        bounds: list[dict[str, Any]] = [
            *({name: 5} for name in LIMITS),
            {"requests_per_minute": 60},
            {"allowed_tools": ["search_pages"]},
            {"scopes": {"features": ["files"]}},
        ]
        await server.user(service, "boss", role="admin")
        for bound in bounds:
            made = (await service.post("/v1/keys", json={"name": "bounded", **bound})).json()
            key = await server.client(made["key"])
            response = await key.post("/v1/invites", json={"user": "ann"})
            assert response.status_code == 403, bound
            if "scopes" not in bound:
                token = await server.user(key, "boss", role="admin")
                assert (await token.post("/v1/invites", json={"user": "ann"})).status_code == 403, bound
        scoped = await service.post("/v1/keys", json={"name": "scoped", "scopes": {"features": []}})
        promoted = await (await server.client(scoped.json()["key"])).post(
            "/v1/tokens", json={"user": "ann", "role": "admin"}
        )
        assert (promoted.status_code, promoted.json()["code"]) == (403, "out_of_scope")
        free = await server.client((await service.post("/v1/keys", json={"name": "free"})).json()["key"])
        assert (await free.post("/v1/invites", json={"user": "ann"})).status_code == 201

    async def test_admins_keep_their_role_when_they_invite_themselves(self, server: ApiServer, service: Client) -> None:
        boss = await server.user(service, "boss", role="admin")
        assert (await boss.post("/v1/invites", json={"user": "boss", "role": "member"})).status_code == 403
        assert (await boss.post("/v1/invites", json={"user": "boss"})).status_code == 201
        assert (await boss.read("/v1/me"))["role"] == "admin"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"user": ""},
            {"user": "x" * 256},
            {"user": "a", "role": "owner"},
            {"user": "a", "ttl_seconds": 59},
            {"user": "a", "ttl_seconds": 2_592_001},
            {"user": "a", "more": 1},
        ],
    )
    async def test_what_makes_no_sense_is_refused(
        self, server: ApiServer, service: Client, body: dict[str, object]
    ) -> None:
        assert code_of(await service.post("/v1/invites", json=body)) == (422, "invalid_request")
        assert (await service.read("/v1/invites"))["data"] == []

    async def test_a_secret_in_a_query_is_refused(self, server: ApiServer, service: Client) -> None:
        secret = urlsplit(await link_for(service)).fragment
        assert code_of(await service.get("/v1/me", params={"x": secret})) == (401, "unauthorized")


class TestLinks:
    @pytest.fixture
    async def browser(self, server: ApiServer) -> Client:
        return await a_browser(server)

    async def test_a_link_returns_to_where_it_was_pasted(self, server: ApiServer, browser: Client) -> None:
        token = SigninLinks.of(server.runtime.settings).make()
        for asked, expected in (("/c/conv_1#quote=x", "/c/conv_1#quote=x"), ("//evil.example", "/"), ("/signin", "/")):
            response = await browser.get("/signin", params={"token": token, "return_to": asked})
            assert response.headers["location"] == expected

    async def test_a_disabled_operator_is_told_so(self, server: ApiServer, browser: Client) -> None:
        token = SigninLinks.of(server.runtime.settings).make()
        await browser.get("/signin", params={"token": token})
        await (await server.operator()).patch("/v1/users/local", json={"is_disabled": True})
        response = await browser.get("/signin", params={"token": token})
        assert code_of(response) == (403, "forbidden")
        assert "disabled" in response.json()["detail"]

    async def test_a_bad_one_is_a_page_with_words_for_a_browser(self, server: ApiServer, browser: Client) -> None:
        response = await browser.get("/signin?token=x", headers={"accept": "text/html"})
        assert response.status_code == 401
        assert "Start the server again" in response.text
        assert response.headers["content-type"].startswith("text/html")
