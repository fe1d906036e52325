"""The admin port: the metrics of all workers as one text, which never falls."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server_process import environment, run_turnkeep, serving
from tests.store.databases import make_postgres_database
from turnkeep.api.telemetry.admin_port import MetricFamily, OwnSource, Sample, Total, WorkerSource, merged
from turnkeep.api.telemetry.metrics import Metrics

KEY = "the-operator-key-of-the-tests"
PATIENCE_SECONDS = 60.0


def numbers(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(url: str) -> dict[str, float]:
    response = httpx.get(f"{url}/metrics", trust_env=False, timeout=PATIENCE_SECONDS)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return numbers(response.text)


def ask(url: str, times: int) -> None:
    with httpx.Client(trust_env=False, timeout=PATIENCE_SECONDS, headers={"authorization": f"Bearer {KEY}"}) as client:
        for _ in range(times):
            # A connection of its own each time, so that both workers get some.
            answer = client.post(f"{url}/v1/turns", json={"message": "Hello"}, headers={"connection": "close"})
            assert answer.status_code == 200, answer.text


@contextmanager
def admin(folder: Path, *flags: str, **changes: str) -> Iterator[tuple[Any, str]]:
    env = environment(folder, TURNKEEP_BOOTSTRAP_KEY=KEY, TURNKEEP_SANDBOX_URL="off", **changes)
    with serving(folder, env, "--admin-port", "0", *flags) as server:
        found = re.search(r"metrics +(http://127.0.0.1:\d+)/metrics", server.printed)
        assert found is not None, server.printed
        yield server, found[1]


class TestOneWorker:
    def test_has_its_metrics_there_too(self, tmp_path: Path) -> None:
        with admin(tmp_path) as (server, url):
            ask(server.url, 2)
            found = read(url)
            assert found["turnkeep_turns_ended_total{status=succeeded}"] == 2
            assert found["turnkeep_turn_seconds_count{status=succeeded}"] == 2
            assert found["turnkeep_turn_first_token_seconds_count"] == 2
            assert found["turnkeep_model_first_token_seconds_count{provider=demo}"] == 2
            assert found["turnkeep_turns_running"] == 0
            assert [name for name in found if name.startswith("turnkeep_build_info")] != []
            get = {"trust_env": False, "timeout": PATIENCE_SECONDS}
            assert httpx.get(f"{url}/healthz", **get).json() == {"status": "ok"}  # type: ignore[arg-type]
            assert httpx.get(f"{url}/v1/turns", **get).status_code == 404  # type: ignore[arg-type]
            for name, status in (("localhost:1", 200), ("[::1]", 200), ("evil.example:9464", 403), ("", 403)):
                answer = httpx.get(f"{url}/metrics", headers={"host": name}, **get)  # type: ignore[arg-type]
                assert (answer.status_code, "turnkeep_" in answer.text) == (status, status == 200), name
            assert server.stop() == 0

    def test_says_what_is_wrong_with_the_address(self, tmp_path: Path) -> None:
        ended = run_turnkeep(
            *("serve", "--port", "0", "--admin-port", "0", "--admin-host", "no.such.host.invalid"),
            env=environment(tmp_path, TURNKEEP_SANDBOX_URL="off"),
        )
        assert ended.returncode != 0
        assert "TURNKEEP_ADMIN_HOST" in ended.stderr


def when_ended(url: str, turns: int) -> dict[str, float]:
    """The metrics, once so many turns are counted: a worker counts a turn after its last event, and may be slow."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (found := read(url)).get("turnkeep_turns_ended_total{status=succeeded}") != turns:
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return found


class TestTwoWorkers:
    def test_are_one_sum_also_after_one_of_them_has_died(self, tmp_path: Path) -> None:
        database = make_postgres_database("admin")
        with admin(tmp_path, "--workers", "2", TURNKEEP_DATABASE_URL=database) as (server, url):
            ask(server.url, 12)
            before = when_ended(url, 12)
            assert before["turnkeep_database_connections"] >= 2, "both workers have some"
            [build] = [value for name, value in before.items() if name.startswith("turnkeep_build_info")]
            assert build == 1
            workers = [
                each
                for each in psutil.Process(server.process.pid).children()
                if "spawn_main" in " ".join(each.cmdline())
            ]
            workers[0].send_signal(signal.SIGKILL)
            psutil.wait_procs(workers[:1], timeout=PATIENCE_SECONDS)
            after = when_ended(url, 12)
            assert after["turnkeep_turn_seconds_count{status=succeeded}"] == 12
            ask(server.url, 4)
            when_ended(url, 16)
            assert server.stop() == 0


class TestTheSum:
    def test_adds_counters_and_keeps_what_all_workers_read_alike(self) -> None:
        one, other = (
            [
                MetricFamily("turnkeep_turns_ended", "counter", "", (Sample("turnkeep_turns_ended_total", (), ended),)),
                MetricFamily("turnkeep_turns_queued", "gauge", "", (Sample("turnkeep_turns_queued", (), 3),)),
                MetricFamily("turnkeep_dependency_up", "gauge", "", (Sample("turnkeep_dependency_up", (), up),)),
            ]
            for ended, up in ((2, 1), (5, 0))
        )
        assert [family.samples[0].value for family in merged([one, other])] == [7, 3, 0]

    def test_goes_on_without_a_worker_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("turnkeep.api.telemetry.admin_port.ANSWER_SECONDS", 0.05)
        ours, _theirs = Pipe()
        metrics, total = Metrics(), Total()
        metrics.turns_began.inc()
        total.add(OwnSource(metrics))
        total.add(WorkerSource(ours))
        began = {metric.name: metric.samples for metric in total.collect()}["turnkeep_turns_began"]
        assert [sample.value for sample in began] == [1]

    def test_every_gauge_that_is_not_added_up_exists(self) -> None:
        from turnkeep.api.telemetry.admin_port import MERGES

        assert set(MERGES) <= {metric.name for metric in Metrics().registry.collect()}
