"""Authentication: who may call, and as whom. Hosts, CORS and sign-in."""

import asyncio
import re
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.conftest import both
from tests.api.harness import OPERATOR_KEY, ApiServer, Client, code_of, fake_id, settings_for
from tests.store.factories import save_member
from turnkeep.api.identity.authentication import (
    COOKIE,
    IDENTITIES_REMEMBERED,
    IDENTITY_SECONDS,
    Identity,
    IdentityCache,
)
from turnkeep.api.identity.service_keys import LOCAL_KEY, SECRET_KEYS, SigninLinks, signing_secrets
from turnkeep.config import Settings
from turnkeep.errors import Unauthorized
from turnkeep.ids import new_org_id, new_workspace_id
from turnkeep.model.principals import Principal

Json = Any

_IDENTITY = Identity(
    principal=Principal(org_id=new_org_id(), workspace_id=new_workspace_id(), user_id=None, role="service")
)
OLD_SECRET, NEW_SECRET = "o" * 32, "n" * 32


class TestRememberedIdentities:
    """That a change counts at once on the worker that makes it, is tested where the change is."""

    @both
    async def test_a_key_that_another_worker_revokes_dies_soon(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/keys", json={"name": "backend"})).json()
        other = await server.client(made["key"])
        assert (await other.get("/v1/conversations")).status_code == 200
        org = (await server.runtime.store.orgs())[-1]
        await server.runtime.store.revoke_key(org.id, made["id"])
        async with asyncio.timeout(30):
            while (response := await other.get("/v1/conversations")).status_code == 200:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        assert code_of(response) == (401, "unauthorized")

    @both
    async def test_a_user_whom_another_worker_disables_is_refused_soon(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        me = (await user.read("/v1/me"))["user"]["id"]
        org, store = (await server.runtime.store.orgs())[-1], server.runtime.store
        (member,) = await store.members_by_id(org.id, [me])
        await save_member(store, org.id, msgspec.structs.replace(member, is_disabled=True))
        async with asyncio.timeout(30):
            while (response := await user.get("/v1/me")).status_code == 200:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        assert code_of(response) == (403, "forbidden")

    async def test_an_identity_is_read_again_when_its_time_is_over(self) -> None:
        clock, reads = [0.0], 0
        cache: IdentityCache[Identity] = IdentityCache(now=lambda: clock[0])

        async def read() -> Identity:
            nonlocal reads
            reads += 1
            return _IDENTITY

        for clock[0] in (0.0, IDENTITY_SECONDS * 0.99, IDENTITY_SECONDS):
            assert await cache.find("key", read) == _IDENTITY
        assert reads == 2
        await cache.find("another key", read)
        assert reads == 3

    async def test_one_that_was_being_read_while_something_changed_is_not_remembered(self) -> None:
        cache: IdentityCache[Identity] = IdentityCache()

        async def read_slowly() -> Identity:
            cache.forget()
            return _IDENTITY

        async def refuse() -> Identity:
            raise Unauthorized("revoked")

        assert await cache.find("key", read_slowly) == _IDENTITY
        with pytest.raises(Unauthorized):
            await cache.find("key", refuse)

    async def test_they_are_not_too_many(self) -> None:
        cache: IdentityCache[Identity] = IdentityCache()

        async def read() -> Identity:
            return _IDENTITY

        for number in range(IDENTITIES_REMEMBERED + 5):
            await cache.find(number, read)
        assert len(cache._entries) == 5


class TestServiceKeys:
    @both
    async def test_a_key_is_shown_once_and_dies_when_it_is_revoked(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/keys", json={"name": "backend", "requests_per_minute": 60})).json()
        assert re.fullmatch(r"tk_[A-Za-z0-9_-]{43}", made["key"])
        assert made["name"] == "backend"
        listed = (await service.read("/v1/keys"))["data"]
        assert made["id"] in {key["id"] for key in listed}
        assert all("key" not in key for key in listed)
        other = await server.client(made["key"])
        assert (await other.get("/v1/conversations")).status_code == 200
        assert (await service.delete(f"/v1/keys/{made['id']}")).status_code == 204
        assert code_of(await other.get("/v1/conversations")) == (401, "unauthorized")
        assert code_of(await service.delete(f"/v1/keys/{fake_id('key')}")) == (404, "not_found")

    async def test_only_the_hash_is_stored(self, server: ApiServer, service: Client, settings: Settings) -> None:
        database = settings.sqlite_path
        stored = b"".join(file.read_bytes() for file in database.parent.glob(database.name + "*"))
        assert service.key.encode() not in stored

    async def test_without_a_user_it_owns_what_it_makes_and_sees_the_whole_workspace(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        mine = (await service.ask())["conversation_id"]
        theirs = (await user.ask())["conversation_id"]
        assert {one["id"] for one in (await service.read("/v1/conversations"))["data"]} == {mine, theirs}
        assert (await service.read(f"/v1/conversations/{mine}"))["user_id"] is None
        assert code_of(await user.get(f"/v1/conversations/{mine}")) == (404, "not_found")

    @both
    async def test_it_may_act_for_a_user_who_is_made_on_first_sight(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        headers = {"turnkeep-user": "ann"}
        answer = await service.ask(headers=headers)
        assert (await user.get(f"/v1/conversations/{answer['conversation_id']}")).status_code == 200
        other = await service.get("/v1/conversations", headers={b"turnkeep-user": "Zoë".encode()})
        assert other.json()["data"] == []
        for bad in ("", "x" * 256):
            assert (await service.get("/v1/conversations", headers={"turnkeep-user": bad})).status_code == 422

    async def test_it_names_another_workspace_by_header(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        headers = {"turnkeep-workspace": made}
        answer = await service.ask(headers=headers)
        assert code_of(await service.get(f"/v1/conversations/{answer['conversation_id']}")) == (404, "not_found")
        assert (await service.get(f"/v1/turns/{answer['turn']['id']}", headers=headers)).status_code == 200
        for unknown in (fake_id("ws"), "ws_x"):
            response = await service.get("/v1/conversations", headers={"turnkeep-workspace": unknown})
            assert code_of(response) == (404, "not_found")

    async def test_the_bootstrap_key_and_the_local_key_are_service_keys(
        self, server: ApiServer, settings: Settings
    ) -> None:
        file = settings.data_dir / LOCAL_KEY
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE((settings.data_dir / SECRET_KEYS).stat().st_mode) == 0o600
        for key in (OPERATOR_KEY, file.read_text()):
            client = await server.client(key)
            assert (await client.get("/v1/orgs")).status_code == 200

    async def test_other_spellings_of_the_header_are_refused(self, server: ApiServer, service: Client) -> None:
        anonymous = await server.client(None)
        for value in (service.key, f"Basic {service.key}", "Bearer", f"Bearer {service.key}x", "Bearer tku_x.y"):
            response = await anonymous.get("/v1/conversations", headers={"authorization": value})
            assert code_of(response) == (401, "unauthorized"), value
            assert response.headers["www-authenticate"] == "Bearer"
        lower = await anonymous.get("/v1/conversations", headers={"authorization": f"bearer {service.key}"})
        assert lower.status_code == 200

    async def test_who_asks_is_said_once(self, server: ApiServer, service: Client) -> None:
        bare = await server.client(None)
        key = ("authorization", f"Bearer {service.key}")
        for doubled, expected in (
            ("authorization", (401, "unauthorized")),
            ("turnkeep-user", (422, "invalid_request")),
            ("turnkeep-workspace", (422, "invalid_request")),
            ("idempotency-key", (422, "invalid_request")),
        ):
            twice = [(doubled, key[1] if doubled == key[0] else "ann")] * 2
            headers = twice if doubled == key[0] else [key, *twice]
            response = await bare.post("/v1/turns", json={"message": "Hi"}, headers=headers)
            assert code_of(response) == expected, doubled
            assert doubled in response.json()["detail"].lower()

    async def test_a_key_in_a_query_string_is_refused_even_if_it_is_valid(
        self, server: ApiServer, service: Client
    ) -> None:
        anonymous = await server.client(None)
        for client in (anonymous, service):
            for name in ("key", "api_key", "access_token", "anything"):
                response = await client.get("/v1/conversations", params={name: service.key})
                assert code_of(response) == (401, "unauthorized"), name


class TestUserTokens:
    async def test_a_token_is_that_user_in_that_workspace_for_a_while(self, server: ApiServer, service: Client) -> None:
        workspace = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        body = {"user": "ann", "workspace_id": workspace, "ttl_seconds": 60}
        response = await service.post("/v1/tokens", json=body)
        assert set(response.json()) == {"token", "expires_at", "user"}
        user = await server.client(response.json()["token"])
        conversation = await user.read(f"/v1/conversations/{(await user.ask())['conversation_id']}")
        assert conversation["workspace_id"] == workspace
        assert conversation["user_id"].startswith("user_")

    async def test_one_user_never_sees_anothers_things(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        other = await server.user(service, "bob")
        for path in (
            f"/v1/conversations/{answer['conversation_id']}",
            f"/v1/conversations/{answer['conversation_id']}/messages",
            f"/v1/turns/{answer['turn']['id']}",
            f"/v1/turns/{answer['turn']['id']}/events",
        ):
            assert code_of(await other.get(path)) == (404, "not_found"), path
        assert (await other.read("/v1/conversations"))["data"] == []

    async def test_it_cannot_act_for_another_user(self, server: ApiServer, user: Client) -> None:
        response = await user.get("/v1/conversations", headers={"turnkeep-user": "bob"})
        assert code_of(response) == (403, "forbidden")
        response = await user.get("/v1/conversations", headers={"turnkeep-workspace": fake_id("ws")})
        assert code_of(response) == (404, "not_found")

    async def test_a_changed_or_expired_token_is_worth_nothing(self, server: ApiServer, service: Client) -> None:
        token = (await service.post("/v1/tokens", json={"user": "ann", "ttl_seconds": 1})).json()["token"]
        for place in (5, len(token) // 2, len(token) - 1):
            changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
            client = await server.client(changed)
            assert code_of(await client.get("/v1/conversations")) == (401, "unauthorized"), place

    async def test_only_a_service_key_makes_tokens_with_sane_limits(self, service: Client, user: Client) -> None:
        assert code_of(await user.post("/v1/tokens", json={"user": "eve"})) == (403, "forbidden")
        for body in (
            {},
            {"user": ""},
            {"user": "a", "role": "owner"},
            {"user": "a", "ttl_seconds": 0},
            {"user": "a", "ttl_seconds": 10**9},
            {"user": "a\0"},
        ):
            assert (await service.post("/v1/tokens", json=body)).status_code == 422, body
        response = await service.post("/v1/tokens", json={"user": "a", "workspace_id": fake_id("ws")})
        assert code_of(response) == (404, "not_found")

    async def test_a_token_inherits_the_limits_of_the_key_that_made_it(
        self, server: ApiServer, service: Client
    ) -> None:
        limits = {"name": "small", "monthly_message_limit": 1}
        key = (await service.post("/v1/keys", json=limits)).json()["key"]
        user = await server.user(await server.client(key))
        await user.ask()
        assert code_of(await user.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")

    @pytest.mark.parametrize(
        "bound",
        [
            {"monthly_message_limit": 9},
            {"parallel_turn_limit": 9},
            {"requests_per_minute": 90},
            {"allowed_tools": ["a"]},
        ],
        ids=lambda bound: next(iter(bound)),
    )
    async def test_a_key_with_limits_makes_no_admins(self, server: ApiServer, service: Client, bound: Json) -> None:
        """A browser of an admin would not have its limits."""
        key = (await service.post("/v1/keys", json={"name": "small", **bound})).json()["key"]
        limited = await server.client(key)
        await server.user(service, "ann")
        await server.user(service, "boss", role="admin")
        by_token = await server.user(limited, "boss", role="admin")
        for caller in (limited, by_token):
            assert code_of(await caller.patch("/v1/users/ann", json={"role": "admin"})) == (403, "forbidden")
            assert (await caller.patch("/v1/users/ann", json={"name": "Ann"})).json()["role"] == "member"
        for user in ("ann", "somebody new"):
            body = {"user": user, "role": "admin"}
            assert code_of(await limited.post("/v1/tokens", json=body)) == (403, "forbidden")
        assert (await service.patch("/v1/users/ann", json={"role": "admin"})).json()["role"] == "admin"


class TestRoles:
    async def test_members_read_agents_and_admins_write_them(self, server: ApiServer, service: Client) -> None:
        member, admin = await server.user(service, "m"), await server.user(service, "a", role="admin")
        assert code_of(await member.post("/v1/agents", json={"name": "A"})) == (403, "forbidden")
        made = await admin.post("/v1/agents", json={"name": "A"})
        assert made.status_code == 201
        assert (await member.get(f"/v1/agents/{made.json()['id']}")).status_code == 200
        for client, expected in ((member, 403), (admin, 201)):
            assert (await client.post("/v1/keys", json={"name": "k"})).status_code == expected

    async def test_an_admin_sees_no_internal_row_and_no_other_workspace(
        self, server: ApiServer, service: Client
    ) -> None:
        admin = await server.user(service, "a", role="admin")
        answer = await admin.ask()
        path = f"/v1/conversations/{answer['conversation_id']}/trace"
        assert code_of(await admin.get(path)) == (403, "forbidden")
        second = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        assert code_of(await admin.get(f"/v1/workspaces/{second}")) == (404, "not_found")
        assert code_of(await admin.patch(f"/v1/workspaces/{second}", json={"name": "x"})) == (404, "not_found")
        assert len((await admin.read("/v1/workspaces"))["data"]) == 1

    async def test_tenants_are_the_operators_alone(self, server: ApiServer, service: Client) -> None:
        assert code_of(await service.get("/v1/orgs")) == (403, "forbidden")
        assert code_of(await service.post("/v1/orgs", json={"name": "x"})) == (403, "forbidden")


class TestThePage:
    async def sign_in(self, server: ApiServer, settings: Settings) -> Client:
        browser = await server.client(None)
        token = SigninLinks.of(settings).make()
        response = await browser.get("/signin", params={"token": token})
        assert response.status_code == 303
        assert response.headers["location"] == "/"
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        return browser

    async def test_the_link_signs_every_browser_in_until_it_expires_or_the_server_starts_again(
        self, server: ApiServer, settings: Settings
    ) -> None:
        links = SigninLinks.of(settings)
        token, expired = links.make(), links.make(seconds=0)
        for _ in range(2):
            browser = await server.client(None)
            assert (await browser.get("/signin", params={"token": token})).status_code == 303
            assert (await browser.read("/v1/me"))["role"] == "admin"
        anonymous = await server.client(None)
        assert code_of(await anonymous.get("/signin", params={"token": expired})) == (401, "unauthorized")
        assert code_of(await anonymous.get("/signin", params={"token": "guessed"})) == (401, "unauthorized")
        links.forget_all()
        assert code_of(await anonymous.get("/signin", params={"token": token})) == (401, "unauthorized")

    async def test_the_link_of_one_server_works_on_every_server_with_the_same_secrets(
        self, server: ApiServer, settings: Settings, tmp_path: Path
    ) -> None:
        another = SigninLinks(tmp_path / "another", signing_secrets(settings))
        stranger = SigninLinks(tmp_path / "stranger", ["a secret that no other server has, of forty"])
        anonymous = await server.client(None)
        assert (await anonymous.get("/signin", params={"token": another.make()})).status_code == 303
        for token in (stranger.make(), another.make(seconds=0), another.make() + "x", "a.b.c", "é.1.é", "."):
            assert code_of(await anonymous.get("/signin", params={"token": token})) == (401, "unauthorized")

    async def test_the_link_signs_a_browser_in_as_an_admin(self, server: ApiServer, settings: Settings) -> None:
        browser = await self.sign_in(server, settings)
        headers = {"origin": server.url}
        assert (await browser.post("/v1/agents", json={"name": "A"}, headers=headers)).status_code == 201
        answer = await browser.ask(headers=headers)
        assert (await browser.read("/v1/usage"))["by_source"] == {"ui": 1, "api": 0}
        path = f"/v1/conversations/{answer['conversation_id']}/trace"
        assert code_of(await browser.get(path)) == (403, "forbidden")

    async def test_unsafe_methods_check_the_origin(self, server: ApiServer, settings: Settings) -> None:
        browser = await self.sign_in(server, settings)
        for origin in ({}, {"origin": "https://evil.example"}, {"origin": "null"}):
            response = await browser.post("/v1/turns", json={"message": "?"}, headers=origin)
            assert code_of(response) == (403, "forbidden")
            for path in ("/ai-sdk/chat", "/ag-ui", "/openai/v1/chat/completions", "/openai/v1/responses"):
                plain = {"content-type": "text/plain", **origin}  # what a form of another page can send
                assert (await browser.post(path, content=b"{}", headers=plain)).status_code == 403, path
        assert (await browser.get("/v1/conversations")).status_code == 200

    async def test_cookies_of_others_are_passed_over_whatever_they_hold(
        self, server: ApiServer, settings: Settings
    ) -> None:
        browser = await self.sign_in(server, settings)
        ours = f"{COOKIE}={browser.cookies[COOKIE]}"
        for others in ('a="' + "\\" * 8_000, 'b="unended', "=", "no name", "c=1=2", f"x{COOKIE}=y"):
            for header in (f"{others}; {ours}", f"{ours};{others}"):
                response = await (await server.client(None, cookie=header)).get("/v1/me")
                assert response.status_code == 200, header

    async def test_one_that_is_too_long_is_none(self, server: ApiServer) -> None:
        for value in ("x" * 4_097, '"' + "\\" * 20_000):
            anonymous = await server.client(None, cookie=f"{COOKIE}={value}")
            assert code_of(await anonymous.get("/v1/me")) == (401, "unauthorized")

    async def test_a_token_is_no_cookie_and_a_cookie_is_no_token(
        self, server: ApiServer, settings: Settings, user: Client
    ) -> None:
        browser = await self.sign_in(server, settings)
        posing = await server.client(browser.cookies[COOKIE])
        assert code_of(await posing.get("/v1/conversations")) == (401, "unauthorized")
        anonymous = await server.client(None, cookie=f"{COOKIE}={user.key}")
        assert code_of(await anonymous.get("/v1/conversations")) == (401, "unauthorized")


class TestHosts:
    async def test_a_local_server_answers_only_to_its_own_names(self, server: ApiServer, service: Client) -> None:
        port = server.url.rpartition(":")[2]
        for host in (
            f"localhost:{port}",
            f"127.0.0.1:{port}",
            "LOCALHOST",
            "127.0.0.2",
            "127.8.9.1:1",
            f"[::1]:{port}",
        ):
            assert (await service.get("/v1/conversations", headers={"host": host})).status_code == 200, host
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:1", ""):
            response = await service.get("/v1/conversations", headers={"host": host})
            assert response.status_code in {400, 403}, host

    async def test_the_public_name_is_allowed_too(self, settings: Settings) -> None:
        changed = settings_for(settings.data_dir, public_url="https://chat.example")
        async with ApiServer.start(changed) as server:
            client = await server.client(None)
            assert (await client.get("/healthz", headers={"host": "chat.example"})).status_code == 200


class TestCors:
    async def test_only_listed_origins_are_allowed(self, settings: Settings) -> None:
        changed = settings_for(settings.data_dir, allowed_origins=("https://app.example",))
        async with ApiServer.start(changed) as server:
            client = await server.operator()
            asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
            allowed = await client.options("/v1/turns", headers={"origin": "https://app.example", **asked})
            assert allowed.headers["access-control-allow-origin"] == "https://app.example"
            assert "access-control-allow-credentials" not in allowed.headers
            simple = await client.get("/v1/conversations", headers={"origin": "https://app.example"})
            assert simple.headers["access-control-allow-origin"] == "https://app.example"
            foreign = await client.get("/v1/conversations", headers={"origin": "https://evil.example"})
            assert "access-control-allow-origin" not in foreign.headers
            for answer in (allowed, simple, foreign, await client.get("/v1/conversations")):
                assert "Origin" in answer.headers.get_list("vary"), "a cache must not give one's answer to another"

    async def test_pages_may_send_what_the_api_reads_and_read_what_it_says(self, settings: Settings) -> None:
        changed = settings_for(settings.data_dir, allowed_origins=("https://app.example",))
        async with ApiServer.start(changed) as server:
            client = await server.operator(origin="https://app.example")
            ordinary = ("x-request-id", "Idempotency-Key, Content-Type", "last-event-id", "range, if-range", "")
            of_sdks = ("authorization, user-agent, x-stainless-lang, X-Stainless-Retry-Count, openai-organization",)
            for name in (*ordinary, *of_sdks):
                asked = {"access-control-request-method": "POST", "access-control-request-headers": name}
                allowed = await client.options("/v1/turns", headers=asked)
                assert allowed.status_code == 204, name
                offered = allowed.headers["access-control-allow-headers"].lower().split(", ")
                assert set(name.lower().split(", ")) - {""} <= set(offered)
            missing = await client.get(f"/v1/turns/{fake_id('turn')}")
            assert missing.headers["access-control-allow-origin"] == "https://app.example"
            readable = set(missing.headers["access-control-expose-headers"].lower().split(", "))
            assert readable >= {"x-should-retry", "retry-after", "turnkeep-turn", "x-request-id", "location"}
            assert readable >= {"content-disposition", "content-range", "etag"}

    async def test_a_preflight_is_refused_with_a_problem(self, settings: Settings) -> None:
        changed = settings_for(settings.data_dir, allowed_origins=("https://app.example",))
        async with ApiServer.start(changed) as server:
            client = await server.client(None)
            for origin, method, header, expected in (
                ("https://evil.example", "POST", "authorization", (403, "forbidden")),
                ("https://app.example", "TRACE", "authorization", (422, "invalid_request")),
                ("https://app.example", "POST", "turnkeep-user", (422, "invalid_request")),
                ("https://app.example", "POST", "x-stainless-", (422, "invalid_request")),
                ("https://app.example", "POST", "x-stainless-a;b", (422, "invalid_request")),
            ):
                asked = {"access-control-request-method": method, "access-control-request-headers": header}
                refused = await client.options("/v1/turns", headers={"origin": origin, **asked})
                assert code_of(refused) == expected
                assert "Origin" in refused.headers.get_list("vary")

    async def test_a_page_can_read_that_the_server_has_a_defect(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a defect")

        changed = settings_for(settings.data_dir, allowed_origins=("https://app.example",))
        async with ApiServer.start(changed) as server:
            monkeypatch.setattr(type(server.runtime.store), "usage", broken)
            response = await (await server.operator(origin="https://app.example")).get("/v1/usage")
            assert code_of(response) == (500, "internal")
            assert response.headers["access-control-allow-origin"] == "https://app.example"

    async def test_without_a_list_no_origin_is_allowed(self, server: ApiServer, service: Client) -> None:
        response = await service.get("/v1/conversations", headers={"origin": "https://app.example"})
        assert "access-control-allow-origin" not in response.headers


class TestRotation:
    async def test_the_first_secret_signs_and_all_verify(self, settings: Settings) -> None:
        async def token_with(*secrets: str) -> str:
            async with ApiServer.start(settings_for(settings.data_dir, secret_keys=secrets)) as server:
                return (await server.user(await server.operator())).key

        old = await token_with(OLD_SECRET)
        new = await token_with(NEW_SECRET, OLD_SECRET)
        async with ApiServer.start(settings_for(settings.data_dir, secret_keys=(NEW_SECRET, OLD_SECRET))) as server:
            for token in (old, new):
                assert (await (await server.client(token)).get("/v1/usage")).status_code == 200
        async with ApiServer.start(settings_for(settings.data_dir, secret_keys=(NEW_SECRET,))) as server:
            assert (await (await server.client(new)).get("/v1/usage")).status_code == 200
            assert (await (await server.client(old)).get("/v1/usage")).status_code == 401
