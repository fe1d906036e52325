"""Sign-in at an identity provider: OpenID Connect, the authorization code flow with PKCE. Knows no store.

A sign-in begins with `IdentityProviderClient.begin`, which gives the address at the provider and a signed value for a
cookie. It ends with `finish`, which checks what came back and says who the person is. All that is remembered between
the two is in the cookie, so another worker may finish what one has begun.

What is checked: `state` against the cookie, the code with the PKCE verifier (by the provider), and of the ID token the
signature, issuer, audience, times and `nonce`. Only asymmetric algorithms are accepted. PyJWT checks the signature.

Decision: docs/decisions/0504
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.config import Settings
from turnkeep.errors import Forbidden, Unauthorized, Unavailable
from turnkeep.http_server.sockets import is_loopback
from turnkeep.signed_values import SigningKeys, base64url
from turnkeep.tls import trusted_tls

Found = TypeVar("Found")

CALLBACK = "/signin/oidc/callback"
ATTEMPT_SECONDS = 600
"""How long a person may take at the provider."""
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
LEEWAY_SECONDS = 60
"""How far the clocks of the two servers may differ."""
FRESH_SECONDS = 600.0
"""How long the provider's metadata and keys are kept."""
REFETCH_SECONDS = 10.0
"""How soon keys are fetched again for a token with an unknown key, and metadata after a failure."""
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 1 << 20
SUBJECT_CHARS = 255
AGAIN = "Sign in again. If it happens again, tell your administrator."


class SigninAttempt(Struct, frozen=True, kw_only=True):
    """A sign-in that has begun. `verifier` is the secret of PKCE."""

    state: str
    nonce: str
    verifier: str
    return_to: str
    expires_at: int


class Person(Struct, frozen=True, kw_only=True):
    """Who signed in, as the provider says. `external_id` stays the same as long as issuer and subject do."""

    external_id: str
    name: str | None
    groups: frozenset[str]


