"""Anthropic Messages: utterances → `messages`, with the system prompt apart and cache markers set."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from turnkeep.compiler.exchange import Utterance
from turnkeep.compiler.identifiers import ANTHROPIC_ID_CHARS, CallNames, safe_name
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse


def translate(lines: Sequence[Utterance], names: CallNames) -> list[JsonObject]:
    """One message per utterance. Results take the names of the calls before them, in order."""
    messages: list[JsonObject] = []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
        given = iter(called)
        messages.append({"role": line.role, "content": [_block(block, given) for block in line.blocks]})
    return messages


def call_names() -> CallNames:
    return CallNames(ANTHROPIC_ID_CHARS)


def system_blocks(system: str) -> list[JsonObject]:
    return [{"type": "text", "text": system}] if system.strip() else []


def mark_for_cache(system: list[JsonObject], messages: list[JsonObject], *, closed: int) -> None:
    """Set at most four markers where the next request will share the prefix with this one.

    They stand after the system prompt (which covers the tools too); after the last closed turn, which ends at message
    number `closed`; at the last user message but one, where the previous request ended; and at the end.
    """
    if system:
        _mark(system[-1])
    own = [index for index, message in enumerate(messages) if message["role"] == "user"]
    for index in {closed - 1, *own[-2:]}:
        if 0 <= index < len(messages):
            _mark(messages[index]["content"][-1])


def _mark(block: JsonObject) -> None:
    block["cache_control"] = {"type": "ephemeral"}


def _block(block: Block, called: Iterable[str]) -> JsonObject:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case ToolUse():
            name = next(iter(called))
            return {"type": "tool_use", "id": name, "name": safe_name(block.name), "input": block.input}
        case ToolResult():
            return _result(block, next(iter(called)))
        case Reasoning():
            return _thinking(block)
        case Image():
            return {"type": "image", "source": _source(block)}
        case FileRef():
            raise AssertionError("attachments are resolved before translation")
        case _:
            assert_never(block)


def _result(block: ToolResult, name: str) -> JsonObject:
    result: JsonObject = {"type": "tool_result", "tool_use_id": name, "content": block.content}
    if block.is_error:
        result["is_error"] = True
    return result


def _thinking(block: Reasoning) -> JsonObject:
    if block.signature:
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return {"type": "redacted_thinking", "data": block.data}


def _source(image: Image) -> JsonObject:
    if image.data is not None:
        return {"type": "base64", "media_type": image.media_type, "data": image.data}
    return {"type": "url", "url": image.url}
