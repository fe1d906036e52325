"""Authentication: who calls, by service key, user token, or the cookie of the bundled page; and which endpoints accept
which callers.

A service key is looked up by its hash. Two keys have no row: the operator's bootstrap key and the local key of the data
directory. Both act for the first org, as long as they are configured. A `Policy` decides who may call an endpoint.
Which rows the caller then sees is decided by the store.

An identity takes several reads of the store. It is remembered for a moment, so most requests of a busy caller need none
(`IdentityCache`). So is the key that made a token, because many tokens have the same one.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from starlette.datastructures import Headers

from turnkeep.api.http.requests import known_id
from turnkeep.api.identity.tokens import USER_TOKEN, Claims, UserTokens
from turnkeep.clock import system_clock
from turnkeep.errors import Forbidden, InvalidRequest, NotFound, OutOfScope, Unauthorized
from turnkeep.ids import AgentId, KeyId, OrgId, WorkspaceId
from turnkeep.model.principals import ApiKey, Feature, Member, Principal, Workspace
from turnkeep.model.sessions import PageSession, SignedIn
from turnkeep.store.ports import DirectoryStore, Store
from turnkeep_client.wire.account import TurnSource

COOKIE = "turnkeep_session"
COOKIE_CHARS = 4_096
PAGE_COOKIE = "tkp_"
"""How the value of that cookie begins."""
INVITE = "tki_"
"""How the secret of an invite begins."""
SHARE = "tks_"
"""How the token of a share link begins."""
USE_SECONDS = 300
"""How exact the time of the last use of a session is: noting it costs a write."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
USER_CHARS = 255
IDENTITIES_REMEMBERED = 10_000
IDENTITY_SECONDS = 0.5
"""How long an identity, and the key of a token, is used without a look at the store. Another worker that revokes a key
or disables a user is obeyed here after twice this time, one second, at the latest."""

_KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "token", "access_token", "authorization"})


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated caller: its principal, and whether it is a page that users see (`ui`) or another client
    (`api`)."""

    principal: Principal
    source: TurnSource = "api"
    rates: tuple[tuple[KeyId, int], ...] = ()
    """How many requests a minute the key and its ancestors may make, those of them that have such a limit."""
    workspace: Workspace | None = None
    """The workspace as it was read to identify the caller, if it was read."""
    is_operator: bool = False
    """The key comes from the server's own configuration (the local key, the bootstrap key). It may manage tenants."""
    session: PageSession | None = None
    """The session of a browser on the bundled page."""
    expires_at: int | None = None
    """When the token or the session of the caller ends; None for a key."""


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


class KnownKey(Struct, frozen=True, kw_only=True):
    """A key that is not revoked, and the limits of requests that hold for it (`Identity.rates`)."""

    key: ApiKey
    rates: tuple[tuple[KeyId, int], ...]


Known = TypeVar("Known")


