"""Streams: from recorded events to the bytes that a reader receives.

The engine publishes durable events and previews to a hub (`hub.py`; `redis_hub.py` connects several workers). A reader
follows one turn from its cursor (`follow.py`), a format encodes the frames (`formats.py`), and `connection.py` sends
them as an ASGI response. `ndjson.py` parses the lines that come out of a sandbox.

This package must not know the engine, the API or the store: it reads events through the port `EventSource`. The hub
never holds a fact that the store lacks, so every part of it may fail without harm to what a reader finally has.

Read `follow.py` first, then `ports.py` and `hub.py`.
"""
