"""A worker that stands still for longer than its lease (SIGSTOP), and goes on when its turn is another's."""

import asyncio
import signal

import pytest

from tests.faults.processes import WorkerProcess
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.worker_protocol import Adopted, Fault
from turnkeep.ids import TurnId

PLACES = [
    "claimed",
    "previewed",
    "iteration_recorded",
    "tool_starting",
    "tool_running",
    "tool_ended",
    "result_recorded",
    "settling",
]


async def next_adopted(heir: WorkerProcess, known: set[TurnId]) -> TurnId:
    while True:
        for report in heir.reports:
            if isinstance(report, Adopted) and report.turn_id not in known:
                return report.turn_id
        await asyncio.sleep(0.01)


def calls_begun_by(worker: WorkerProcess, site: Site) -> list[str]:
    return [entry.key for entry in site.journal.read() if entry.moment == "began" and entry.pid == worker.pid]


async def pause_at(site: Site, sleeper: WorkerProcess, heir: WorkerProcess, place: str, *rounds: str) -> None:
    """Stop the sleeper there, let the heir settle the turn, wake the sleeper, and see that it changes nothing."""
    known = {turn.id for turn in (await site.examine()).turns}
    await sleeper.arm(Fault("SIGSTOP", place))
    asking = asyncio.create_task(site.ask(sleeper, question(f"{place}-{len(known)}", *rounds)))
    await sleeper.stopped()
    async with asyncio.timeout(30):
        turn_id = await next_adopted(heir, known)
    assert await heir.ended([turn_id]) == {turn_id: "succeeded"}, place
    settled = await site.examine()
    assert settled.violations == (), place
    begun = calls_begun_by(sleeper, site)

    sleeper.send(signal.SIGCONT)
    assert (await asking).turn_id == turn_id
    await sleeper.let_go(turn_id)
    after = await site.examine()
    assert after.violations == (), place
    assert after.trace(turn_id) == settled.trace(turn_id), place
    assert calls_begun_by(sleeper, site) == begun, f"a tool was called under the old attempt ({place})"


class TestAWorkerThatStoodStill:
    async def test_writes_nothing_and_calls_nothing_when_it_goes_on(self, postgres_site: Site) -> None:
        sleeper, heir = await asyncio.gather(postgres_site.start(), postgres_site.start())
        for place in PLACES:
            await pause_at(postgres_site, sleeper, heir, place, "pay", "look")
        await sleeper.leave()
        await heir.leave()

    async def test_lets_go_at_once_while_its_heir_is_at_work(self, postgres_site: Site) -> None:
        sleeper, heir = await asyncio.gather(postgres_site.start(), postgres_site.start(pace=0.1))
        for place in ("previewed", "tool_ended", "settling"):
            await sleeper.arm(Fault("SIGSTOP", place))
            asked = await postgres_site.ask(sleeper, question(place, "pay"))
            await sleeper.stopped()
            await heir.adopted(asked.turn_id)
            sleeper.send(signal.SIGCONT)
            await sleeper.let_go(asked.turn_id)
            assert await heir.ended([asked.turn_id]) == {asked.turn_id: "succeeded"}, place
            sleeper.check()
        await sleeper.leave()
        await heir.leave()
        examined = await postgres_site.examine()
        assert examined.violations == ()
        assert min(turn.attempt for turn in examined.turns) == 2

    @pytest.mark.nightly
    @pytest.mark.parametrize("rounds", [("look", "pay"), ("left+right",), ("look+pay",)], ids="-".join)
    async def test_writes_nothing_wherever_it_stood(self, postgres_site: Site, rounds: tuple[str, ...]) -> None:
        sleeper, heir = await asyncio.gather(postgres_site.start(), postgres_site.start())
        for place in PLACES * 3:
            await pause_at(postgres_site, sleeper, heir, place, *rounds)

    async def test_is_a_worker_like_any_other_afterwards(self, postgres_site: Site) -> None:
        sleeper, heir = await asyncio.gather(postgres_site.start(), postgres_site.start())
        await pause_at(postgres_site, sleeper, heir, "previewed")
        await heir.leave()
        asked = await postgres_site.ask(sleeper, question("again", "pay"))
        assert await sleeper.ended([asked.turn_id]) == {asked.turn_id: "succeeded"}
        await sleeper.leave()
        assert (await postgres_site.examine()).violations == ()
