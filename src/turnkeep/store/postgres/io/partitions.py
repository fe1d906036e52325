"""Partitions: `messages` and `turn_events` are divided into months, by the ids of turns, which begin with their time.

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

MONTHS = {"messages": 3, "turn_events": 1}
"""How many months a partition has. Events go after a month or two, messages only with their conversations. A page of
messages looks at every partition that there is, so there should not be many."""
PERIODS_AHEAD = 2
"""How many partitions are there for times to come."""

Fetch = Callable[..., Awaitable[Sequence[Any]]]
"""Runs a named query with these values."""


class Partition(Struct, frozen=True):
    """A range of turn ids: from `first` (None: from the beginning), before `end` (None: it is the one for all others)."""

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
    """Those that there are, table by table. None if the user may not make or drop any, as the owner of the tables
    may. Then `turnkeep migrate` makes them."""
    return [Partition(*row) for row in await fetch("partitions")]


async def make_partitions(fetch: Fetch, now: int) -> None:
    """Make those that are missing for the present and the next months. One that cannot be made now is made later."""
    for table, known in groupby(await partitions_of(fetch), lambda each: each.table):
        for missing in missing_partitions(table, list(known), now):
            await fetch("make_partition", missing.table, missing.name, missing.first, missing.end)


def missing_partitions(table: str, known: Sequence[Partition], now: int) -> Iterator[Partition]:
    """What is to be made. A period of which there is a part gets the rest of it."""
    months = MONTHS[table]
    year, month, *_ = time.gmtime(now // 1000)
    begin = (12 * year + month - 1) // months * months
    for at in range(begin, begin + (PERIODS_AHEAD + 1) * months, months):
        first, end = _first_id(at), _first_id(at + months)
        first = max([first, *(each.end for each in known if each.end is not None and first < each.end <= end)])
        made = Partition(table, f"{table}_{at // 12}_{at % 12 + 1:02}", first, end)
        if first < end and not any(each.meets(made) for each in known):
            yield made


def _first_id(month: int) -> str:
    return first_turn_id(calendar.timegm((month // 12, month % 12 + 1, 1, 0, 0, 0)) * 1000)
