"""OpenAI Chat Completions, and the many servers that speak it: utterances → `messages`, system prompt first.

This format has no place for reasoning, which an earlier step has removed, and no field for a failed result, so its text
says that it is an error.
"""

from collections.abc import Sequence
from typing import assert_never

from turnkeep.compiler.exchange import Utterance
from turnkeep.compiler.identifiers import CHAT_ID_CHARS, CallNames, safe_name
from turnkeep.compiler.window import arguments_of
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse


def translate(lines: Sequence[Utterance], names: CallNames, *, system: str = "") -> list[JsonObject]:
    """Results become `tool` messages directly after their calls; the user's own text follows them."""
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system.strip() else []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
            messages.append(_assistant(line, called))
        else:
            messages.extend(_user(line, called))
    return messages


def call_names() -> CallNames:
    return CallNames(CHAT_ID_CHARS)


def result_text(result: ToolResult) -> str:
    """The text of the result, marked if it is an error."""
    if result.is_error and not result.content.lower().startswith("error"):
        return f"Error: {result.content}"
    return result.content


def image_url(image: Image) -> str:
    return image.url or "" if image.data is None else f"data:{image.media_type};base64,{image.data}"


def _assistant(line: Utterance, called: list[str]) -> JsonObject:
    text = "\n\n".join(block.text for block in line.blocks if isinstance(block, Text))
    message: JsonObject = {"role": "assistant", "content": text or None}
    calls = [block for block in line.blocks if isinstance(block, ToolUse)]
    if calls:
        message["tool_calls"] = [_call(call, name) for call, name in zip(calls, called, strict=True)]
    return message


def _call(call: ToolUse, name: str) -> JsonObject:
    function = {"name": safe_name(call.name), "arguments": arguments_of(call.input)}
    return {"id": name, "type": "function", "function": function}


def _user(line: Utterance, called: list[str]) -> list[JsonObject]:
    results = [block for block in line.blocks if isinstance(block, ToolResult)]
    messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": name, "content": result_text(result)}
        for result, name in zip(results, called, strict=False)
    ]
    parts = [_part(block) for block in line.blocks if not isinstance(block, ToolResult)]
    # Many compatible servers accept a list only if it contains a picture.
    if parts and all(part["type"] == "text" for part in parts):
        messages.append({"role": "user", "content": "\n\n".join(part["text"] for part in parts)})
    elif parts:
        messages.append({"role": "user", "content": parts})
    return messages


def _part(block: Block) -> JsonObject:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": image_url(block)}}
        case ToolUse() | ToolResult() | Reasoning() | FileRef():
            raise AssertionError(f"a user does not say {type(block).__name__}")
        case _:
            assert_never(block)
