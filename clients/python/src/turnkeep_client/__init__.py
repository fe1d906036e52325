"""The Python client of Turnkeep: `AsyncTurnkeep`, and `Turnkeep` for code without an event loop.

This package answers for the JSON of the API (`wire/`, used by the server too) and for the way to a server: requests
that are repeated where that is safe, and streams that survive a lost connection. It depends on msgspec and httpx, and
must not know the server: nothing here imports `turnkeep`.

Read `client.py` first, then `stream.py`; `wire/__init__.py` lists the shapes.
"""

from turnkeep_client.client import AsyncTurnkeep
from turnkeep_client.errors import ConnectionLost, TurnFailed, TurnStopped
from turnkeep_client.retry import Trouble
from turnkeep_client.stream import (
    Answer,
    Delta,
    Event,
    Failure,
    Files,
    Reset,
    Result,
    Sources,
    Step,
    ToolCalls,
    TurnBegan,
    TurnStream,
)
from turnkeep_client.sync import Stream, Turnkeep
from turnkeep_client.wire import Conversation, File, Message, Turn

__all__ = [
    "Answer",
    "AsyncTurnkeep",
    "ConnectionLost",
    "Conversation",
    "Delta",
    "Event",
    "Failure",
    "File",
    "Files",
    "Message",
    "Reset",
    "Result",
    "Sources",
    "Step",
    "Stream",
    "ToolCalls",
    "Trouble",
    "Turn",
    "TurnBegan",
    "TurnFailed",
    "TurnStopped",
    "TurnStream",
    "Turnkeep",
]
