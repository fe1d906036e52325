"""The Python client of Turnkeep: `AsyncTurnkeep`, and `Turnkeep` for code without an event loop.

This package answers for the JSON of the API (`wire/`, used by the server too) and for the way to a server: requests
that are repeated where that is safe, and streams that survive a lost connection. It depends on msgspec and httpx, and
must not know the server: nothing here imports `turnkeep`.

Read `client.py` first, then `stream.py`; `wire/__init__.py` lists the shapes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep_client.client import AsyncTurnkeep
    from turnkeep_client.errors import AlreadyDecided, ConnectionLost, TurnFailed, TurnStopped, WaitTimeout
    from turnkeep_client.retry import Trouble
    from turnkeep_client.stream import (
        Answer,
        Approval,
        ClientCalls,
        Decided,
        Delta,
        Event,
        Failure,
        Files,
        Reset,
        Restarted,
        Result,
        Sources,
        Steered,
        Step,
        ToolCalls,
        TurnBegan,
        TurnStream,
    )
    from turnkeep_client.sync import Stream, Turnkeep
    from turnkeep_client.tool_calls import ToolCaller, verify_tool_call
    from turnkeep_client.wire import Conversation, File, Message, Turn

__all__ = [
    "AlreadyDecided",
    "Answer",
    "Approval",
    "AsyncTurnkeep",
    "ClientCalls",
    "ConnectionLost",
    "Conversation",
    "Decided",
    "Delta",
    "Event",
    "Failure",
    "File",
    "Files",
    "Message",
    "Reset",
    "Restarted",
    "Result",
    "Sources",
    "Steered",
    "Step",
    "Stream",
    "ToolCaller",
    "ToolCalls",
    "Trouble",
    "Turn",
    "TurnBegan",
    "TurnFailed",
    "TurnStopped",
    "TurnStream",
    "Turnkeep",
    "WaitTimeout",
    "verify_tool_call",
]

_HOMES = {
    "client": ("AsyncTurnkeep",),
    "errors": ("AlreadyDecided", "ConnectionLost", "TurnFailed", "TurnStopped", "WaitTimeout"),
    "retry": ("Trouble",),
    "stream": (
        "Answer",
        "Approval",
        "ClientCalls",
        "Decided",
        "Delta",
        "Event",
        "Failure",
        "Files",
        "Reset",
        "Restarted",
        "Result",
        "Sources",
        "Steered",
        "Step",
        "ToolCalls",
        "TurnBegan",
        "TurnStream",
    ),
    "sync": ("Stream", "Turnkeep"),
    "tool_calls": ("ToolCaller", "verify_tool_call"),
    "wire": ("Conversation", "File", "Message", "Turn"),
}
"""The module of each public name. It is imported on first use: the server needs `turnkeep_client.wire` alone."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
