"""Metrics for Prometheus, of this worker alone, in a registry of its own; and the observer of the engine, which counts
what the engine reports, and writes it as log lines and spans too.

`Probe` measures what no event reports: the delay of the event loop, the turns that wait, and whether database, Redis
and the store of files answer. It asks them only while Prometheus asks for the metrics.
"""

import asyncio
import logging
import platform
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.clock import system_clock
from turnkeep.engine import Observer
from turnkeep.engine.observer import ObservedModelCall, ObservedToolCall, ResetCause
from turnkeep.errors import TurnkeepError, WorldError
from turnkeep.ids import ErasureId, TurnId
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep_client.wire.events import Step

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LONG_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1_800, 3_600)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_OPERATION_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216, 67_108_864)
"""The last two are those of OpenTelemetry's conventions for generative AI."""

FRESH_SECONDS = 1.0
LAG_SECONDS = 0.5
"""How often the delay of the event loop is measured."""
PROBE_SECONDS = 15.0
"""How often the database, Redis and the store of files are asked …"""
ASKED_SECONDS = 300.0
"""… if the metrics were read within this time."""
ANSWER_SECONDS = 5.0
_PROBED_KEY = "probe/none"
"""The key of an object that is never there."""

_logger = logging.getLogger("turnkeep.turns")


