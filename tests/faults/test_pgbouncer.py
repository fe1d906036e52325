"""A PgBouncer between the servers and their database: turns, streams, takeovers and migrations go through it.

In transaction mode every transaction may get another connection of the pooler. What belongs to a connection (prepared
statements, session settings, session locks, LISTEN) is lost or another client's then.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests import servers
from tests.faults.engines import ask, running_engine
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.stores import open_store
from tests.faults.test_cut_readers import TestAReaderOfATurnThatMoves as Moves
from tests.faults.test_cut_readers import cut_readers, leave
from tests.faults.test_rolling_restarts import restart_under_load
from tests.pgbouncer import PgBouncer, PoolMode
from turnkeep.errors import Defect, Unavailable
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.pool import Pool, PoolSettings

ROUNDS = ("look+pay", "left+right", "look")
AT_ONCE = 30
"""More than the pooler has connections."""

_numbers = count(1)


@pytest.fixture
async def empty_database() -> AsyncIterator[str]:
    """A database without any table, and its address without a pooler."""
    shared, name = servers.shared_postgres_uri(), servers.of_this_worker(f"pooled_{next(_numbers)}")
    yield await servers.create_database(shared, name)
    await servers.drop_database(shared, name)


@pytest.fixture(params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, empty_database: str) -> Iterator[PgBouncer]:
    mode: PoolMode = request.param
    with PgBouncer(empty_database, mode=mode) as pooler:
        yield pooler


@pytest.fixture
async def site(pooler: PgBouncer, tmp_path: Path) -> AsyncIterator[Site]:
    """Its database is migrated through the pooler."""
    site = await Site.open(pooler.uri, tmp_path, is_prepared=pooler.keeps_statements)
    try:
        yield site
    finally:
        await site.close()


@pytest.mark.nightly
class TestBehindPgBouncer:
    async def test_two_servers_may_migrate_the_same_database(self, pooler: PgBouncer) -> None:
        stores = await asyncio.gather(*(open_store(pooler.uri, is_prepared=pooler.keeps_statements) for _ in range(2)))
        for store in stores:
            assert await store.check_ready() is None
            await store.close()

    async def test_cut_readers_have_what_an_unbroken_one_has(self, site: Site) -> None:
        both = await asyncio.gather(*(site.serve(pace=0.01) for _ in range(2)))
        await cut_readers(site, both, cuts=20, seed=1)
        await leave(site, *both)

    async def test_a_turn_goes_on_when_its_worker_is_killed(self, site: Site) -> None:
        await Moves().cut_across_takeover(site, "", seed=2, nth=60)

    async def test_rolling_restarts_fail_no_turn_and_double_none(self, site: Site) -> None:
        await restart_under_load(site, restarts=6)

    async def test_a_restart_of_the_pooler_fails_no_turn(self, site: Site, pooler: PgBouncer) -> None:
        async with (
            site.store() as store,
            running_engine(store, site.journal, pace=0.05, lease_seconds=5) as engine,
        ):
            for n in range(AT_ONCE):
                claimed = await ask(engine, site.tenant.ann, question(f"q{n}", *ROUNDS))
                site.acknowledged.append(claimed.turn.id)
                if n == AT_ONCE // 2:
                    pooler.kill()
                    await asyncio.to_thread(pooler.start)
            async with asyncio.timeout(60):
                await asyncio.gather(*(engine.wait(turn_id) for turn_id in site.acknowledged))
        examined = await site.examine()
        assert examined.violations == ()
        assert {turn.status for turn in examined.turns} == {"succeeded"}
        assert len(examined.turns) == AT_ONCE


@pytest.mark.nightly
class TestBehindAPoolerThatLosesStatements:
    @pytest.fixture
    def pooler(self, empty_database: str) -> Iterator[PgBouncer]:
        with PgBouncer(empty_database, mode="transaction", max_statements=0) as pooler:
            yield pooler

    async def test_a_store_without_prepared_statements_works(self, site: Site) -> None:
        both = await asyncio.gather(*(site.serve(pace=0.01) for _ in range(2)))
        await cut_readers(site, both, cuts=10, seed=3)
        await leave(site, *both)

    async def test_a_store_with_them_is_not_opened_and_names_the_setting(self, site: Site, pooler: PgBouncer) -> None:
        with pytest.raises(Defect, match="TURNKEEP_DATABASE_PREPARED_STATEMENTS=0"):
            await open_store(pooler.uri)

    async def test_a_statement_that_is_lost_later_names_the_setting(self, site: Site, pooler: PgBouncer) -> None:
        pool = Pool(
            DatabaseAddress(pooler.uri), PoolSettings(size=AT_ONCE, prepared=True, retry_seconds=5, command_seconds=5)
        )

        async def ask_again_and_again() -> None:
            for _ in range(20):
                await asyncio.gather(*(pool.fetch(f"SELECT {n}, pg_sleep(0.01)") for n in range(AT_ONCE)))

        try:
            with pytest.raises(Defect, match="TURNKEEP_DATABASE_PREPARED_STATEMENTS=0"):
                await ask_again_and_again()
        finally:
            await pool.close()


@pytest.mark.nightly
class TestBehindAPoolerWithoutTransactions:
    async def test_a_store_is_not_opened_and_names_the_mode(self, empty_database: str) -> None:
        with (
            PgBouncer(empty_database, mode="statement") as pooler,
            pytest.raises(Unavailable, match="statement pooling mode"),
        ):
            await open_store(pooler.uri)
