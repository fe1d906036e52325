"""The wire of AG-UI, for pages and runtimes that speak the Agent-User Interaction Protocol, such as CopilotKit.

- `run_stream`  a turn as the events of runs, and the messages that they leave behind; without I/O
- `runs`        the endpoints: run an agent in a thread, and attach to a thread again

A thread is the conversation whose `external_id` is the thread's id. A run is the part of a turn until it ends or waits.
Clients of the versions 1.0 and 0.0.59 are served alike, but for what the older ones cannot read. This package knows the
protocol's JSON, and makes questions for the engine as `native/turns.py` does. It knows neither databases nor models.
Read first: `run_stream`.
"""
