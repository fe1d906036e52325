"""The events of a stream, typed: those of the model, and `Delta` for words that are not yet an event."""

from typing import Any

import msgspec
from msgspec import Struct

from turnkeep.errors import Defect
from turnkeep_client.sse import ServerSentEvent
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import (
    Failure,
    Files,
    Reset,
    Result,
    Sources,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)
from turnkeep_client.wire.events import Preview as Delta

__all__ = [
    "Delta",
    "Event",
    "Failure",
    "Files",
    "Reset",
    "Result",
    "Sources",
    "Step",
    "ToolCalls",
    "TurnBegan",
    "Unknown",
    "decode_event",
    "is_terminal",
]


class Unknown(Struct, frozen=True, kw_only=True):
    """An event that a later server has and this release does not know. It is passed on, and changes nothing."""

    event: str
    data: JsonObject


Event = TurnEvent | Delta | Unknown

_KINDS: dict[str, Any] = {
    "turn": TurnBegan,
    "delta": Delta,
    "tool_calls": ToolCalls,
    "step": Step,
    "sources": Sources,
    "files": Files,
    "reset": Reset,
    "result": Result,
    "error": Failure,
}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


def decode_event(frame: ServerSentEvent) -> Event:
    """The event of a frame. Raises Defect if a known one has another shape than we know."""
    decoder = _DECODERS.get(frame.event)
    try:
        if decoder is None:
            return Unknown(event=frame.event, data=msgspec.json.decode(frame.data, type=dict))
        event: Event = decoder.decode(frame.data)
        return event
    except msgspec.MsgspecError as exc:
        raise Defect(
            f"The server sent an event `{frame.event}` that this client cannot read: {exc}. Is one of them older?"
        ) from exc


def is_terminal(event: Event) -> bool:
    return isinstance(event, Result | Failure)
