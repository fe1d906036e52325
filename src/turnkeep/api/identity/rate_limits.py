"""Rate limits per API key, kept in this process. What a key requests counts for the keys that made it, too.

With several workers each has buckets of its own, so a key may reach its limit on every one of them. A shared count
would cost a round trip per request. The monthly limits, which cost money, are counted in the database.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from turnkeep.errors import RateLimited

BUCKETS = 10_000


class RateLimiter:
    """Buckets that hold one minute's worth of requests and fill evenly."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, rates: Sequence[tuple[str, int]]) -> RateLimited | None:
        """Count one request for each of these keys, which may make so many a minute: a key and those that made it.

        Returns the refusal, with the time to wait, if one of them has made too many; then it counts for none.
        """
        now = self._clock()
        levels = {key: self._level(key, per_minute, now) for key, per_minute in rates}
        waits = [(1 - levels[key]) * 60 / per_minute for key, per_minute in rates if levels[key] < 1]
        for key, level in levels.items():
            self._buckets[key] = (level if waits else level - 1, now)
        while len(self._buckets) > BUCKETS:
            self._buckets.popitem(last=False)
        if not waits:
            return None
        seconds = max(1, math.ceil(max(waits)))
        shortest = min(per_minute for key, per_minute in rates if levels[key] < 1)
        return RateLimited(
            f"This key may make {shortest} requests a minute, those of keys that it made included. "
            f"Try again in {seconds} s.",
            retry_after_seconds=seconds,
        )

    def _level(self, key: str, per_minute: int, now: float) -> float:
        """How many requests the key may make now. Its bucket is taken out, so that it is put back as the last used."""
        level, since = self._buckets.pop(key, (float(per_minute), now))
        return min(float(per_minute), level + (now - since) * per_minute / 60)
