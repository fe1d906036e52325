"""Compare the store of this checkout with that of another one, interleaved: `python -m bench.compare ../before`.

Each checkout runs in a process of its own, with its own databases, and both are asked in turn for a few operations at a
time. So slow minutes of the machine hit both. The figures are medians, of the time and of the processor time of the
process and of its PostgreSQL; the latter depends less on what else runs. The other checkout needs no virtual
environment: it runs with this one's packages, and with its own sources.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
HISTORY_TURNS = 100
WRITERS = 16
OPERATIONS = {"live": 4, "append": 4, "load": 4, "create": 4, "append at once": 2, "live at once": 1}
"""Each operation, with how often one visit repeats it."""


class Side:
    """One checkout, measured by a process of its own."""

    def __init__(self, checkout: Path) -> None:
        paths = (checkout, checkout / "src", checkout / "clients/python/src")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        if self._read() != "ready":
            raise SystemExit("bench.compare: one of the two checkouts could not be opened; see above")

    def visit(self, database: str, operation: str) -> dict[str, list[tuple[float, float]]]:
        """The time and the processor time of each operation, by figure."""
        self._write(json.dumps([database, operation]))
        return json.loads(self._read())  # type: ignore[no-any-return]

    def close(self) -> None:
        self._write("")
        self._process.wait(30)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def compare(other: Path, rounds: int) -> None:
    sides = {"other": Side(other.resolve()), "this": Side(HERE)}
    for side in sides.values():
        side.wait_until_ready()
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for database in ("sqlite", "postgres"):
            for operation in OPERATIONS:
                for name in random.sample(sorted(sides), 2):
                    for figure, seconds in sides[name].visit(database, operation).items():
                        times[database, figure, name] += seconds
    for side in sides.values():
        side.close()
    columns = f"{'other':>10}{'this':>10}{'ratio':>8}"
    print(f"{'':28}{'time':>28}{'processor time':>28}")
    print(f"{'':28}{columns}{columns}   (medians in µs)")
    for database, figure in dict.fromkeys((database, figure) for database, figure, _ in times):
        line = f"{database:10}{figure:18}"
        for measured in (0, 1):
            before, after = (
                statistics.median(each[measured] for each in times[database, figure, name]) * 1e6
                for name in ("other", "this")
            )
            line += f"{before:10.0f}{after:10.0f}{after / before:8.2f}"
        print(line)


class Processors:
    """How long this process and a PostgreSQL have used processors."""

    def __init__(self, postmaster: int) -> None:
        self._children = Path(f"/proc/{postmaster}/task/{postmaster}/children")
        self._used: dict[str, int] = {}
        """Nanoseconds of each process of PostgreSQL, also of those that have ended."""

    def begin(self) -> float:
        """What both have used before an operation. That it is read is not counted, nor in `end`."""
        return self._postgres() + time.process_time()

    def end(self) -> float:
        own = time.process_time()
        return own + self._postgres()

    def _postgres(self) -> float:
        for pid in self._children.read_text().split():
            with suppress(OSError):  # it has just ended
                self._used[pid] = int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[0])
        return sum(self._used.values()) / 1e9


async def serve() -> None:
    """Measure the checkout whose modules are on the path. A line says what to do; an empty line ends it."""
    from bench.harness import place
    from bench.store_ours import TurnkeepPostgres, TurnkeepSqlite
    from bench.store_payloads import exchanges

    stock = cycle(exchanges())
    async with place() as where:
        opened: dict[str, tuple[Any, list[Any], list[Any]]] = {}
        for contender in (TurnkeepSqlite(), TurnkeepPostgres()):
            await contender.open(where)
            history = [next(stock) for _ in range(HISTORY_TURNS)]
            long = [await contender.prepare(history) for _ in range(4)]
            short = [await contender.prepare(history[:5]) for _ in range(WRITERS)]
            opened[contender.database] = (contender, long, short)
        processors = Processors(await _postmaster(where))
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            database, operation = json.loads(line)
            times: dict[str, list[tuple[float, float]]] = defaultdict(list)
            gc.collect()
            gc.disable()
            for number in range(OPERATIONS[operation]):
                await _measure(*opened[database], operation, number, stock, times, processors)
            gc.enable()
            print(json.dumps(times), flush=True)
        for contender, _, _ in opened.values():
            await contender.close()


async def _postmaster(where: Any) -> int:
    """The process whose children are the processes of PostgreSQL."""
    import asyncpg

    connection = await asyncpg.connect(await where.create_database("who"))
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    parent = Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1]
    await connection.close()
    return int(parent)


async def _measure(
    ours: Any,
    long: list[Any],
    short: list[Any],
    operation: str,
    number: int,
    stock: Any,
    times: dict[str, list[tuple[float, float]]],
    processors: Processors,
) -> None:
    async def timed(figure: str, work: Any) -> Any:
        used, begun = processors.begin(), time.perf_counter()
        done = await work
        took = time.perf_counter() - begun
        times[figure].append((took, processors.end() - used))
        return done

    thread, store = long[number % len(long)], ours._store
    match operation:
        case "live":
            turn = ours.shape_live(thread, next(stock))
            claimed = await timed("claim", store.claim(turn.claim))
            last = claimed.turn.last_seq
            for rows, events in (turn.iteration, turn.result):
                work = store.record(claimed.held, after=last, rows=rows, events=events)
                last = (await timed("record", work)).last_seq
            await timed("settle", store.settle(claimed.held, after=last, settlement=turn.settlement))
        case "append":
            await timed("append", ours.append(thread, ours.shape(thread, next(stock))))
        case "load":
            await timed("load", ours.load(thread, 20))
        case "create":
            await timed("new conversation", ours.prepare(()))
        case "append at once":
            turns = [(one, ours.shape(one, next(stock))) for one in short]
            await timed(f"{WRITERS} appends", asyncio.gather(*(ours.append(*turn) for turn in turns)))
        case "live at once":
            turns = [(one, ours.shape_live(one, next(stock))) for one in short]
            await timed(f"{WRITERS} live turns", asyncio.gather(*(ours.live(*turn) for turn in turns)))


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, nargs="?", help="another checkout, for example a git worktree")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve())
    elif arguments.other is None or not (arguments.other / "bench").is_dir():
        parser.error("name another checkout of this project")
    else:
        compare(arguments.other, arguments.rounds)


if __name__ == "__main__":
    main()
