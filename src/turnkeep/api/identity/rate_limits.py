"""Rate limits per API key, kept in this process.

With several workers each has buckets of its own, so a key may reach its limit on every one of them. A shared count
would cost a round trip per request. The monthly limits, which cost money, are counted in the database.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from turnkeep.errors import RateLimited

BUCKETS = 10_000


class RateLimiter:
    """Buckets that hold one minute's worth of requests and fill evenly."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, *, per_minute: int) -> RateLimited | None:
        """Count one request. Returns the refusal, with the time to wait, if there were too many; else None."""
        now = self._clock()
        level, since = self._buckets.pop(key, (float(per_minute), now))
        level = min(float(per_minute), level + (now - since) * per_minute / 60)
        is_allowed = level >= 1
        self._buckets[key] = (level - 1 if is_allowed else level, now)
        if len(self._buckets) > BUCKETS:
            self._buckets.popitem(last=False)
        if is_allowed:
            return None
        seconds = max(1, math.ceil((1 - level) * 60 / per_minute))
        return RateLimited(
            f"This key may make {per_minute} requests a minute. Try again in {seconds} s.",
            retry_after_seconds=seconds,
        )
