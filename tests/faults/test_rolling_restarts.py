"""Deploys: workers are replaced one after the other while questions keep coming. No turn fails, none is doubled."""

import asyncio
from itertools import count

import pytest

from tests.faults.processes import PATIENCE_SECONDS, WorkerDied, WorkerProcess
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.worker_protocol import Acknowledged
from turnkeep_client.wire.events import Reset

QUESTIONS_PER_SECOND = 4
ROUNDS = ("look+pay", "left+right")
LEASE_SECONDS = 15.0
"""So long that a turn which is not handed over stands still for everybody to see."""


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
