"""Authorization at MCP servers (OAuth 2.1): discovery, registration, a person's agreement, and tokens that are renewed.

An MCP server that wants a token answers 401. Its metadata (RFC 9728) names an authorization server, whose metadata
(RFC 8414) names the endpoints. This server registers itself there (RFC 7591), or has a client id that an admin gives.
`Authorizations.begin` makes the address at which a person agrees; `finish` exchanges the code that comes back, with
PKCE and the `resource` for which the tokens are (RFC 8707). The tokens belong to a workspace and one address. They are
encrypted in the store, so any worker uses and renews them (`AccessToken`). One worker renews them at a time: many
servers accept a refresh token once.

Every request of this module goes through the guarded client of `http_tools.py`. Redirects are not followed.

Decision: docs/decisions/0604
"""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from msgspec import Struct, structs

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Forbidden, InvalidRequest, NotFound, TurnkeepError, Unauthorized, WorldError
from turnkeep.ids import ConnectionId, SessionId, new_connection_id
from turnkeep.model.agents import McpConnection
from turnkeep.model.principals import Principal
from turnkeep.signed_values import base64url
from turnkeep.store.ports import DirectoryStore
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.http_tools import failure_words, open_session, read_response
from turnkeep.tools.vault import Vault

ATTEMPT_SECONDS = 600
"""How long a person may take to agree."""
ANSWER_SECONDS = 10.0
REFRESH_SECONDS = 30.0
"""How long one worker may take to renew tokens, and others wait for it."""
POLL_SECONDS = 0.2
EARLY_SECONDS = 60
"""Tokens are renewed this long before they end."""
ANSWER_BYTES = 256 * 1024
CLIENT_NAME = "Turnkeep"
_PROBE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "turnkeep", "version": "1"},
    },
}
_PARAMETER = re.compile(r'([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

AuthMethod = Literal["client_secret_basic", "client_secret_post", "none"]
Found = TypeVar("Found")


class AuthorizationFailed(WorldError):
    """The authorization server of an MCP server does not work, or refuses this server."""

    code = "authorization_failed"


class AuthorizationMissing(WorldError):
    """An MCP server asks for authorization, and the workspace has none. An admin connects it in the form of the
    agent."""

    code = "authorization_missing"


class AuthorizationServer(Struct, frozen=True, kw_only=True):
    """The metadata of an authorization server, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: Sequence[str] | None = None
    code_challenge_methods_supported: Sequence[str] = ()
    token_endpoint_auth_methods_supported: Sequence[str] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    @property
    def addresses(self) -> list[str]:
        optional = (self.registration_endpoint, self.revocation_endpoint)
        return [self.authorization_endpoint, self.token_endpoint, *filter(None, optional)]


class Demand(Struct, frozen=True, kw_only=True):
    """What an MCP server asks for: tokens of this authorization server, for this resource."""

    resource: str
    scope: str | None
    server: AuthorizationServer


class RegisteredClient(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this server is known to an authorization server."""

    client_id: str
    client_secret: str | None = None
    auth_method: AuthMethod = "none"


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An authorization that has begun, in one session of the page. `verifier` is the secret of PKCE."""

    state: str
    verifier: str
    session_id: SessionId
    redirect_uri: str
    resource: str
    scope: str | None
    server: AuthorizationServer
    client: RegisteredClient
    expires_at: int


class TokenGrant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one resource, and what is needed to renew them."""

    client: RegisteredClient
    token_endpoint: str
    revocation_endpoint: str | None = None
    resource: str
    access_token: str
    refresh_token: str | None = None
    scope: str | None = None
    expires_at: int | None = None


class _Resource(Struct, frozen=True, kw_only=True):
    """The metadata of a protected resource (RFC 9728)."""

    resource: str | None = None
    authorization_servers: Sequence[str] = ()
    scopes_supported: Sequence[str] | None = None


class _Registration(Struct, frozen=True, kw_only=True):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class _Tokens(Struct, frozen=True, kw_only=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float | None = None
    refresh_token: str | None = None
    scope: str | None = None


class Authorizations:
    """This server as a client of authorization servers."""

    def __init__(
        self, store: DirectoryStore, vault: Vault, guard: AddressGuard, *, clock: Clock = system_clock
    ) -> None:
        self._store = store
        self._vault = vault
        self._guard = guard
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def address_of(self, url: str) -> str:
        """The address of a server as connections have it. Raises AddressRefused."""
        return str(self._guard.check_url(url).with_fragment(None))

    async def demand_of(self, url: str) -> Demand | None:
        """What the server asks for; None if it does not answer 401. Raises AuthorizationFailed if it does, and its
        authorization server cannot be used."""
        url = self.address_of(url)
        headers = {"accept": "application/json, text/event-stream"}
        status, answered, _ = await self._send("POST", url, headers=headers, json=_PROBE)
        if status != 401:
            return None
        challenge = _parameters(answered.get("WWW-Authenticate", ""))
        found = await self._resource(url, challenge.get("resource_metadata"))
        issuers = found.authorization_servers or [_origin(url)]
        server = await self._authorization_server(issuers[0])
        scopes = found.scopes_supported
        scope = challenge.get("scope") or (None if scopes is None else " ".join(scopes))
        return Demand(resource=found.resource or url, scope=scope or None, server=server)

    async def begin(
        self,
        principal: Principal,
        session_id: SessionId,
        url: str,
        *,
        redirect_uri: str,
        client_id: str | None = None,
        client_secret: str | None = None,
        scope: str | None = None,
    ) -> tuple[McpConnection, str]:
        """Begin an authorization in this session of the page: the connection, and the address where the person agrees.

        Raises InvalidRequest for a server that asks for none, or with which this server cannot register itself.
        """
        demand = await self.demand_of(url)
        if demand is None:
            raise InvalidRequest("This MCP server does not ask for authorization. Use it as it is, or with `headers`.")
        server = demand.server
        scope = scope or _with_offline_access(demand.scope, server)
        if client_id is not None:
            client = RegisteredClient(
                client_id=client_id, client_secret=client_secret, auth_method=_auth_method(server, client_secret)
            )
        else:
            client = await self._registered(server, redirect_uri, scope)
        connection_id = new_connection_id()
        known = await self._store.mcp_connection_at(principal.org_id, principal.workspace_id, self.address_of(url))
        if known is not None:
            connection_id = known.id
        attempt = Attempt(
            state=f"{connection_id}.{secrets.token_urlsafe(32)}",
            verifier=secrets.token_urlsafe(48),
            session_id=session_id,
            redirect_uri=redirect_uri,
            resource=demand.resource,
            scope=scope,
            server=server,
            client=client,
            expires_at=self._clock() + ATTEMPT_SECONDS * 1000,
        )
        connection = await self._store.begin_mcp_connection(
            principal,
            self.address_of(url),
            connection_id=connection_id,
            issuer=server.issuer,
            attempt=self._vault.seal(principal.org_id, msgspec.json.encode(attempt).decode()),
        )
        if connection.id != connection_id:  # another person began at the same moment
            raise AuthorizationFailed("Another person has just begun to connect this server. Try again.")
        return connection, _agreement_url(attempt)

    async def finish(self, principal: Principal, session_id: SessionId, answer: Mapping[str, str]) -> McpConnection:
        """Take what came back from the authorization server, in the session in which the authorization began.

        Raises Unauthorized for an answer that fits no attempt of this session, Forbidden if the person did not agree,
        AuthorizationFailed if the authorization server refuses the code.
        """
        connection, attempt = await self._attempt_of(principal, session_id, answer.get("state", ""))
        issuer = answer.get("iss")
        is_named = attempt.server.authorization_response_iss_parameter_supported
        if (issuer is None and is_named) or issuer not in {None, attempt.server.issuer}:
            raise Unauthorized(f"The answer comes from another authorization server. {_AGAIN}")
        if answer.get("error") == "access_denied":
            raise Forbidden(f"You did not agree, or went back. {_AGAIN}")
        if "error" in answer or not answer.get("code"):
            reason = (answer.get("error_description") or answer.get("error") or "it sent no code")[:300]
            raise AuthorizationFailed(f"The authorization server {attempt.server.issuer} refused: {reason}. {_AGAIN}")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
            "resource": attempt.resource,
        }
        try:
            tokens = await self._tokens(attempt.server.token_endpoint, attempt.client, form)
        except _GrantEnded as exc:
            raise AuthorizationFailed(f"The code was not accepted: {exc.detail} {_AGAIN}") from exc
        grant = TokenGrant(
            client=attempt.client,
            token_endpoint=attempt.server.token_endpoint,
            revocation_endpoint=attempt.server.revocation_endpoint,
            resource=attempt.resource,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token,
            scope=tokens.scope or attempt.scope,
            expires_at=self._end_of(tokens),
        )
        assert connection.attempt is not None
        finished = await self._store.finish_mcp_connection(
            principal,
            connection.id,
            attempt=connection.attempt,
            sealed=self._sealed(connection, grant),
            issuer=attempt.server.issuer,
        )
        if finished is None:
            raise Unauthorized(f"This authorization was used already, or another one was begun. {_AGAIN}")
        return finished

    async def connection_at(self, principal: Principal, url: str) -> McpConnection:
        """The connection of the principal's workspace. Raises AuthorizationMissing if there is none that works."""
        found = await self._store.mcp_connection_at(principal.org_id, principal.workspace_id, self.address_of(url))
        if found is None or not found.is_connected:
            raise AuthorizationMissing(_missing(found))
        return found

    async def remove(self, principal: Principal, connection_id: ConnectionId) -> None:
        """Forget the tokens, and tell the authorization server if it wants to know (RFC 7009). Raises NotFound."""
        gone = await self._store.delete_mcp_connection(principal.org_id, principal.workspace_id, connection_id)
        try:
            grant = self._grant(gone)
            if grant is not None and grant.revocation_endpoint is not None:
                form = {"token": grant.refresh_token or grant.access_token}
                await self._post_form(grant.revocation_endpoint, grant.client, form)
        except (WorldError, InvalidRequest):
            pass  # the tokens are forgotten here in any case

    async def grant_of(self, connection: McpConnection, *, refused: str | None = None) -> TokenGrant:
        """Tokens that can be used now: renewed if they end soon, or if the server has refused this access token.

        Raises AuthorizationMissing if a person must agree again, AuthorizationFailed if the server does not answer.
        """
        deadline = self._clock() + int(REFRESH_SECONDS * 1000)
        while True:
            try:
                now = await self._store.mcp_connection(connection.org_id, connection.workspace_id, connection.id)
            except NotFound as exc:
                raise AuthorizationMissing(_missing(None)) from exc
            grant = self._grant(now)
            if grant is None:
                raise AuthorizationMissing(_missing(now))
            if grant.access_token != refused and not self._ends_soon(grant):
                return grant
            if await self._store.lease_mcp_connection(now.id, version=now.version, seconds=REFRESH_SECONDS):
                return await self._renewed(now, grant, refused=refused)
            if self._clock() > deadline:
                raise AuthorizationFailed("Its tokens are being renewed, which takes too long. Try again.")
            await asyncio.sleep(POLL_SECONDS)

    async def _renewed(self, connection: McpConnection, grant: TokenGrant, *, refused: str | None) -> TokenGrant:
        """Renew the tokens. This worker holds the lease of the connection."""
        is_usable = grant.access_token != refused and not self._has_ended(grant)
        try:
            if grant.refresh_token is None:
                if is_usable:
                    await self._store.renew_mcp_connection(
                        connection.id, version=connection.version, sealed=connection.sealed
                    )
                    return grant
                raise _GrantEnded("its tokens have ended, and it gave none to renew them with")
            form = {
                "grant_type": "refresh_token",
                "refresh_token": grant.refresh_token,
                "resource": grant.resource,
            }
            tokens = await self._tokens(grant.token_endpoint, grant.client, form)
        except _GrantEnded as exc:
            problem = f"The authorization has ended: {exc.detail} Connect the server again in the form of the agent."
            await self._store.renew_mcp_connection(
                connection.id, version=connection.version, sealed=None, problem=problem
            )
            raise AuthorizationMissing(problem) from exc
        except TurnkeepError:
            await self._store.renew_mcp_connection(connection.id, version=connection.version, sealed=connection.sealed)
            if is_usable:
                return grant
            raise
        renewed = structs.replace(
            grant,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or grant.refresh_token,
            scope=tokens.scope or grant.scope,
            expires_at=self._end_of(tokens),
        )
        await self._store.renew_mcp_connection(
            connection.id, version=connection.version, sealed=self._sealed(connection, renewed)
        )
        return renewed

    async def _attempt_of(
        self, principal: Principal, session_id: SessionId, state: str
    ) -> tuple[McpConnection, Attempt]:
        connection_id = state.partition(".")[0]
        lost = Unauthorized(f"This authorization has expired, or was begun in another browser. {_AGAIN}")
        try:
            found = await self._store.mcp_connection(
                principal.org_id, principal.workspace_id, ConnectionId(connection_id)
            )
        except (NotFound, InvalidRequest) as exc:
            raise lost from exc
        if found.attempt is None:
            raise lost
        attempt = msgspec.json.decode(self._vault.open(principal.org_id, found.attempt), type=Attempt)
        is_same = hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace"))
        if not is_same or attempt.session_id != session_id or attempt.expires_at <= self._clock():
            raise lost
        return found, attempt

    async def _resource(self, url: str, named: str | None) -> _Resource:
        """The metadata of the resource; empty if it has none: then its own origin is the authorization server."""
        parts = urlsplit(url)
        path = parts.path.rstrip("/")
        places = [f"{_origin(url)}/.well-known/oauth-protected-resource{each}" for each in dict.fromkeys((path, ""))]
        for place in [named] if named else places:
            found = await self._document(place, _Resource)
            if found is None:
                continue
            if found.resource is not None and not _covers(found.resource, url):
                raise AuthorizationFailed(
                    f"The metadata of the MCP server is for another address: {found.resource[:300]!r}."
                )
            return found
        return _Resource()

    async def _authorization_server(self, issuer: str) -> AuthorizationServer:
        parts = urlsplit(issuer)
        origin, path = _origin(issuer), parts.path.rstrip("/")
        places = [
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}/.well-known/openid-configuration{path}",
            f"{origin}{path}/.well-known/openid-configuration",
        ]
        for place in dict.fromkeys(places):
            found = await self._document(place, AuthorizationServer)
            if found is None:
                continue
            if found.issuer.rstrip("/") != issuer.rstrip("/"):
                raise AuthorizationFailed(
                    f"The metadata of the authorization server {issuer} is for another one: {found.issuer[:300]!r}."
                )
            if "S256" not in found.code_challenge_methods_supported:
                raise AuthorizationFailed(f"The authorization server {issuer} does not support PKCE with S256.")
            for address in found.addresses:
                self._check_endpoint(address)
            return found
        raise AuthorizationFailed(
            f"The MCP server asks for authorization, and {issuer} does not say how: it has no metadata (RFC 8414). "
            "If the server takes a key, write it into the headers."
        )

    async def _registered(self, server: AuthorizationServer, redirect_uri: str, scope: str | None) -> RegisteredClient:
        if server.registration_endpoint is None:
            raise InvalidRequest(
                f"The authorization server {server.issuer} registers no clients by itself. Register one there with the "
                f"redirect address {redirect_uri}, and give its client id (and secret)."
            )
        offered = server.token_endpoint_auth_methods_supported
        methods: tuple[AuthMethod, ...] = ("client_secret_basic", "client_secret_post", "none")
        asked = {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": next((each for each in methods if each in offered), "none"),
            **({} if scope is None else {"scope": scope}),
        }
        status, _, body = await self._send("POST", server.registration_endpoint, json=asked)
        if status not in {200, 201}:
            raise AuthorizationFailed(
                f"The authorization server {server.issuer} refused to register this server: {_reason(status, body)}. "
                f"Register a client there with the redirect address {redirect_uri}, and give its client id."
            )
        made = _decoded(body, _Registration, server.registration_endpoint)
        method = made.token_endpoint_auth_method
        return RegisteredClient(
            client_id=made.client_id,
            client_secret=made.client_secret,
            auth_method=next((each for each in methods if each == method), _auth_method(server, made.client_secret)),
        )

    async def _tokens(self, endpoint: str, client: RegisteredClient, form: Mapping[str, str]) -> _Tokens:
        """Raises _GrantEnded if the server does not accept the code or the refresh token."""
        status, body = await self._post_form(endpoint, client, form)
        if status in {400, 401, 403}:
            raise _GrantEnded(f"the authorization server says: {_reason(status, body)}.")
        if status != 200:
            raise AuthorizationFailed(f"The authorization server answered {_reason(status, body)}. Try again.")
        tokens = _decoded(body, _Tokens, endpoint)
        if tokens.token_type.lower() != "bearer" or not _is_header_value(tokens.access_token):
            raise AuthorizationFailed("The authorization server gave a token of an unknown kind.")
        return tokens

    async def _post_form(self, endpoint: str, client: RegisteredClient, form: Mapping[str, str]) -> tuple[int, bytes]:
        headers: dict[str, str] = {}
        sent = dict(form)
        if client.auth_method == "client_secret_basic" and client.client_secret is not None:
            name, secret = quote(client.client_id, ""), quote(client.client_secret, "")
            headers["authorization"] = aiohttp.encode_basic_auth(name, secret)
        else:
            sent["client_id"] = client.client_id
            if client.client_secret is not None:
                sent["client_secret"] = client.client_secret
        status, _, body = await self._send("POST", endpoint, headers=headers, data=sent)
        return status, body

    async def _document(self, url: str, kind: type[Found]) -> Found | None:
        """A metadata document; None if there is none at this address."""
        status, _, body = await self._send("GET", url)
        if status != 200:
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError:
            return None

    async def _send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **body: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of one answer. Raises AuthorizationFailed if there is none, AddressRefused."""
        self._check_endpoint(url)
        target = self._guard.check_url(url)
        sent = {"accept": "application/json", **(headers or {})}
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._open_http().request(method, target, headers=sent, allow_redirects=False, **body) as response,
            ):
                if "text/event-stream" in response.headers.get("content-type", ""):
                    return response.status, response.headers, b""  # an answer of MCP, which may never end
                content, is_cut = await read_response(response)
        except (aiohttp.ClientError, OSError) as exc:  # TimeoutError is an OSError
            words = "no answer in time" if isinstance(exc, TimeoutError) else failure_words(exc)
            raise AuthorizationFailed(f"{_origin(url)} cannot be reached: {words}.") from exc
        if is_cut or len(content) > ANSWER_BYTES:
            raise AuthorizationFailed(f"{_origin(url)} answered with too much data.")
        return response.status, response.headers, content

    def _open_http(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = open_session(self._guard)
        return self._http

    def _check_endpoint(self, address: str) -> None:
        """Raises AuthorizationFailed for an address to which no secret may go."""
        url = self._guard.check_url(address)
        if url.scheme != "https" and not self._guard.allows_private:
            raise AuthorizationFailed(f"{address[:300]!r} is not over TLS, so no token may go there.")

    def _grant(self, connection: McpConnection) -> TokenGrant | None:
        """Raises SecretUnreadable."""
        if connection.sealed is None:
            return None
        return msgspec.json.decode(self._vault.open(connection.org_id, connection.sealed), type=TokenGrant)

    def _sealed(self, connection: McpConnection, grant: TokenGrant) -> str:
        return self._vault.seal(connection.org_id, msgspec.json.encode(grant).decode())

    def _end_of(self, tokens: _Tokens) -> int | None:
        return None if tokens.expires_in is None else self._clock() + int(tokens.expires_in * 1000)

    def _ends_soon(self, grant: TokenGrant) -> bool:
        return grant.expires_at is not None and grant.expires_at - self._clock() < EARLY_SECONDS * 1000

    def _has_ended(self, grant: TokenGrant) -> bool:
        return grant.expires_at is not None and grant.expires_at <= self._clock()


class AccessToken:
    """The access token of one connection as this process knows it. The store is asked when it ends or is refused."""

    def __init__(
        self, authorizations: Authorizations, connection: McpConnection, *, clock: Clock = system_clock
    ) -> None:
        self._authorizations = authorizations
        self._connection = connection
        self._clock = clock
        self._renewing = asyncio.Lock()
        self._grant: TokenGrant | None = None

    @property
    def known(self) -> list[str]:
        """The secrets that may occur in an answer."""
        grant = self._grant
        return [] if grant is None else [grant.access_token, *filter(None, [grant.refresh_token])]

    async def current(self, *, refused: str | None = None) -> str:
        """The token to send now; another one than the `refused` one. Raises AuthorizationMissing, AuthorizationFailed,
        SecretUnreadable."""
        async with self._renewing:
            grant = self._grant
            is_fresh = grant is not None and (
                grant.expires_at is None or grant.expires_at - self._clock() > EARLY_SECONDS * 1000
            )
            if grant is None or not is_fresh or grant.access_token == refused:
                grant = self._grant = await self._authorizations.grant_of(self._connection, refused=refused)
            return grant.access_token


class _GrantEnded(AuthorizationFailed):
    """The authorization server does not accept the code or the refresh token any more."""


_AGAIN = "Go back to the form of the agent, and connect the server again."


def _missing(connection: McpConnection | None) -> str:
    if connection is not None and connection.problem is not None:
        return connection.problem
    return "it asks for authorization, and is not connected. An admin can connect it in the form of the agent."


def _agreement_url(attempt: Attempt) -> str:
    query = {
        "response_type": "code",
        "client_id": attempt.client.client_id,
        "redirect_uri": attempt.redirect_uri,
        "state": attempt.state,
        "code_challenge": base64url(hashlib.sha256(attempt.verifier.encode()).digest()),
        "code_challenge_method": "S256",
        "resource": attempt.resource,
        **({} if attempt.scope is None else {"scope": attempt.scope}),
    }
    parts = urlsplit(attempt.server.authorization_endpoint)
    return parts._replace(query="&".join(filter(None, (parts.query, urlencode(query))))).geturl()


def _auth_method(server: AuthorizationServer, secret: str | None) -> AuthMethod:
    if secret is None:
        return "none"
    offered = server.token_endpoint_auth_methods_supported
    if "client_secret_basic" in offered or "client_secret_post" not in offered:
        return "client_secret_basic"
    return "client_secret_post"


def _with_offline_access(scope: str | None, server: AuthorizationServer) -> str | None:
    """Many servers give a refresh token only to those who ask for this scope."""
    if scope is None or "offline_access" not in (server.scopes_supported or ()) or "offline_access" in scope.split():
        return scope
    return f"{scope} offline_access"


def _parameters(challenge: str) -> dict[str, str]:
    """The parameters of the header `WWW-Authenticate`."""
    found: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(challenge):
        found.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return found


def _covers(resource: str, url: str) -> bool:
    """Whether the resource is this address or a parent of it, at the same origin."""
    path, inside = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    return _origin(resource) == _origin(url) and (inside == path or inside.startswith(f"{path}/"))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def _decoded(body: bytes, kind: type[Found], url: str) -> Found:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as exc:
        raise AuthorizationFailed(f"{_origin(url)} answered with something else than expected: {exc}.") from exc


def _reason(status: int, body: bytes) -> str:
    """What an error response of OAuth says (RFC 6749), in a few words."""
    try:
        said = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return f"with status {status}"
    words = [str(said[name])[:300] for name in ("error", "error_description") if said.get(name)]
    return ": ".join(words).rstrip(".") or f"with status {status}"


def _is_header_value(text: str) -> bool:
    return re.fullmatch(r"[\x21-\x7e]+", text) is not None
