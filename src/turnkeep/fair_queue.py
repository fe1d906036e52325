"""A queue for places that all tenants of a process share: no user and no org can hold all of them.

A place that becomes free goes to the org that holds the fewest places, and of those to the one that was served the
longest ago; inside of it to a user by the same rule. Between equals the first that came is the first.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from msgspec import Struct

from turnkeep.errors import QueueFull
from turnkeep.model.principals import Principal

Answer = TypeVar("Answer")


class Owner(Struct, frozen=True):
    """Whose work it is. Without a user it belongs to its org as a whole, and without an org it has no share."""

    org: str = ""
    user: str = ""


def owner_of(principal: Principal) -> Owner:
    return Owner(principal.org_id, principal.user_id or "")


class Shares(Struct, frozen=True, kw_only=True):
    """How many places there are, and how many of them, and of those that wait, one tenant can have."""

    places: int
    waiting: int
    per_org: int
    per_user: int

    @classmethod
    def of(cls, places: int, *, waiting: int, per_org: int = 0, per_user: int = 0) -> "Shares":
        """Where no bound is given: half of the places for a user, and three quarters for an org; at least one."""
        return cls(
            places=places,
            waiting=waiting,
            per_org=per_org or max(1, places * 3 // 4),
            per_user=per_user or max(1, places // 2),
        )


class FairQueue:
    """At most `places` owners work at once, and `waiting` more wait; further ones are refused."""

    def __init__(self, shares: Shares, *, seconds: float | None = None) -> None:
        self._shares = shares
        self._seconds = seconds
        self._held: Counter[Owner] = Counter()
        self._count = 0
        self._waiting: dict[asyncio.Future[None], Owner] = {}
        self._served: dict[Owner | str, int] = {}
        """When an owner or an org last got a place, as long as anything waits."""

    @property
    def taken(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def is_full(self, owner: Owner) -> bool:
        """Whether work of this owner would be refused. The work of one user can be half of what waits."""
        if self._may_have(owner):
            return False
        own = sum(each == owner for each in self._waiting.values())
        is_greedy = bool(owner.user) and own >= max(1, self._shares.waiting // 2)
        return is_greedy or len(self._waiting) >= self._shares.waiting

    @asynccontextmanager
    async def place(self, owner: Owner, *, on_wait: Callable[[int], None] | None = None) -> AsyncIterator[None]:
        """Hold one place. If the owner must wait, `on_wait` gets the number of those that wait already.

        Raises QueueFull, and TimeoutError after `seconds` of waiting.
        """
        if self.is_full(owner):
            raise QueueFull("Too much of this kind of work waits. Try again later.")
        if self._may_have(owner):
            self._give(owner)
        else:
            if on_wait is not None:
                on_wait(len(self._waiting))
            await self._wait(owner)
        try:
            yield
        finally:
            self._release(owner)

    async def _wait(self, owner: Owner) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting[place] = owner
        try:
            async with asyncio.timeout(self._seconds):
                await place
        except BaseException:
            if self._waiting.pop(place, None) is None:
                self._release(owner)  # the place was given at the moment of the timeout or cancellation
            raise

    def _release(self, owner: Owner) -> None:
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        ready = [place for place, each in self._waiting.items() if self._may_have(each)]
        if ready:
            chosen = min(ready, key=self._rank)  # the first of equals
            self._give(self._waiting.pop(chosen))
            chosen.set_result(None)
        if not self._waiting:
            self._served.clear()

    def _give(self, owner: Owner) -> None:
        self._held[owner] += 1
        self._count += 1
        self._served[owner] = self._served[owner.org] = self._count

    def _rank(self, place: "asyncio.Future[None]") -> tuple[int, int, int, int]:
        owner = self._waiting[place]
        served = self._served
        return self._held_by_org(owner.org), served.get(owner.org, 0), self._held[owner], served.get(owner, 0)

    def _may_have(self, owner: Owner) -> bool:
        if self.taken >= self._shares.places:
            return False
        if owner.user and self._held[owner] >= self._shares.per_user:
            return False
        return not owner.org or self._held_by_org(owner.org) < self._shares.per_org

    def _held_by_org(self, org: str) -> int:
        return sum(count for owner, count in self._held.items() if owner.org == org)


async def in_daemon_thread(work: Callable[[], Answer]) -> Answer:
    """What `work` returns, called in a thread of its own. The end of the process does not wait for it, as it does for
    the threads of `asyncio.to_thread`. So `work` must change nothing but memory."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(value: Answer | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type] # without an error it is the answer

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="daemon-work", daemon=True).start()
    return await answer
