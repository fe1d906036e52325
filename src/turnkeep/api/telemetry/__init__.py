"""Telemetry: logs, Prometheus metrics and OpenTelemetry spans of one server process.

- `logs`        one JSON line per record, with the ids of request and turn, and without secrets
- `metrics`     counters, histograms and gauges, and their text for `GET /metrics`; what measures the state of a server;
                and the observer of the engine, which writes what the engine reports as metrics, log lines and spans
- `tracing`     spans, if `turnkeep[otel]` is installed and an exporter is configured
- `admin_port`  the metrics of all workers of a server as one text, on a port for the operator

Nothing here changes what a request or a turn does. Read first: `EngineObserver` in `metrics`.
"""
