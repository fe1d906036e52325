"""`kill -9` at every named place of a turn: it is adopted and settles, and nothing is lost, doubled or left open."""

from itertools import product

import pytest
from msgspec import Struct

from tests.faults.invariants import Examined
from tests.faults.journal import JournalSink
from tests.faults.processes import WorkerDied, WorkerProcess
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.worker_protocol import Acknowledged, Fault
from turnkeep.ids import TurnId
from turnkeep_client.wire.blocks import ToolResult
from turnkeep_client.wire.events import Result


class Case(Struct, frozen=True):
    """Where the worker dies, in a turn with these rounds of tools, with so many questions waiting behind it."""

    place: str
    nth: int = 1
    rounds: tuple[str, ...] = ()
    waiting: int = 0

    def __str__(self) -> str:
        tools = "-".join(self.rounds) or "no-tools"
        return f"{self.place}-{self.nth}-{tools}" + (f"-{self.waiting}-waiting" if self.waiting else "")


CASES = [
    Case("claimed"),
    Case("previewed", 3),
    Case("previewed", 8, ("look",)),
    Case("iteration_recorded", 1, ("pay",)),
    Case("tool_starting", 1, ("pay",)),
    Case("tool_running", 1, ("look",)),
    Case("tool_ended", 1, ("look+pay",)),
    Case("result_recorded", 1, ("look",)),
    Case("settling", 1, ("pay",)),
    Case("settled"),
    Case("previewed", 3, waiting=2),
    Case("tool_running", 1, ("left+right",), waiting=2),
    Case("settling", waiting=2),
    Case("settled", waiting=2),
]

EVERY_CASE = [
    *(
        Case(place, nth, rounds, waiting)
        for place, (nth, rounds), waiting in product(
            ["previewed", "iteration_recorded", "tool_starting", "tool_running", "tool_ended", "result_recorded"],
            [(1, ("look", "pay")), (2, ("look", "pay")), (1, ("left+right",)), (2, ("look+pay+left", "right", "pay"))],
            [0, 2],
        )
    ),
    *(
        Case(place, 1, rounds, waiting)
        for place, rounds, waiting in product(["settling", "settled"], [(), ("pay",)], [1, 3])
    ),
]


async def kill_during(site: Site, case: Case) -> list[TurnId]:
    """Start a worker, ask it, and let it die at the place; return the turns that were acknowledged."""
    victim = await site.start(fault=Fault("SIGKILL", case.place, case.nth), is_gated=True)
    try:
        first = await site.ask(victim, question("q0", *case.rounds))
        await wait_behind(site, victim, first, case.waiting)
        victim.go()
    except WorkerDied:
        assert case.place == "claimed"
    assert await victim.died() == -9
    victim.check()
    return list(site.acknowledged)


async def wait_behind(site: Site, worker: WorkerProcess, first: Acknowledged, number: int) -> None:
    for n in range(1, number + 1):
        queued = await site.ask(worker, question(f"q{n}", "pay"), behind=first)
        assert queued.status == "queued"


async def recover(site: Site) -> Examined:
    """Another worker takes what is left; then look at everything."""
    left = await site.examine(at_rest=False)
    assert left.violations == ()
    heir = await site.start()
    ends = await heir.ended(left.unsettled)
    assert set(ends.values()) <= {"succeeded"}
    await heir.leave()
    examined = await site.examine()
    assert examined.violations == ()
    return examined


def results_of(examined: Examined) -> list[ToolResult]:
    blocks = [block for trace in examined.traces for row in trace.rows for block in row.blocks]
    return [block for block in blocks if isinstance(block, ToolResult)]


