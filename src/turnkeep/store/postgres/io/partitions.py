"""Partitions: `messages` and `turn_events` are divided by time, by the ids of turns, which begin with their time.

Partitions are made ahead. A turn for which there is none is stored all the same, in the partition `…_other`; its rows
move when its partition is made. What is old goes as a whole: a partition that has no rows any more is dropped.

Decision: docs/decisions/0110
"""

import calendar
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from turnkeep.ids import first_turn_id

AHEAD_MS = 62 * 86_400_000
"""For how long there is room at least. A page of messages looks at every partition, so there should not be many."""

Fetch = Callable[..., Awaitable[Sequence[Any]]]
"""Runs a named query with these values."""


class Partition(Struct, frozen=True):
    """A range of turn ids: from `first` (None: from the beginning), before `end` (None: it has what no other has)."""

    table: str
    name: str
    first: str | None
    end: str | None

    def meets(self, other: "Partition") -> bool:
        """Whether an id can be in both."""
        if self.end is None or other.end is None:
            return False
        return (self.first or "") < other.end and (other.first or "") < self.end


async def partitions_of(fetch: Fetch) -> list[Partition]:
    """Those that there are, table by table. None if the user does not own the tables, and so may not change them."""
    return [Partition(*row) for row in await fetch("partitions")]


async def make_partitions(fetch: Fetch, now: int, *, months: int = 1, ahead_ms: int = AHEAD_MS) -> None:
    """Make those that are missing from now on for so long. A partition has one month of events, or this many months of
    messages. One that cannot be made now is made later."""
    for table, known in groupby(await partitions_of(fetch), lambda each: each.table):
        length = months if table == "messages" else 1
        for missing in missing_partitions(table, list(known), length, now, now + ahead_ms):
            await fetch("make_partition", missing.table, missing.name, missing.first, missing.end)


def missing_partitions(
    table: str, known: Sequence[Partition], months: int, now: int, until: int
) -> Iterator[Partition]:
    """What is to be made, so that there is a partition from `now` up to `until`. Of a period that has some already, the
    rest is made. Periods begin with the year, and have this many months."""
    begin = _month_of(now) // months * months
    for at in range(begin, _month_of(until) + 1, months):
        end = _begin_of(at + months)
        first = max([at, *(_month_of_id(each.end) for each in known if each.end and _begin_of(at) < each.end <= end)])
        made = Partition(table, f"{table}_{first // 12}_{first % 12 + 1:02}", _begin_of(first), end)
        if _begin_of(first) < end and not any(each.meets(made) for each in known):
            yield made


def _month_of(moment: int) -> int:
    """Months are counted from year 0 on."""
    year, month, *_ = time.gmtime(moment // 1000)
    return 12 * year + month - 1


def _month_of_id(turn_id: str) -> int:
    return _month_of(int(turn_id.removeprefix("turn_"), 16))


def _begin_of(month: int) -> str:
    return first_turn_id(calendar.timegm((month // 12, month % 12 + 1, 1, 0, 0, 0)) * 1000)
