"""Joining: exchanges → one conversation that begins with the user and in which the sides take turns.

Providers differ in whether they insist on that; servers behind an OpenAI-compatible address often do, through
their chat templates. One normal form for all is what every one of them accepts.
"""

from collections.abc import Sequence

from msgspec import Struct

from turnkeep.compiler.exchange import (
    BEGAN_EARLIER,
    Exchange,
    Repair,
    Utterance,
    note,
)
from turnkeep.compiler.repair import without_reasoning
from turnkeep.ids import TurnId
from turnkeep_client.wire.blocks import Reasoning, ToolResult


class Conversation(Struct, frozen=True, kw_only=True):
    """What was said, the sides taking turns. The first `closed` lines belong to turns that have ended."""

    lines: list[Utterance]
    closed: int
    repairs: list[Repair]


def join(exchanges: Sequence[Exchange], *, open_turn: TurnId | None) -> Conversation:
    """Every utterance in order, neighbours of one side merged."""
    lines: list[Utterance] = []
    closed = 0
    for exchange in exchanges:
        for utterance in exchange.utterances:
            if lines and lines[-1].role == utterance.role:
                lines[-1] = _merged(lines[-1], utterance)
            else:
                lines.append(utterance)
        if exchange.turn_id != open_turn:
            closed = len(lines)
    repairs: list[Repair] = []
    if lines and lines[0].role == "assistant":
        lines.insert(0, note("user", BEGAN_EARLIER, ts=lines[0].ts))
        closed += 1
        detail = "The conversation begins with the assistant; a line says that it began earlier."
        repairs.append(Repair(kind="beginning_missing", turn_id=exchanges[0].turn_id, detail=detail))
    return Conversation(lines=lines, closed=closed, repairs=repairs)


def _merged(first: Utterance, second: Utterance) -> Utterance:
    added = second.blocks
    # A message that holds reasoning must begin with it.
    if not isinstance(first.blocks[0], Reasoning):
        added = without_reasoning(added)
    return Utterance(role=first.role, blocks=(*first.blocks, *added), ts=second.ts)


def open_loop_thinks(lines: Sequence[Utterance]) -> bool:
    """Whether the tool loop that this request would continue began with reasoning; true if there is no such loop.

    Anthropic refuses to switch thinking on in the middle of a loop.
    """
    index = len(lines) - 1
    if index < 0 or not _is_only_results(lines[index]):
        return True
    while index >= 2 and _is_only_results(lines[index - 2]):
        index -= 2
    return isinstance(lines[index - 1].blocks[0], Reasoning)


def _is_only_results(utterance: Utterance) -> bool:
    return all(isinstance(block, ToolResult) for block in utterance.blocks)
