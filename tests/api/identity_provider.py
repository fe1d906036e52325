"""An identity provider that does as it is told: right by default, and wrong in every way that a test asks for.

It is strict where a provider must be: client, redirect address, PKCE verifier, and codes that can be redeemed once.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID, CLIENT_SECRET = "turnkeep", "s3cret:with/odd&characters"
Claims = dict[str, Any]


class IdentityProvider:
    """Its issuer, the person who is signed in there, and what it does wrong."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = "key-1"
        self.person: Claims = {"sub": "248289761001", "name": "Ann Example", "groups": ["staff"]}
        self.user_info: Claims | None = None
        self.changed: Callable[[Claims], Claims] = lambda claims: claims
        self.sign: Callable[[Claims], str] = self.signed
        self.metadata: Claims = {}
        self.is_broken = False
        self.requests: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        provider = cls("")
        routes = web.RouteTableDef()

        @routes.get("/.well-known/openid-configuration")
        async def discover(request: web.Request) -> web.Response:
            return provider._discover()

        @routes.get("/keys")
        async def keys(request: web.Request) -> web.Response:
            provider.requests.append("keys")
            return web.json_response({"keys": [provider.public_key]})

        @routes.post("/token")
        async def token(request: web.Request) -> web.Response:
            return provider._token(request.headers, {k: str(v) for k, v in (await request.post()).items()})

        @routes.get("/userinfo")
        async def userinfo(request: web.Request) -> web.Response:
            provider.requests.append("userinfo")
            assert request.headers["authorization"] == "Bearer the-access-token"
            return web.json_response(provider.user_info or provider.person)

        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            provider.issuer = f"http://127.0.0.1:{port}"
            yield provider
        finally:
            await runner.cleanup()

    @property
    def public_key(self) -> Claims:
        made = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**made, "kid": self.key_id, "use": "sig", "alg": "RS256"}

    def signed(self, claims: Claims) -> str:
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.key_id})

    def allow(self, address: str) -> str:
        """The person agrees: the address that the browser is sent back to, for this authorization request."""
        parts = urlsplit(address)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert f"{parts.scheme}://{parts.netloc}" == self.issuer
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT_ID)
        assert asked["code_challenge_method"] == "S256"
        assert {"openid"} <= set(asked["scope"].split())
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'session_state': 'x'})}"

    def _discover(self) -> web.Response:
        self.requests.append("discovery")
        if self.is_broken:
            return web.Response(status=500)
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
                **self.metadata,
            }
        )

    def _token(self, headers: Any, form: dict[str, str]) -> web.Response:
        self.requests.append("token")
        expected = base64.b64encode(b"turnkeep:s3cret%3Awith%2Fodd%26characters").decode()
        posted = (form.get("client_id"), form.get("client_secret"))
        if headers.get("authorization") != f"Basic {expected}" and posted != (CLIENT_ID, CLIENT_SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        asked = self._codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or challenge.decode() != asked["code_challenge"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        token = self.sign(self.changed(claims | self.person))
        return web.json_response({"id_token": token, "access_token": "the-access-token", "token_type": "Bearer"})
