"""Retries: how often and how long a request is tried again.

Decision: docs/decisions/0503
"""

import asyncio
import random
from collections.abc import Callable

from msgspec import Struct

from turnkeep_client.wire.errors import TurnkeepError

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STRANGER_SECONDS = 2.0
"""How long to wait for a server that has never answered. Its address is probably wrong."""


class Trouble(Struct, frozen=True, kw_only=True):
    """Something went wrong and is about to be tried again: what, and in how many seconds."""

    reason: str
    pause_seconds: float


OnTrouble = Callable[[Trouble], None]


class Retry:
    """Pauses that grow, up to a total without progress. `progress` restarts the total."""

    def __init__(
        self, seconds: float, *, on_trouble: OnTrouble | None = None, chance: random.Random | None = None
    ) -> None:
        self._seconds = seconds
        self._on_trouble = on_trouble
        self._chance = chance or random.Random()
        self._began = self._now()
        self._pause = FIRST_PAUSE_SECONDS

    def progress(self) -> None:
        """Something arrived: the total time starts again."""
        self._began = self._now()
        self._pause = FIRST_PAUSE_SECONDS

    def heard(self) -> None:
        """The server answers again: the next pause is short."""
        self._pause = FIRST_PAUSE_SECONDS

    async def wait(self, error: TurnkeepError, *, at_least: float = 0.0, limit: float | None = None) -> None:
        """Pause before the next try. Raises `error` when the next try would come too late."""
        pause = max(at_least, self._pause * self._chance.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        seconds = self._seconds if limit is None else min(limit, self._seconds)
        if self._now() + pause > self._began + seconds:
            raise error
        if self._on_trouble is not None:
            self._on_trouble(Trouble(reason=error.detail, pause_seconds=pause))
        await asyncio.sleep(pause)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
