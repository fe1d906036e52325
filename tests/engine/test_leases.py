"""What a worker believes of its leases, by its own clock: no longer than the database does."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.engine.harness import Cluster
from tests.store.factories import begin
from turnkeep.engine import EngineSettings, Observer
from turnkeep.engine.held_turn import HeldLease, Leases
from turnkeep.errors import LeaseLost
from turnkeep.model.turns import Held
from turnkeep.store.commands import Renewal
from turnkeep.store.ports import TurnStore

LEASE_SECONDS = 10.0


class Monotonic:
    """The worker's clock, in the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class SlowLine:
    """The store at the end of a line on which every answer travels for `seconds`."""

    def __init__(self, store: TurnStore, clock: Monotonic, *, seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._seconds = seconds

    async def renew(self, held: Sequence[Held], *, lease_seconds: float, **_: Any) -> list[Renewal]:
        answers = await self._store.renew(held, lease_seconds=lease_seconds)
        self._clock.now += self._seconds
        return answers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr("turnkeep.engine.held_turn.time", clock)
    return clock


def leases_over(store: object) -> Leases:
    return Leases(cast(TurnStore, store), EngineSettings(lease_seconds=LEASE_SECONDS), Observer())


def keep(leases: Leases, held: Held, *, asked_at: float) -> HeldLease:
    return leases.add(held, asked_at=asked_at, on_cancel=lambda: None, on_lost=lambda: None)


async def is_trusted(lease: HeldLease) -> bool:
    """Whether a call would be started at once."""
    waiting = asyncio.create_task(lease.ensure())
    await asyncio.sleep(0)
    if waiting.done():
        await waiting
        return True
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    return False


class TestALease:
    async def test_is_counted_from_sending_the_renewal_and_not_from_its_answer(
        self, cluster: Cluster, clock: Monotonic
    ) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=7.0))
        lease = keep(leases, await begin(cluster.store, cluster.ann), asked_at=clock.now)
        sent_at = clock.now
        await leases.renew()
        assert clock.now == sent_at + 7.0
        assert await is_trusted(lease)
        clock.now = sent_at + LEASE_SECONDS - 0.01
        assert await is_trusted(lease)
        clock.now = sent_at + LEASE_SECONDS
        assert not await is_trusted(lease), "the database counts from the moment at which it was asked"

    async def test_that_has_ended_before_its_renewal_was_heard_of_is_not_trusted(
        self, cluster: Cluster, clock: Monotonic
    ) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=LEASE_SECONDS + 1))
        lease = keep(leases, await begin(cluster.store, cluster.ann), asked_at=clock.now)
        await leases.renew()
        assert not await is_trusted(lease)

    async def test_in_doubt_lets_calls_wait_for_the_next_renewal(self, cluster: Cluster, clock: Monotonic) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=0.1))
        lease = keep(leases, await begin(cluster.store, cluster.ann), asked_at=clock.now)
        clock.now += LEASE_SECONDS
        waiting = asyncio.create_task(lease.ensure())
        await asyncio.sleep(0)
        assert not waiting.done()
        await leases.renew()
        async with asyncio.timeout(20):
            await waiting

    async def test_that_another_worker_has_is_lost_to_whoever_waits(self, cluster: Cluster, clock: Monotonic) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=0.1))
        held = await begin(cluster.store, cluster.ann)
        lease = keep(leases, held, asked_at=clock.now)
        await cluster.store.hand_over([held])
        assert await cluster.store.adopt("worker-2", lease_seconds=LEASE_SECONDS, limit=1)
        clock.now += LEASE_SECONDS
        waiting = asyncio.create_task(lease.ensure())
        await leases.renew()
        async with asyncio.timeout(20):
            with pytest.raises(LeaseLost):
                await waiting


class TestAnotherAttemptOnTheSameWorker:
    """A worker may adopt a turn that it still holds: its lease had ended before it could be renewed."""

    async def test_ends_the_lease_of_the_attempt_before_it(self, cluster: Cluster, clock: Monotonic) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=0.1))
        first = await begin(cluster.store, cluster.ann)
        lost: list[str] = []
        former = leases.add(first, asked_at=clock.now, on_cancel=lambda: None, on_lost=lambda: lost.append("first"))
        clock.now += LEASE_SECONDS
        waiting = asyncio.create_task(former.ensure())
        await asyncio.sleep(0)
        later = keep(leases, await self.adopted(cluster, first), asked_at=clock.now)
        async with asyncio.timeout(20):
            with pytest.raises(LeaseLost):
                await waiting
        assert lost == ["first"]
        assert await is_trusted(later)

    async def test_keeps_its_lease_when_the_attempt_before_it_ends(self, cluster: Cluster, clock: Monotonic) -> None:
        leases = leases_over(SlowLine(cluster.store, clock, seconds=0.1))
        first = await begin(cluster.store, cluster.ann)
        keep(leases, first, asked_at=clock.now)
        second = await self.adopted(cluster, first)
        later = keep(leases, second, asked_at=clock.now)
        leases.remove(first)
        clock.now += LEASE_SECONDS
        await leases.renew()
        assert await is_trusted(later)
        leases.remove(second)
        assert len(leases) == 0

    async def adopted(self, cluster: Cluster, held: Held) -> Held:
        await cluster.store.hand_over([held])
        (adopted,) = await cluster.store.adopt("worker-1", lease_seconds=LEASE_SECONDS, limit=1)
        return adopted.held