class Series:
    """The observations with one set of labels."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class FastHistogram(Collector):
    """A histogram that one thread counts, the event loop. An observation takes much less time than with the library's
    own, which locks, and compares with each bound in Python."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, buckets
        self._names = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._series: dict[tuple[str, ...], Series] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """The series of these labels, always the same one."""
        return self._series.setdefault(values, Series(self._bounds))

    def observe(self, value: float) -> None:
        """For a histogram without labels."""
        self._series[()].observe(value)

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, series in list(self._series.items()):
            counts, total, below = list(series.counts), series.total, 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip(self._names, counts, strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric(values, buckets=buckets, sum_value=total)
        yield family


class Metrics:
    """The counters of this worker, and their text format.

    A counter with labels is a function from the labels to the counter of these values. The library looks each one up
    under a lock, which takes longer than to count.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._text: bytes | None = None
        self._made_at = 0.0
        self.asked_at = float("-inf")
        """When the metrics were last read."""
        self._add_http(registry)
        self._add_turns(registry)
        self._add_calls(registry)
        self._add_state(registry)

    def _add_http(self, registry: CollectorRegistry) -> None:
        self.requests = cache(
            Counter(
                "turnkeep_http_requests_total", "Requests answered", ("method", "route", "status"), registry=registry
            ).labels
        )
        self.request_seconds = cache(
            FastHistogram(
                "turnkeep_http_request_seconds",
                "Time to the end of an answer, streams included",
                ("method", "route"),
                buckets=_SECONDS,
                registry=registry,
            ).labels
        )

    def _add_turns(self, registry: CollectorRegistry) -> None:
        self.turns_began = Counter("turnkeep_turns_began_total", "Turns that this worker began", registry=registry)
        self.turns_ended = cache(
            Counter(
                "turnkeep_turns_ended_total", "Turns that this worker settled", ("status",), registry=registry
            ).labels
        )
        self.turn_seconds = cache(
            FastHistogram(
                "turnkeep_turn_seconds",
                "Time from the start of a turn to its end, waits for answers included",
                ("status",),
                buckets=_LONG_SECONDS,
                registry=registry,
            ).labels
        )
        self.turn_first_token = FastHistogram(
            "turnkeep_turn_first_token_seconds",
            "Time from the question to the first text or reasoning of a model, time in the queue included",
            buckets=_LONG_SECONDS,
            registry=registry,
        )
        self.turns_let_go = Counter(
            "turnkeep_turns_let_go_total", "Turns left to other workers", ("reason",), registry=registry
        )
        self.turns_adopted = cache(
            Counter(
                "turnkeep_turns_adopted_total",
                "Turns that this worker took out of a queue, or over from another worker",
                ("cause",),
                registry=registry,
            ).labels
        )
        self.resets = cache(
            Counter(
                "turnkeep_resets_total",
                "Turns whose readers were told to drop text that they were shown",
                ("cause",),
                registry=registry,
            ).labels
        )
        self.defects = Counter("turnkeep_defects_total", "Unexpected errors; see the log", registry=registry)

    def _add_calls(self, registry: CollectorRegistry) -> None:
        self.model_seconds = cache(
            FastHistogram(
                "turnkeep_model_call_seconds",
                "Time of one model call",
                ("provider", "outcome"),
                buckets=_SECONDS,
                registry=registry,
            ).labels
        )
        self.first_token = cache(
            FastHistogram(
                "turnkeep_model_first_token_seconds",
                "Time from the beginning of a model call to its first text or reasoning",
                ("provider",),
                buckets=_SECONDS,
                registry=registry,
            ).labels
        )
        self.tokens = cache(
            Counter("turnkeep_tokens_total", "Tokens of model calls", ("provider", "kind"), registry=registry).labels
        )
        self.tool_seconds = cache(
            FastHistogram(
                "turnkeep_tool_call_seconds", "Time of one tool call", ("outcome",), buckets=_SECONDS, registry=registry
            ).labels
        )
        about = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self.operation_seconds = cache(
            FastHistogram(
                "gen_ai_client_operation_duration_seconds",
                "Time of one model call that was answered, under the names of OpenTelemetry",
                about,
                buckets=_OPERATION_SECONDS,
                registry=registry,
            ).labels
        )
        self.operation_tokens = cache(
            FastHistogram(
                "gen_ai_client_token_usage",
                "Tokens of one model call, under the names of OpenTelemetry",
                (*about, "gen_ai_token_type"),
                buckets=_TOKENS,
                registry=registry,
            ).labels
        )

    def _add_state(self, registry: CollectorRegistry) -> None:
        self._running = Gauge("turnkeep_turns_running", "Turns that this worker runs", registry=registry)
        self._streams = Gauge("turnkeep_streams_open", "Event streams open on this worker", registry=registry)
        self._draining = Gauge("turnkeep_draining", "1 while this worker shuts down", registry=registry)
        self.turns_queued = Gauge(
            "turnkeep_turns_queued", "Turns that wait for the turn before them, on all workers", registry=registry
        )
        self.queue_age = Gauge(
            "turnkeep_queue_age_seconds", "How long the oldest of these has waited", registry=registry
        )
        self.turns_unheld = Gauge(
            "turnkeep_turns_unheld", "Turns that should run and that no worker holds", registry=registry
        )
        self.unheld_age = Gauge(
            "turnkeep_unheld_age_seconds", "How long the oldest of these has lost its worker", registry=registry
        )
        self.turns_waiting = Gauge(
            "turnkeep_turns_waiting", "Turns that wait for an approval or the result of a client", registry=registry
        )
        self.lag = FastHistogram(
            "turnkeep_event_loop_lag_seconds",
            "How late the event loop of a worker was, measured twice a second",
            buckets=_LAG_SECONDS,
            registry=registry,
        )
        self.up = cache(
            Gauge(
                "turnkeep_dependency_up",
                "1 if the database, Redis or the store of files answers, as this worker sees it",
                ("dependency",),
                registry=registry,
            ).labels
        )
        self._connections = Gauge(
            "turnkeep_database_connections", "Open connections of this worker to PostgreSQL", registry=registry
        )
        self._callers = Gauge(
            "turnkeep_database_callers_waiting", "Callers of this worker that wait for a connection", registry=registry
        )
        build = Gauge("turnkeep_build_info", "1; the labels say what runs", ("version", "python"), registry=registry)
        build.labels(version("turnkeep"), platform.python_version()).set(1)

    def watch(self, runtime: Runtime) -> None:
        """Read the gauges from the runtime at each scrape."""
        use = runtime.store.connection_use
        self._running.set_function(lambda: runtime.engine.running)
        self._streams.set_function(lambda: len(runtime.streams))
        self._draining.set_function(lambda: float(runtime.engine.is_draining))
        self._connections.set_function(lambda: use().open)
        self._callers.set_function(lambda: use().waiting)
        self.registry.register(_PoolWaits(runtime))

    def text(self) -> tuple[bytes, str]:
        """The exposition, and its media type. It is made at most once a second: that takes a while, and everybody may
        ask for it."""
        now = self.asked_at = time.monotonic()
        if self._text is None or now - self._made_at >= FRESH_SECONDS:
            self._text, self._made_at = generate_latest(self.registry), now
        return self._text, CONTENT_TYPE_PLAIN_0_0_4


class _PoolWaits(Collector):
    """The waits for a connection to PostgreSQL, which the pools count."""

    def __init__(self, runtime: Runtime) -> None:
        self._use = runtime.store.connection_use

    def collect(self) -> Iterable[Metric]:
        use = self._use()
        waits = "Calls that had to wait for a connection to PostgreSQL"
        yield CounterMetricFamily("turnkeep_database_pool_waits", waits, value=use.waited)
        seconds = "How long they have waited in all"
        yield CounterMetricFamily("turnkeep_database_pool_wait_seconds", seconds, value=use.waited_seconds)


class Probe:
    """Measures the state of this worker and of what it needs, until it is cancelled."""

    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._probed_at = float("-inf")

    async def run(self) -> None:
        now, probing = asyncio.get_running_loop().time, None
        try:
            while True:
                due = now() + LAG_SECONDS
                await asyncio.sleep(LAG_SECONDS)
                self._metrics.lag.observe(max(0.0, now() - due))
                if (probing is None or probing.done()) and self._is_due():
                    probing = asyncio.create_task(self.probe(), name="probe dependencies")
        finally:
            if probing is not None:
                probing.cancel()

    def _is_due(self) -> bool:
        at = time.monotonic()
        is_asked = at - self._metrics.asked_at < ASKED_SECONDS
        return is_asked and at - self._probed_at >= PROBE_SECONDS

    async def probe(self) -> None:
        """Ask everything once. Never raises."""
        self._probed_at = time.monotonic()
        self._metrics.up("database").set(await self._has_backlog())
        self._metrics.up("files").set(await self._has_files())
        is_connected = self._runtime.hub.is_connected
        if is_connected is not None:
            self._metrics.up("redis").set(is_connected)

    async def _has_backlog(self) -> bool:
        metrics = self._metrics
        with suppress(WorldError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                backlog = await self._runtime.store.backlog()
            metrics.turns_queued.set(backlog.queued)
            metrics.queue_age.set(backlog.queued_ms / 1000)
            metrics.turns_unheld.set(backlog.unheld)
            metrics.unheld_age.set(backlog.unheld_ms / 1000)
            metrics.turns_waiting.set(backlog.waiting)
            return True
        return False

    async def _has_files(self) -> bool:
        with suppress(TurnkeepError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._runtime.bag.objects.size(_PROBED_KEY)
            return True
        return False


class EngineObserver(Observer):
    """Counts, and writes log lines. Each method is quick and never raises."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def turn_adopted(self, turn: Turn, *, is_first_start: bool) -> None:
        self._metrics.turns_adopted("queue" if is_first_start else "takeover").inc()
        if not is_first_start:
            self._metrics.resets("takeover").inc()

    def turn_began(self, turn: Turn) -> None:
        self._metrics.turns_began.inc()
        _logger.info("turn began", extra={FIELDS: _about(turn)})

    def turn_ended(self, turn: Turn) -> None:
        self._metrics.turns_ended(turn.status).inc()
        if turn.settled_at is not None:
            began = turn.created_at if turn.started_at is None else turn.started_at
            self._metrics.turn_seconds(turn.status).observe((turn.settled_at - began) / 1000)
        error = None if turn.error is None else turn.error.code
        tokens = {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens}
        _logger.info("turn ended", extra={FIELDS: {**_about(turn), "status": turn.status, "code": error, **tokens}})

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        self._metrics.turns_let_go.labels(reason.code).inc()
        _logger.info("turn let go", extra={FIELDS: {"turn_id": turn_id, "code": reason.code, "reason": reason.detail}})

    def was_reset(self, turn_id: TurnId, cause: ResetCause) -> None:
        self._metrics.resets(cause).inc()

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        _logger.warning("erasure delayed", extra={FIELDS: {"erasure_id": erasure_id, "reason": problem}})

    def model_called(self, call: ObservedModelCall) -> None:
        metrics, reply = self._metrics, call.reply
        provider, _, model = call.request.model.partition("/")
        metrics.model_seconds(provider, "failed" if reply is None else "answered").observe(call.seconds)
        if call.first_at is not None:
            metrics.first_token(provider).observe(call.first_at - call.began)
            if call.is_first:
                since_first = call.began + call.seconds - call.first_at
                metrics.turn_first_token.observe((system_clock() - call.turn.created_at) / 1000 - since_first)
        if reply is not None:
            # Only a name to which a provider has answered becomes a label: callers may send any.
            metrics.operation_seconds("chat", provider, model).observe(call.seconds)
            metrics.operation_tokens("chat", provider, model, "input").observe(reply.usage.input_tokens)
            metrics.operation_tokens("chat", provider, model, "output").observe(reply.usage.output_tokens)
            metrics.tokens(provider, "input").inc(reply.usage.input_tokens)
            metrics.tokens(provider, "output").inc(reply.usage.output_tokens)
            if reply.usage.cache_read_tokens:
                metrics.tokens(provider, "cache_read").inc(reply.usage.cache_read_tokens)
            if reply.usage.cache_write_tokens:
                metrics.tokens(provider, "cache_write").inc(reply.usage.cache_write_tokens)

    def tool_called(self, call: ObservedToolCall) -> None:
        if call.outcome is not None:
            outcome = "succeeded" if call.outcome.error is None else "failed"
            self._metrics.tool_seconds(outcome).observe(call.seconds)

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self._metrics.defects.inc()
        _logger.error("unexpected error", exc_info=error, extra={FIELDS: {"turn_id": turn_id}})


class TracingObserver(EngineObserver):
    """Makes spans too."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        super().__init__(metrics)
        self._tracing = tracing

    def turn_taken(self, turn: Turn) -> str:
        return self._tracing.turn_taken(turn)

    def turn_left(self, turn: Turn, settled: Turn | None) -> None:
        self._tracing.turn_left(turn, settled)

    def model_call_began(self, call: ObservedModelCall) -> None:
        self._tracing.model_call_began(call)

    def model_called(self, call: ObservedModelCall) -> None:
        super().model_called(call)
        self._tracing.model_called(call)

    def tool_call_began(self, call: ObservedToolCall) -> None:
        self._tracing.tool_call_began(call)

    def tool_called(self, call: ObservedToolCall) -> None:
        super().tool_called(call)
        self._tracing.tool_called(call)

    def sandbox_step(self, turn: Turn, step: Step) -> None:
        self._tracing.sandbox_step(turn, step)


def observer_of(metrics: Metrics, tracing: Tracing | None) -> EngineObserver:
    """The observer of a server. Without tracing, most of what the engine reports costs nothing."""
    return EngineObserver(metrics) if tracing is None else TracingObserver(metrics, tracing)


def _about(turn: Turn) -> dict[str, object]:
    return {
        "turn_id": turn.id,
        "conversation_id": turn.conversation_id,
        "attempt": turn.attempt,
        "model": turn.model,
        "request_id": turn.snapshot.request_id,
    }
