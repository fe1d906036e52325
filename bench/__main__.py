"""`python -m bench [part …] [--quick] [--only NAMES]`: run the parts, show their tables, write `bench/results.json`.

A part is a module with `run() -> list[dict]` (it may take `quick` and `only`) and, if it likes, the names of the
`packages` that its figures depend on. A row is a figure, a setting (`setting`, `value`), or, made with
`harness.target`, a target. A miss is shown and changes nothing else: figures are no tests. Only a crash ends with an error.
"""

import argparse
import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import machine

PARTS = {
    "e2e": "bench.e2e.run",
    "store": "bench.store_run",
    "compiler": "bench.compiler",
    "engine": "bench.engine",
    "streaming": "bench.streaming",
    "knowledge": "bench.knowledge",
    "files": "bench.files",
    "cli": "bench.cli",
    "sandbox": "bench.sandbox",
    "providers": "bench.providers",
}
RESULTS = Path(__file__).with_name("results.json")

COLUMNS = ("on", "figure", "turns", "contender", "median", "× limit", "× Turnkeep", "more")
WIDTH = 140
"""Of the tables when nobody looks, as in a log."""

BUSY = 0.5
"""Load per core from which on other work disturbs the figures."""

Rows = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, side by side with the peers.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one or more of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a short look; no figures to quote, no results.json")
    parser.add_argument("--only", default="", metavar="NAMES", help="contenders of e2e, such as floor,turnkeep-sqlite")
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name]
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")

    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    load = os.getloadavg()[0]
    if load > BUSY * (os.cpu_count() or 1):
        console.print(f"The machine is busy (load {load:.1f}). Figures of such a run say little.", style="yellow")
    modules = {name: _load(name) for name in arguments.parts or PARTS}
    results: dict[str, Rows] = {}
    for name, module in modules.items():
        with console.status(f"Measuring: {name}"):
            results[name] = _run(module, quick=arguments.quick, only=only)
    for name, rows in results.items():
        console.print(_figures(name, rows))
    console.print(_targets(results))
    if not arguments.quick and not only:
        packages = [package for module in modules.values() for package in getattr(module, "packages", ())]
        _write(results, machine(list(dict.fromkeys(packages))) | {"load_before": round(load, 1)})
    return 0


def _load(name: str) -> ModuleType:
    """The part, or a clear end: a contender that is not installed must not vanish from the table."""
    try:
        return importlib.import_module(PARTS[name])
    except ImportError as exc:
        print(f"bench: part '{name}' cannot be loaded: {exc}. Run scripts/setup bench first.", file=sys.stderr)
        raise SystemExit(1) from exc


def _run(module: ModuleType, **options: Any) -> Rows:
    taken = inspect.signature(module.run).parameters
    rows: Rows = module.run(**{name: value for name, value in options.items() if name in taken})
    return rows


def _is_figure(row: dict[str, Any]) -> bool:
    return "target" not in row and "setting" not in row


def _figures(part: str, rows: Rows) -> Table:
    """One line for each figure of each contender. A part may have columns of its own; they are shown as `more`."""
    settings = "; ".join(f"{row['setting']}: {row['value']}" for row in rows if "setting" in row)
    table = Table(title=f"{part}: medians", title_justify="left", caption=settings or None, caption_justify="left")
    figures = [row for row in rows if _is_figure(row)]
    cells = [_cells(row) for row in figures]
    shown = [place for place in range(len(COLUMNS)) if any(line[place] for line in cells)]
    for place in shown:
        table.add_column(COLUMNS[place], justify="left" if place <= COLUMNS.index("contender") else "right")
    before: list[str] = []
    for row, line in zip(figures, cells, strict=True):
        group = line[: COLUMNS.index("contender")]
        if before and group != before:
            table.add_section()
        before = group
        table.add_row(*(line[place] for place in shown), style="bold" if row.get("role") == "ours" else None)
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    rest = {name: value for name, value in row.items() if name not in {"role", "samples", "name"}}
    known = [rest.pop(name, None) for name in ("database", "figure", "turns", "contender")]
    median = _median(rest)
    ratios = [rest.pop(name, None) for name in ("ratio_to_limit", "ratio_to_turnkeep")]
    more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rest.items())
    texts = ["" if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in known]
    return [*texts, median, *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios), more]


def _median(rest: dict[str, Any]) -> str:
    if "median_us" in rest:
        value = float(rest.pop("median_us"))
        return f"{value:,.0f} µs" if value < 10_000 else f"{value / 1000:,.0f} ms"
    if "turns_per_second" in rest:
        return f"{float(rest.pop('turns_per_second')):,.0f} turns/s"
    return ""


def _targets(results: dict[str, Rows]) -> Table:
    rows = [row for part in results.values() for row in part if "target" in row]
    met = sum(row["met"] for row in rows)
    table = Table(title=f"Targets: {met} of {len(rows)} met", title_justify="left")
    table.add_column("target")
    for column in ("measured", "asked", ""):
        table.add_column(column, justify="right")
    for row in rows:
        verdict = "met" if row["met"] else "[bold red]MISSED[/]"
        asked = f"{row['sign']} {row['bound']} {row['unit']}".strip()
        table.add_row(row["target"], f"{row['value']:.2f} {row['unit']}".strip(), asked, verdict)
    return table


def _write(results: dict[str, Rows], facts: dict[str, Any]) -> None:
    """Parts that were not run keep what an earlier run found."""
    try:
        before = json.loads(RESULTS.read_text())["parts"]
    except (FileNotFoundError, ValueError, KeyError):
        before = {}
    measured = {
        name: {
            "machine": facts,
            "settings": {row["setting"]: row["value"] for row in rows if "setting" in row},
            "figures": [row for row in rows if _is_figure(row)],
            "targets": [row for row in rows if "target" in row],
        }
        for name, rows in results.items()
    }
    RESULTS.write_text(json.dumps({"parts": before | measured}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
