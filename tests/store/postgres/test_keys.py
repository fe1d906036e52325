"""Keys that are made and revoked by two sessions at the same moment."""

import asyncio
import secrets

import asyncpg
import pytest

from tests.store.factories import Tenant, a_key
from turnkeep.errors import Forbidden
from turnkeep.model.principals import ApiKey
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.database import Statements
from turnkeep.store.rules.directory import key_record

Family = tuple[ApiKey, ApiKey]


@pytest.fixture
async def family(store: PostgresStore, tenant: Tenant) -> Family:
    """A key, and one that it made."""
    first = a_key(tenant.org)
    second = a_key(tenant.org, ancestors=(first.id,))
    for key in (first, second):
        await store.add_key(key, secrets.token_bytes(32))
    return first, second


async def a_session_waits(uri: str) -> None:
    """Until a session waits for another one."""
    connection = await asyncpg.connect(uri)
    try:
        async with asyncio.timeout(60):
            while not await connection.fetchval("SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_a_key_that_is_being_made_ends_with_the_maker_of_its_maker(
    store: PostgresStore, uri: str, tenant: Tenant, family: Family
) -> None:
    first, second = family
    third, secret = a_key(tenant.org, ancestors=(second.id, first.id)), secrets.token_bytes(32)
    made, over = asyncio.Event(), asyncio.Event()

    async def make(statements: Statements) -> None:
        assert await statements.fetch("insert_key", *key_record(third, secret).values())
        made.set()
        await over.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store._database.transact(make))
        await made.wait()
        tasks.create_task(store.revoke_key(tenant.org.id, first.id))
        await a_session_waits(uri)
        over.set()
    assert await store.key_by_hash(secret) is None


async def test_no_key_is_made_while_the_maker_of_its_maker_is_being_revoked(
    store: PostgresStore, uri: str, tenant: Tenant, family: Family
) -> None:
    first, second = family
    third, secret = a_key(tenant.org, ancestors=(second.id, first.id)), secrets.token_bytes(32)
    revoked, over = asyncio.Event(), asyncio.Event()

    async def revoke(statements: Statements) -> None:
        assert await statements.fetch("revoke_key", tenant.org.id, first.id, None)
        revoked.set()
        await over.wait()
        await statements.fetch("revoke_made_keys", tenant.org.id, first.id)

    revoking = asyncio.create_task(store._database.transact(revoke))
    await revoked.wait()
    making = asyncio.create_task(store.add_key(third, secret))
    waiting = asyncio.create_task(a_session_waits(uri))
    await asyncio.wait([making, waiting], return_when=asyncio.FIRST_COMPLETED)
    over.set()
    await revoking
    with pytest.raises(Forbidden, match="revoked"):
        await making
    await waiting
    assert await store.key_by_hash(secret) is None
