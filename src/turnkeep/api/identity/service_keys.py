"""Service keys, the local key in the data directory, and sign-in links.

A service key is shown once and stored as a hash. A new key is never allowed more than the key that made it.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from turnkeep.api.identity.authentication import hash_key, live_key
from turnkeep.clock import Clock, system_clock
from turnkeep.config import Settings
from turnkeep.errors import Forbidden, NotFound, OutOfScope
from turnkeep.ids import KeyId, OrgId, WorkspaceId, new_key_id
from turnkeep.model.principals import LIMITS, ApiKey, Org, Principal, Scopes, Workspace
from turnkeep.secret_files import SECRET_KEYS, kept, make_folder, signing_secrets, write_once
from turnkeep.signed_values import SigningKeys
from turnkeep.store.ports import DirectoryStore
from turnkeep_client import wire

__all__ = [
    "LOCAL_KEY",
    "SECRET_KEYS",
    "SigninLinks",
    "check_unlimited",
    "local_key",
    "make_folder",
    "make_key",
    "make_org",
    "narrowed",
    "new_service_key",
    "signing_secrets",
    "within_limits_of",
]

FIRST_KEY = "first key"
LOCAL_KEY = "local.key"
SIGNIN = "signin"
SIGNIN_SECONDS = 24 * 3600
TAKEN_BACK = ".taken-back"


def new_service_key() -> str:
    """`tk_` and 32 random bytes."""
    return "tk_" + secrets.token_urlsafe(32)


def local_key(data_dir: Path) -> str:
    """The service key of this data directory, made on first use."""
    return kept(data_dir / LOCAL_KEY, new_service_key())


async def make_key(
    store: DirectoryStore,
    org_id: OrgId,
    asked: wire.NewKey,
    *,
    workspace_id: WorkspaceId | None = None,
    ancestors: tuple[KeyId, ...] = (),
) -> tuple[ApiKey, str]:
    """A new key of the org, or of one workspace of it, and its secret. Its messages count for `ancestors` too."""
    secret = new_service_key()
    key = ApiKey(
        id=new_key_id(),
        org_id=org_id,
        workspace_id=workspace_id,
        name=asked.name,
        **{name: getattr(asked, name) for name in LIMITS},
        requests_per_minute=asked.requests_per_minute,
        allowed_tools=None if asked.allowed_tools is None else tuple(asked.allowed_tools),
        created_at=system_clock(),
        revoked_at=None,
        scopes=asked.scopes,
        ancestors=ancestors,
    )
    await store.add_key(key, hash_key(secret))
    return key, secret


async def make_org(store: DirectoryStore, name: str) -> tuple[Org, Workspace, str]:
    """A tenant with its default workspace and its first service key."""
    org, workspace = await store.create_org(name)
    _, secret = await make_key(store, org.id, wire.NewKey(name=FIRST_KEY))
    return org, workspace, secret


async def within_limits_of(store: DirectoryStore, maker: Principal, asked: wire.NewKey) -> wire.NewKey:
    """The requested key, with the limits of the maker's own key where the request names none.

    The own key is the key of the request, or the key that made its token. Raises Forbidden for a request that asks for
    more than the own key may.
    """
    if maker.key_id is None:
        return asked
    own = await live_key(store, maker.org_id, maker.key_id)
    if own is None:
        raise NotFound("Your own key is gone.")
    return msgspec.structs.replace(
        asked,
        allowed_tools=_tools(maker, asked.allowed_tools),
        scopes=narrowed(maker.scopes, asked.scopes),
        **{name: _limit(name, getattr(own, name), getattr(asked, name)) for name in (*LIMITS, "requests_per_minute")},
    )


async def check_unlimited(store: DirectoryStore, maker: Principal, *, wish: Literal["invite", "make admins"]) -> None:
    """Raises Forbidden for a caller whose own key has limits: what it makes here would not have them."""
    if maker.key_id is None and maker.scopes is None:
        return
    own = None if maker.key_id is None else await live_key(store, maker.org_id, maker.key_id)
    bounds = (*LIMITS, "requests_per_minute", "allowed_tools", "scopes")
    if own is None or maker.scopes is not None or any(getattr(own, bound) is not None for bound in bounds):
        raise Forbidden(f"A key with limits, allowed tools or scopes cannot {wish}. Use a key without, or the page.")


def narrowed(own: Scopes | None, asked: Scopes | None) -> Scopes | None:
    """The requested scopes, or the own ones where the request names none. Raises OutOfScope for wider ones."""
    if own is None or asked is None:
        return asked or own
    _check_narrower("agents", own.agents, asked.agents)
    _check_narrower("models", own.models, asked.models)
    _check_narrower("features", own.features, asked.features)
    return asked


def _check_narrower(field: str, own: tuple[str, ...] | str, asked: tuple[str, ...] | str) -> None:
    if own == "*":
        return
    if asked == "*" or not set(asked) <= set(own):
        raise OutOfScope(f"Your own key has the {field} {', '.join(own) or 'none'} in its scopes. Ask for no others.")


def _tools(maker: Principal, asked: list[str] | None) -> list[str] | None:
    own = maker.allowed_tools
    if own is None:
        return asked
    if asked is None:
        return list(own)
    for name in asked:
        if not maker.may_use(name):
            raise Forbidden(f"Your own key may not use the tool {name!r}. It may use: {', '.join(own) or 'none'}.")
    return asked


def _limit(field: str, own: float | None, asked: float | None) -> float | None:
    if own is None:
        return asked
    if asked is not None and asked > own:
        raise Forbidden(f"Your own key has a `{field}` of {own}, so it can make no key with {asked}.")
    return own if asked is None else asked


class SigninLinks:
    """Tokens that sign a browser in until they expire. They are signed, so that every server with the same secrets
    accepts them. The server that made one can take it back, for all that share its data directory."""

    def __init__(self, data_dir: Path, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        self._folder = data_dir / SIGNIN
        self._keys = SigningKeys(secrets, purpose="sign-in links")
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.data_dir, signing_secrets(settings))

    def make(self, *, seconds: float = SIGNIN_SECONDS) -> str:
        expires_at = self._clock() + int(seconds * 1000)
        signed = f"{secrets.token_urlsafe(16)}.{expires_at}"
        token = f"{signed}.{self._keys.sign(signed.encode())}"
        write_once(self._file(token), str(expires_at))
        return token

    def admits(self, token: str) -> bool:
        """Whether the token is valid and has not expired. It can be used again: people open a link twice."""
        signed, _, signature = token.rpartition(".")
        if not self._keys.is_signed(signed.encode("utf-8", "replace"), signature):
            return False
        return self._clock() < int(signed.rpartition(".")[2]) and not self._file(token).with_suffix(TAKEN_BACK).exists()

    def forget_all(self) -> None:
        """Make all links of this server invalid. It does this when it starts, before it prints a new link."""
        for file in self._folder.glob("*") if self._folder.is_dir() else ():
            if self._has_expired(file):
                file.unlink(missing_ok=True)
            else:
                file.replace(file.with_suffix(TAKEN_BACK))

    def _has_expired(self, file: Path) -> bool:
        try:
            return self._clock() >= int(file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return True

    def _file(self, token: str) -> Path:
        return self._folder / hash_key(token).hex()
