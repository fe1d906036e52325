"""How figures are taken: interleaved, warm, medians. Knows nothing of what is measured.

A `Cell` is one thing to time (one figure of one contender at one size). `measure` visits all cells in turn, again and
again, so that whatever else the machine does falls on all of them alike. What a cell makes ready is never in the time.
"""

import asyncio
import gc
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Operation = Callable[[], Awaitable[object]]

SLOW_SECONDS = 0.02
"""Above this an operation is timed one by one, and not in bursts."""


@dataclass(frozen=True)
class Effort:
    """How long to look. The quick one shows that everything runs; only the full one gives figures to quote."""

    visits: int
    burst: int
    cell_seconds: float
    fewest: int
    sizes: tuple[int, ...]
    rounds: int
    round_seconds: float


FULL = Effort(visits=40, burst=4, cell_seconds=3.0, fewest=5, sizes=(0, 100, 1_000, 5_000), rounds=9, round_seconds=0.7)
QUICK = Effort(visits=8, burst=3, cell_seconds=0.4, fewest=2, sizes=(0, 100, 1_000), rounds=3, round_seconds=0.2)


@dataclass
class Cell:
    """One thing to time. `ready` prepares one operation, unmeasured, and returns it."""

    figure: str
    database: str
    turns: int
    contender: str
    role: str
    ready: Callable[[], Awaitable[Operation]]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


async def measure(cells: Sequence[Cell], effort: Effort) -> None:
    """Fill `seconds` of every cell, round robin, each time in another order."""
    plans = {id(cell): await _plan(cell, effort) for cell in cells}
    with quiet():
        for visit in range(effort.visits):
            for cell in _rotated(cells, visit):
                plan = plans[id(cell)]
                if plan.is_due(visit):
                    await _visit(cell, plan.burst)
            gc.collect()


@dataclass(frozen=True)
class _Plan:
    """Slow cells are visited less often, spread over the whole run."""

    visits: int
    of: int
    burst: int

    def is_due(self, visit: int) -> bool:
        return visit * self.visits // self.of != (visit + 1) * self.visits // self.of


async def _plan(cell: Cell, effort: Effort) -> _Plan:
    """Warm the cell up, and see what it costs."""
    costs: list[float] = []
    for _ in range(5):
        operation = await cell.ready()
        costs.append(await _timed(operation))
        if costs[-1] > SLOW_SECONDS:
            break
    cost = statistics.median(costs)
    burst = 1 if cost > SLOW_SECONDS else effort.burst
    affordable = int(effort.cell_seconds / (cost * burst))
    return _Plan(visits=max(effort.fewest, min(effort.visits, affordable)), of=effort.visits, burst=burst)


async def _visit(cell: Cell, burst: int) -> None:
    """One untimed operation brings the caches back from the cell before, then the burst is timed."""
    if burst > 1:
        await (await cell.ready())()
    operations = [await cell.ready() for _ in range(burst)]
    for operation in operations:
        cell.seconds.append(await _timed(operation))


async def _timed(operation: Operation) -> float:
    began = time.perf_counter_ns()
    await operation()
    return (time.perf_counter_ns() - began) / 1e9


@dataclass
class Race:
    """Many writers at once. `start(worker, count)` prepares one worker's writes, unmeasured, and returns them."""

    database: str
    contender: str
    role: str
    start: Callable[[int, int], Awaitable[Operation]]
    rates: list[float] = field(default_factory=list)
    counted: Callable[[], int] | None = None
    """Commits so far, where the contender can tell."""
    commits: int = 0
    writes: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


async def race(races: Sequence[Race], *, workers: int, effort: Effort) -> None:
    """Fill `rates` (writes per second, all workers together), round robin."""
    counts: dict[int, int] = {}
    for contest in races:
        await _run_race(contest, workers, 2)
        rate, _ = await _run_race(contest, workers, 4)
        counts[id(contest)] = max(2, int(rate * effort.round_seconds / workers))
    with quiet():
        for turn in range(effort.rounds):
            for contest in _rotated(races, turn):
                count = counts[id(contest)]
                rate, commits = await _run_race(contest, workers, count)
                contest.rates.append(rate)
                contest.commits += commits
                contest.writes += count * workers
                gc.collect()


async def _run_race(contest: Race, workers: int, count: int) -> tuple[float, int]:
    operations = [await contest.start(worker, count) for worker in range(workers)]
    before = contest.counted() if contest.counted else 0
    began = time.perf_counter_ns()
    await asyncio.gather(*(operation() for operation in operations))
    elapsed = (time.perf_counter_ns() - began) / 1e9
    after = contest.counted() if contest.counted else 0
    return count * workers / elapsed, after - before


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection but where `measure` asks for it; what exists already is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _rotated(items: Sequence[Item], by: int) -> Sequence[Item]:
    by = by * 7 % len(items) if items else 0
    return (*items[by:], *items[:by])


@dataclass(frozen=True)
class Place:
    """Where a contender keeps its data: a directory of its own, or a database of its own on one server."""

    directory: Path
    create_database: Callable[[str], Awaitable[str]]


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    """A temporary directory and a PostgreSQL server that flushes every commit, both gone afterwards."""
    import tempfile

    from tests.servers import PostgresServer, create_database

    # Autovacuum would fall on whoever is being measured; the tables are vacuumed once, when they are full.
    server = await asyncio.to_thread(lambda: PostgresServer().start(settings={"autovacuum": "off"}))
    try:
        with tempfile.TemporaryDirectory(prefix="turnkeep-bench-") as directory:
            yield Place(Path(directory), lambda name: create_database(server.uri(), name))
    finally:
        await asyncio.to_thread(server.close)


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """What the figures depend on. No names, no dates."""
    return {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def flush_us(directory: Path) -> float:
    """What the disk asks for one flush: the median of 200 writes of 4 KiB, each with fdatasync."""
    seconds = []
    with (directory / "flush").open("wb", buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds) * 1e6, 1)


def target(name: str, value: float, bound: float, *, at_least: bool = False, unit: str = "×") -> dict[str, Any]:
    """A row of the target table: what was measured, against what was asked."""
    met = value >= bound if at_least else value <= bound
    sign = "≥" if at_least else "≤"
    return {"target": name, "value": round(value, 3), "sign": sign, "bound": bound, "unit": unit, "met": met}
