"""What is published of the figures: a picture, and tables in the two READMEs. Nothing in them is typed by hand.

A full run of `python -m bench e2e` calls `publish`. `python -m bench.e2e.report` makes the same of `results.json`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.e2e import measures

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "turns-per-second.svg"
BEGIN, END = "<!-- e2e figures: begin -->", "<!-- e2e figures: end -->"

BUSY = 0.5
"""Load per core from which on a run is called disturbed."""

DATABASES = {"sqlite": "SQLite", "memory": "in memory", "postgres": "PostgreSQL"}
Row = Mapping[str, Any]


def publish(results: Mapping[str, Any]) -> None:
    """Write the picture and the tables of one part `e2e` of `results.json`."""
    note = _caution(results["machine"])
    PICTURE.write_text(picture(results["figures"], results["machine"]["cores"]), encoding="utf-8")
    _replace(ROOT / "README.md", main_table(results["figures"]) + note)
    tables = f"{main_table(results['figures'])}{note}\n\n{target_table(results['targets'])}"
    _replace(ROOT / "bench" / "README.md", tables)


def _caution(machine: Mapping[str, Any]) -> str:
    """A sentence under the table, if other work disturbed the run."""
    load = machine["load_before"]
    if load <= BUSY * machine["cores"]:
        return ""
    return (
        f"\n\nOther work ran on the machine during this run (load {load:g} before it, {machine['cores']} cores): its "
        "turns per second and times say little, its CPU figures more."
    )


def main_table(figures: Sequence[Row]) -> str:
    """One line for each server: what a turn and a token cost."""
    live = measures.live(200)
    lines = [
        "| | on | turns/s | CPU per turn | CPU per token | first delta | 200 live turns: p99 of the lag |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in _of(figures, measures.TURN):
        name = row["name"]
        cells = (
            _bold(row, row["contender"]),
            DATABASES[row["database"]],
            f"{row['turns_per_second']:,.0f}",
            f"{row['cpu_ms_per_turn']:.2g} ms",
            _shown(figures, measures.LONG, name, "cpu_us_per_token", "µs"),
            _shown(figures, measures.FIRST, name, "first_delta_ms", "ms"),
            _shown(figures, live, name, "lag_p99_ms", "ms") + _failures(figures, live, name),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def target_table(targets: Sequence[Row]) -> str:
    """What was asked, and what was measured."""
    lines = ["| | measured | target |", "|---|---:|---:|"]
    for row in targets:
        value = f"{row['value']:,.0f}" if row["value"] >= 100 else f"{row['value']:.3g}"
        measured = f"{value} {row['unit']}".strip()
        asked = f"{row['sign']} {row['bound']:g} {row['unit']}".strip()
        lines.append(f"| {row['target']} | {measured} | {asked}{'' if row['met'] else ' (missed)'} |")
    return "\n".join(lines)


def _of(figures: Sequence[Row], figure: str) -> list[Row]:
    return [row for row in figures if row["figure"] == figure]


def _bold(row: Row, text: str) -> str:
    return f"**{text}**" if row["role"] == "ours" else text


def _shown(figures: Sequence[Row], figure: str, name: str, value: str, unit: str) -> str:
    for row in _of(figures, figure):
        if row["name"] == name and value in row:
            return f"{_number(row[value])} {unit}"
    return "–"


def _failures(figures: Sequence[Row], figure: str, name: str) -> str:
    """Turns that the lag says nothing about."""
    found = [row for row in _of(figures, figure) if row["name"] == name]
    counts = [f"{row[kind]:.0f} {kind}" for row in found for kind in ("refused", "wrong") if kind in row]
    return f" ({', '.join(counts)})" if counts else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _replace(page: Path, text: str) -> None:
    """Put the text between the two marks of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} lacks the lines '{BEGIN}' and '{END}'; put them back where the table belongs")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


# The picture is drawn on a card of its own, so that it reads on light and on dark pages.
_STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; } .text { fill: #1f2328; } .small { fill: #59636e; }
  .ours { fill: #0969da; } .floor { fill: #afb8c1; } .peer { fill: #bf8700; } .track { fill: #f6f8fa; }
  text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; } .title { font-weight: 600; font-size: 16px; }
  .group { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d; } .text { fill: #f0f6fc; } .small { fill: #9198a1; }
    .ours { fill: #4493f8; } .floor { fill: #656c76; } .peer { fill: #d29922; } .track { fill: #151b23; }
  }
"""
_WIDTH, _LINE, _LABEL, _BAR = 860, 30, 240, 380


def picture(figures: Sequence[Row], cores: int) -> str:
    """Bars of turns per second, with the CPU of a turn beside them, as SVG."""
    rows = _of(figures, measures.TURN)
    groups = [
        ("On SQLite (LangGraph's dev server: in memory)", [row for row in rows if row["database"] != "postgres"]),
        ("On PostgreSQL", [row for row in rows if row["database"] == "postgres"]),
    ]
    shown = [(title, sorted(group, key=_rank)) for title, group in groups if group]
    height = 88 + sum(44 + _LINE * len(group) for _, group in shown)
    most = max(row["turns_per_second"] for row in rows)
    body = "\n".join(_bars(shown, most))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="title">\n<title id="title">Turns per second, and CPU per turn, of Turnkeep, '
        f"a bare ASGI app and other servers</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        f'<text class="text title" x="24" y="36">Turns per second, and CPU of the server per turn</text>\n'
        f'<text class="small" x="24" y="58">{measures.CLIENTS} clients, new conversations, answers of 20 tokens; '
        f"server, provider, client and database share {cores} cores</text>\n"
        f"{body}\n</svg>\n"
    )


def _rank(row: Row) -> tuple[int, float]:
    """The floor first, then Turnkeep, then the others from quick to slow."""
    return ("floor", "ours", "peer").index(row["role"]), -float(row["turns_per_second"])


def _bars(groups: Sequence[tuple[str, Sequence[Row]]], most: float) -> Iterator[str]:
    y = 72
    for title, group in groups:
        y += 30
        yield f'<text class="text group" x="24" y="{y}">{escape(title)}</text>'
        y += 14
        for row in group:
            width = max(2.0, _BAR * float(row["turns_per_second"]) / most)
            value = f"{row['turns_per_second']:,.0f} turns/s · {row['cpu_ms_per_turn']:.2g} ms"
            yield f'<text class="text" x="24" y="{y + 16}">{escape(str(row["contender"]))}</text>'
            yield f'<rect class="track" x="{_LABEL}" y="{y}" width="{_BAR}" height="22" rx="3"/>'
            yield f'<rect class="{row["role"]}" x="{_LABEL}" y="{y}" width="{width:.1f}" height="22" rx="3"/>'
            yield f'<text class="small" x="{_LABEL + _BAR + 14}" y="{y + 16}">{value}</text>'
            y += _LINE


if __name__ == "__main__":
    publish(json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))["parts"]["e2e"])