class IdentityCache(Generic[Known]):
    """Identities or keys as they were read a moment ago, by what the caller has shown.

    `forget` is called after every request to this worker that may have changed a key, a user or a workspace, so such a
    change counts at once here. Changes that are made elsewhere count when the entry ends, `IDENTITY_SECONDS` after the
    moment before it was read. What is not valid is not remembered.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[Hashable, tuple[float, Known]] = {}
        self._changes = 0

    async def find(self, shown: Hashable, read: Callable[[], Awaitable[Known]]) -> Known:
        """The identity or key for this; `read` reads it from the store, if it is not known."""
        now = self._now()
        entry = self._entries.get(shown)
        if entry is not None and now < entry[0]:
            return entry[1]
        changes = self._changes
        found = await read()
        if changes == self._changes:  # else it may have been read before the change
            if len(self._entries) >= IDENTITIES_REMEMBERED:
                self._entries.clear()
            self._entries[shown] = (now + IDENTITY_SECONDS, found)
        return found

    def forget(self) -> None:
        """Read everything anew."""
        self._changes += 1
        self._entries.clear()


class Authenticator:
    """Finds the identity of a caller, or raises Unauthorized."""

    def __init__(
        self,
        store: Store,
        tokens: UserTokens,
        *,
        home_org: OrgId,
        standing_keys: Sequence[str] = (),
        public_url: str | None = None,
    ) -> None:
        self._identities: IdentityCache[Identity] = IdentityCache()
        self._keys: IdentityCache[KnownKey] = IdentityCache()
        self._store = store
        self._tokens = tokens
        self._home_org = home_org
        self._public_url = public_url
        self._standing = frozenset(hash_key(key) for key in standing_keys)

    def forget(self) -> None:
        """A key, a user or a workspace may have changed: read every identity anew."""
        self._identities.forget()
        self._keys.forget()

    async def identify(self, method: str, headers: Headers) -> Identity:
        """Raises Unauthorized without a valid key, NotFound for a workspace that the caller has no access to."""
        header = headers.get("authorization")
        if header is not None:
            scheme, _, secret = header.partition(" ")
            secret = secret.strip()
            if scheme.lower() != "bearer" or not secret:
                raise Unauthorized("Send the key as `Authorization: Bearer …`.")
            if secret.startswith(USER_TOKEN):
                return await self._user(self._tokens.verify(secret), headers)
            return await self._service(secret, headers)
        if cookie := cookie_of(headers, COOKIE):
            return await self._page(cookie, method, headers)
        raise Unauthorized("This needs a key. Send it as `Authorization: Bearer …`.")

    async def _service(self, secret: str, headers: Headers) -> Identity:
        hashed, asked_for, user = hash_key(secret), headers.get("turnkeep-workspace"), headers.get("turnkeep-user")
        return await self._identities.find(
            (hashed, asked_for, user), lambda: self._service_identity(hashed, asked_for=asked_for, user=user)
        )

    async def _service_identity(self, hashed: bytes, *, asked_for: str | None, user: str | None) -> Identity:
        is_operator = hashed in self._standing
        key = None if is_operator else await self._store.key_by_hash(hashed)
        if key is None and not is_operator:
            raise Unauthorized("This key is not valid. It may have been revoked.")
        org_id = self._home_org if key is None else key.org_id
        pinned_to = None if key is None else key.workspace_id
        workspace_id = pinned_to if asked_for is None else WorkspaceId(known_id(asked_for, "ws"))
        if pinned_to is not None and workspace_id != pinned_to:
            raise NotFound("No such workspace.")
        workspace = await self._store.workspace(org_id, workspace_id)
        member = None if user is None else await self._member(org_id, workspace.id, header_text(user))
        principal = Principal(
            org_id=org_id,
            workspace_id=workspace.id,
            user_id=None if member is None else member.id,
            role="service",
            user=None if member is None else member.shown,
            is_pinned=pinned_to is not None,
            **({} if key is None else _bounds(key)),
            scopes=None if key is None else key.scopes,
        )
        return Identity(
            principal=principal,
            rates=() if key is None else await self._rates(key),
            workspace=workspace,
            is_operator=is_operator,
        )

    async def _user(self, claims: Claims, headers: Headers) -> Identity:
        _check_user_headers(headers, claims.ws)
        return await self._identities.find(claims, lambda: self._user_identity(claims))

    async def _user_identity(self, claims: Claims) -> Identity:
        try:
            workspace = await self._store.workspace(claims.org, claims.ws)
        except NotFound as exc:
            raise Unauthorized("The workspace of this token is gone.") from exc
        member = next(iter(await self._store.members_by_id(claims.org, [claims.user])), None)
        if member is None or member.workspace_id != claims.ws:
            raise Unauthorized("The user of this token is gone.")
        check_enabled(member)
        known = None if claims.key is None else await self._known_key(claims.org, claims.key)
        principal = Principal(
            org_id=claims.org,
            workspace_id=claims.ws,
            user_id=claims.user,
            # A user who is not an admin any more loses the rights of the tokens made before, too.
            role=claims.role if member.role == "admin" else "member",
            user=member.shown,
            **({} if known is None else _bounds(known.key)),
            scopes=claims.scopes,
        )
        rates = () if known is None else known.rates
        return Identity(principal=principal, source=claims.src, rates=rates, workspace=workspace, expires_at=claims.exp)

    async def _page(self, cookie: str, method: str, headers: Headers) -> Identity:
        found = await self._store.signed_in(hash_key(cookie))
        if found is None:
            raise Unauthorized("Your session has ended. Sign in again.")
        if method not in SAFE_METHODS:
            check_origin(headers, self._public_url)
        session, member, workspace = found.session, found.member, found.workspace
        _check_user_headers(headers, workspace.id)
        check_enabled(member)
        if system_clock() - session.last_used_at > USE_SECONDS * 1000:
            await self._store.use_session(session.id)
        return Identity(
            principal=page_principal(found),
            source="ui",
            workspace=workspace,
            session=session,
            expires_at=session.expires_at,
        )

    async def _known_key(self, org_id: OrgId, key_id: KeyId) -> KnownKey:
        """The key that made a token. Raises Unauthorized if it is revoked or gone."""

        async def read() -> KnownKey:
            key = await live_key(self._store, org_id, key_id)
            if key is None:
                raise Unauthorized("The key that made this token was revoked. Ask for a new token.")
            return KnownKey(key=key, rates=await self._rates(key))

        return await self._keys.find((org_id, key_id), read)

    async def _rates(self, key: ApiKey) -> tuple[tuple[KeyId, int], ...]:
        """The limits of requests that hold for this key: its own, and those of the keys that made it."""
        makers = await self._store.keys_by_id(key.org_id, key.ancestors) if key.ancestors else []
        found = {each.id: each.requests_per_minute for each in (key, *makers)}
        return tuple((key_id, rate) for key_id, rate in found.items() if rate is not None)

    async def _member(self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str) -> Member:
        """The user with this id of the host, created if it is new. Raises Forbidden if the user is disabled."""
        member = await self._store.member_of_host(org_id, workspace_id, external_id)
        if member is None:
            member = await self._store.ensure_member(org_id, workspace_id, external_id)
        check_enabled(member)
        return member


def page_principal(found: SignedIn) -> Principal:
    """The user of a session of the page."""
    member, workspace = found.member, found.workspace
    return Principal(
        org_id=workspace.org_id,
        workspace_id=workspace.id,
        user_id=member.id,
        role=member.role,
        user=member.shown,
    )


def _check_user_headers(headers: Headers, workspace_id: WorkspaceId) -> None:
    """A user acts for no other user, in no other workspace."""
    if "turnkeep-user" in headers:
        raise Forbidden("Only a service key may act for a user. This token speaks for its own user.")
    if headers.get("turnkeep-workspace", workspace_id) != workspace_id:
        raise NotFound("No such workspace.")


async def live_key(store: DirectoryStore, org_id: OrgId, key_id: KeyId) -> ApiKey | None:
    """The key with this id; None if it is revoked or gone."""
    found = await store.keys_by_id(org_id, [key_id])
    return next((key for key in found if key.revoked_at is None), None)


def _bounds(key: ApiKey) -> dict[str, Any]:
    """What a principal takes over from the key that it came with, or that made its token."""
    return {"key_id": key.id, "allowed_tools": key.allowed_tools, "key_ancestors": key.ancestors}


def check_enabled(member: Member) -> None:
    """Raises Forbidden for a disabled user."""
    if member.is_disabled:
        raise Forbidden("This user is disabled. An admin of the workspace can enable them again.")


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


def check_scopes(policy: Policy, feature: Feature | None, identity: Identity, *, agent_id: str | None = None) -> None:
    """Raises NotFound for an agent of the path that is outside the scopes, OutOfScope for anything else outside.

    Scopes leave out what only admins and service keys may, unless it belongs to a feature that they name.
    """
    principal = identity.principal
    if principal.scopes is None:
        return
    if agent_id is not None:
        principal.check_agent(AgentId(agent_id))
    if feature is not None:
        principal.check_feature(feature)
    elif policy in {Policy.ADMIN, Policy.SERVICE, Policy.OPERATOR}:
        raise OutOfScope("A token or key with scopes cannot do this. It needs one without scopes.")


def hash_key(key: str) -> bytes:
    """The stored form of a key. A key is random and long, so a plain hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def refuse_key_in_query(query_string: bytes) -> None:
    """Raises Unauthorized for a key in the query, even a valid one: addresses end up in logs and browser histories."""
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name.lower() in _KEY_NAMES or value.startswith(("tk_", USER_TOKEN, PAGE_COOKIE, INVITE, SHARE)):
            raise Unauthorized("A key does not belong into a query string. Send it as `Authorization: Bearer …`.")


