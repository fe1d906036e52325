"""Deploys: workers are replaced one after the other while questions keep coming. No turn fails, none is doubled."""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import count, pairwise

import pytest

from tests.faults.balancer import Balancer
from tests.faults.processes import PATIENCE_SECONDS, WorkerDied, WorkerProcess
from tests.faults.script import question
from tests.faults.sites import SERVICE_KEY, Site
from tests.faults.worker_protocol import Acknowledged
from tests.redis_server import RedisServer
from turnkeep.client import AsyncTurnkeep
from turnkeep.ids import TurnId
from turnkeep_client.stream import Restarted, WordStream
from turnkeep_client.wire.events import Delta, Reset, Result

QUESTIONS_PER_SECOND = 4
ROUNDS = ("look+pay", "left+right")
LEASE_SECONDS = 15.0
"""So long that a turn which is not handed over stands still for everybody to see."""
LIVE_STREAMS = 200
WORDS = 60
WORD_SECONDS = 0.25
GAP_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Fleet:
    """Workers behind a balancer that tries the next one when one does not answer."""

    def __init__(self, site: Site, workers: list[WorkerProcess]) -> None:
        self.workers = workers
        self._site = site
        self._turns = count()

    async def ask(self, text: str) -> None:
        """Ask until somebody acknowledges. The key makes sure that it is one turn, however often it was sent."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                worker = self.workers[next(self._turns) % len(self.workers)]
                try:
                    answer = await worker.ask(text, idempotency_key=text)
                except (WorkerDied, ConnectionError):
                    await asyncio.sleep(0.05)
                    continue
                if isinstance(answer, Acknowledged):
                    self._site.acknowledged.append(answer.turn_id)
                    return
                assert answer.code == "unavailable"

    async def replace(self, place: int) -> None:
        """Stop one in the middle of its questions, and start another in its place."""
        async with asyncio.TaskGroup() as asking:
            for n in range(4):
                asking.create_task(self.ask(question(f"last-{next(self._turns)}-{n}")))
            await asyncio.sleep(0)
            await self.workers[place].leave()
            self.workers[place] = await start(self._site)


async def start(site: Site) -> WorkerProcess:
    return await site.start(pace=0.02, lease_seconds=LEASE_SECONDS)


async def restart_under_load(site: Site, *, restarts: int) -> None:
    fleet = Fleet(site, list(await asyncio.gather(start(site), start(site))))
    is_over = asyncio.Event()

    async def load() -> None:
        async with asyncio.TaskGroup() as asking:
            for n in count():
                if is_over.is_set():
                    return
                asking.create_task(fleet.ask(question(f"q{n}", *ROUNDS)))
                await asyncio.sleep(1 / QUESTIONS_PER_SECOND)

    loading = asyncio.create_task(load())
    try:
        for n in range(restarts):
            await fleet.replace(n % 2)
    finally:
        is_over.set()
    await loading
    await site.until_settled()
    for worker in fleet.workers:
        await worker.leave()
    examined = await site.examine()
    assert examined.violations == ()
    assert len(examined.turns) == len(set(site.acknowledged)) == len(site.acknowledged)
    assert {turn.status for turn in examined.turns} == {"succeeded"}
    assert {turn.failures for turn in examined.turns} == {0}, "a deploy is not a failure"
    resets = [each.event for trace in examined.traces for each in trace.events if isinstance(each.event, Reset)]
    assert {reset.reason for reset in resets} == {"handover"}


class TestRollingRestarts:
    async def test_fail_no_turn_and_double_none(self, postgres_site: Site) -> None:
        await restart_under_load(postgres_site, restarts=10)

    @pytest.mark.nightly
    async def test_fail_no_turn_when_there_is_no_end_of_them(self, postgres_site: Site) -> None:
        await restart_under_load(postgres_site, restarts=60)

    async def test_of_the_only_server_continue_its_turns(self, sqlite_site: Site) -> None:
        site = sqlite_site
        for n in range(3):
            worker = await site.start(pace=0.2)
            await site.ask(worker, question(f"q{n}", *ROUNDS))
            await worker.leave()
        left = await site.examine(at_rest=False)
        assert left.unsettled
        last = await site.start()
        ends = await last.ended(left.unsettled)
        assert set(ends.values()) == {"succeeded"}
        await last.leave()
        examined = await site.examine()
        assert examined.violations == ()
        assert {turn.failures for turn in examined.turns} == {0}


class FleetReader:
    """A person who asks again and again, with the project's client, until the deploy is over."""

    def __init__(self, client: AsyncTurnkeep, name: str) -> None:
        self.turn_ids: list[TurnId] = []
        self.gaps: list[float] = []
        """The longest gap between two deltas, of each turn."""
        self.resets = 0
        self.is_reading = asyncio.Event()
        self._client = client
        self._name = name

    async def read_until(self, is_over: asyncio.Event) -> None:
        for number in count():
            await self._read(f"w{WORDS}-{self._name}-{number}")
            if is_over.is_set():
                return

    async def _read(self, key: str) -> None:
        words, said, ending = WordStream(), "", None
        heard_at: list[float] = []
        stream = self._client.turns.stream(question(key))
        async for event in stream:
            if isinstance(event, Delta):
                heard_at.append(time.monotonic())
                self.is_reading.set()
            self.resets += isinstance(event, Reset)
            for word in words.add(event):
                assert not isinstance(word, Restarted), "the model says the same again"
                said += word
            ending = event
        assert isinstance(ending, Result), ending
        assert said == ending.message, "the words are those of the answer, each once"
        assert f"That was {key}: " in said
        assert stream.turn_id is not None
        self.turn_ids.append(TurnId(stream.turn_id))
        self.gaps.append(max(after - before for before, after in pairwise(heard_at)))


