"""The reference pages list everything that exists."""

import re
from pathlib import Path
from typing import get_args

from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import ApiServer, Client
from tests.api.test_access_matrix import ENDPOINTS
from tests.api.test_errors import every_error
from turnkeep.api.http.problem_details import status_of
from turnkeep.http_server.uvicorn_server import RequestLimits
from turnkeep_client.wire.events import Delta, TurnEvent

MANUAL = Path(__file__).parents[2] / "docs"
PAGES = MANUAL / "reference"


def test_every_route_is_on_the_page_with_its_policy() -> None:
    page = (PAGES / "http.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+ \S+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {(f"{one.method} {one.path}", one.policy.value) for one in ENDPOINTS}


def test_every_code_that_can_reach_a_caller_is_on_the_page() -> None:
    page = (PAGES / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE))
    ours = {
        error.code: str(status_of(error))
        for error in every_error()
        if error.__module__ in {"turnkeep.errors", "turnkeep_client.wire.errors", "turnkeep.api.http.problem_details"}
        and status_of(error) != 500
    }
    assert rows == ours | {"internal": "500"}


def test_the_limits_of_a_connection_are_on_the_page_as_they_are() -> None:
    page = (PAGES / "http.md").read_text(encoding="utf-8")
    section = page[page.index("## Limits of a connection") : page.index("## Turns")]
    limits = RequestLimits()
    for words in (
        f"| {limits.head_bytes // 1024} KiB, {limits.fields} fields;",
        f"from the first byte | {limits.head_seconds:g} s |",
        f"| at least {limits.body_bytes:,} bytes in every {limits.body_seconds:g} s |",
        f"answered already | {limits.body_seconds:g} s |",
        f"| {limits.pipelined} wait |",
        f"| {limits.idle_seconds} s after the last response |",
        f"that is refused | {limits.rest_bytes >> 20} MiB |",
        f"less than {limits.small_bytes} bytes | {limits.small_chunks:,} |",
        f"does not read | at least {limits.write_bytes:,} bytes in every {limits.write_seconds:g} s |",
    ):
        assert words in section


def test_every_event_is_on_the_page_with_its_fields() -> None:
    page = (PAGES / "streams.md").read_text(encoding="utf-8")
    section = page[page.index("## Events") : page.index("## What you can rely on")]
    rows = {
        name: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields)))
        for name, fields in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.MULTILINE)
    }
    events = {str(event.__struct_config__.tag): set(event.__struct_encode_fields__) for event in get_args(TurnEvent)}
    assert rows == events | {"delta": set(Delta.__struct_encode_fields__)}


async def test_every_metric_is_in_the_manual_with_its_labels(server: ApiServer, user: Client) -> None:
    page = (MANUAL / "howto" / "watch-it-in-production.md").read_text(encoding="utf-8")
    rows = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `((?:turnkeep|gen_ai)_\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    }
    await user.ask()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families((await user.get("/metrics")).text):
        if family.name.endswith("_created"):
            continue  # Prometheus' own: since when the counter beside it counts
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = found.setdefault(name, set())
        labels.update(*(sample.labels.keys() for sample in family.samples))
        labels.discard("le")
    assert rows.keys() == found.keys()
    used = {name for name, labels in found.items() if labels}
    assert {name: rows[name] for name in used} == {name: found[name] for name in used}
