"""The message formats of providers: Anthropic Messages, OpenAI Chat Completions and OpenAI Responses.

Each format has one function that writes utterances in it. What all formats share comes first: the ids of calls and the
names of tools, as a provider accepts them. Our own travel unchanged where they fit. Others are cut and made safe,
followed by a hash of the original, so that the same id gets the same name in every request and two ids never share one.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from turnkeep.compiler.exchange import Utterance
from turnkeep.compiler.window import arguments_of
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse

ANTHROPIC_ID_CHARS = 64
CHAT_ID_CHARS = 40
RESPONSES_ID_CHARS = 64
TOOL_NAME_CHARS = 64
MARKED_USER_MESSAGES = 2

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 16


class CallNames:
    """Gives each call of one request its name, in order. A second call of the same id gets another name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.given: set[str] = set()
        self.renamed: list[str] = []

    def take(self, call_id: str) -> str:
        name = safe_name(call_id, limit=self._limit)
        again = 1
        while name in self.given:
            again += 1
            name = _hashed(call_id, f"{call_id}#{again}", self._limit)
        if again > 1:
            self.renamed.append(call_id)
        self.given.add(name)
        return name


def safe_name(name: str, *, limit: int = TOOL_NAME_CHARS) -> str:
    """The name itself if it has only letters, digits, `_` and `-` and fits; else a stable substitute.

    Tools must be declared under the same substitute, so that a model finds its earlier calls among them.
    """
    if name and len(name) <= limit and not _FORBIDDEN.search(name):
        return name
    return _hashed(name, name, limit)


def _hashed(name: str, source: str, limit: int) -> str:
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    readable = _FORBIDDEN.sub("_", name)[: limit - _HASH_CHARS - 1]
    return f"{readable}_{digest}"


# Anthropic Messages


def anthropic_messages(lines: Sequence[Utterance], names: CallNames) -> list[JsonObject]:
    """`messages`, one per utterance. Results take the names of the calls before them, in order."""
    messages: list[JsonObject] = []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
        given = iter(called)
        messages.append({"role": line.role, "content": [_anthropic_block(block, given) for block in line.blocks]})
    return messages


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
    for index in {closed - 1, *own[-MARKED_USER_MESSAGES:]}:
        if 0 <= index < len(messages):
            _mark(messages[index]["content"][-1])


def _mark(block: JsonObject) -> None:
    block["cache_control"] = {"type": "ephemeral"}


def _anthropic_block(block: Block, called: Iterable[str]) -> JsonObject:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case ToolUse():
            name = next(iter(called))
            return {"type": "tool_use", "id": name, "name": safe_name(block.name), "input": block.input}
        case ToolResult():
            return _anthropic_result(block, next(iter(called)))
        case Reasoning():
            return _thinking(block)
        case Image():
            return {"type": "image", "source": _source(block)}
        case FileRef():
            raise AssertionError("attachments are resolved before translation")
        case _:
            assert_never(block)


def _anthropic_result(block: ToolResult, name: str) -> JsonObject:
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


# OpenAI Chat Completions


def chat_messages(lines: Sequence[Utterance], names: CallNames, *, system: str = "") -> list[JsonObject]:
    """`messages`, the system prompt first, for OpenAI and the many servers that speak this format.

    Results become `tool` messages directly after their calls; the user's own text follows them. The format has no place
    for reasoning, which an earlier step has removed, and no field for a failed result, so its text says that it is an
    error.
    """
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system.strip() else []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
            messages.append(_chat_assistant(line, called))
        else:
            messages.extend(_chat_user(line, called))
    return messages


def result_text(result: ToolResult) -> str:
    """The text of the result, marked if it is an error."""
    if result.is_error and not result.content.lower().startswith("error"):
        return f"Error: {result.content}"
    return result.content


def image_url(image: Image) -> str:
    return image.url or "" if image.data is None else f"data:{image.media_type};base64,{image.data}"


def _chat_assistant(line: Utterance, called: list[str]) -> JsonObject:
    if (only := _only_text(line)) is not None:
        return {"role": "assistant", "content": only or None}
    text = "\n\n".join(block.text for block in line.blocks if isinstance(block, Text))
    message: JsonObject = {"role": "assistant", "content": text or None}
    calls = [block for block in line.blocks if isinstance(block, ToolUse)]
    if calls:
        message["tool_calls"] = [_chat_call(call, name) for call, name in zip(calls, called, strict=True)]
    return message