class ProviderMetadata(Struct, frozen=True, kw_only=True):
    """The discovery document, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: Sequence[str] = ("client_secret_basic",)

    @property
    def addresses(self) -> list[str]:
        """Where tokens and people are sent: all of these must be over TLS."""
        optional = (self.userinfo_endpoint, self.end_session_endpoint)
        return [self.authorization_endpoint, self.token_endpoint, self.jwks_uri, *filter(None, optional)]


class _KeySet(Struct, frozen=True, kw_only=True):
    keys: Sequence[dict[str, Any]]


class _Tokens(Struct, frozen=True, kw_only=True):
    id_token: str
    access_token: str | None = None


class IdentityProviderClient:
    """This server as a client of the identity provider in the settings."""

    def __init__(self, settings: Settings, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._signing = SigningKeys(secrets, purpose="sign-in attempts")
        self._clock = clock
        self._discovery = asyncio.Lock()
        self._metadata: tuple[float, ProviderMetadata] | None = None
        self._failure: tuple[float, str] | None = None
        self._keys: tuple[float, Sequence[dict[str, Any]]] = (-FRESH_SECONDS, ())

    @property
    def name(self) -> str:
        return self._settings.oidc_name or urlsplit(self._issuer).netloc

    async def begin(self, *, redirect_uri: str, return_to: str) -> tuple[str, str]:
        """The address at the provider, and the value of the cookie. Raises Unavailable if the provider is away."""
        async with _http() as http:
            metadata = await self._discovered(http)
        attempt = SigninAttempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            return_to=return_to,
            expires_at=self._clock() + ATTEMPT_SECONDS * 1000,
        )
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes))),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64url(hashlib.sha256(attempt.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        return with_query(metadata.authorization_endpoint, query), self._sealed(attempt)

    def attempt_of(self, cookie: str | None, state: str | None) -> SigninAttempt:
        """The attempt in the cookie. Raises Unauthorized unless this server made it, recently, for this state."""
        attempt = None if cookie is None else self._unsealed(cookie)
        if attempt is None or attempt.expires_at <= self._clock():
            raise Unauthorized("This sign-in has expired, or was begun in another browser. Sign in again.")
        if state is None or not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
            raise Unauthorized("This answer belongs to another sign-in, perhaps of another tab. Sign in again.")
        return attempt

    def return_of(self, cookie: str | None) -> str | None:
        """Where the attempt in the cookie returns to, even if it has expired."""
        attempt = None if cookie is None else self._unsealed(cookie)
        return None if attempt is None else attempt.return_to

    async def finish(self, attempt: SigninAttempt, answer: Mapping[str, str], *, redirect_uri: str) -> Person:
        """Who the person is.

        Raises Forbidden for a person who may not sign in, Unauthorized for an answer that is not accepted, Unavailable
        if the provider is away.
        """
        async with _http() as http:
            metadata = await self._discovered(http)
            # RFC 9207: a provider that names itself must be the one that was asked.
            if answer.get("iss", metadata.issuer) != metadata.issuer:
                raise Unauthorized(f"The answer comes from another identity provider. {AGAIN}")
            if "error" in answer or not answer.get("code"):
                raise _refused_by_provider(answer)
            tokens = await self._redeemed(http, metadata, answer["code"], attempt.verifier, redirect_uri)
            claims = await self._verified(http, metadata, tokens.id_token, attempt.nonce)
            claims = await self._completed(http, metadata, claims, tokens.access_token)
        person = self._person(claims)
        allowed = self._settings.oidc_allowed_groups
        if allowed and person.groups.isdisjoint(allowed):
            raise Forbidden(
                f"You are signed in at {self.name} as {person.name or claims['sub']}, but not in a group that may use "
                "this page. Ask your administrator for access."
            )
        return person

    def role_of(self, person: Person) -> str | None:
        """The role that the groups give; None if groups do not decide about roles."""
        admins = self._settings.oidc_admin_groups
        if not admins:
            return None
        return "member" if person.groups.isdisjoint(admins) else "admin"

    async def signout_url(self, *, return_to: str) -> str | None:
        """Where the person signs out at the provider; None if it has no such address, or is away."""
        try:
            async with _http() as http:
                metadata = await self._discovered(http)
        except Unavailable:
            return None
        if metadata.end_session_endpoint is None:
            return None
        query = {"client_id": self._client_id, "post_logout_redirect_uri": return_to}
        return with_query(metadata.end_session_endpoint, query)

    def _sealed(self, attempt: SigninAttempt) -> str:
        signed = base64url(msgspec.json.encode(attempt))
        return f"{signed}.{self._signing.sign(signed.encode())}"

    def _unsealed(self, cookie: str) -> SigninAttempt | None:
        signed, _, signature = cookie.partition(".")
        if not self._signing.is_signed(signed.encode("utf-8", "replace"), signature):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(signed + "=="), type=SigninAttempt)
        except msgspec.MsgspecError:  # made by another release
            return None

    async def _discovered(self, http: aiohttp.ClientSession) -> ProviderMetadata:
        """The provider's metadata. While the provider is away, one request waits for it and the others for that one:
        visitors without a key cannot make the server send many."""
        async with self._discovery:
            if self._metadata is not None and time.monotonic() - self._metadata[0] < FRESH_SECONDS:
                return self._metadata[1]
            if self._failure is not None and time.monotonic() - self._failure[0] < REFETCH_SECONDS:
                raise Unavailable(self._failure[1])
            try:
                found = await self._discover(http)
            except Unavailable as exc:
                self._failure = time.monotonic(), exc.detail
                raise
            self._metadata = time.monotonic(), found
            return found

    async def _discover(self, http: aiohttp.ClientSession) -> ProviderMetadata:
        url = f"{self._issuer}/.well-known/openid-configuration"
        found = await self._fetched(http, "GET", url, ProviderMetadata)
        # Some providers end their issuer with a slash.
        if found.issuer.removesuffix("/") != self._issuer:
            raise self._broken(f"its discovery document names the issuer {found.issuer!r}")
        for address in found.addresses:
            parts = urlsplit(address)
            if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
                raise self._broken(f"it names the address {address!r}, which is not over TLS")
        return found

    async def _redeemed(
        self, http: aiohttp.ClientSession, metadata: ProviderMetadata, code: str, verifier: str, redirect_uri: str
    ) -> _Tokens:
        """The tokens for this code, which can be redeemed once."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        secret = self._settings.oidc_client_secret
        if secret is None:
            form["client_id"] = self._client_id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            headers["authorization"] = aiohttp.encode_basic_auth(quote(self._client_id, ""), quote(secret, ""))
        else:
            form |= {"client_id": self._client_id, "client_secret": secret}
        return await self._fetched(http, "POST", metadata.token_endpoint, _Tokens, data=form, headers=headers)

    async def _verified(
        self, http: aiohttp.ClientSession, metadata: ProviderMetadata, token: str, nonce: str
    ) -> dict[str, Any]:
        """The claims of the ID token. Raises Unauthorized if anything about it is wrong."""
        import jwt  # takes ten megabytes, and most servers have no identity provider

        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError(f"the algorithm {algorithm!r} is not accepted")
            key = await self._key(http, metadata, header.get("kid"))
            if key is None:
                raise jwt.InvalidKeyError("the provider does not list the key that signed it")
            claims: dict[str, Any] = jwt.decode(
                token,
                jwt.PyJWK(key, key.get("alg", algorithm)),
                algorithms=ALGORITHMS,
                audience=self._client_id,
                issuer=metadata.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as exc:
            raise Unauthorized(f"The ID token of the identity provider is not accepted: {exc}. {AGAIN}") from exc
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims.get("azp", self._client_id) != self._client_id or (len(audiences) > 1 and "azp" not in claims):
            raise Unauthorized(f"The ID token was made for another client. {AGAIN}")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise Unauthorized(f"The ID token belongs to another sign-in. {AGAIN}")
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= SUBJECT_CHARS:
            raise Unauthorized(f"The ID token names no subject. {AGAIN}")
        return claims

    async def _key(
        self, http: aiohttp.ClientSession, metadata: ProviderMetadata, key_id: str | None
    ) -> dict[str, Any] | None:
        """The provider's key of this id, if it lists one. Keys are fetched again when they are old, or lack it."""
        age = time.monotonic() - self._keys[0]
        found = None if age >= FRESH_SECONDS else _key_named(self._keys[1], key_id)
        if found is None and age >= REFETCH_SECONDS:
            fetched = await self._fetched(http, "GET", metadata.jwks_uri, _KeySet)
            self._keys = time.monotonic(), fetched.keys
            found = _key_named(fetched.keys, key_id)
        return found

    async def _completed(
        self, http: aiohttp.ClientSession, metadata: ProviderMetadata, claims: dict[str, Any], access_token: str | None
    ) -> dict[str, Any]:
        """The claims, with those of the provider's user info where the ID token lacks the groups or a name."""
        needs_groups = bool(self._settings.oidc_allowed_groups or self._settings.oidc_admin_groups)
        is_complete = _name(claims) is not None and not (needs_groups and self._groups(claims) is None)
        if is_complete or metadata.userinfo_endpoint is None or access_token is None:
            return claims
        headers = {"authorization": f"Bearer {access_token}"}
        more = await self._fetched(http, "GET", metadata.userinfo_endpoint, dict[str, Any], headers=headers)
        if more.get("sub") != claims["sub"]:
            raise Unauthorized(f"The user info of the identity provider is that of another person. {AGAIN}")
        return more | claims

    def _person(self, claims: dict[str, Any]) -> Person:
        subject = f"{self._issuer.partition('://')[2]}#{claims['sub']}"
        if len(subject) > SUBJECT_CHARS:
            subject = f"oidc#{hashlib.sha256(subject.encode()).hexdigest()}"
        return Person(external_id=subject, name=_name(claims), groups=frozenset(self._groups(claims) or ()))

    def _groups(self, claims: dict[str, Any]) -> list[str] | None:
        """The groups; None if the claim is not there. A name with dots in it may also be a path."""
        name = self._settings.oidc_groups_claim
        found: Any = claims.get(name)
        if found is None and "." in name:
            found = claims
            for step in name.split("."):
                found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, str):
            return [found]
        return [str(group) for group in found] if isinstance(found, list) else None

    async def _fetched(
        self, http: aiohttp.ClientSession, method: str, url: str, kind: type[Found], **request: Any
    ) -> Found:
        """The JSON of an answer. Raises Unauthorized if the provider refuses the code, Unavailable for anything else
        that goes wrong."""
        headers = {"accept": "application/json", **request.pop("headers", {})}
        try:
            async with http.request(method, url, headers=headers, allow_redirects=False, **request) as response:
                body = await response.content.read(ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(body) <= ANSWER_BYTES:
                    body += await response.content.read(ANSWER_BYTES + 1 - len(body))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise Unavailable(
                f"The identity provider {self.name} does not answer. Try again in a minute, or tell your administrator."
            ) from exc
        if response.status in {400, 401, 403} and method == "POST":
            raise _refused_code(body)
        if response.status != 200 or len(body) > ANSWER_BYTES:
            raise self._broken(f"{urlsplit(url).path} answered with status {response.status}")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as exc:
            raise self._broken(f"{urlsplit(url).path} answered with something else: {exc}") from exc

    def _broken(self, reason: str) -> Unavailable:
        return Unavailable(f"The identity provider {self.name} cannot be used: {reason}. Tell your administrator.")


def provider_of(settings: Settings, secrets: Sequence[str]) -> IdentityProviderClient | None:
    """The identity provider of the settings, if they name one."""
    return None if settings.oidc_issuer is None else IdentityProviderClient(settings, secrets)


def with_query(address: str, query: Mapping[str, str]) -> str:
    """The address with these parameters after those that it has."""
    parts = urlsplit(address)
    return parts._replace(query="&".join(filter(None, (parts.query, urlencode(query))))).geturl()


def _http() -> aiohttp.ClientSession:
    """Sign-ins are rare, so each has a client of its own, and nothing has to be closed at the end."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trusted_tls()),
        timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _key_named(keys: Sequence[dict[str, Any]], key_id: str | None) -> dict[str, Any] | None:
    """The key of this id. A token without one is signed by the only key."""
    signing = [key for key in keys if key.get("use", "sig") == "sig"]
    if key_id is None:
        return signing[0] if len(signing) == 1 else None
    return next((key for key in signing if key.get("kid") == key_id), None)


def _name(claims: Mapping[str, Any]) -> str | None:
    """A name for people, of the claims that providers have for it."""
    for claim in ("name", "preferred_username", "email"):
        found = claims.get(claim)
        if isinstance(found, str) and found.strip():
            return "".join(character for character in found if character.isprintable()).strip()[:200] or None
    return None


def _refused_by_provider(answer: Mapping[str, str]) -> Forbidden | Unauthorized:
    if answer.get("error") == "access_denied":
        return Forbidden("You were not let in, or went back. Sign in again, or ask for access.")
    if answer.get("error") in {"login_required", "interaction_required", "temporarily_unavailable"}:
        return Unauthorized("The identity provider needs you to sign in again.")
    reason = (answer.get("error_description") or answer.get("error") or "it sent no code")[:200]
    return Unauthorized(f"The identity provider refused the sign-in: {reason}. {AGAIN}")


def _refused_code(body: bytes) -> Unauthorized | Unavailable:
    try:
        error = msgspec.json.decode(body, type=dict[str, Any]).get("error")
    except msgspec.MsgspecError:
        error = None
    if error == "invalid_client":
        return Unavailable(
            "The identity provider does not know this server. Its administrator should check "
            "TURNKEEP_OIDC_CLIENT_ID and TURNKEEP_OIDC_CLIENT_SECRET."
        )
    return Unauthorized("This sign-in was used already, or has expired. Sign in again.")
