"""Making a service key: the secret is shown once, its hash is stored, and it is no freer than its maker."""

import msgspec

from turnkeep.api import wire
from turnkeep.api.identity.service_keys import hash_key, new_service_key
from turnkeep.clock import system_clock
from turnkeep.errors import Forbidden, NotFound
from turnkeep.ids import OrgId, WorkspaceId, new_key_id
from turnkeep.model.principals import ApiKey, Org, Principal, Workspace
from turnkeep.store.ports import DirectoryStore

FIRST_KEY = "first key"


async def make_key(
    store: DirectoryStore, org_id: OrgId, asked: wire.NewKey, *, workspace_id: WorkspaceId | None = None
) -> tuple[ApiKey, str]:
    """A new key of the org, or of one workspace of it, and its secret."""
    secret = new_service_key()
    key = ApiKey(
        id=new_key_id(),
        org_id=org_id,
        workspace_id=workspace_id,
        name=asked.name,
        monthly_message_limit=asked.monthly_message_limit,
        requests_per_minute=asked.requests_per_minute,
        allowed_tools=None if asked.allowed_tools is None else tuple(asked.allowed_tools),
        created_at=system_clock(),
        revoked_at=None,
    )
    await store.add_key(key, hash_key(secret))
    return key, secret


async def make_org(store: DirectoryStore, name: str) -> tuple[Org, Workspace, str]:
    """A tenant with its default workspace and its first service key."""
    org, workspace = await store.create_org(name)
    _, secret = await make_key(store, org.id, wire.NewKey(name=FIRST_KEY))
    return org, workspace, secret


async def not_freer(store: DirectoryStore, maker: Principal, asked: wire.NewKey) -> wire.NewKey:
    """The key that is asked for, with the limits of the maker's own key where it names none.

    The own key is the one that the maker came with, or that made its token. Raises Forbidden for more than it may.
    """
    if maker.key_id is None:
        return asked
    own = next((key for key in await store.keys(maker.org_id) if key.id == maker.key_id), None)
    if own is None:
        raise NotFound("Your own key is gone.")
    return msgspec.structs.replace(
        asked,
        allowed_tools=_tools(maker, asked.allowed_tools),
        monthly_message_limit=_limit("monthly_message_limit", own.monthly_message_limit, asked.monthly_message_limit),
        requests_per_minute=_limit("requests_per_minute", own.requests_per_minute, asked.requests_per_minute),
    )


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


def _limit(field: str, own: int | None, asked: int | None) -> int | None:
    if own is None:
        return asked
    if asked is not None and asked > own:
        raise Forbidden(f"Your own key has a `{field}` of {own}, so it can make no key with {asked}.")
    return own if asked is None else asked
