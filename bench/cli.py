"""The command line: how long one waits for help, against the smallest Python program there is.

`turnkeep --help` is what people type to see whether it is there. `python -c pass` is the limit: no command written in
Python answers sooner. Each run is a process of its own; runs are interleaved, and medians reported.

    python -m bench.cli
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import target

Row = dict[str, Any]

TIMES = 8.0
ENTRY = "import sys; from turnkeep.cli.main import main; sys.exit(main())"
"""What the installed `turnkeep` does."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "python -c pass": ("-c", "pass"),
    "turnkeep --help": ("-c", ENTRY, "--help"),
    "turnkeep chat --help": ("-c", ENTRY, "chat", "--help"),
    "import typer, rich, httpx": ("-c", "import typer, rich.console, rich.markdown, httpx"),
}
LIMIT = "python -c pass"


def run(*, quick: bool = False) -> list[Row]:
    """Medians of each, and the target."""
    seconds = _measure(7 if quick else 41)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    rows: list[Row] = [
        {
            "figure": "start a process",
            "contender": name,
            "role": "limit" if name == LIMIT else "ours" if name.startswith("turnkeep") else "peer",
            "median_us": round(median * 1e6, 1),
            "ratio_to_limit": round(median / medians[LIMIT], 2),
        }
        for name, median in medians.items()
    ]
    ratio = medians["turnkeep --help"] / medians[LIMIT]
    return [*rows, target("turnkeep --help, against python -c pass", ratio, TIMES)]


def main() -> int:
    for row in run():
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


def _measure(repeats: int) -> dict[str, list[float]]:
    names = list(COMMANDS)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        _start(COMMANDS[name])  # so that every file has been read and compiled once
    for visit in range(repeats):
        for name in names[visit % len(names) :] + names[: visit % len(names)]:
            began = time.perf_counter()
            _start(COMMANDS[name])
            seconds[name].append(time.perf_counter() - began)
    return seconds


def _start(arguments: Sequence[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main())
