"""A migrated database of its own for each test, copied from a template that is migrated once."""

import itertools
from collections.abc import AsyncIterator

import pytest

from tests import servers
from tests.store.databases import CLIENT_PASSWORD, make_postgres_database
from tests.store.factories import Tenant, a_tenant
from turnkeep.store.postgres import PostgresStore

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def template() -> str:
    """The name of a migrated database to which nobody is connected."""
    make_postgres_database("template")
    return servers.of_this_worker("template")


@pytest.fixture
async def uri(template: str) -> AsyncIterator[str]:
    name = f"{servers.of_this_worker('pg')}_{next(_numbers)}"
    yield await servers.create_database(servers.shared_postgres_uri(), name, template)
    await servers.drop_database(servers.shared_postgres_uri(), name)


@pytest.fixture
async def store(uri: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
    yield opened
    await opened.close()


@pytest.fixture
async def tenant(store: PostgresStore) -> Tenant:
    return await a_tenant(store)
