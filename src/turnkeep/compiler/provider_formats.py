"""OpenAI Responses: utterances → `input` items, instructions apart; meant for requests with `store: false`.

Calls and messages are sent without the provider's item ids. A `call_id` connects a call with its output, and an item id
would make the server look for an item that it does not store. Reasoning goes back as its ciphertext, before its result.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from turnkeep.compiler.exchange import Utterance
from turnkeep.compiler.identifiers import RESPONSES_ID_CHARS, CallNames, safe_name
from turnkeep.compiler.openai_chat import image_url, result_text
from turnkeep.compiler.window import arguments_of
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse


def translate(lines: Sequence[Utterance], names: CallNames) -> list[JsonObject]:
    """Items in the order in which they were said; outputs directly after the calls of their utterance."""
    items: list[JsonObject] = []
    called: list[str] = []
    for line in lines:
        if line.role == "assistant":
            called = [names.take(block.id) for block in line.blocks if isinstance(block, ToolUse)]
            items.extend(_assistant(line, iter(called)))
        else:
            items.extend(_user(line, iter(called)))
    return items


def call_names() -> CallNames:
    return CallNames(RESPONSES_ID_CHARS)


def _assistant(line: Utterance, called: Iterator[str]) -> list[JsonObject]:
    items: list[JsonObject] = []
    for block in line.blocks:
        match block:
            case Text():
                content = [{"type": "output_text", "text": block.text}]
                items.append({"type": "message", "role": "assistant", "content": content})
            case ToolUse():
                items.append(_call(block, next(called)))
            case Reasoning():
                items.append(_reasoning(block))
            case ToolResult() | Image() | FileRef():
                raise AssertionError(f"an assistant does not say {type(block).__name__}")
            case _:
                assert_never(block)
    return items


def _call(block: ToolUse, name: str) -> JsonObject:
    arguments = arguments_of(block.input)
    return {"type": "function_call", "call_id": name, "name": safe_name(block.name), "arguments": arguments}


def _reasoning(block: Reasoning) -> JsonObject:
    summary = [{"type": "summary_text", "text": block.text}] if block.text else []
    item: JsonObject = {"type": "reasoning", "summary": summary, "encrypted_content": block.data}
    if block.item_id and block.item_id.startswith("rs_"):
        item["id"] = block.item_id
    return item


def _user(line: Utterance, called: Iterator[str]) -> list[JsonObject]:
    items: list[JsonObject] = []
    parts: list[JsonObject] = []
    for block in line.blocks:
        if isinstance(block, ToolResult):
            output = result_text(block)
            items.append({"type": "function_call_output", "call_id": next(called), "output": output})
        else:
            parts.append(_part(block))
    if parts:
        items.append({"type": "message", "role": "user", "content": parts})
    return items


def _part(block: Block) -> JsonObject:
    match block:
        case Text():
            return {"type": "input_text", "text": block.text}
        case Image():
            return {"type": "input_image", "image_url": image_url(block), "detail": "auto"}
        case ToolUse() | ToolResult() | Reasoning() | FileRef():
            raise AssertionError(f"a user does not say {type(block).__name__}")
        case _:
            assert_never(block)
