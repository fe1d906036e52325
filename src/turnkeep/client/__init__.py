"""A Turnkeep server from Python: `AsyncTurnkeep`, and `Turnkeep` for code without a loop."""

from turnkeep.client.answers import Answer, Conversation, File, Message, Turn
from turnkeep.client.client import AsyncTurnkeep
from turnkeep.client.errors import ConnectionLost, TurnFailed, TurnStopped
from turnkeep.client.events import (
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
)
from turnkeep.client.patience import Trouble
from turnkeep.client.stream import TurnStream
from turnkeep.client.sync import Stream, Turnkeep

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