def check_origin(headers: Headers, public_url: str | None) -> None:
    """Raises Forbidden unless the request comes from the bundled page, which has the public address, or that of Host.

    The browser adds its cookie to requests of any page, and says in `Origin` which page it was.
    """
    host = headers.get("host", "").lower()
    origins = {f"http://{host}", f"https://{host}"} if host else set()
    if public_url:
        parts = urlsplit(public_url)
        origins.add(f"{parts.scheme}://{parts.netloc}".lower())
    if headers.get("origin", "").lower() not in origins:
        raise Forbidden("With the page's cookie only the page itself may change things (Origin does not match).")


def header_text(value: str) -> str:
    """The value of a header as text: clients send UTF-8, which HTTP libraries hand over as Latin-1."""
    try:
        text = value.encode("latin-1").decode("utf-8").strip()
    except (UnicodeDecodeError, UnicodeEncodeError) as exc:
        raise InvalidRequest("A header holds bytes that are not UTF-8.") from exc
    if not text or len(text) > USER_CHARS:
        raise InvalidRequest(f"A name in a header must have 1 to {USER_CHARS} characters.")
    return text


def cookie_of(headers: Headers, wanted: str) -> str | None:
    """A cookie of ours, found by splitting: it has no quotes, and `http.cookies` needs quadratic time for cookies of
    others. A value that is too long to be ours is ignored."""
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == wanted:
            value = value.strip()
            return value if 0 < len(value) <= COOKIE_CHARS else None
    return None