class TestAWorkerThatIsKilled:
    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_leaves_turns_that_another_one_settles(self, site: Site, case: Case) -> None:
        await kill_during(site, case)
        examined = await recover(site)
        assert len(examined.turns) == 1 + case.waiting
        assert {turn.status for turn in examined.turns} == {"succeeded"}

    @pytest.mark.nightly
    @pytest.mark.parametrize("case", EVERY_CASE, ids=str)
    async def test_leaves_turns_that_another_one_settles_wherever_it_died(self, site: Site, case: Case) -> None:
        await kill_during(site, case)
        examined = await recover(site)
        assert len(examined.turns) == 1 + case.waiting
        assert {turn.status for turn in examined.turns} == {"succeeded"}

    async def test_and_whose_heir_is_killed_while_it_adopts_leaves_them_to_a_third(self, site: Site) -> None:
        await kill_during(site, Case("tool_running", 1, ("pay",), waiting=1))
        heir = await site.start(fault=Fault("SIGKILL", "adopted"))
        assert await heir.died() == -9
        examined = await recover(site)
        assert examined.turns[0].attempt >= 3

    async def test_during_a_tool_that_may_not_be_repeated_leaves_an_honest_result(self, site: Site) -> None:
        await kill_during(site, Case("tool_running", 1, ("pay",)))
        (result,) = results_of(await recover(site))
        assert result.is_error
        assert result.content.startswith("outcome_unknown")
        assert [(entry.tool, entry.moment) for entry in site.journal.read()] == [("pay", "began")]

    async def test_between_two_parallel_results_loses_only_the_one_that_was_not_there_yet(self, site: Site) -> None:
        await kill_during(site, Case("result_recorded", 1, ("left+right",)))
        examined = await recover(site)
        outcomes = sorted(result.content.partition(":")[0] for result in results_of(examined))
        assert outcomes == ["left did q0/0/left", "outcome_unknown"]
        answer = examined.traces[0].events[-1].event
        assert isinstance(answer, Result)
        assert answer.message == "That was q0: 2 results, 1 of them unknown."

    async def test_three_times_without_progress_costs_the_turn_but_not_the_queue(self, site: Site) -> None:
        await kill_during(site, Case("previewed", 1, waiting=1))
        await kill_heirs(site, Fault("SIGKILL", "previewed"), 2)
        examined = await give_up(site)
        assert [turn.status for turn in examined.turns] == ["failed", "succeeded"]

    async def test_by_a_tool_that_may_be_repeated_is_not_killed_by_it_for_ever(self, sqlite_site: Site) -> None:
        await kill_during(sqlite_site, Case("tool_running", 1, ("look",), waiting=1))
        await kill_heirs(sqlite_site, Fault("SIGKILL", "tool_running"), 3)
        examined = await give_up(sqlite_site)
        assert [turn.status for turn in examined.turns] == ["failed", "succeeded"]
        (result, _) = results_of(examined)
        assert result.content.startswith("outcome_unknown")


async def kill_heirs(site: Site, fault: Fault, times: int) -> None:
    """Whoever adopts the turn dies at the same place."""
    for _ in range(times):
        heir = await site.start(fault=fault)
        assert await heir.died() == -9


async def give_up(site: Site) -> Examined:
    """The last heir finds that enough have died of this turn."""
    left = await site.examine(at_rest=False)
    assert left.violations == ()
    heir = await site.start()
    await heir.ended(left.unsettled)
    await heir.leave()
    examined = await site.examine()
    assert examined.violations == ()
    return examined


class TestTheOutboxOfAWorkerThatIsKilled:
    @pytest.mark.parametrize("waiting", [0, 2])
    async def test_is_delivered_by_the_next_one(self, site: Site, waiting: int) -> None:
        turns = await kill_during(site, Case("settled", waiting=waiting))
        sink = JournalSink(site.journal)
        assert sink.sent() == []
        await recover(site)
        sent = [(entry.type, entry.subject_id) for entry in sink.sent()]
        assert sorted(sent) == sorted(("turn.succeeded", turn_id) for turn_id in turns)
        async with site.store() as store:
            assert await store.take_entries(lease_seconds=1) == []
