"""Making a service key: the secret is shown once, its hash is stored."""

from turnkeep.api import wire
from turnkeep.api.keyfiles import hash_key, new_service_key
from turnkeep.clock import system_clock
from turnkeep.ids import OrgId, new_key_id
from turnkeep.model.principals import ApiKey, Org, Workspace
from turnkeep.store.ports import DirectoryStore

FIRST_KEY = "first key"


async def make_key(store: DirectoryStore, org_id: OrgId, asked: wire.NewKey) -> tuple[ApiKey, str]:
    """A new key of the org, and its secret."""
    secret = new_service_key()
    key = ApiKey(
        id=new_key_id(),
        org_id=org_id,
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