def _chat_call(call: ToolUse, name: str) -> JsonObject:
    function = {"name": safe_name(call.name), "arguments": arguments_of(call.input)}
    return {"id": name, "type": "function", "function": function}


def _chat_user(line: Utterance, called: list[str]) -> list[JsonObject]:
    if (only := _only_text(line)) is not None:
        return [{"role": "user", "content": only}]
    results = [block for block in line.blocks if isinstance(block, ToolResult)]
    messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": name, "content": result_text(result)}
        for result, name in zip(results, called, strict=False)
    ]
    parts = [_chat_part(block) for block in line.blocks if not isinstance(block, ToolResult)]
    # Many compatible servers accept a list only if it contains a picture.
    if parts and all(part["type"] == "text" for part in parts):
        messages.append({"role": "user", "content": "\n\n".join(part["text"] for part in parts)})
    elif parts:
        messages.append({"role": "user", "content": parts})
    return messages


def _only_text(line: Utterance) -> str | None:
    """Its one text, if that is all it has, as is usual."""
    if len(line.blocks) != 1:
        return None
    block = line.blocks[0]
    return block.text if isinstance(block, Text) else None


def _chat_part(block: Block) -> JsonObject:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": image_url(block)}}
        case ToolUse() | ToolResult() | Reasoning() | FileRef():
            raise AssertionError(f"a user does not say {type(block).__name__}")
        case _:
            assert_never(block)


# OpenAI Responses


def responses_input(lines: Sequence[Utterance], names: CallNames) -> list[JsonObject]:
    """`input` items in the order in which they were said, for requests with `store: false`.

    Outputs come directly after the calls of their utterance. Calls and messages are sent without the provider's item
    ids: a `call_id` connects a call with its output, and an item id would make the server look for an item that it does
    not store. Reasoning goes back as its ciphertext, before its result.
    """
    items: list[JsonObject] = []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
            items.extend(_responses_assistant(line, iter(called)))
        else:
            items.extend(_responses_user(line, iter(called)))
    return items


def _responses_assistant(line: Utterance, called: Iterator[str]) -> list[JsonObject]:
    items: list[JsonObject] = []
    for block in line.blocks:
        match block:
            case Text():
                content = [{"type": "output_text", "text": block.text}]
                items.append({"type": "message", "role": "assistant", "content": content})
            case ToolUse():
                items.append(_responses_call(block, next(called)))
            case Reasoning():
                items.append(_responses_reasoning(block))
            case ToolResult() | Image() | FileRef():
                raise AssertionError(f"an assistant does not say {type(block).__name__}")
            case _:
                assert_never(block)
    return items


def _responses_call(block: ToolUse, name: str) -> JsonObject:
    arguments = arguments_of(block.input)
    return {"type": "function_call", "call_id": name, "name": safe_name(block.name), "arguments": arguments}


def _responses_reasoning(block: Reasoning) -> JsonObject:
    summary = [{"type": "summary_text", "text": block.text}] if block.text else []
    item: JsonObject = {"type": "reasoning", "summary": summary, "encrypted_content": block.data}
    if block.item_id and block.item_id.startswith("rs_"):
        item["id"] = block.item_id
    return item


def _responses_user(line: Utterance, called: Iterator[str]) -> list[JsonObject]:
    items: list[JsonObject] = []
    parts: list[JsonObject] = []
    for block in line.blocks:
        if isinstance(block, ToolResult):
            output = result_text(block)
            items.append({"type": "function_call_output", "call_id": next(called), "output": output})
        else:
            parts.append(_responses_part(block))
    if parts:
        items.append({"type": "message", "role": "user", "content": parts})
    return items


def _responses_part(block: Block) -> JsonObject:
    match block:
        case Text():
            return {"type": "input_text", "text": block.text}
        case Image():
            return {"type": "input_image", "image_url": image_url(block), "detail": "auto"}
        case ToolUse() | ToolResult() | Reasoning() | FileRef():
            raise AssertionError(f"a user does not say {type(block).__name__}")
        case _:
            assert_never(block)
