"""Authentication: who calls, by service key, user token, or the cookie of the bundled page; and which endpoints accept
which callers.

A service key is looked up by its hash. Two keys have no row: the operator's bootstrap key and the local key of the data
directory. Both act for the first org, as long as they are configured. A `Policy` decides who may call an endpoint.
Which rows the caller then sees is decided by the store.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from starlette.datastructures import Headers

from turnkeep.api.http.requests import known_id
from turnkeep.api.identity.tokens import PAGE_COOKIE, USER_TOKEN, Claims, UserTokens
from turnkeep.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from turnkeep.ids import KeyId, OrgId, UserId, WorkspaceId
from turnkeep.model.principals import Principal, Workspace
from turnkeep.store.ports import DirectoryStore
from turnkeep_client.wire.conversations import TurnSource

COOKIE = "turnkeep_session"
COOKIE_SECONDS = 7 * 24 * 3600
COOKIE_CHARS = 4_096
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
USER_CHARS = 255
MEMBERS_REMEMBERED = 10_000

_KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "token", "access_token", "authorization"})


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated caller: its principal, and whether it is the bundled page (`ui`) or another client (`api`)."""

    principal: Principal
    source: TurnSource = "api"
    requests_per_minute: int | None = None
    workspace: Workspace | None = None
    """The workspace as it was read to identify the caller, if it was read."""
    is_operator: bool = False
    """The key comes from the server's own configuration (the local key, the bootstrap key). It may manage tenants."""


class Policy(StrEnum):
    """Who may call an endpoint."""

    PUBLIC = "public"
    """Anybody, without a key."""
    MEMBER = "member"
    """A user of the workspace, or a service key."""
    ADMIN = "admin"
    """An admin of the workspace, or a service key."""
    KEY = "key"
    """A service key, also one that is pinned to a workspace."""
    SERVICE = "service"
    """A service key of the whole org."""
    OPERATOR = "operator"
    """The operator's own service key: the local one, or the bootstrap key."""
    TURN = "turn"
    """The sandbox of the turn in the path, with a token of that turn. The handler checks the token."""
    SIGNED = "signed"
    """A caller with an address that this server signed. The handler checks the signature."""

    @property
    def identifies(self) -> bool:
        """Whether a key or a token names the caller before the handler runs."""
        return self not in {Policy.PUBLIC, Policy.TURN, Policy.SIGNED}


