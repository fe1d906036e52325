"""The admin port: the metrics of all workers of one server as one text, on a port of its own, for Prometheus.

`GET /metrics` on the public port reaches one worker, whichever takes the connection. The admin port belongs to the
process that started the workers. It asks each worker over a pipe, and adds the numbers up. What a worker had counted
when it was last asked stays in the sum after its end, so a counter never falls.

Decision: docs/decisions/1201
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec
from msgspec import Struct, structs
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.http_server.sockets import host_name, is_loopback

ANSWER_SECONDS = 2.0
"""How long a worker may take to answer. After that, what it said last is used."""
CLIENT_SECONDS = 10.0
"""How long a client may take to send its request."""

MERGES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "turnkeep_build_info": max,
    "turnkeep_dependency_up": min,
    "turnkeep_queue_age_seconds": max,
    "turnkeep_turns_queued": max,
    "turnkeep_turns_unheld": max,
    "turnkeep_turns_waiting": max,
    "turnkeep_unheld_age_seconds": max,
}
"""Gauges that are not added up: each worker reads the same number from the database, or says what it sees."""

Labels = tuple[tuple[str, str], ...]


class Sample(Struct, frozen=True, array_like=True):
    """One number, with the name and the labels under which Prometheus sees it."""

    name: str
    labels: Labels
    value: float


class MetricFamily(Struct, frozen=True, array_like=True):
    """All samples of one metric."""

    name: str
    kind: str
    text: str
    samples: tuple[Sample, ...]


Families = Sequence[MetricFamily]

_decode = msgspec.msgpack.Decoder(tuple[MetricFamily, ...]).decode
_encode = msgspec.msgpack.Encoder().encode


class MetricSource(Protocol):
    """The metrics of one worker. Asked and read by one thread at a time."""

    def ask(self) -> None:
        """Ask for them. Does not wait."""

    def read(self, until: float) -> Families:
        """What the worker says; what it said last, if it has not answered at this time of the monotonic clock."""


class OwnSource:
    """The metrics of this process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ask(self) -> None:
        pass

    def read(self, until: float = 0.0) -> Families:
        """Times of creation are left out: they have no sum."""
        self._metrics.asked_at = time.monotonic()
        return tuple(
            MetricFamily(
                metric.name,
                metric.type,
                metric.documentation,
                tuple(
                    Sample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
                    for sample in metric.samples
                    if not sample.name.endswith("_created")
                ),
            )
            for metric in self._metrics.registry.collect()
        )

    def answer_for_ever(self, pipe: "Connection[Any, Any]") -> None:
        """Send the metrics whenever the pipe asks for them. Runs in a thread of its own, and ends with the pipe."""
        try:
            while True:
                pipe.recv_bytes()
                pipe.send_bytes(_encode(self.read()))
        except (EOFError, OSError):
            return


class WorkerSource:
    """The metrics of a worker process, over its pipe."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._last: Families = ()
        self._is_asked = False

    def ask(self) -> None:
        with suppress(OSError):  # it has ended
            if not self._is_asked:
                self._pipe.send_bytes(b"?")
                self._is_asked = True

    def read(self, until: float) -> Families:
        with suppress(EOFError, OSError):
            if self._is_asked and self._pipe.poll(max(0.0, until - time.monotonic())):
                self._last = _decode(self._pipe.recv_bytes())
                self._is_asked = False
        return self._last


class Total(Collector):
    """The sum over all workers, those that have ended included."""

    def __init__(self) -> None:
        self._sources: list[MetricSource] = []
        self._ended: Families = ()
        """What workers had counted that have ended since."""
        self._lock = threading.Lock()

    def add(self, source: MetricSource) -> None:
        with self._lock:
            self._sources.append(source)

    def retire(self, source: MetricSource) -> None:
        """This worker has ended. What it had counted when it was last asked stays in the sum; its gauges do not."""
        with self._lock:
            self._sources.remove(source)
            counted = [family for family in source.read(0.0) if family.kind != "gauge"]
            self._ended = merged([self._ended, counted])

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that the workers are not asked when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            for source in self._sources:
                source.ask()
            until = time.monotonic() + ANSWER_SECONDS
            families = merged([self._ended, *(source.read(until) for source in self._sources)])
        for family in families:
            metric = Metric(family.name, family.text, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric


def merged(all_families: Iterable[Families]) -> Families:
    """One family for each name, and one sample for each set of labels."""
    known: dict[str, MetricFamily] = {}
    numbers: dict[str, dict[tuple[str, Labels], list[float]]] = {}
    for families in all_families:
        for family in families:
            known.setdefault(family.name, family)
            of_family = numbers.setdefault(family.name, {})
            for sample in family.samples:
                of_family.setdefault((sample.name, sample.labels), []).append(sample.value)
    return tuple(
        structs.replace(
            family,
            samples=tuple(
                Sample(name, labels, MERGES.get(family.name, sum)(values))
                for (name, labels), values in numbers[family.name].items()
            ),
        )
        for family in known.values()
    )


class AdminPort:
    """An HTTP server in threads of its own. It answers also while the event loop of a worker does not."""

    def __init__(self, listener: socket.socket, total: Total) -> None:
        registered = CollectorRegistry()
        registered.register(total)

        class Handler(_Handler):
            timeout = CLIENT_SECONDS
            is_local = is_loopback(listener.getsockname()[0])
            registry = registered

        self._server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._thread = threading.Thread(target=self._server.serve_forever, name="admin port", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_local = False
    """Whether it answers only to the names of this machine. A page on the internet can make its own name point at
    127.0.0.1, and then read what answers there."""
    registry: CollectorRegistry

    def do_GET(self) -> None:  # the name is the library's
        path = self.path.partition("?")[0]
        if self.is_local and not is_loopback(host_name(self.headers.get("host", ""))):
            self._answer(403, b"This port answers only to the names of this machine.\n", "text/plain; charset=utf-8")
        elif path == "/metrics":
            self._answer(200, generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4)
        elif path == "/healthz":
            self._answer(200, b'{"status":"ok"}', "application/json")
        else:
            self._answer(404, b"There is GET /metrics and GET /healthz.\n", "text/plain; charset=utf-8")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "turnkeep"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a scrape every few seconds is no news."""