@pytest.mark.nightly
@pytest.mark.alone
class TestAFleetThatIsReplaced:
    async def test_server_by_server_keeps_two_hundred_streams_going(
        self, postgres_site: Site, record_property: Callable[[str, object], None]
    ) -> None:
        site = postgres_site

        async def serve() -> WorkerProcess:
            more = {"TURNKEEP_LEASE_SECONDS": f"{LEASE_SECONDS:g}"}
            return await site.serve(pace=WORD_SECONDS, drain_seconds=3.0, redis_url=redis.url, more=more)

        async with RedisServer() as redis, asyncio.timeout(400):
            servers = list(await asyncio.gather(serve(), serve(), serve()))
            async with (
                Balancer([server.port for server in servers]) as balancer,
                AsyncTurnkeep(balancer.url, SERVICE_KEY) as client,
                asyncio.TaskGroup() as reading,
            ):
                readers = [FleetReader(client, str(n)) for n in range(LIVE_STREAMS)]
                is_over = asyncio.Event()
                for reader in readers:
                    reading.create_task(reader.read_until(is_over))
                for reader in readers:
                    await reader.is_reading.wait()
                for place in range(len(servers)):
                    await servers[place].leave()
                    servers[place] = await serve()
                    balancer.ports[place] = servers[place].port
                is_over.set()
            for server in servers:
                await server.leave()
        turn_ids = [turn_id for reader in readers for turn_id in reader.turn_ids]
        site.acknowledged += turn_ids
        examined = await site.examine()
        assert examined.violations == ()
        assert len(examined.turns) == len(turn_ids), "no question was asked twice"
        assert {turn.status for turn in examined.turns} == {"succeeded"}
        assert {turn.failures for turn in examined.turns} == {0}, "a deploy is not a failure"
        gaps = sorted(gap for reader in readers for gap in reader.gaps)
        figures = (
            f"{LIVE_STREAMS} streams, {len(turn_ids)} turns, {sum(reader.resets for reader in readers)} handed over; "
            f"longest gap between two deltas of a turn: median {gaps[len(gaps) // 2]:.2f} s, "
            f"p95 {gaps[int(len(gaps) * 0.95)]:.2f} s, longest {gaps[-1]:.2f} s"
        )
        record_property("rolling restart", figures)
        _log.warning(figures)
        assert gaps[int(len(gaps) * 0.95)] <= GAP_SECONDS
