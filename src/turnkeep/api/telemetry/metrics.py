"""Metrics for Prometheus, of this worker alone, in a registry of its own; and the observer of the engine, which counts
what the engine reports, and writes it as log lines and spans too.
"""

import logging
import time
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.engine import Observer
from turnkeep.errors import TurnkeepError
from turnkeep.ids import ErasureId, TurnId
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep_client.wire.blocks import Usage

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

FRESH_SECONDS = 1.0

_logger = logging.getLogger("turnkeep.turns")


class Metrics:
    """The counters of this worker, and their text format.

    A counter with labels is a function from the labels to the counter of these values. The library looks each one up
    under a lock, which takes longer than to count.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._text: bytes | None = None
        self._made_at = 0.0
        self.requests = cache(
            Counter(
                "turnkeep_http_requests_total", "Requests answered", ("method", "route", "status"), registry=registry
            ).labels
        )
        self.request_seconds = cache(
            Histogram(
                "turnkeep_http_request_seconds",
                "Time to the end of an answer, streams included",
                ("method", "route"),
                buckets=_SECONDS,
                registry=registry,
            ).labels
        )
        self.turns_began = Counter("turnkeep_turns_began_total", "Turns that this worker began", registry=registry)
        self.turns_ended = cache(
            Counter(
                "turnkeep_turns_ended_total", "Turns that this worker settled", ("status",), registry=registry
            ).labels
        )
        self.turns_let_go = Counter(
            "turnkeep_turns_let_go_total", "Turns left to other workers", ("reason",), registry=registry
        )
        self.model_seconds = cache(
            Histogram(
                "turnkeep_model_call_seconds",
                "Time of one model call",
                ("provider", "outcome"),
                buckets=_SECONDS,
                registry=registry,
            ).labels
        )
        self.tokens = cache(
            Counter("turnkeep_tokens_total", "Tokens of model calls", ("provider", "kind"), registry=registry).labels
        )
        self.tool_seconds = cache(
            Histogram(
                "turnkeep_tool_call_seconds", "Time of one tool call", ("outcome",), buckets=_SECONDS, registry=registry
            ).labels
        )
        self.defects = Counter("turnkeep_defects_total", "Unexpected errors; see the log", registry=registry)
        self._running = Gauge("turnkeep_turns_running", "Turns that this worker runs", registry=registry)
        self._streams = Gauge("turnkeep_streams_open", "Event streams open on this worker", registry=registry)
        self._draining = Gauge("turnkeep_draining", "1 while this worker shuts down", registry=registry)

    def watch(self, runtime: Runtime) -> None:
        """Read the gauges from the runtime at each scrape."""
        self._running.set_function(lambda: runtime.engine.running)
        self._streams.set_function(lambda: len(runtime.streams))
        self._draining.set_function(lambda: float(runtime.engine.is_draining))

    def text(self) -> tuple[bytes, str]:
        """The exposition, and its media type. It is made at most once a second: that takes a while, and everybody may
        ask for it."""
        now = time.monotonic()
        if self._text is None or now - self._made_at >= FRESH_SECONDS:
            self._text, self._made_at = generate_latest(self._registry), now
        return self._text, CONTENT_TYPE_PLAIN_0_0_4


class EngineObserver(Observer):
    """Each method is quick and never raises."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._tracing = tracing

    def turn_began(self, turn: Turn) -> None:
        self._metrics.turns_began.inc()
        _logger.info("turn began", extra={FIELDS: _about(turn)})

    def turn_ended(self, turn: Turn) -> None:
        self._metrics.turns_ended(turn.status).inc()
        error = None if turn.error is None else turn.error.code
        tokens = {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens}
        _logger.info("turn ended", extra={FIELDS: {**_about(turn), "status": turn.status, "code": error, **tokens}})
        if self._tracing is not None:
            self._tracing.turn(turn)

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        self._metrics.turns_let_go.labels(reason.code).inc()
        _logger.info("turn let go", extra={FIELDS: {"turn_id": turn_id, "code": reason.code, "reason": reason.detail}})

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        _logger.warning("erasure delayed", extra={FIELDS: {"erasure_id": erasure_id, "reason": problem}})

    def model_called(self, model: str, *, seconds: float, usage: Usage | None) -> None:
        provider = model.partition("/")[0]
        outcome = "failed" if usage is None else "answered"
        self._metrics.model_seconds(provider, outcome).observe(seconds)
        if usage is not None:
            self._metrics.tokens(provider, "input").inc(usage.input_tokens)
            self._metrics.tokens(provider, "output").inc(usage.output_tokens)
        if self._tracing is not None:
            self._tracing.past("model call", seconds, {"gen_ai.request.model": model, "outcome": outcome})

    def tool_called(self, name: str, *, seconds: float, failed: bool) -> None:
        outcome = "failed" if failed else "succeeded"
        self._metrics.tool_seconds(outcome).observe(seconds)
        if self._tracing is not None:
            self._tracing.past("tool call", seconds, {"gen_ai.tool.name": name, "outcome": outcome})

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self._metrics.defects.inc()
        _logger.error("unexpected error", exc_info=error, extra={FIELDS: {"turn_id": turn_id}})


def _about(turn: Turn) -> dict[str, object]:
    return {
        "turn_id": turn.id,
        "conversation_id": turn.conversation_id,
        "attempt": turn.attempt,
        "model": turn.model,
    }
