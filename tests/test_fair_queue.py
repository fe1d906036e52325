"""Places that tenants share: no user and no org can hold all of them. Free ones go to those that have the fewest."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable

import pytest

from turnkeep.errors import QueueFull
from turnkeep.fair_queue import FairQueue, Owner, Shares, in_daemon_thread

ANN, BEN, EVE = Owner("acme", "ann"), Owner("acme", "ben"), Owner("other", "eve")


class Workers:
    """Work that holds a place until it is told to end."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.running: list[Owner] = []
        self._tasks: dict[asyncio.Task[None], asyncio.Event] = {}

    async def start(self, *owners: Owner) -> list[asyncio.Task[None]]:
        tasks = []
        for owner in owners:
            end = asyncio.Event()
            task = asyncio.create_task(self._work(owner, end))
            self._tasks[task] = end
            tasks.append(task)
            await settle()
        return tasks

    async def end(self, task: "asyncio.Task[None]") -> None:
        self._tasks[task].set()
        await task
        await settle()

    async def _work(self, owner: Owner, end: asyncio.Event) -> None:
        async with self.queue.place(owner):
            self.running.append(owner)
            try:
                await end.wait()
            finally:
                self.running.remove(owner)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def workers() -> Callable[[Shares], Awaitable[Workers]]:
    async def make(shares: Shares) -> Workers:
        return Workers(FairQueue(shares))

    return make


Make = Callable[[Shares], Awaitable[Workers]]


class TestShares:
    async def test_one_user_holds_half_of_the_places_and_one_org_three_quarters(self, workers: Make) -> None:
        here = await workers(Shares.of(8, waiting=20))
        await here.start(*[ANN] * 6)
        assert here.running == [ANN] * 4
        await here.start(*[BEN] * 4)
        assert here.running == [ANN] * 4 + [BEN] * 2
        await here.start(EVE, EVE)
        assert here.running[-2:] == [EVE, EVE]

    async def test_work_without_an_owner_may_have_all_of_them(self, workers: Make) -> None:
        here = await workers(Shares.of(4, waiting=0))
        await here.start(*[Owner()] * 4)
        assert len(here.running) == 4

    async def test_a_single_place_can_be_had_by_anyone(self, workers: Make) -> None:
        here = await workers(Shares.of(1, waiting=5))
        (first, _) = await here.start(ANN, BEN)
        assert here.running == [ANN]
        await here.end(first)
        assert here.running == [BEN]


class TestOrder:
    async def test_a_free_place_goes_to_the_org_and_then_the_user_that_hold_the_fewest(self, workers: Make) -> None:
        here = await workers(Shares(places=3, waiting=20, per_org=3, per_user=3))
        first = (await here.start(ANN, ANN, ANN))[0]
        await here.start(ANN, BEN, EVE)
        await here.end(first)
        assert here.running == [ANN, ANN, EVE]

    async def test_one_place_goes_round(self, workers: Make) -> None:
        """Many that wait for one user do not delay the next user."""
        here = await workers(Shares(places=1, waiting=20, per_org=1, per_user=1))
        ann = await here.start(*[ANN] * 5)
        ben, eve = await here.start(BEN, EVE)
        order = []
        for task in (ann[0], eve, ben, ann[1], ann[2]):
            order.append(here.running[0])
            await here.end(task)
        assert order == [ANN, EVE, BEN, ANN, ANN]

    async def test_between_equals_the_first_that_came_is_the_first(self, workers: Make) -> None:
        here = await workers(Shares(places=1, waiting=20, per_org=1, per_user=1))
        first, second, third = await here.start(ANN, EVE, BEN)
        await here.end(first)
        assert here.running == [EVE]
        await here.end(second)
        assert here.running == [BEN]
        await here.end(third)
        assert here.queue.taken == 0


class TestRefusals:
    async def test_a_full_queue_refuses_and_one_user_cannot_fill_it(self, workers: Make) -> None:
        here = await workers(Shares(places=1, waiting=4, per_org=1, per_user=1))
        await here.start(ANN, ANN, ANN)
        with pytest.raises(QueueFull):
            async with here.queue.place(ANN):
                pass
        await here.start(BEN, EVE)
        with pytest.raises(QueueFull):
            async with here.queue.place(EVE):
                pass

    async def test_waiting_ends_after_a_while_and_takes_no_place(self) -> None:
        queue = FairQueue(Shares.of(1, waiting=5), seconds=0.05)
        async with queue.place(ANN):
            with pytest.raises(TimeoutError):
                async with queue.place(EVE):
                    pass
            assert (queue.taken, queue.waiting) == (1, 0)
        assert queue.taken == 0

    async def test_one_that_is_cancelled_as_it_gets_its_place_hands_it_on(self, workers: Make) -> None:
        here = await workers(Shares.of(1, waiting=5))
        first, second, _ = await here.start(ANN, BEN, EVE)
        here._tasks[first].set()
        await first
        second.cancel()
        await settle()
        assert here.running == [EVE]


class TestWorkInADaemonThread:
    async def test_answers_and_raises_as_a_call_does(self) -> None:
        assert await in_daemon_thread(lambda: threading.current_thread().daemon) is True
        with pytest.raises(ValueError, match="no number"):
            await in_daemon_thread(_refuse)

    async def test_may_be_given_up(self) -> None:
        goes_on = threading.Event()
        work = asyncio.create_task(in_daemon_thread(goes_on.wait))
        await settle()
        work.cancel()
        await asyncio.wait({work})
        assert work.cancelled()
        goes_on.set()
        await asyncio.sleep(0.05)

    def test_does_not_keep_the_process_from_ending(self) -> None:
        program = """
            import asyncio, time
            from turnkeep.fair_queue import in_daemon_thread
            async def main():
                with __import__("contextlib").suppress(TimeoutError):
                    await asyncio.wait_for(in_daemon_thread(lambda: time.sleep(600)), 0.1)
            asyncio.run(main())
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=False)
        assert done.returncode == 0


def _refuse() -> None:
    raise ValueError("no number")
