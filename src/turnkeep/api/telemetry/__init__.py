"""Telemetry: logs, Prometheus metrics and OpenTelemetry spans of one server process.

- `logs`      one JSON line per record, without secrets
- `metrics`   counters, histograms and gauges, and their text for `GET /metrics`; and the observer of the engine, which
              writes what the engine reports as metrics, log lines and spans
- `tracing`   spans, if `turnkeep[otel]` is installed and an exporter is configured

Nothing here changes what a request or a turn does. Read first: `EngineObserver` in `metrics`.
"""
