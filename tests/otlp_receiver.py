"""A receiver of OpenTelemetry spans: OTLP over HTTP on a loopback port, with real protobuf."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

PATIENCE_SECONDS = 60.0


class ReceivedSpan(Struct, frozen=True):
    """A span as a backend sees it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first of a trace."""
    attributes: dict[str, Any]
    is_error: bool
    message: str
    service: str

    @property
    def traceparent(self) -> str:
        """Without its last part, the flags, which are no part of OTLP."""
        return f"00-{self.trace_id}-{self.span_id}"


class OtlpReceiver:
    def __init__(self, url: str) -> None:
        self.url = url
        self._spans: list[ReceivedSpan] = []
        self._came = threading.Condition()

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._came:
            return list(self._spans)

    def take(self, request: ExportTraceServiceRequest) -> None:
        found = []
        for resource in request.resource_spans:
            service = {each.key: value_of(each.value) for each in resource.resource.attributes}["service.name"]
            found += [span_of(span, service) for scope in resource.scope_spans for span in scope.spans]
        with self._came:
            self._spans += found
            self._came.notify_all()

    def wait_for(self, *names: str) -> list[ReceivedSpan]:
        """All spans, once there is one for each of these names."""
        until = time.monotonic() + PATIENCE_SECONDS
        with self._came:
            while missing := missing_names(names, self._spans):
                assert self._came.wait(until - time.monotonic()), (
                    f"no {missing} among {sorted(each.name for each in self._spans)}"
                )
            return list(self._spans)


def missing_names(names: tuple[str, ...], spans: list[ReceivedSpan]) -> list[str]:
    left = [span.name for span in spans]
    missing = []
    for name in names:
        if name in left:
            left.remove(name)
        else:
            missing.append(name)
    return missing


def span_of(span: SpanMessage, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes={each.key: value_of(each.value) for each in span.attributes},
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        message=span.status.message,
        service=service,
    )


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            receiver.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
