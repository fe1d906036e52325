"""Connections that fall silent, hosts that are replaced, and databases that take no writes."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.servers import PostgresServer, create_database, execute
from tests.silent_proxy import SilentProxy
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import Tenant, a_claim, a_tenant
from turnkeep.errors import Defect, InvalidRequest, Unavailable
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io import pool
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.pool import Pool, PoolSettings

NAME = "fleet"


def socket_of(uri: str) -> Path:
    query = parse_qs(urlsplit(uri).query)
    return Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}"


def address(uri: str, *proxies: SilentProxy) -> str:
    """The database of this address, through these proxies."""
    parts = urlsplit(uri)
    hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    return f"postgresql://{parts.username}@{hosts}{parts.path}"


def pool_of(url: str, *, size: int = 4, command_seconds: float = 1.0, retry_seconds: float = 20.0) -> Pool:
    settings = PoolSettings(size=size, prepared=True, retry_seconds=retry_seconds, command_seconds=command_seconds)
    return Pool(DatabaseAddress(url), settings)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


@pytest.fixture
async def proxy(uri: str) -> AsyncIterator[SilentProxy]:
    async with SilentProxy(socket_of(uri)) as opened:
        yield opened


class TestASilentConnection:
    async def test_is_replaced_and_so_are_the_others_that_are_idle(self, uri: str, proxy: SilentProxy) -> None:
        connections = pool_of(address(uri, proxy))
        await asyncio.gather(*(connections.fetch("SELECT pg_sleep(0.2)") for _ in range(4)))
        assert (connections.size, proxy.accepted) == (4, 4)
        proxy.fall_silent()
        asked = asyncio.create_task(connections.fetch("SELECT 1"))
        await until(lambda: proxy.accepted > 4)  # the first statement was given up, and a new connection is tried
        assert connections.size <= 2
        proxy.speak_again()
        assert [tuple(row) for row in await asked] == [(1,)]
        await connections.close()

    async def test_is_noticed_by_the_kernel_too(self, uri: str, proxy: SilentProxy) -> None:
        raw = await DatabaseAddress(address(uri, proxy)).connect()
        found = raw._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        await raw.close()

    async def test_in_the_middle_of_a_transaction_holds_its_locks_for_seconds(
        self, uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool, "TRANSACTION_SECONDS", 1)
        connections = pool_of(uri)
        await execute(uri, "CREATE TABLE locked (n int); INSERT INTO locked VALUES (1)")
        begun, over = asyncio.Event(), asyncio.Event()

        async def lock(connection: pool.Connection, _: bool) -> None:
            async with connection.transaction():
                await connection.fetch("UPDATE locked SET n = 2")
                begun.set()
                await over.wait()

        silent = asyncio.create_task(connections.run(lock))
        await begun.wait()
        async with asyncio.timeout(60):
            await execute(uri, "UPDATE locked SET n = 3")
        over.set()
        await silent  # it is repeated
        assert [tuple(row) for row in await connections.fetch("SELECT n FROM locked")] == [(2,)]
        await connections.close()

    async def test_that_takes_too_long_takes_no_other_with_it_if_the_host_answers(self, uri: str) -> None:
        """One statement that is too slow must not disconnect everybody, again and again."""
        connections = pool_of(uri, size=6, command_seconds=4.0, retry_seconds=4.0)
        before = await self.sessions(connections, 6)
        slow = asyncio.create_task(connections.fetch("SELECT pg_sleep(60)"))
        while not slow.done():
            await asyncio.wait([slow], timeout=0.2)
            await connections.fetch("SELECT 1")  # the host answers
        with pytest.raises(Unavailable):
            await slow
        left = before & await self.sessions(connections, 6)
        assert len(left) >= 3, (
            "each of its two tries took one, and the machine may be so busy that another was too slow"
        )
        await connections.close()

    async def sessions(self, connections: Pool, count: int) -> set[int]:
        """Those that serve so many callers at once."""
        asked = (connections.fetch("SELECT pg_backend_pid(), pg_sleep(0.5)") for _ in range(count))
        return {rows[0][0] for rows in await asyncio.gather(*asked)}

    async def test_a_slow_statement_has_more_time(self, uri: str) -> None:
        connections = pool_of(uri, command_seconds=0.3)
        assert await connections.fetch("-- slow\nSELECT pg_sleep(1)")
        await connections.close()


class TestABusyProcess:
    async def test_hears_the_database_before_a_caller_in_the_queue_gives_up(
        self, uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database answered each statement at once. It was the process that took so long."""
        monkeypatch.setattr(pool, "LOOK_SECONDS", 5.0)  # the machine may be busy
        connections = pool_of(uri, size=1, command_seconds=30.0, retry_seconds=0.5)

        async def ask_thrice(connection: pool.Connection, _: bool) -> None:
            for pause_seconds in (0.4, 0.4, 0.4):
                await connection.fetch("SELECT 1")
                time.sleep(pause_seconds)  # nothing else of the process gets on

        asked = connections.run(ask_thrice), connections.fetch("SELECT 2")
        assert [tuple(row) for row in (await asyncio.gather(*asked))[1]] == [(2,)]
        await connections.close()


