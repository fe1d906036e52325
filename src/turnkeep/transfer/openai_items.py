"""OpenAI chat messages and Responses items → items."""

from turnkeep.errors import InvalidRequest
from turnkeep.transfer.items import (
    Item,
    Remarks,
    arguments,
    call_id,
    image_at,
    parts_of,
    text_of,
    tool_name,
    words_of,
)
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Reasoning, Role, Text, ToolResult, ToolUse

_ROLES: dict[JsonValue, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def read_chat(item: JsonObject, index: int, remarks: Remarks) -> Item:
    if item.get("role") in {"tool", "function"}:
        return Item(role="user", blocks=(_tool_message(item, index, remarks),))
    role = _role(item, index)
    blocks: list[Block] = [_part(part, index, remarks) for part in parts_of(item.get("content"), index)]
    if isinstance(item.get("refusal"), str) and item["refusal"]:
        blocks.append(Text(text=item["refusal"]))
    if item.get("audio") is not None:
        blocks.append(remarks.left_out(index, "audio"))
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidRequest(f"Item {index}: `tool_calls` must be a list.")
    blocks += [_call(call, index, remarks) for call in calls]
    if isinstance(item.get("function_call"), dict):
        blocks.append(_function(item["function_call"], "function", index, remarks))
    return Item(role=role, blocks=tuple(blocks))


def read_responses(item: JsonObject, index: int, remarks: Remarks) -> Item:
    match item.get("type", "message"):
        case "message":
            role = _role(item, index)
            parts = parts_of(item.get("content"), index)
            return Item(role=role, blocks=tuple(_part(part, index, remarks) for part in parts))
        case "function_call":
            own = call_id(item.get("call_id"), index, "call_id")
            return Item(role="assistant", blocks=(_function(item, own, index, remarks),))
        case "function_call_output":
            content = words_of(item.get("output"), index, remarks)
            own = call_id(item.get("call_id"), index, "call_id")
            return Item(role="user", blocks=(ToolResult(call_id=own, content=content),))
        case "reasoning":
            return Item(role="assistant", blocks=(_reasoning(item, index),))
        case kind:
            return Item(role="assistant", blocks=(remarks.left_out(index, kind),))


def _role(item: JsonObject, index: int) -> Role:
    role = _ROLES.get(item.get("role"))
    if role is None:
        raise InvalidRequest(f"Item {index}: {item.get('role')!r} is not a role.")
    return role


def _tool_message(item: JsonObject, index: int, remarks: Remarks) -> ToolResult:
    own = "function" if item.get("role") == "function" else item.get("tool_call_id")
    return ToolResult(
        call_id=call_id(own, index, "tool_call_id"), content=words_of(item.get("content"), index, remarks)
    )


def _call(call: JsonValue, index: int, remarks: Remarks) -> ToolUse:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest(f"Item {index}: a tool call needs a `function` with `name` and `arguments`.")
    return _function(function, call_id(call.get("id"), index, "id"), index, remarks)


def _function(function: JsonObject, own: str, index: int, remarks: Remarks) -> ToolUse:
    return ToolUse(
        id=call_id(own, index, "id"),
        name=tool_name(function.get("name"), index),
        input=arguments(function.get("arguments"), index, remarks),
    )


def _part(part: JsonObject, index: int, remarks: Remarks) -> Block:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(text=text_of(part, index))
        case "refusal":
            return Text(text=text_of(part, index, "refusal"))
        case "image_url":
            image = part.get("image_url")
            return image_at(image.get("url") if isinstance(image, dict) else image, index)
        case "input_image" if part.get("image_url") is not None:
            return image_at(part.get("image_url"), index)
        case kind:
            return remarks.left_out(index, kind)


def _reasoning(item: JsonObject, index: int) -> Reasoning:
    summary = parts_of(item.get("summary"), index)
    data, own = item.get("encrypted_content"), item.get("id")
    return Reasoning(
        text="\n\n".join(text_of(part, index) for part in summary),
        provider="openai",
        data=data if isinstance(data, str) else None,
        item_id=own if isinstance(own, str) else None,
    )
