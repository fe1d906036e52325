"""Watching: which turns have readers here, told to the store so that every worker knows.

A turn in the foreground goes on while somebody reads its stream or waits for its answer. When the last one leaves,
nothing moves `watched_until` any more, and once it has passed any worker may ask for a stop.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from turnkeep.engine.observer import Observer
from turnkeep.errors import WorldError
from turnkeep.ids import TurnId
from turnkeep.store.ports import TurnStore

HICCUP_SECONDS = 1.0
"""A report may be late by so much, with however short a grace: a turn that is read is not stopped for it."""


class Watching:
    """The readers of one worker."""

    def __init__(self, store: TurnStore, *, grace_seconds: float, every_seconds: float, observer: Observer) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._window_seconds = max(grace_seconds, HICCUP_SECONDS) + every_seconds
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
        """Tell the store for ever: at once when a reader comes, then at an even pace."""
        while True:
            if not self._readers:
                self._came.clear()
                await self._came.wait()
            self._came.clear()
            try:
                await self._store.watch(list(self._readers), seconds=self._window_seconds)
            except WorldError:
                pass  # told again in a moment; the window is longer than a hiccup
            except Exception as exc:  # a report that fails must not end all reports
                self._observer.defect(None, exc)
            try:
                async with asyncio.timeout(self._every_seconds):
                    await self._came.wait()
                await asyncio.sleep(min(0.05, self._every_seconds))  # a crowd that comes at once is one report
            except TimeoutError:
                continue
