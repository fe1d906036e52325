"""Spans for OpenTelemetry, when it is installed (`turnkeep[otel]`) and an exporter is configured.

Configured means `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, as for any other program.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from turnkeep.errors import InvalidRequest
from turnkeep.model.turns import Turn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracing:
    """One tracer for requests, turns, model calls and tool calls."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("turnkeep")

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> "Iterator[Span]":
        """The span of a request, in the caller's trace if the request names one. Its route is known only later."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        with self._tracer.start_as_current_span(
            method, context=parent, kind=SpanKind.SERVER, attributes={"http.request.method": method}
        ) as span:
            yield span

    def turn(self, turn: Turn) -> None:
        """A turn that has ended, from its start to its end."""
        began = turn.started_at or turn.created_at
        span = self._tracer.start_span("turn", start_time=began * 1_000_000, attributes={"turnkeep.turn_id": turn.id})
        span.set_attribute("turnkeep.conversation_id", turn.conversation_id)
        span.set_attribute("turnkeep.status", turn.status)
        span.set_attribute("gen_ai.request.model", turn.model or "")
        span.set_attribute("gen_ai.usage.input_tokens", turn.usage.input_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", turn.usage.output_tokens)
        span.end((turn.settled_at or began) * 1_000_000)

    def past(self, name: str, seconds: float, attributes: Mapping[str, str]) -> None:
        """A span for something that took this long and has just ended."""
        now = time.time_ns()
        self._tracer.start_span(name, start_time=now - int(seconds * 1e9), attributes=dict(attributes)).end(now)

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()


def open_tracing(environ: Mapping[str, str]) -> Tracing | None:
    """Tracing as the environment asks for it, or None."""
    if not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise InvalidRequest(f"{_ENDPOINTS[0]} is set: install `turnkeep[otel]`, or unset it.") from exc
    resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "turnkeep")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)
