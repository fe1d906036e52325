"""Leases and readers: what a worker reports to the store at an even pace, and what it learns from the answer.

Leases: one statement a second renews every turn of this worker and brings back the turns that shall stop. A worker
trusts a lease only until its own monotonic clock says so, counted from the moment *before* the last renewal was sent.
After that it starts no more calls and waits for a renewal that succeeds.

Readers: a turn in the foreground goes on while a client reads its stream or waits for its answer. The worker reports
the turns that have readers here. When the last reader leaves, `watched_until` is not moved any more, and once it has
passed any worker may ask for a stop.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from turnkeep.config import EngineSettings
from turnkeep.engine.observer import Observer
from turnkeep.errors import LeaseLost, WorldError
from turnkeep.ids import TurnId
from turnkeep.model.turns import Held
from turnkeep.store.ports import TurnStore

LATE_SECONDS = 1.0
"""A report may be late by this much, even with a very short grace, without stopping a turn that has readers."""


class HeldLease:
    """The lease of one turn, as far as this worker can know it."""

    def __init__(self, held: Held, *, trusted_until: float, on_cancel: Callable[[], None], on_lost: Callable[[], None]):
        self.held = held
        self.trusted_until = trusted_until
        self.files_written = 0
        """How many files the turn's sandbox has written back, according to the last renewal."""
        self.is_lost = False
        self.on_cancel = on_cancel
        self.on_lost = on_lost
        self.renewed = asyncio.Event()

    async def ensure(self) -> None:
        """Return if the lease holds for certain; else wait for a renewal. Raises LeaseLost."""
        while not self.is_lost:
            if time.monotonic() < self.trusted_until:
                return
            self.renewed.clear()
            await self.renewed.wait()
        raise LeaseLost(f"Turn {self.held.turn_id} was taken over by another worker.")


class Leases:
    """All leases of one worker."""

    def __init__(self, store: TurnStore, settings: EngineSettings, observer: Observer) -> None:
        self._store = store
        self._lease_seconds = settings.lease_seconds
        self._renew_seconds = settings.renew_seconds
        self._observer = observer
        self._held: dict[TurnId, HeldLease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self, held: Held, *, asked_at: float, on_cancel: Callable[[], None], on_lost: Callable[[], None]
    ) -> HeldLease:
        """Keep this turn from now on; `asked_at` is the monotonic time before the claim or adoption was sent."""
        lease = HeldLease(held, trusted_until=asked_at + self._lease_seconds, on_cancel=on_cancel, on_lost=on_lost)
        self._held[held.turn_id] = lease
        return lease

    def remove(self, turn_id: TurnId) -> None:
        self._held.pop(turn_id, None)

    async def keep(self) -> None:
        """Renew for ever."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                await self.renew()
            except WorldError:
                continue  # the database is away; calls whose lease is in doubt wait in `ensure`
            except Exception as exc:  # one bad answer must not end the renewal of all turns
                self._observer.defect(None, exc)

    async def renew(self) -> None:
        """Renew once, for all turns that are held now."""
        leases = list(self._held.values())
        if not leases:
            return
        sent_at = time.monotonic()
        answers = await self._store.renew([lease.held for lease in leases], lease_seconds=self._lease_seconds)
        for lease, answer in zip(leases, answers, strict=True):
            if answer.is_held:
                lease.trusted_until = sent_at + self._lease_seconds
                lease.files_written = answer.files_written
                if answer.cancel_requested:
                    lease.on_cancel()
            elif self._held.get(lease.held.turn_id) is lease:
                lease.is_lost = True
                lease.on_lost()
            lease.renewed.set()


class Readers:
    """The readers that are attached to turns through this worker."""

    def __init__(self, store: TurnStore, settings: EngineSettings, observer: Observer) -> None:
        self._store = store
        self._every_seconds = settings.watch_seconds
        self._window_seconds = max(settings.disconnect_grace_seconds, LATE_SECONDS) + settings.watch_seconds
        self._observer = observer
        self._readers: Counter[TurnId] = Counter()
        self._came = asyncio.Event()

    @property
    def window_seconds(self) -> float:
        """How long a turn counts as watched after the last report."""
        return self._window_seconds

    @contextmanager
    def attach(self, turn_id: TurnId) -> Iterator[None]:
        """While this is open, the turn has a reader."""
        self._readers[turn_id] += 1
        self._came.set()
        try:
            yield
        finally:
            self._readers[turn_id] -= 1
            if not self._readers[turn_id]:
                del self._readers[turn_id]

    async def report(self) -> None:
        """Report for ever which turns have readers: at once when a reader comes, then at an even pace."""
        while True:
            if not self._readers:
                self._came.clear()
                await self._came.wait()
            self._came.clear()
            try:
                await self._store.watch(list(self._readers), seconds=self._window_seconds)
            except WorldError:
                pass  # reported again in a moment; the window is longer than a short outage
            except Exception as exc:  # a report that fails must not end all reports
                self._observer.defect(None, exc)
            try:
                async with asyncio.timeout(self._every_seconds):
                    await self._came.wait()
                await asyncio.sleep(min(0.05, self._every_seconds))  # readers that come at the same time are one report
            except TimeoutError:
                continue
