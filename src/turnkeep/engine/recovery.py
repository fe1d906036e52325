"""Recovery: how far a turn has come, read from what it recorded, so that another worker can continue it.

A turn that has just begun is read in the same way, so that the loop has one way to start.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import ToolResult, ToolUse
from turnkeep_client.wire.events import Step, TurnEvent
from turnkeep_client.wire.usage import Usage

USAGE = "usage"
"""Key in the metadata of an assistant row: what that one iteration cost. The total stands on the final row."""


class OpenCall(Struct, frozen=True, kw_only=True):
    """A tool call without a result. If it `has_begun`, its effect may or may not have happened."""

    use: ToolUse
    has_begun: bool


class Progress(Struct, frozen=True, kw_only=True):
    """How far a turn has come: complete iterations, what they cost, and the calls that still need a result."""

    iterations: int
    usage: Usage
    open_calls: tuple[OpenCall, ...]


def progress_of(rows: Sequence[Message], events: Sequence[TurnEvent]) -> Progress:
    spoken = [row for row in rows if row.role == "assistant"]
    usage = Usage()
    for row in spoken:
        usage += msgspec.convert(row.metadata.get(USAGE, {}), Usage)
    return Progress(iterations=len(spoken), usage=usage, open_calls=open_calls(rows, events))


def open_calls(rows: Sequence[Message], events: Sequence[TurnEvent]) -> tuple[OpenCall, ...]:
    """The calls without a result, in the order in which they were asked for."""
    answered = {block.call_id for row in rows for block in row.blocks if isinstance(block, ToolResult)}
    begun = {event.id for event in events if isinstance(event, Step)}
    return tuple(
        OpenCall(use=block, has_begun=block.id in begun)
        for row in rows
        for block in row.blocks
        if isinstance(block, ToolUse) and block.id not in answered
    )
