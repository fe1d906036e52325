"""Readers that are cut and resumed, on any worker, across takeovers and without Redis: the same text and events."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import pytest

from tests.faults.processes import WorkerProcess
from tests.faults.script import question
from tests.faults.sites import SERVICE_KEY, Site
from tests.faults.stream_reader import Reading, read_in_pieces, read_whole
from tests.faults.worker_protocol import Fault
from tests.redis_server import RedisServer
from turnkeep.ids import TurnId

Trouble = Literal["killed", "paused", "flushed"]


@pytest.fixture
async def redis_server() -> AsyncIterator[RedisServer]:
    async with RedisServer() as server:
        yield server


async def post(site: Site, server: WorkerProcess, text: str) -> TurnId:
    """A turn in the background, acknowledged over HTTP."""
    headers = {"authorization": f"Bearer {SERVICE_KEY}"}
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        response = await client.post(
            f"http://127.0.0.1:{server.port}/v1/turns", json={"message": text, "background": True}, headers=headers
        )
    assert response.status_code == 202, response.text
    turn_id = TurnId(response.json()["turn_id"])
    site.acknowledged.append(turn_id)
    return turn_id


def same(readings: list[Reading], reference: Reading) -> None:
    """Everybody has what a reader has who comes when all is over."""
    for reading in readings:
        assert [(each.id, each.event, each.data) for each in reading.events] == [
            (each.id, each.event, each.data) for each in reference.events
        ]


async def cut_readers(
    site: Site, servers: list[WorkerProcess], *, cuts: int, seed: int, words: int = 150
) -> list[Reading]:
    """Read turns in pieces until so many connections were cut; return the readings of all."""
    chance = random.Random(seed)
    ports = [server.port for server in servers]
    every: list[Reading] = []
    while sum(reading.connections - 1 for reading in every) < cuts:
        turn_id = await post(site, servers[0], question(f"w{words}-{len(every)}", "look+pay", "right"))
        whole, *pieces = await asyncio.gather(
            read_whole(ports[0], turn_id),
            *(read_in_pieces(ports, turn_id, random.Random(chance.random())) for _ in range(3)),
        )
        assert whole.connections == 1
        same([whole, *pieces], await read_whole(ports[-1], turn_id))
        every += pieces
    return every


async def leave(site: Site, *servers: WorkerProcess) -> None:
    for server in servers:
        await server.leave()
    assert (await site.examine()).violations == ()


class TestAReaderThatIsCut:
    async def test_has_the_same_as_an_unbroken_one(self, postgres_site: Site, redis_server: RedisServer) -> None:
        servers = await asyncio.gather(*(postgres_site.serve(pace=0.01, redis_url=redis_server.url) for _ in range(2)))
        readings = await cut_readers(postgres_site, servers, cuts=60, seed=1)
        assert sum(reading.previewed for reading in readings) > 1_000
        await leave(postgres_site, *servers)

    async def test_has_the_same_without_redis(self, postgres_site: Site) -> None:
        servers = await asyncio.gather(*(postgres_site.serve(pace=0.005) for _ in range(2)))
        await cut_readers(postgres_site, servers, cuts=20, seed=2)
        await leave(postgres_site, *servers)

    async def test_has_the_same_of_the_only_server(self, sqlite_site: Site) -> None:
        server = await sqlite_site.serve(pace=0.005)
        await cut_readers(sqlite_site, [server], cuts=30, seed=3)
        await leave(sqlite_site, server)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", range(4))
    async def test_has_the_same_after_five_hundred_cuts(
        self, postgres_site: Site, redis_server: RedisServer, seed: int
    ) -> None:
        servers = await asyncio.gather(*(postgres_site.serve(pace=0.01, redis_url=redis_server.url) for _ in range(2)))
        await cut_readers(postgres_site, servers, cuts=500, seed=seed)
        await leave(postgres_site, *servers)


class TestAReaderOfATurnThatMoves:
    async def cut_across_takeover(self, site: Site, redis_url: str, *, seed: int, nth: int) -> None:
        chance = random.Random(seed)
        victim, heir = await asyncio.gather(
            site.serve(fault=Fault("SIGKILL", "previewed", nth), pace=0.01, redis_url=redis_url),
            site.serve(pace=0.01, redis_url=redis_url),
        )
        ports = [victim.port, heir.port]
        turn_id = await post(site, victim, question("w100", "look+pay"))
        pieces = await asyncio.gather(
            *(read_in_pieces(ports, turn_id, random.Random(chance.random())) for _ in range(3))
        )
        assert await victim.died() == -signal.SIGKILL
        assert min(reading.resets for reading in pieces) >= 1
        same(list(pieces), await read_whole(heir.port, turn_id))
        await leave(site, heir)

    async def test_has_the_same_when_its_worker_was_killed(
        self, postgres_site: Site, redis_server: RedisServer
    ) -> None:
        await self.cut_across_takeover(postgres_site, redis_server.url, seed=4, nth=60)

    @pytest.mark.nightly
    @pytest.mark.parametrize("nth", [2, 8, 12, 30, 100])
    @pytest.mark.parametrize("hub", ["redis", "polling"])
    async def test_has_the_same_wherever_its_worker_was_killed(
        self, postgres_site: Site, redis_server: RedisServer, hub: str, nth: int
    ) -> None:
        url = redis_server.url if hub == "redis" else ""
        await self.cut_across_takeover(postgres_site, url, seed=nth, nth=nth)

    async def test_has_the_same_when_its_worker_left_in_order(
        self, postgres_site: Site, redis_server: RedisServer
    ) -> None:
        # Long before the model has ended, it is out of time.
        leaving, heir = await asyncio.gather(
            *(postgres_site.serve(pace=0.02, redis_url=redis_server.url, drain_seconds=0.1) for _ in range(2))
        )
        turn_id = await post(postgres_site, leaving, question("w100"))
        reading = Reading(turn_id)
        at_first = asyncio.create_task(reading.connect(leaving.port))
        await spoken(reading, 20)
        await leaving.leave()
        await at_first
        assert reading.events[-1].event == "turn", "the stream ended before the turn did"
        await finish(reading, heir.port)
        same([reading], await read_whole(heir.port, turn_id))
        await leave(postgres_site, heir)


class TestLosingRedis:
    @pytest.mark.parametrize("trouble", ["killed", "paused", "flushed"])
    async def test_changes_nothing_that_readers_finally_have(
        self, postgres_site: Site, redis_server: RedisServer, trouble: Trouble
    ) -> None:
        speaking, other = await asyncio.gather(
            *(postgres_site.serve(pace=0.02, redis_url=redis_server.url) for _ in range(2))
        )
        turn_id = await post(postgres_site, speaking, question("w100", "look+pay"))
        here, there = Reading(turn_id), Reading(turn_id)
        reading = asyncio.gather(*(finish(each, at.port) for each, at in ((here, speaking), (there, other))))
        await spoken(there, 100)
        await make_trouble(redis_server, trouble)
        await reading
        assert here.connections == there.connections == 1, "losing Redis cuts nobody"
        same([here, there], await read_whole(other.port, turn_id))
        await leave(postgres_site, speaking, other)


async def spoken(reading: Reading, characters: int) -> None:
    """Wait until so much of the turn was previewed to this reader."""
    async with asyncio.timeout(30):
        while reading.previewed < characters:  # noqa: ASYNC110 - what is waited for comes over the network
            await asyncio.sleep(0.01)


async def finish(reading: Reading, port: int) -> None:
    async with asyncio.timeout(60):
        while not reading.is_over:
            await reading.connect(port)


async def make_trouble(server: RedisServer, trouble: Trouble) -> None:
    match trouble:
        case "killed":
            await server.kill()
        case "paused":
            server.pause()
        case "flushed":
            await asyncio.to_thread(server.flush)