class Authenticator:
    """Finds the identity of a caller, or raises Unauthorized."""

    def __init__(
        self,
        store: DirectoryStore,
        tokens: UserTokens,
        *,
        home_org: OrgId,
        standing_keys: Sequence[str] = (),
        public_url: str | None = None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._home_org = home_org
        self._public_url = public_url
        self._standing = frozenset(hash_key(key) for key in standing_keys)
        self._members: OrderedDict[tuple[WorkspaceId, str], UserId] = OrderedDict()
        self._key_tools: OrderedDict[KeyId, tuple[str, ...] | None] = OrderedDict()

    async def identify(self, method: str, headers: Headers) -> Identity:
        """Raises Unauthorized without a valid key, NotFound for a workspace that the caller has no access to."""
        header = headers.get("authorization")
        if header is not None:
            scheme, _, secret = header.partition(" ")
            secret = secret.strip()
            if scheme.lower() != "bearer" or not secret:
                raise Unauthorized("Send the key as `Authorization: Bearer …`.")
            if secret.startswith(USER_TOKEN):
                return await self._user(self._tokens.verify(USER_TOKEN, secret), headers)
            return await self._service(secret, headers)
        if cookie := _cookie(headers):
            return await self._page(cookie, method, headers)
        raise Unauthorized("This needs a key. Send it as `Authorization: Bearer …`.")

    async def _service(self, secret: str, headers: Headers) -> Identity:
        hashed = hash_key(secret)
        org_id: OrgId
        key_id: KeyId | None = None
        requests_per_minute: int | None = None
        allowed_tools: tuple[str, ...] | None = None
        pinned_to: WorkspaceId | None = None
        if hashed in self._standing:
            org_id = self._home_org
        else:
            key = await self._store.key_by_hash(hashed)
            if key is None:
                raise Unauthorized("This key is not valid. It may have been revoked.")
            org_id, key_id, requests_per_minute = key.org_id, key.id, key.requests_per_minute
            allowed_tools, pinned_to = key.allowed_tools, key.workspace_id
        asked_for = headers.get("turnkeep-workspace")
        workspace_id = pinned_to if asked_for is None else WorkspaceId(known_id(asked_for, "ws"))
        if pinned_to is not None and workspace_id != pinned_to:
            raise NotFound("No such workspace.")
        workspace = await self._store.workspace(org_id, workspace_id)
        user = headers.get("turnkeep-user")
        user_id = None if user is None else await self.member_id(org_id, workspace.id, header_text(user))
        principal = Principal(
            org_id=org_id,
            workspace_id=workspace.id,
            user_id=user_id,
            role="service",
            key_id=key_id,
            allowed_tools=allowed_tools,
            is_pinned=pinned_to is not None,
        )
        return Identity(
            principal=principal,
            requests_per_minute=requests_per_minute,
            workspace=workspace,
            is_operator=hashed in self._standing,
        )

    async def _user(self, claims: Claims, headers: Headers) -> Identity:
        if "turnkeep-user" in headers:
            raise Forbidden("Only a service key may act for a user. This token speaks for its own user.")
        if headers.get("turnkeep-workspace", claims.ws) != claims.ws:
            raise NotFound("No such workspace.")
        try:
            workspace = await self._store.workspace(claims.org, claims.ws)
        except NotFound as exc:
            raise Unauthorized("The workspace of this token is gone.") from exc
        principal = Principal(
            org_id=claims.org,
            workspace_id=claims.ws,
            user_id=claims.user,
            role=claims.role,
            key_id=claims.key,
            allowed_tools=None if claims.key is None else await self._tools_of_key(claims.org, claims.key),
        )
        return Identity(principal=principal, requests_per_minute=claims.rpm, workspace=workspace)

    async def _page(self, cookie: str, method: str, headers: Headers) -> Identity:
        claims = self._tokens.verify(PAGE_COOKIE, cookie)
        origin = headers.get("origin", "").lower()
        if method not in SAFE_METHODS and origin not in page_origins(headers, self._public_url):
            raise Forbidden("With the page's cookie only the page itself may change things (Origin does not match).")
        identity = await self._user(claims, headers)
        return Identity(principal=identity.principal, source="ui", workspace=identity.workspace)

    async def _tools_of_key(self, org_id: OrgId, key_id: KeyId) -> tuple[str, ...] | None:
        """The tools that the key behind a token allows; none for an unknown key. Cached, because they never change."""
        if key_id not in self._key_tools:
            tools = {key.id: key.allowed_tools for key in await self._store.keys(org_id)}
            self._key_tools[key_id] = tools.get(key_id, ())
            if len(self._key_tools) > MEMBERS_REMEMBERED:
                self._key_tools.popitem(last=False)
        return self._key_tools[key_id]

    async def member_id(self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str) -> UserId:
        """The id of the user with this name of the host, created if it is new. Ids never change, so they are cached."""
        known = self._members.get((workspace_id, external_id))
        if known is not None:
            self._members.move_to_end((workspace_id, external_id))
            return known
        member = await self._store.ensure_member(org_id, workspace_id, external_id)
        self._members[workspace_id, external_id] = member.id
        if len(self._members) > MEMBERS_REMEMBERED:
            self._members.popitem(last=False)
        return member.id


def check_policy(policy: Policy, identity: Identity) -> None:
    """Raises Forbidden unless the caller's role is allowed."""
    principal = identity.principal
    match policy:
        case Policy.OPERATOR if not identity.is_operator:
            raise Forbidden("This needs the operator's own key: the local one, or TURNKEEP_BOOTSTRAP_KEY.")
        case Policy.KEY if principal.role != "service":
            raise Forbidden("This needs a service key.")
        case Policy.SERVICE if not principal.is_org_wide:
            raise Forbidden("This needs a service key of the whole org.")
        case Policy.ADMIN if principal.role == "member":
            raise Forbidden("This needs an admin of the workspace, or a service key.")
        case _:
            return


def hash_key(key: str) -> bytes:
    """The stored form of a key. A key is random and long, so a plain hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def refuse_key_in_query(query_string: bytes) -> None:
    """Raises Unauthorized for a key in the query, even a valid one: addresses end up in logs and browser histories."""
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name.lower() in _KEY_NAMES or value.startswith(("tk_", USER_TOKEN, PAGE_COOKIE)):
            raise Unauthorized("A key does not belong into a query string. Send it as `Authorization: Bearer …`.")


def page_origins(headers: Headers, public_url: str | None) -> frozenset[str]:
    """The origins of the bundled page: the public address, and the Host of the request."""
    host = headers.get("host", "").lower()
    origins = {f"http://{host}", f"https://{host}"} if host else set()
    if public_url:
        parts = urlsplit(public_url)
        origins.add(f"{parts.scheme}://{parts.netloc}".lower())
    return frozenset(origins)


def header_text(value: str) -> str:
    """The value of a header as text: clients send UTF-8, which HTTP libraries hand over as Latin-1."""
    try:
        text = value.encode("latin-1").decode("utf-8").strip()
    except (UnicodeDecodeError, UnicodeEncodeError) as exc:
        raise InvalidRequest("A header holds bytes that are not UTF-8.") from exc
    if not text or len(text) > USER_CHARS:
        raise InvalidRequest(f"A name in a header must have 1 to {USER_CHARS} characters.")
    return text


def _cookie(headers: Headers) -> str | None:
    """The cookie of the bundled page, found by splitting: it has no quotes, and `http.cookies` needs quadratic time for
    cookies of others. A value that is too long to be ours is ignored."""
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == COOKIE:
            value = value.strip()
            return value if len(value) <= COOKIE_CHARS else None
    return None
