"""Metrics for Prometheus: of this worker alone, in a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from turnkeep.runtime import Runtime

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The counters of this worker, and their text format."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "turnkeep_http_requests_total", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "turnkeep_http_request_seconds",
            "Time to the end of an answer, streams included",
            ("method", "route"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.turns_began = Counter("turnkeep_turns_began_total", "Turns that this worker began", registry=registry)
        self.turns_ended = Counter(
            "turnkeep_turns_ended_total", "Turns that this worker settled", ("status",), registry=registry
        )
        self.turns_let_go = Counter(
            "turnkeep_turns_let_go_total", "Turns left to other workers", ("reason",), registry=registry
        )
        self.model_seconds = Histogram(
            "turnkeep_model_call_seconds",
            "Time of one model call",
            ("provider", "outcome"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter("turnkeep_tokens_total", "Tokens of model calls", ("provider", "kind"), registry=registry)
        self.tool_seconds = Histogram(
            "turnkeep_tool_call_seconds", "Time of one tool call", ("outcome",), buckets=_SECONDS, registry=registry
        )
        self.defects = Counter("turnkeep_defects_total", "Unexpected errors; see the log", registry=registry)
        self._running = Gauge("turnkeep_turns_running", "Turns in the hands of this worker", registry=registry)
        self._streams = Gauge("turnkeep_streams_open", "Event streams open on this worker", registry=registry)
        self._draining = Gauge("turnkeep_draining", "1 while this worker shuts down", registry=registry)

    def watch(self, runtime: Runtime) -> None:
        """Read the gauges from the runtime at each scrape."""
        self._running.set_function(lambda: runtime.engine.running)
        self._streams.set_function(lambda: len(runtime.streams))
        self._draining.set_function(lambda: float(runtime.engine.is_draining))

    def text(self) -> tuple[bytes, str]:
        """The exposition, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
