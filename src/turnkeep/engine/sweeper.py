"""The sweeper: what some worker must do now and then, whoever it is. Every part may run on all workers at once."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from turnkeep.clock import Clock
from turnkeep.engine.observer import Observer
from turnkeep.engine.settings import EngineSettings
from turnkeep.engine.worker import Worker
from turnkeep.errors import WorldError
from turnkeep.store.ports import Store

ADOPT_AT_ONCE = 50
PURGE_EVERY_SWEEPS = 600
DAY_MS = 86_400_000
SILENT_IMPORT_MS = 600_000
KNOWLEDGE_STEPS = 200


class BagKeeper(Protocol):
    """Looks after the bytes of files, whose rows the store keeps."""

    async def tidy(self, erased: Sequence[str]) -> None:
        """Erase these objects, and now and then whatever else was left over."""


class Sweeper:
    """Adopts turns that nobody holds, lets waiting turns run, stops the unwatched, keeps search fresh, purges."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        settings: EngineSettings,
        observer: Observer,
        clock: Clock,
        bag: BagKeeper | None = None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._bag = bag
        self._met_at = time.monotonic()
        """When the database last answered."""
        self._adopt_from = 0.0

    async def sweep_for_ever(self) -> None:
        sweeps = 0
        while True:
            try:
                await self.sweep()
                if sweeps % PURGE_EVERY_SWEEPS == 0:
                    await self._purge()
            except WorldError:
                pass  # the database is away; `_meet` sees for how long
            except Exception as exc:  # a sweep that fails must not end all sweeps
                self._observer.defect(None, exc)
            sweeps += 1
            await asyncio.sleep(self._pause_seconds)

    async def sweep(self) -> None:
        """Once: first what lets turns run, then what tidies up."""
        await self._store.promote_waiting()
        self._meet()
        await self._worker.let_go()
        limit = min(self._worker.room, ADOPT_AT_ONCE)
        if limit and time.monotonic() >= self._adopt_from:
            await self._worker.adopt(limit=limit)
        for turn_id in await self._store.cancel_unwatched():
            self._worker.stop(turn_id)
        await self._store.index_pending()

    @property
    def _pause_seconds(self) -> float:
        """Between two sweeps; with a short lease shorter, so that a silence can be told from a pause."""
        return min(self._settings.sweep_seconds, self._settings.lease_seconds / 4)

    def _meet(self) -> None:
        """The database answers. If it did not for so long that living workers may have lost leases, they renew first.

        The same holds when it was this process that stood still: the others of this machine may have stood still
        with it. A shorter silence cannot have ended the lease of a worker that lives, as it renews three times within
        one.
        """
        now, lease = time.monotonic(), self._settings.lease_seconds
        if now - self._met_at > self._pause_seconds + lease / 2:
            self._adopt_from = now + lease
        self._met_at = now

    async def _purge(self) -> None:
        await self._purge_knowledge()
        purged = await self._store.purge(deleted_before=int(self._clock() - self._settings.retention_days * DAY_MS))
        if self._bag is not None:
            with suppress(WorldError):  # the bucket is away, which is no reason to stop; a later round finds it all
                await self._bag.tidy(purged.storage_keys)

    async def _purge_knowledge(self) -> None:
        """Rows of deleted tables and of imports whose server died, in small steps: the writer has others to serve."""
        now = self._clock()
        # Under which keys rows were added is remembered for a day at least: so long a request may be sent again.
        before = int(now - max(1, self._settings.retention_days) * DAY_MS)
        for _ in range(KNOWLEDGE_STEPS):
            if not await self._store.purge_knowledge(before=before, silent_before=int(now - SILENT_IMPORT_MS)):
                return
