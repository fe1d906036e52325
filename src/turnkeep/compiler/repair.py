"""Repair: one turn set right, whatever interrupted it.

After it every tool call is answered exactly once, directly after the utterance that made it and in the order of the
calls; nobody says nothing; and reasoning stands only where a provider takes it. Repairing twice changes nothing
more, and what happens to one turn never depends on another, so earlier turns keep their bytes.
"""

from turnkeep.compiler.exchange import (
    EMPTY_MESSAGE,
    NO_OUTPUT,
    OUTCOME_UNKNOWN,
    Exchange,
    Repair,
    Utterance,
)
from turnkeep.compiler.pairing import Log, Slot, pair
from turnkeep.ids import CallId
from turnkeep_client.wire.blocks import Block, Reasoning, Text, ToolResult, ToolUse


def repair(exchange: Exchange) -> tuple[Exchange, list[Repair]]:
    """The exchange as every provider accepts it, and what had to be done to get there."""
    if _is_sound(exchange):
        return exchange, []
    log = Log(exchange.turn_id)
    slots = pair(exchange, log)
    utterances: list[Utterance] = []
    for index, utterance in enumerate(exchange.utterances):
        spoken = _spoken(utterance, log)
        if spoken is not None:
            utterances.append(spoken)
        if index in slots:
            results = tuple(_result(slot, log) for slot in slots[index])
            utterances.append(Utterance(role="user", blocks=results, ts=_answered_at(exchange, index)))
    return Exchange(turn_id=exchange.turn_id, utterances=tuple(utterances)), log.repairs


def _is_sound(exchange: Exchange) -> bool:
    """A quick yes for the usual turn, so that only a broken one pays for its repair."""
    waiting: list[CallId] = []
    for utterance in exchange.utterances:
        calls: list[CallId] = []
        answers: list[CallId] = []
        for block in utterance.blocks:
            if isinstance(block, Text):
                if calls or not block.text or block.text.isspace():
                    return False
            elif isinstance(block, ToolUse):
                calls.append(block.id)
            elif isinstance(block, ToolResult):
                if not block.content or block.content.isspace():
                    return False
                answers.append(block.call_id)
            else:
                return False
        if answers != waiting or not utterance.blocks or (answers and len(answers) != len(utterance.blocks)):
            return False
        waiting = calls
    return not waiting


def _result(slot: Slot, log: Log) -> ToolResult:
    result = slot.result
    if result is None:
        log.add("result_missing", f"{slot.name} has no result; the model is told that the outcome is unknown.")
        return ToolResult(call_id=slot.call.id, content=OUTCOME_UNKNOWN, is_error=True)
    if not result.content or result.content.isspace():
        log.add("result_empty", f"The result of {slot.name} was empty.")
        return ToolResult(call_id=result.call_id, content=NO_OUTPUT, is_error=result.is_error)
    return result


def _spoken(utterance: Utterance, log: Log) -> Utterance | None:
    """What remains of an utterance once results and empty words are gone; None if that is nothing."""
    blocks = utterance.blocks
    kept = tuple(block for block in blocks if not _is_void(block))
    if utterance.role == "assistant":
        kept = _with_valid_reasoning(_with_words_before_calls(kept), log)
    if kept:
        return Utterance(role=utterance.role, blocks=kept, ts=utterance.ts)
    if blocks and all(isinstance(block, ToolResult) for block in blocks):
        return None
    log.add("message_empty", f"A message of the {utterance.role} was empty.")
    if utterance.role == "assistant":
        return None
    return Utterance(role="user", blocks=(Text(text=EMPTY_MESSAGE),), ts=utterance.ts)


def _is_void(block: Block) -> bool:
    if isinstance(block, Text):
        return not block.text or block.text.isspace()
    return isinstance(block, ToolResult)


def _with_valid_reasoning(blocks: tuple[Block, ...], log: Log) -> tuple[Block, ...]:
    """Reasoning opens an utterance or is not there, and is never its last word: it was cut off in that case."""
    end = len(blocks)
    while end and isinstance(blocks[end - 1], Reasoning):
        end -= 1
    kept = blocks[:end]
    if kept and not isinstance(kept[0], Reasoning):
        kept = without_reasoning(kept)
    if len(kept) != len(blocks):
        log.add("reasoning_dropped", "Reasoning that led to nothing, or came out of its place, was left out.")
    return kept


def _with_words_before_calls(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """No model of ours speaks after it called; where an import does, its words come first, as in every answer."""
    first = next((index for index, block in enumerate(blocks) if isinstance(block, ToolUse)), len(blocks))
    late = tuple(block for block in blocks[first:] if isinstance(block, Text))
    if not late:
        return blocks
    return (*blocks[:first], *late, *(block for block in blocks[first:] if not isinstance(block, Text)))


def without_reasoning(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if not isinstance(block, Reasoning))


def _answered_at(exchange: Exchange, index: int) -> int:
    following = exchange.utterances[min(index + 1, len(exchange.utterances) - 1)]
    return following.ts
