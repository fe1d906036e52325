"""The time, as an integer of Unix epoch milliseconds, from a source that tests can replace."""

import calendar
import time
from collections.abc import Callable
from functools import lru_cache

DAY_MS = 24 * 60 * 60 * 1000

Clock = Callable[[], int]
"""Returns the present as Unix epoch milliseconds."""


def system_clock() -> int:
    return time.time_ns() // 1_000_000


def month_of(at: int) -> str:
    """The billing month (UTC) of a moment: `2026-11`."""
    return _month_of_day(at // DAY_MS)


@lru_cache(maxsize=100)
def _month_of_day(day: int) -> str:
    return time.strftime("%Y-%m", time.gmtime(day * DAY_MS // 1000))


def next_month(at: int) -> int:
    """The moment at which the month after that of `at` begins."""
    now = time.gmtime(at / 1000)
    return calendar.timegm((now.tm_year, now.tm_mon + 1, 1, 0, 0, 0)) * 1000


class FakeClock:
    """A clock for tests. It moves only through `advance`."""

    def __init__(self, now: int = 1_750_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, *, seconds: float) -> None:
        self.now += int(seconds * 1000)
