"""What was asked of the figures. A target whose contenders were not measured is left out."""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.e2e import measures
from bench.e2e.measures import Values
from bench.harness import target

Figures = Mapping[tuple[str, str], Values]
"""Values by figure and name of the contender."""

DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
PEERS = ("agents", "agno", "langgraph")


def targets(figures: Figures) -> list[dict[str, Any]]:
    """Rows of the table of targets."""
    rows: list[dict[str, Any]] = []
    for database, label in DATABASES.items():
        rows += _turns(_Side(figures, database), label)
        rows += _tokens(_Side(figures, database), label)
        rows += _live(_Side(figures, database), label)
    rows += _postgres(figures)
    rows += _rest(figures)
    return rows


class _Side:
    """The figures of one database."""

    def __init__(self, figures: Figures, database: str) -> None:
        self._figures = figures
        self._database = database

    def get(self, figure: str, value: str, contender: str = "turnkeep") -> float | None:
        return self._figures.get((figure, f"{contender}-{self._database}"), {}).get(value)

    def ratio(self, figure: str, value: str, other: str) -> float | None:
        """Turnkeep's value through that of another contender."""
        return _quotient(self.get(figure, value), self.get(figure, value, other))

    def failures(self, figure: str) -> float | None:
        """Turns that were refused or whose deltas were wrong."""
        values = self._figures.get((figure, f"turnkeep-{self._database}"))
        return None if values is None else values.get("refused", 0) + values.get("wrong", 0)


Rows = Iterator[dict[str, Any]]


def _turns(side: _Side, label: str) -> Rows:
    yield from _at_most(
        f"{label}: CPU of a turn ÷ the floor's", side.ratio(measures.TURN, "cpu_ms_per_turn", "floor"), 3.5
    )
    for peer in PEERS:
        ratio = side.ratio(measures.TURN, "turns_per_second", peer)
        yield from _at_least(f"{label}: turns per second ÷ those of {peer}", ratio, 10.0)
    new = side.get(measures.TURN, "cpu_ms_per_turn")
    after = side.get(measures.AFTER_20, "cpu_ms_per_turn")
    long_after = side.get(measures.AFTER_200, "cpu_ms_per_turn")
    yield from _at_most(f"{label}: CPU of a turn after 20 turns ÷ new", _quotient(after, new), 1.5)
    sent = _quotient(
        side.get(measures.AFTER_200, "request_bytes_per_turn"), side.get(measures.AFTER_20, "request_bytes_per_turn")
    )
    growth = _quotient(_quotient(long_after, after), sent)
    yield from _at_most(f"{label}: growth of CPU ÷ growth of the bytes sent, 20 to 200 turns", growth, 1.0)


def _tokens(side: _Side, label: str) -> Rows:
    for figure in (measures.LONG, measures.PACED):
        ratio = side.ratio(figure, "cpu_us_per_token", "floor")
        yield from _at_most(f"{label}: CPU of a token ÷ the floor's ({figure})", ratio, 3.5)
    yield from _at_most(f"{label}: first delta", side.get(measures.FIRST, "first_delta_ms"), 4.0, unit="ms")


def _live(side: _Side, label: str) -> Rows:
    for count, lag in ((200, 30.0), (500, 150.0)):
        figure = measures.live(count)
        yield from _at_most(f"{label}: {figure}, p99 of the lag", side.get(figure, "lag_p99_ms"), lag, unit="ms")
        yield from _at_most(f"{label}: {figure}, the longest", side.get(figure, "longest_seconds"), 11.0, unit="s")
    for count in (200, 500, 1_000):
        figure = measures.live(count)
        yield from _at_most(f"{label}: {figure}, refused or wrong", side.failures(figure), 0, unit="")


def _postgres(figures: Figures) -> Rows:
    side = _Side(figures, "postgres")
    yield from _at_least(
        "PostgreSQL: turns per second of 2 workers ÷ 1 worker",
        _quotient(
            figures.get((measures.TURN, "turnkeep-workers"), {}).get("turns_per_second"),
            side.get(measures.TURN, "turns_per_second"),
        ),
        1.3,
    )
    cost = side.get(measures.TURN, "database_cpu_ms_per_turn")
    yield from _at_most("PostgreSQL: its own CPU for a turn", cost, 2.5, unit="ms")
    idle = side.get(measures.IDLE, "queries_per_second")
    yield from _at_most("PostgreSQL: queries per second at idle", idle, 2.0, unit="")
    for turns in (1, 1_000):
        figure = measures.silent(1_000, turns)
        busy = side.get(figure, "queries_per_second")
        more = None if busy is None or idle is None else (busy - idle) / 1_000
        yield from _at_most(f"PostgreSQL: queries per stream and second, {figure}", more, 0.01, unit="")


def _rest(figures: Figures) -> Rows:
    start = figures.get((measures.START, "turnkeep-sqlite"), {})
    yield from _at_most("SQLite: ready after", start.get("ready_seconds"), 1.0, unit="s")
    idle = figures.get((measures.IDLE, "turnkeep-sqlite"), {})
    yield from _at_most("SQLite: memory at idle", idle.get("memory_mb"), 90.0, unit="MB")


def _quotient(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _at_most(name: str, value: float | None, bound: float, *, unit: str = "×") -> Rows:
    if value is not None:
        yield target(name, value, bound, unit=unit)


def _at_least(name: str, value: float | None, bound: float) -> Rows:
    if value is not None:
        yield target(name, value, bound, at_least=True)
