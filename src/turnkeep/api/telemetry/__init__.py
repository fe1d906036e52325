"""Telemetry: logs, Prometheus metrics and OpenTelemetry spans of one server process.

- `logs`      one JSON line per record, without secrets
- `metrics`   counters, histograms and gauges, and their text for `GET /metrics`
- `tracing`   spans, if `turnkeep[otel]` is installed and an exporter is configured
- `observer`  what the engine reports, as metrics, log lines and spans

Nothing here changes what a request or a turn does. Read first: `observer`.
"""
