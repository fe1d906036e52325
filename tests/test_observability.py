"""The dashboard and the alert rules: each query is valid PromQL, and each metric in it exists in the code."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]

from turnkeep.api.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
FILES = ROOT / "deploy" / "observability"
MANUAL = (ROOT / "docs/howto/watch-it-in-production.md").read_text(encoding="utf-8")

OF_PROMETHEUS = {"up"}
"""Metrics that Prometheus makes itself."""
OF_POOLS = {"turnkeep_database_pool_waits_total", "turnkeep_database_pool_wait_seconds_total"}
"""Metrics that the store counts; `Metrics.watch` adds them."""


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((FILES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def queries() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield pytest.param(expression, id=f"{panel['title']} {target['refId']}")


def known_series() -> set[str]:
    """The names of all series that a server exports."""
    names: set[str] = set()
    for metric in Metrics().registry.collect():
        match metric.type:
            case "histogram":
                names |= {f"{metric.name}_{end}" for end in ("bucket", "count", "sum")}
            case "counter":
                names.add(f"{metric.name}_total")
            case _:
                names.add(metric.name)
    return names | OF_POOLS


def selectors(node: Any) -> Iterator[str | None]:
    """The metric of every selector of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for each in node.args:
            yield from selectors(each)
    elif isinstance(node, promql_parser.AggregateExpr | promql_parser.ParenExpr | promql_parser.UnaryExpr):
        yield from selectors(node.expr)
    else:
        assert isinstance(node, promql_parser.NumberLiteral), type(node)


class TestQueries:
    @pytest.mark.parametrize("query", list(queries()))
    def test_is_valid_and_asks_for_metrics_that_exist(self, query: str) -> None:
        found = list(selectors(promql_parser.parse(query)))
        assert found
        assert set(found) <= known_series() | OF_PROMETHEUS

    def test_one_that_is_wrong_would_be_found(self) -> None:
        with pytest.raises(ValueError, match="unclosed left parenthesis"):
            promql_parser.parse("sum(rate(turnkeep_turns_ended_total[5m])")
        [name] = selectors(promql_parser.parse("rate(turnkeep_turns_ended[5m])"))
        assert name not in known_series()

    def test_the_dashboard_shows_every_metric_that_the_manual_lists(self) -> None:
        text = (FILES / "dashboard.json").read_text(encoding="utf-8")
        listed = set(re.findall(r"^\| `((?:turnkeep|gen_ai)_\w+)` \|", MANUAL, re.MULTILINE))
        assert {name for name in listed if name not in text} == set()

    def test_the_dashboard_is_the_one_that_the_script_makes(self) -> None:
        made = (FILES / "dashboard.json").read_text(encoding="utf-8")
        code = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['dashboard'](), indent=2))"
        script = [sys.executable, "-c", code, str(ROOT / "scripts/dashboard")]
        again = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60)
        assert again.stdout == made, "Run scripts/dashboard."


class TestAlerts:
    def test_each_says_what_to_do_and_is_in_the_manual(self) -> None:
        assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules())
        assert {rule["labels"]["severity"] for rule in rules()} == {"page", "ticket"}
        assert [rule["alert"] for rule in rules()] == re.findall(r"^\| `(Turnkeep\w+)` \|", MANUAL, re.MULTILINE)