class TestAPool:
    async def test_closes_what_it_does_not_need(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)
        connections = pool_of(uri)
        await asyncio.gather(*(connections.fetch("SELECT pg_sleep(0.2)") for _ in range(4)))
        assert connections.size == 4
        await until(lambda: connections.size == 1)
        assert await connections.fetch("SELECT 1")
        assert connections.size == 1
        await connections.close()

    async def test_whose_prepared_statements_were_lost_says_what_to_set(self, uri: str) -> None:
        """As behind a pooler that gives each transaction another connection."""
        settings = PoolSettings(size=1, prepared=True, retry_seconds=5.0, command_seconds=5.0)
        opened = Pool(DatabaseAddress(uri), settings)
        try:
            await opened.fetch("SELECT 1")
            await opened.run(lambda connection, _: connection.raw.execute("DEALLOCATE ALL"))
            with pytest.raises(Defect, match="TURNKEEP_DATABASE_PREPARED_STATEMENTS=0"):
                await opened.fetch("SELECT 1")
        finally:
            await opened.close()

    async def test_of_users_has_a_size_of_its_own(self, uri: str) -> None:
        store = await PostgresStore.open(
            uri, client_password=CLIENT_PASSWORD, pool_size=5, client_pool_size=2, retry_seconds=20
        )
        tenant = await a_tenant(store)
        listed = [store.conversations(tenant.ann) for _ in range(20)]
        await asyncio.gather(*listed)
        assert await connections_of(store, "turnkeep_client%") <= 2
        await store.close()


async def connections_of(store: PostgresStore, login: str) -> int:
    [row] = await store._database.read_text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE $1", login
    )
    return int(row[0])


class TestTheHosts:
    @pytest.mark.parametrize(
        "url, expected",
        [
            ("postgresql://u@a/d", [{}]),
            ("postgresql://u@/d?host=%2Ftmp", [{}]),
            (
                "postgresql://u:p@a:1,b,[::1]:3/d?port=2",
                [{"host": "a", "port": 1}, {"host": "b", "port": 2}, {"host": "::1", "port": 3}],
            ),
            ("postgresql://u@a,b/d", [{"host": "a", "port": None}, {"host": "b", "port": None}]),
            (
                "postgresql:///d?host=%2Ftmp,b&port=1,2",
                [{"host": "/tmp", "port": 1}, {"host": "b", "port": 2}],
            ),
        ],
    )
    def test_are_read_as_libpq_reads_them(self, url: str, expected: list[dict[str, object]]) -> None:
        assert DatabaseAddress(url)._hosts == expected

    @pytest.mark.parametrize(
        "url",
        ["postgresql://a,b/d?port=1,2,3", "postgresql://a:x,b/d", "postgresql://a/d?connect_timeout=soon"],
    )
    def test_that_cannot_be_read_are_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest, match="address of the database"):
            DatabaseAddress(url)

    async def test_one_that_is_silent_does_not_use_up_the_time_of_the_next(self, uri: str, proxy: SilentProxy) -> None:
        async with SilentProxy(socket_of(uri)) as silent:
            silent.fall_silent()
            found = DatabaseAddress(address(uri, silent, proxy) + "?connect_timeout=0.5")
            for _ in range(3):
                await (await found.connect()).close()
            assert (silent.accepted, proxy.accepted) == (1, 3), "what failed is tried last from then on"


@pytest.fixture(scope="class")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server.start()


class TestAReadOnlyDatabase:
    async def test_is_not_available_for_writes_and_is_tried_again(self, uri: str, store: PostgresStore) -> None:
        tenant = await a_tenant(store)
        await set_read_only(uri, is_on=True)
        hasty = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, retry_seconds=1.0)
        with pytest.raises(Unavailable, match="took no writes"):
            await hasty.claim(a_claim(tenant.ann))
        assert [org.id for org in await hasty.orgs()] == [tenant.org.id]
        patient = asyncio.create_task(store.claim(a_claim(tenant.ann)))
        await asyncio.sleep(0.5)
        assert not patient.done()
        await set_read_only(uri, is_on=False)
        assert (await patient).is_new
        await hasty.close()


async def set_read_only(uri: str, *, is_on: bool) -> None:
    """As a fenced primary is: for new sessions, so the old ones are ended."""
    name = urlsplit(uri).path.strip("/")
    server = uri.replace(f"/{name}?", "/postgres?")
    await execute(server, f'ALTER DATABASE "{name}" SET default_transaction_read_only = {"on" if is_on else "off"}')
    await execute(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


class TestAStandbyThatIsPromoted:
    async def test_is_found_when_the_primary_is_silent(self, primary: PostgresServer) -> None:
        uri = await create_database(primary.uri(), NAME)
        async with SilentProxy(socket_of(uri)) as near:
            before = await PostgresStore.open(address(uri, near), client_password=CLIENT_PASSWORD)
            tenant: Tenant = await a_tenant(before)
            await before.close()
            with PostgresServer() as server:
                standby = await asyncio.to_thread(server.follow, primary)
                async with SilentProxy(socket_of(standby.uri())) as far:
                    store = await PostgresStore.open(
                        address(uri, far, near), client_password=CLIENT_PASSWORD, retry_seconds=60
                    )
                    assert (await store.claim(a_claim(tenant.ann))).is_new, (
                        "the standby, which is named first, is not used"
                    )
                    near.fall_silent()
                    late = asyncio.create_task(store.claim(a_claim(tenant.ann)))
                    await asyncio.to_thread(standby.promote)
                    async with asyncio.timeout(60):
                        assert (await late).is_new
                        assert (await store.orgs())[0].id == tenant.org.id
                    await store.close()
