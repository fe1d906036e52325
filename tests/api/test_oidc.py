"""Sign-in at an identity provider: who is let in, as whom, and every answer that is not believed."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.api.harness import ApiServer, Client, code_of, settings_for
from tests.api.identity_provider import CLIENT_ID, CLIENT_SECRET, Claims, IdentityProvider
from tests.ports import free_ports
from turnkeep.api.identity.authentication import COOKIE
from turnkeep.api.native.signin import ATTEMPT_COOKIE
from turnkeep.config import Settings, read_settings
from turnkeep.errors import InvalidRequest

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with IdentityProvider.start() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, provider: IdentityProvider) -> Settings:
    return settings_of(tmp_path, provider)


def settings_of(folder: Path, provider: IdentityProvider, **changes: Any) -> Settings:
    usual: dict[str, Any] = {
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_allowed_groups": ("staff", "owners"),
        "oidc_admin_groups": ("owners",),
        "oidc_name": "Example Ltd",
    }
    return settings_for(folder, **(usual | changes))


async def a_browser(server: ApiServer) -> Client:
    return await server.client(None, origin=server.url)


async def begin(browser: Client, return_to: str = "/") -> str:
    """The address at the provider."""
    response = await browser.get("/signin/oidc", params={"return_to": return_to})
    assert response.status_code == 303, response.text
    return response.headers["location"]


async def sign_in(browser: Client, provider: IdentityProvider, return_to: str = "/") -> httpx.Response:
    """The response to the browser that comes back."""
    return await browser.get(provider.allow(await begin(browser, return_to)))


class TestComingIn:
    async def test_a_person_becomes_a_user_with_name_and_role(
        self, server: ApiServer, provider: IdentityProvider
    ) -> None:
        browser = await a_browser(server)
        response = await sign_in(browser, provider, "/c/conv_1#quote=hours")
        assert (response.status_code, response.headers["location"]) == (303, "/c/conv_1#quote=hours")
        me = await browser.read("/v1/me")
        host = provider.issuer.removeprefix("http://")
        assert me["user"] == {"id": me["user_id"], "external_id": f"{host}#248289761001", "name": "Ann Example"}
        assert (me["role"], me["session"]["method"], me["session"]["is_current"]) == ("member", "oidc", True)
        assert ATTEMPT_COOKIE not in browser.cookies

    async def test_the_next_time_they_are_the_same_user_with_the_role_of_their_groups_now(
        self, server: ApiServer, provider: IdentityProvider
    ) -> None:
        seen = []
        for groups, name in ((["staff"], "Ann"), (["owners"], "Ann B."), ("staff", "Ann C.")):
            provider.person |= {"groups": groups, "name": name}
            browser = await a_browser(server)
            assert (await sign_in(browser, provider)).status_code == 303
            me = await browser.read("/v1/me")
            seen.append((me["user_id"], me["role"], me["user"]["name"]))
        assert len({user_id for user_id, _, _ in seen}) == 1
        assert [(role, name) for _, role, name in seen] == [
            ("member", "Ann"),
            ("admin", "Ann B."),
            ("member", "Ann C."),
        ]

    async def test_nothing_is_kept_in_the_process_so_another_server_finishes(
        self, tmp_path: Path, provider: IdentityProvider, api_database: str
    ) -> None:
        shared = {
            "database_url": api_database,
            "secret_keys": ("s" * 32,),
            "public_url": "https://chat.example",
        }
        one = settings_of(tmp_path / "one", provider, **shared)
        other = settings_of(tmp_path / "two", provider, **shared)
        async with ApiServer.start(one) as first, ApiServer.start(other) as second:
            browser, then = await first.client(None), await second.client(None)
            response = await browser.get("/signin/oidc", params={"return_to": "/settings/people"})
            address = response.headers["location"]
            assert parse_qs(urlsplit(address).query)["redirect_uri"] == ["https://chat.example/signin/oidc/callback"]
            assert "Secure" in response.headers["set-cookie"]
            cookie = response.headers["set-cookie"].partition(";")[0]
            back = urlsplit(provider.allow(address))
            finished = await then.get(f"{back.path}?{back.query}", headers={"cookie": cookie})
            assert (finished.status_code, finished.headers["location"]) == (303, "/settings/people")
            session = next(value for value in finished.headers.get_list("set-cookie") if value.startswith(COOKIE))
            assert "Secure" in session
            header = {"cookie": session.partition(";")[0]}
            assert (await browser.get("/v1/me", headers=header)).status_code == 200

    async def test_groups_and_names_may_be_in_the_user_info(
        self, server: ApiServer, provider: IdentityProvider
    ) -> None:
        provider.person = {"sub": "7"}
        provider.user_info = {"sub": "7", "preferred_username": "ann", "groups": ["owners"]}
        browser = await a_browser(server)
        assert (await sign_in(browser, provider)).status_code == 303
        me = await browser.read("/v1/me")
        assert (me["role"], me["user"]["name"]) == ("admin", "ann")

    async def test_the_claim_of_groups_may_be_a_path(self, tmp_path: Path, provider: IdentityProvider) -> None:
        provider.person = {"sub": "7", "name": "Ann", "realm_access": {"roles": ["owners"]}}
        changed = settings_of(tmp_path, provider, oidc_groups_claim="realm_access.roles")
        async with ApiServer.start(changed) as server:
            browser = await a_browser(server)
            assert (await sign_in(browser, provider)).status_code == 303
            assert (await browser.read("/v1/me"))["role"] == "admin"

    async def test_without_groups_of_admins_the_role_stays_as_it_was_set(
        self, tmp_path: Path, provider: IdentityProvider
    ) -> None:
        changed = settings_of(tmp_path, provider, oidc_admin_groups=(), oidc_allowed_groups=())
        async with ApiServer.start(changed) as server:
            browser = await a_browser(server)
            await sign_in(browser, provider)
            me = await browser.read("/v1/me")
            assert me["role"] == "member"
            operator = await server.operator()
            await operator.patch(f"/v1/users/{me['user_id']}", json={"role": "admin"})
            assert (await browser.read("/v1/me"))["role"] == "admin", "at once"
            await sign_in(browser, provider)
            assert (await browser.read("/v1/me"))["role"] == "admin"

    async def test_a_client_may_have_no_secret_or_send_it_in_the_body(
        self, tmp_path: Path, provider: IdentityProvider
    ) -> None:
        provider.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        async with ApiServer.start(settings_of(tmp_path / "post", provider)) as server:
            assert (await sign_in(await a_browser(server), provider)).status_code == 303

    async def test_a_provider_that_changes_its_key_is_asked_for_the_new_one(
        self, server: ApiServer, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.api.identity.oidc.REFETCH_SECONDS", 0.0)
        assert (await sign_in(await a_browser(server), provider)).status_code == 303
        provider.key, provider.key_id = rsa.generate_private_key(public_exponent=65537, key_size=2048), "key-2"
        assert (await sign_in(await a_browser(server), provider)).status_code == 303
        assert provider.requests.count("keys") == 2
        assert provider.requests.count("discovery") == 1

    async def test_the_issuer_may_end_with_a_slash(self, server: ApiServer, provider: IdentityProvider) -> None:
        provider.metadata = {"issuer": f"{provider.issuer}/"}
        provider.changed = lambda claims: claims | {"iss": f"{provider.issuer}/"}
        assert (await sign_in(await a_browser(server), provider)).status_code == 303

    async def test_a_very_long_subject_has_an_id_that_fits(self, server: ApiServer, provider: IdentityProvider) -> None:
        provider.person |= {"sub": "x" * 255}
        browser = await a_browser(server)
        assert (await sign_in(browser, provider)).status_code == 303
        assert (await browser.read("/v1/me"))["user"]["external_id"].startswith("oidc#")

    async def test_the_page_is_told_the_way(self, server: ApiServer) -> None:
        anonymous = await server.client(None)
        assert await anonymous.read("/v1/signin") == {"provider": {"name": "Example Ltd", "url": "/signin/oidc"}}

    async def test_sign_out_leads_to_that_of_the_provider(self, server: ApiServer, provider: IdentityProvider) -> None:
        provider.metadata = {"end_session_endpoint": f"{provider.issuer}/logout?tenant=a%20b"}
        browser = await a_browser(server)
        await sign_in(browser, provider)
        out = await browser.post("/v1/signout")
        assert out.status_code == 200
        address = urlsplit(out.json()["provider_url"])
        assert f"{address.scheme}://{address.netloc}{address.path}" == f"{provider.issuer}/logout"
        assert parse_qs(address.query) == {
            "tenant": ["a b"],
            "client_id": [CLIENT_ID],
            "post_logout_redirect_uri": [f"{server.url}/"],
        }
        assert code_of(await browser.get("/v1/me")) == (401, "unauthorized")


class TestRefusals:
    """Each is a page with words for a browser, and a problem for other clients; nobody is signed in."""

    async def refused(
        self, browser: Client, address: str, status: int, words: str, code: str | None = None
    ) -> httpx.Response:
        page = await browser.get(address, headers=HTML)
        assert page.status_code == status, page.text
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert words in page.text
        assert COOKIE not in browser.cookies
        assert code_of(await browser.get("/v1/me"))[0] == 401
        return page

    async def test_somebody_in_no_allowed_group(self, server: ApiServer, provider: IdentityProvider) -> None:
        for groups in ([], ["guests"], None, {"staff": 1}):
            provider.person |= {"groups": groups}
            browser = await a_browser(server)
            page = await self.refused(browser, provider.allow(await begin(browser)), 403, "not in a group")
            assert "Ann Example" in page.text
        assert (await (await server.operator()).read("/v1/users"))["data"] == [], "and no user is made"

    async def test_a_disabled_user(self, server: ApiServer, provider: IdentityProvider) -> None:
        browser = await a_browser(server)
        await sign_in(browser, provider)
        me = await browser.read("/v1/me")
        operator = await server.operator()
        await operator.patch(f"/v1/users/{me['user_id']}", json={"is_disabled": True})
        assert code_of(await browser.get("/v1/me")) == (401, "unauthorized"), "and the session has ended"
        other = await a_browser(server)
        await self.refused(other, provider.allow(await begin(other)), 403, "disabled")

    async def test_a_person_who_goes_back(self, server: ApiServer, provider: IdentityProvider) -> None:
        browser = await a_browser(server)
        address = await begin(browser, "/c/conv_1")
        state = parse_qs(urlsplit(address).query)["state"][0]
        page = await self.refused(
            browser, f"/signin/oidc/callback?error=access_denied&state={state}", 403, "ask for access"
        )
        assert 'href="/signin/oidc?return_to=%2Fc%2Fconv_1"' in page.text, "the way back is not lost"

    @pytest.mark.parametrize(
        "answer",
        ["error=server_error&error_description=%3Cb%3Ebroken%3C%2Fb%3E", "error=login_required", "code=", ""],
    )
    async def test_an_error_of_the_provider(self, server: ApiServer, provider: IdentityProvider, answer: str) -> None:
        browser = await a_browser(server)
        state = parse_qs(urlsplit(await begin(browser)).query)["state"][0]
        page = await self.refused(browser, f"/signin/oidc/callback?{answer}&state={state}", 401, "Sign in again")
        assert "<b>" not in page.text

    async def test_a_state_that_is_not_ours(self, server: ApiServer, provider: IdentityProvider) -> None:
        browser = await a_browser(server)
        address = provider.allow(await begin(browser))
        state = parse_qs(urlsplit(address).query)["state"][0]
        for wrong in ("x" * 43, f"{state}x", "", "%FF%00"):
            await self.refused(browser, address.replace(f"&state={state}", f"&state={wrong}"), 401, "another sign-in")
        await self.refused(browser, address.replace(f"&state={state}", ""), 401, "another sign-in")
        cookie = browser.cookies[ATTEMPT_COOKIE]
        for changed in (None, "x", "", cookie[:-2] + "xx", f"e30.{cookie.partition('.')[2]}", "ü.x"):
            stranger = await a_browser(server)
            header = {} if changed is None else {b"cookie": f"{ATTEMPT_COOKIE}={changed}".encode()}
            response = await stranger.get(address, headers=header)
            assert code_of(response) == (401, "unauthorized"), changed
        assert "token" not in provider.requests, "no code was redeemed"

    async def test_an_attempt_that_took_too_long(
        self, server: ApiServer, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.api.identity.oidc.ATTEMPT_SECONDS", -1)
        browser = await a_browser(server)
        await self.refused(browser, provider.allow(await begin(browser)), 401, "expired")

    async def test_a_code_that_was_used(self, server: ApiServer, provider: IdentityProvider) -> None:
        browser = await a_browser(server)
        address = provider.allow(await begin(browser))
        cookie = f"{ATTEMPT_COOKIE}={browser.cookies[ATTEMPT_COOKIE]}"
        assert (await browser.get(address)).status_code == 303
        assert code_of(await (await a_browser(server)).get(address)) == (401, "unauthorized")
        thief = await a_browser(server)
        response = await thief.get(address, headers={"cookie": cookie})
        assert code_of(response) == (401, "unauthorized")
        assert "used already" in response.json()["detail"]

    async def test_an_answer_of_another_issuer(self, server: ApiServer, provider: IdentityProvider) -> None:
        browser = await a_browser(server)
        address = provider.allow(await begin(browser))
        await self.refused(browser, f"{address}&iss=https%3A%2F%2Fevil.example", 401, "another identity provider")

    @pytest.mark.parametrize(
        "change, words",
        [
            ({"exp": 1_000}, "expired"),
            ({"exp": None}, "exp"),
            ({"aud": "another-client"}, "Audience"),
            ({"aud": ["another-client"]}, "Audience"),
            ({"aud": [CLIENT_ID, "another"]}, "another client"),
            ({"azp": "another-client"}, "another client"),
            ({"iss": "https://evil.example"}, "issuer"),
            ({"nonce": "another"}, "another sign-in"),
            ({"nonce": None}, "another sign-in"),
            ({"iat": 4_000_000_000}, "not yet valid"),
            ({"nbf": 4_000_000_000}, "not yet valid"),
            ({"sub": None}, "sub"),
            ({"sub": ""}, "no subject"),
            ({"sub": 7}, "ubject"),
        ],
    )
    async def test_claims_that_are_wrong(
        self, server: ApiServer, provider: IdentityProvider, change: Claims, words: str
    ) -> None:
        provider.changed = lambda claims: {
            name: value for name, value in (claims | change).items() if value is not None
        }
        browser = await a_browser(server)
        await self.refused(browser, provider.allow(await begin(browser)), 401, words)

    async def test_a_token_that_is_not_signed_by_the_provider(
        self, server: ApiServer, provider: IdentityProvider
    ) -> None:
        other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = provider.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        for sign in (
            lambda claims: jwt.encode(claims, other, algorithm="RS256", headers={"kid": provider.key_id}),
            lambda claims: jwt.encode(claims, other, algorithm="RS256", headers={"kid": "another"}),
            lambda claims: jwt.encode(claims, "", algorithm="none"),
            lambda claims: hs256(claims, public, provider.key_id),
            lambda claims: hs256(claims, CLIENT_SECRET.encode(), provider.key_id),
            lambda claims: jwt.encode(claims, provider.key, algorithm="RS512", headers={"kid": provider.key_id}),
            lambda claims: provider.signed(claims)[:-8] + "AAAAAAAA",
            lambda claims: "not a token",
        ):
            provider.sign = sign
            browser = await a_browser(server)
            await self.refused(browser, provider.allow(await begin(browser)), 401, "not accepted")

    async def test_user_info_of_somebody_else(self, server: ApiServer, provider: IdentityProvider) -> None:
        provider.person = {"sub": "7"}
        provider.user_info = {"sub": "8", "name": "Ann", "groups": ["owners"]}
        browser = await a_browser(server)
        await self.refused(browser, provider.allow(await begin(browser)), 401, "another person")

    async def test_a_provider_that_is_away(self, tmp_path: Path, provider: IdentityProvider) -> None:
        away = settings_of(tmp_path, provider, oidc_issuer=f"http://127.0.0.1:{free_ports(1)[0]}")
        async with ApiServer.start(away) as server:
            browser = await a_browser(server)
            page = await self.refused(browser, "/signin/oidc?return_to=/settings/usage", 503, "does not answer")
            assert "Try again" in page.text
            assert 'href="/signin/oidc?return_to=%2Fsettings%2Fusage"' in page.text
            assert code_of(await browser.get("/signin/oidc")) == (503, "unavailable")

    async def test_one_that_is_away_is_not_asked_again_and_again(
        self, server: ApiServer, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider.is_broken = True
        browser = await a_browser(server)
        answers = await asyncio.gather(*(browser.get("/signin/oidc") for _ in range(20)))
        assert {code_of(answer) for answer in answers} == {(503, "unavailable")}
        assert provider.requests == ["discovery"]
        provider.is_broken = False
        monkeypatch.setattr("turnkeep.api.identity.oidc.REFETCH_SECONDS", 0.0)
        assert (await sign_in(browser, provider)).status_code == 303

    async def test_a_provider_that_is_broken_or_another(
        self, server: ApiServer, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.api.identity.oidc.REFETCH_SECONDS", 0.0)
        browser = await a_browser(server)
        for metadata in (
            {"issuer": "https://evil.example"},
            {"token_endpoint": None},
            {"token_endpoint": "http://evil.example/token"},
            {"jwks_uri": "ftp://evil.example/keys"},
            {"userinfo_endpoint": "http://evil.example/me"},
            {"end_session_endpoint": "http://evil.example/logout"},
        ):
            provider.metadata = metadata
            await self.refused(browser, "/signin/oidc", 503, "Tell your administrator")
        provider.metadata, provider.is_broken = {}, True
        await self.refused(browser, "/signin/oidc", 503, "status 500")

    async def test_a_client_that_the_provider_does_not_know(self, tmp_path: Path, provider: IdentityProvider) -> None:
        async with ApiServer.start(settings_of(tmp_path, provider, oidc_client_secret="wrong")) as server:
            browser = await a_browser(server)
            await self.refused(browser, provider.allow(await begin(browser)), 503, "TURNKEEP_OIDC_CLIENT_SECRET")

    @pytest.mark.parametrize(
        "evil",
        ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/a\nb: c", "", "x"],
    )
    async def test_nobody_is_sent_to_another_site(
        self, server: ApiServer, provider: IdentityProvider, evil: str
    ) -> None:
        browser = await a_browser(server)
        assert (await sign_in(browser, provider, evil)).headers["location"] == "/"

    async def test_a_server_without_a_provider_has_no_such_routes(self, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path)) as server:
            anonymous = await server.client(None)
            assert await anonymous.read("/v1/signin") == {"provider": None}
            for path in ("/signin/oidc", "/signin/oidc/callback?code=x&state=y"):
                assert code_of(await anonymous.get(path)) == (404, "not_found")


def hs256(claims: Claims, secret: bytes, key_id: str) -> str:
    """A token that is signed with what everybody knows, as if it were a shared secret."""

    def encoded(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = encoded({"alg": "HS256", "kid": key_id, "typ": "JWT"}) + b"." + encoded(claims)
    return (signed + b"." + base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")).decode()


class TestSettings:
    @pytest.mark.parametrize(
        "environ, named",
        [
            ({"TURNKEEP_OIDC_ISSUER": "https://login.example"}, "TURNKEEP_OIDC_CLIENT_ID"),
            (
                {
                    "TURNKEEP_OIDC_ISSUER": "https://login.example",
                    "TURNKEEP_OIDC_CLIENT_ID": "x",
                    "TURNKEEP_HOST": "0.0.0.0",
                },
                "TURNKEEP_PUBLIC_URL",
            ),
            ({"TURNKEEP_OIDC_ISSUER": "http://login.example"}, "https"),
            ({"TURNKEEP_OIDC_ISSUER": "https://login.example?x=y"}, "https"),
            ({"TURNKEEP_OIDC_ADMIN_GROUPS": "owners"}, "TURNKEEP_OIDC_ISSUER"),
        ],
    )
    def test_those_that_do_not_go_together_are_refused(self, environ: dict[str, str], named: str) -> None:
        with pytest.raises(InvalidRequest, match=named):
            read_settings(environ)

    def test_the_secret_is_masked(self) -> None:
        environ = {
            "TURNKEEP_OIDC_ISSUER": "https://login.example/",
            "TURNKEEP_OIDC_CLIENT_ID": "x",
            "TURNKEEP_OIDC_CLIENT_SECRET": "hidden-secret",
        }
        settings = read_settings(environ)
        assert settings.oidc_issuer == "https://login.example"
        assert "hidden-secret" not in repr(settings)
