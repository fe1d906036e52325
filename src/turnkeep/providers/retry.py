"""How often and how soon a failed request to a provider is repeated.

Decision: docs/decisions/0305
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from turnkeep.providers.failures import FailedAttempt
from turnkeep.providers.ports import ProviderFailed


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """At most `tries` attempts, with waits that double from `first_seconds` to `most_seconds`.

    All waits together stay within `share` of the time in which a first token must come, and within `total_seconds`. So
    the provider's error is reported before the turn reaches its time limit.
    """

    tries: int = 5
    first_seconds: float = 0.5
    most_seconds: float = 8.0
    total_seconds: float = 30.0
    share: float = 0.5
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


class RetryState:
    """The attempts of one model call so far."""

    def __init__(self, policy: RetryPolicy, *, timeout_seconds: float) -> None:
        self._policy = policy
        self._deadline = policy.monotonic() + min(policy.total_seconds, policy.share * timeout_seconds)
        self._failed = 0

    async def wait(self, attempt: FailedAttempt) -> None:
        """Sleep until the request may be repeated. Raises the error of the attempt if it should not be."""
        self._failed += 1
        if not attempt.is_transient:
            raise attempt.error
        delay = self._delay(attempt.retry_after_seconds)
        if self._failed >= self._policy.tries or self._policy.monotonic() + delay > self._deadline:
            raise self._given_up(attempt.error)
        await self._policy.sleep(delay)

    def _delay(self, asked_seconds: float | None) -> float:
        """Random, so that requests that failed together are not repeated together.

        Never shorter than `asked_seconds`.
        """
        policy = self._policy
        if asked_seconds is not None:
            return asked_seconds + policy.uniform(0.0, policy.first_seconds / 2)
        longest = min(policy.most_seconds, policy.first_seconds * 2 ** (self._failed - 1))
        return policy.uniform(longest / 2, longest)

    def _given_up(self, error: ProviderFailed) -> ProviderFailed:
        if self._failed == 1:
            return error
        return type(error)(f"{error.detail} (asked {self._failed} times)")
