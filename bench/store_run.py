"""The store part: append a turn, load a window, serve a page, write live, and many writers at once."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import apsw
import asyncpg

from bench.harness import FULL, QUICK, Cell, Effort, Operation, Place, Race, flush_us, measure, place, race
from bench.store_contender import Contender, CountsCommits, Live, Transcribing
from bench.store_field import PACKAGES, WORKERS, many_writers, one_writer
from bench.store_payloads import Exchange, exchanges
from bench.store_targets import targets

WINDOW_TURNS = 20
PAGE_MESSAGES = 50
COPIES = 8
STAY = 10
"""A small size has several conversations, so that none grows out of it. Each gets some appends before the next one
has its turn: to change at every append would favour the large sizes, which have one conversation that stays warm."""

packages = PACKAGES
_FIGURES = ("append", "load", "transcript", "live", f"{WORKERS} writers")


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """The settings, then every figure, then every target."""
    import uvloop

    return uvloop.run(_run(QUICK if quick else FULL))


async def _run(effort: Effort) -> list[dict[str, Any]]:
    async with place() as where:
        settings = await _settings(where)
        figures = [*await _alone(where, effort), *await _together(where, effort)]
    figures.sort(key=lambda row: (row["database"] != "sqlite", _FIGURES.index(row["figure"]), row.get("turns", 0)))
    return [*settings, *figures, *targets(figures, effort.sizes)]


async def _settings(where: Place) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(await where.create_database("scratch"))
    shown = {name: await connection.fetchval(f"SHOW {name}") for name in ("server_version", "fsync")}
    shown["synchronous_commit"] = await connection.fetchval("SHOW synchronous_commit")
    await connection.close()
    settings = {
        "PostgreSQL": shown["server_version"],
        "PostgreSQL fsync, synchronous_commit": f"{shown['fsync']}, {shown['synchronous_commit']}",
        "SQLite of sqlite3": sqlite3.sqlite_version,
        "SQLite of apsw": apsw.sqlite_lib_version(),
        "SQLite journal_mode, synchronous (everyone)": "WAL, FULL",
        "one flush of 4 KiB, µs": flush_us(where.directory),
    }
    return [{"setting": name, "value": value} for name, value in settings.items()]


async def _alone(where: Place, effort: Effort) -> list[dict[str, Any]]:
    """One writer: all sizes and all contenders interleaved."""
    async with AsyncExitStack() as stack:
        contenders = await _open(one_writer(), where, stack)
        stock = exchanges()
        cells: list[Cell] = []
        for contender in contenders:
            for turns in effort.sizes:
                cells += await _cells(contender, turns, stock)
        await _settle_down(where)
        await measure(cells, effort)
    return [_figure(cell, cells) for cell in cells]


async def _together(where: Place, effort: Effort) -> list[dict[str, Any]]:
    """Many writers, each with a conversation of its own."""
    async with AsyncExitStack() as stack:
        contenders = await _open(many_writers(), _beside(where), stack)
        stock = exchanges()
        races = [await _race(contender, stock) for contender in contenders]
        await race(races, workers=WORKERS, effort=effort)
    return [_rate(contest, races) for contest in races]


async def _open(contenders: Sequence[Contender], where: Place, stack: AsyncExitStack) -> Sequence[Contender]:
    for contender in contenders:
        await contender.open(where)
        stack.push_async_callback(contender.close)
    return contenders


def _beside(where: Place) -> Place:
    """Room for the same contenders once more."""
    directory = where.directory / "many"
    directory.mkdir()
    return Place(directory, lambda name: where.create_database(f"{name}_many"))


async def _settle_down(where: Place) -> None:
    """Fresh statistics and clean pages in every database, as a server that has run for a while would have."""
    uri = await where.create_database("scratch_vacuum")
    connection = await asyncpg.connect(uri)
    names = await connection.fetch("SELECT datname FROM pg_database WHERE NOT datistemplate")
    await connection.execute("CHECKPOINT")
    await connection.close()
    for (name,) in names:
        connection = await asyncpg.connect(uri.replace("/scratch_vacuum?", f"/{name}?"))
        await connection.execute("VACUUM (ANALYZE)")
        await connection.close()


@dataclass
class _Threads:
    """The conversations of one contender at one size. Of size 0, every append gets a new one."""

    contender: Contender
    turns: int
    stock: "cycle[Exchange]"

    async def fill(self) -> None:
        copies = 0 if self.turns == 0 else COPIES if self.turns <= 100 else 1
        self._threads = [await self._new() for _ in range(copies)]
        self._turn = 0

    async def next(self) -> Any:
        if self.turns == 0:
            thread = await self._new()
            await self.contender.load(thread, 1)  # opens what is opened lazily
            return thread
        self._turn += 1
        return self._threads[self._turn // STAY % len(self._threads)]

    async def same(self) -> Any:
        """For reads: always the same conversation, whatever the size."""
        return self._threads[0]

    async def _new(self) -> Any:
        return await self.contender.prepare(list(islice(self.stock, self.turns)))


async def _cells(contender: Contender, turns: int, stock: "cycle[Exchange]") -> list[Cell]:
    threads = _Threads(contender, turns, stock)
    await threads.fill()

    def cell(figure: str, thread: Callable[[], Awaitable[Any]], ready: Callable[[Any], Operation]) -> Cell:
        async def on_thread() -> Operation:
            return ready(await thread())

        return Cell(figure, contender.database, turns, contender.name, contender.role, on_thread)

    def append(thread: Any) -> Operation:
        payload = contender.shape(thread, next(stock))
        return lambda: contender.append(thread, payload)

    def load(thread: Any) -> Operation:
        return lambda: _full(contender.load(thread, WINDOW_TURNS), WINDOW_TURNS * 4)

    cells = [cell("append", threads.next, append)]
    if turns >= WINDOW_TURNS:
        cells.append(cell("load", threads.same, load))
    if isinstance(contender, Transcribing) and turns >= PAGE_MESSAGES // 2:
        cells.append(cell("transcript", threads.same, _transcript(contender)))
    if isinstance(contender, Live) and turns == 100:
        cells.append(cell("live", threads.next, _live(contender, stock)))
    return cells


def _transcript(contender: Transcribing) -> Callable[[Any], Operation]:
    return lambda thread: lambda: _full(contender.transcript(thread, PAGE_MESSAGES), PAGE_MESSAGES)


def _live(contender: Live, stock: "cycle[Exchange]") -> Callable[[Any], Operation]:
    def ready(thread: Any) -> Operation:
        payload = contender.shape_live(thread, next(stock))
        return lambda: contender.live(thread, payload)

    return ready


async def _full(answer: Awaitable[Sequence[Any]], count: int) -> None:
    """Whoever returns less than was asked for is not measured, but broken."""
    found = len(await answer)
    if found != count:
        raise RuntimeError(f"{found} messages were returned instead of {count}")


async def _race(contender: Contender, stock: "cycle[Exchange]") -> Race:
    threads = [await contender.prepare([]) for _ in range(WORKERS)]

    async def start(worker: int, count: int) -> Operation:
        thread = threads[worker]
        payloads = [contender.shape(thread, exchange) for exchange in islice(stock, count)]

        async def write() -> None:
            for payload in payloads:
                await contender.append(thread, payload)

        return write

    counted = contender.commits if isinstance(contender, CountsCommits) else None
    # Whoever opens connections lazily does so now.
    await asyncio.gather(*(contender.load(thread, 1) for thread in threads[: 1 if contender.role == "limit" else None]))
    return Race(contender.database, contender.name, contender.role, start, counted=counted)


def _figure(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    same = [c for c in cells if (c.figure, c.database, c.turns) == (cell.figure, cell.database, cell.turns)]
    limit = next(c for c in same if c.role == "limit")
    ours = next(c for c in same if c.role == "ours")
    return {
        "figure": cell.figure,
        "database": cell.database,
        "turns": cell.turns,
        "contender": cell.contender,
        "role": cell.role,
        "median_us": round(cell.median * 1e6, 1),
        "samples": len(cell.seconds),
        "ratio_to_limit": round(cell.median / limit.median, 3),
        "ratio_to_turnkeep": round(cell.median / ours.median, 3),
    }


def _rate(contest: Race, races: Sequence[Race]) -> dict[str, Any]:
    same = [r for r in races if r.database == contest.database]
    limit = next(r for r in same if r.role == "limit")
    ours = next(r for r in same if r.role == "ours")
    row: dict[str, Any] = {
        "figure": f"{WORKERS} writers",
        "database": contest.database,
        "contender": contest.contender,
        "role": contest.role,
        "turns_per_second": round(contest.median, 1),
        "samples": len(contest.rates),
        "ratio_to_limit": round(contest.median / limit.median, 3),
        "ratio_to_turnkeep": round(contest.median / ours.median, 3),
    }
    if contest.counted is not None:
        row["commits_per_turn"] = round(contest.commits / contest.writes, 3)
    return row
