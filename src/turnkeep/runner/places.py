"""Places: so many turns run at once, so many more wait in order, the others are refused."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from turnkeep.errors import SandboxUnavailable


class RunnerBusy(SandboxUnavailable):
    """Every place is taken, and so is the queue. Try again later, or start another runner."""


class WaitedTooLong(SandboxUnavailable):
    """No place became free in time."""


class Places:
    """First come, first served."""

    def __init__(self, count: int, *, queue: int, seconds: float) -> None:
        self._free = count
        self._queue = queue
        self._seconds = seconds
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.count = count

    @property
    def taken(self) -> int:
        return self.count - self._free

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._free == 0 and len(self._waiting) >= self._queue

    @asynccontextmanager
    async def one(self, on_wait: Callable[[int], None]) -> AsyncIterator[None]:
        """Hold a place. `on_wait` is told how many are ahead, if one must wait. Raises RunnerBusy, WaitedTooLong."""
        if self.is_full:
            raise RunnerBusy("The sandbox runner has no place free, and as many turns wait as may.")
        if self._free:
            self._free -= 1
        else:
            on_wait(len(self._waiting))
            await self._wait()
        try:
            yield
        finally:
            self._leave()

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came in the moment in which we left
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(exc, TimeoutError):
                raise WaitedTooLong(f"No place became free within {self._seconds:g} seconds.") from exc
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
