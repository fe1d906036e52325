"""What the metrics say of turns that change their worker, of waits, and of what a server needs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.api.harness import ApiServer, Client, settings_for
from tests.cli.test_admin_port import numbers
from tests.redis_server import RedisServer
from turnkeep.api.telemetry.metrics import FRESH_SECONDS, FastHistogram, Metrics, Probe
from turnkeep.config import Settings
from turnkeep.providers.scripted import Restart, Until
from turnkeep.store.commands import ConnectionUse
from turnkeep.store.postgres.io.address import DatabaseAddress
from turnkeep.store.postgres.io.pool import Connection, Pool, PoolSettings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


async def read(client: Client) -> dict[str, float]:
    """The metrics as they are now: the text is made once a second."""
    await asyncio.sleep(FRESH_SECONDS)
    return numbers((await client.get("/metrics")).text)


class TestTurns:
    async def test_that_another_worker_takes_over_are_counted_as_such(self, settings: Settings) -> None:
        begun, never = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            await never.wait()

        async with ApiServer.start(settings) as server:
            client = await server.operator()
            server.scripts.say("The beginning", Until(hang))
            turn_id = (await client.ask(background=True))["turn_id"]
            async with asyncio.timeout(60):
                await begun.wait()
        async with ApiServer.start(settings) as server:
            client = await server.operator()
            async with asyncio.timeout(60), client.stream("GET", f"/v1/turns/{turn_id}/events") as response:
                await response.aread()
            found = await read(client)
        assert found["turnkeep_turns_adopted_total{cause=takeover}"] == 1
        assert found["turnkeep_resets_total{cause=takeover}"] == 1

    async def test_of_a_queue_and_of_a_provider_that_began_again(self, settings: Settings) -> None:
        goes_on = asyncio.Event()
        async with ApiServer.start(settings) as server:
            client = await server.operator()
            server.scripts.say("One", Restart(), Until(goes_on.wait), "Two")
            first = await client.ask(background=True)
            second = await client.ask(conversation_id=first["conversation_id"], if_busy="enqueue", background=True)
            probe = Probe(server.runtime, metrics := Metrics())
            await probe.probe()
            state = numbers(generate_latest(metrics.registry).decode())
            assert (state["turnkeep_turns_queued"], state["turnkeep_turns_unheld"]) == (1, 0)
            goes_on.set()
            async with asyncio.timeout(60), client.stream("GET", f"/v1/turns/{second['turn_id']}/events") as response:
                await response.aread()
            found = await read(client)
        assert found["turnkeep_turns_adopted_total{cause=queue}"] == 1
        assert found["turnkeep_resets_total{cause=provider}"] == 1
        assert found["turnkeep_turn_first_token_seconds_count"] == 2


class TestDependencies:
    @pytest.fixture
    async def redis(self) -> AsyncIterator[RedisServer]:
        async with RedisServer() as server:
            yield server

    async def test_are_up_until_they_do_not_answer(self, tmp_path: Path, redis: RedisServer) -> None:
        settings = settings_for(tmp_path, redis_url=redis.url)
        async with ApiServer.start(settings) as server:
            probe = Probe(server.runtime, metrics := Metrics())

            async def state() -> dict[str, float]:
                await probe.probe()
                found = numbers(generate_latest(metrics.registry).decode())
                return {name: value for name, value in found.items() if name.startswith("turnkeep_dependency_up")}

            async def becomes(redis_up: int) -> None:
                async with asyncio.timeout(60):
                    while (await state())["turnkeep_dependency_up{dependency=redis}"] != redis_up:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)

            await becomes(1)
            assert set((await state()).values()) == {1}
            await redis.kill()
            await becomes(0)
            await redis.start()
            await becomes(1)

    async def test_calls_that_wait_for_a_connection_are_counted(self, api_database: str) -> None:
        settings = PoolSettings(size=1, prepared=True, retry_seconds=30, command_seconds=30)
        pool = Pool(DatabaseAddress(api_database), settings)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold(connection: Connection, _: bool) -> None:
            entered.set()
            await leave.wait()

        holder = asyncio.create_task(pool.run(hold))
        await entered.wait()
        assert pool.use == ConnectionUse(open=1)
        waiter = asyncio.create_task(pool.fetch("SELECT 1"))
        await asyncio.sleep(0.01)
        assert (pool.use.waiting, pool.use.waited) == (1, 1)
        leave.set()
        await asyncio.gather(holder, waiter)
        await pool.close()
        assert (pool.use.waiting, pool.use.waited) == (0, 1)
        assert pool.use.waited_seconds > 0

    async def test_the_metrics_have_them(self, tmp_path: Path, api_database: str) -> None:
        async with ApiServer.start(settings_for(tmp_path, database_url=api_database)) as server:
            client = await server.operator()
            await client.ask()
            found = await read(client)
        assert found["turnkeep_database_connections"] >= 1
        assert found["turnkeep_database_pool_waits_total"] >= 0


class TestAHistogram:
    def test_counts_a_value_at_a_bound_below_it(self) -> None:
        registry = CollectorRegistry()
        histogram = FastHistogram("h", "?", ("kind",), buckets=(0.5, 1), registry=registry)
        for value in (0.5, 0.7, 1, 3):
            histogram.labels("a").observe(value)
        found = numbers(generate_latest(registry).decode())
        assert found == {
            "h_bucket{kind=a}{le=0.5}": 1,
            "h_bucket{kind=a}{le=1.0}": 3,
            "h_bucket{kind=a}{le=+Inf}": 4,
            "h_count{kind=a}": 4,
            "h_sum{kind=a}": 5.2,
        }
