"""Retrying: how often and how soon a provider is asked again. The SDKs' own retries are off; this is the one policy."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from turnkeep.providers.failures import Setback
from turnkeep.providers.ports import ProviderFailed


class Patience(Struct, frozen=True, kw_only=True):
    """At most `tries` attempts, with waits that double from `first_seconds` to `most_seconds`.

    All waits together stay within `share` of the time in which a first token must come, and within `total_seconds`, so
    that the provider's words about its trouble are heard before the turn runs into its time limit.
    """

    tries: int = 5
    first_seconds: float = 0.5
    most_seconds: float = 8.0
    total_seconds: float = 30.0
    share: float = 0.5
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


class Retrying:
    """The patience of one model call, as it runs out."""

    def __init__(self, patience: Patience, *, timeout_seconds: float) -> None:
        self._patience = patience
        self._deadline = patience.monotonic() + min(patience.total_seconds, patience.share * timeout_seconds)
        self._failed = 0

    async def wait(self, setback: Setback) -> None:
        """Sleep until it is time to ask again. Raises the setback's error when there is no sense in it."""
        self._failed += 1
        if not setback.is_transient:
            raise setback.error
        delay = self._delay(setback.retry_after_seconds)
        if self._failed >= self._patience.tries or self._patience.monotonic() + delay > self._deadline:
            raise self._given_up(setback.error)
        await self._patience.sleep(delay)

    def _delay(self, asked_seconds: float | None) -> float:
        """Spread, so that those who failed together do not come back together; never sooner than was asked."""
        patience = self._patience
        if asked_seconds is not None:
            return asked_seconds + patience.uniform(0.0, patience.first_seconds / 2)
        longest = min(patience.most_seconds, patience.first_seconds * 2 ** (self._failed - 1))
        return patience.uniform(longest / 2, longest)

    def _given_up(self, error: ProviderFailed) -> ProviderFailed:
        if self._failed == 1:
            return error
        return type(error)(f"{error.detail} (asked {self._failed} times)")
