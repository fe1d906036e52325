"""What the store must reach, as ratios from one run, and whether it did."""

from collections.abc import Sequence
from typing import Any

from bench.harness import target

APPEND_TO_RAW = {"sqlite": 1.9, "postgres": 1.4}
APPEND_GROWTH = 1.2
LOAD_TO_RAW = 1.6
READ_GROWTH = 1.35
"""Flat, as far as can be told: identical loads differ by up to 1.33 within a run on a shared machine."""
WRITERS_TO_POOL = 1.3
WRITERS_TO_SQLALCHEMY = 8.0
SQLITE_COMMITS = 0.5
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

Figures = Sequence[dict[str, Any]]


def targets(figures: Figures, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each thing that was asked for and can be told from these figures."""
    rows: list[dict[str, Any]] = []
    for database, name in NAMES.items():
        ours = [row for row in figures if row["database"] == database and row["role"] == "ours"]
        peers = [row for row in figures if row["database"] == database and row["role"] == "peer"]
        rows += [_to_raw(row, name, "append", APPEND_TO_RAW[database]) for row in ours if row["figure"] == "append"]
        for figure in ("load", "transcript"):
            rows += [_to_raw(row, name, figure, LOAD_TO_RAW) for row in ours if row["figure"] == figure]
        for figure, growth in (("append", APPEND_GROWTH), ("load", READ_GROWTH), ("transcript", READ_GROWTH)):
            rows.append(_growth([row for row in ours if row["figure"] == figure], name, figure, sizes[-1], growth))
        rows += _peers(peers, name)
        rows += _writers(ours, peers, database, name)
    return rows


def _to_raw(row: dict[str, Any], name: str, figure: str, bound: float) -> dict[str, Any]:
    return target(f"{name}: {figure} at {row['turns']:,} turns, against raw", row["ratio_to_limit"], bound)


def _growth(rows: Figures, name: str, figure: str, largest: int, bound: float) -> dict[str, Any]:
    costs = {row["turns"]: row["median_us"] for row in rows}
    growth = costs[largest] / costs[100]
    return target(f"{name}: {figure} at {largest:,} turns, against 100 turns", growth, bound)


def _peers(peers: Figures, name: str) -> list[dict[str, Any]]:
    """The quickest peer decides."""
    rows = []
    for figure in ("append", "load"):
        compared = [row for row in peers if row["figure"] == figure and row["turns"] >= 100]
        for turns in sorted({row["turns"] for row in compared}):
            best = min((row for row in compared if row["turns"] == turns), key=lambda row: float(row["median_us"]))
            what = f"{name}: {figure} at {turns:,} turns, quickest peer ({best['contender']}) against Turnkeep"
            rows.append(target(what, best["ratio_to_turnkeep"], 1.0, at_least=True))
    return rows


def _writers(ours: Figures, peers: Figures, database: str, name: str) -> list[dict[str, Any]]:
    mine = next(row for row in ours if "turns_per_second" in row)
    if database == "sqlite":
        what = f"{name}: commits per turn, 16 writers"
        return [target(what, mine["commits_per_turn"], SQLITE_COMMITS, unit="")]
    sqlalchemy = next(row for row in peers if "turns_per_second" in row and "SQLAlchemy" in row["contender"])
    advantage = 1 / sqlalchemy["ratio_to_turnkeep"]
    return [
        target(f"{name}: 16 writers, against the raw pool", mine["ratio_to_limit"], WRITERS_TO_POOL, at_least=True),
        target(f"{name}: 16 writers, against SQLAlchemySession", advantage, WRITERS_TO_SQLALCHEMY, at_least=True),
    ]
