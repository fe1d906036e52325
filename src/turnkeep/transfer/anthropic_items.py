"""Anthropic messages → items."""

from turnkeep.errors import InvalidRequest
from turnkeep.transfer.items import Item, Remarks, arguments, call_id, parts_of, text_of, tool_name, words_of
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse


def read_anthropic(item: JsonObject, index: int, remarks: Remarks) -> Item:
    role = item.get("role")
    if role not in {"user", "assistant", "system"}:
        raise InvalidRequest(f"Item {index}: `role` must be user or assistant, not {role!r}.")
    blocks = tuple(_block(part, index, remarks) for part in parts_of(item.get("content"), index))
    return Item(role=role, blocks=blocks)


def _block(part: JsonObject, index: int, remarks: Remarks) -> Block:
    match part.get("type"):
        case "text":
            return Text(text=text_of(part, index))
        case "tool_use":
            return ToolUse(
                id=call_id(part.get("id"), index, "id"),
                name=tool_name(part.get("name"), index),
                input=arguments(part.get("input"), index, remarks),
            )
        case "tool_result":
            return ToolResult(
                call_id=call_id(part.get("tool_use_id"), index, "tool_use_id"),
                content=words_of(part.get("content"), index, remarks),
                is_error=part.get("is_error") is True,
            )
        case "thinking":
            signature = part.get("signature")
            return Reasoning(
                text=text_of(part, index, "thinking"),
                provider="anthropic",
                signature=signature if isinstance(signature, str) else None,
            )
        case "redacted_thinking":
            return Reasoning(provider="anthropic", data=text_of(part, index, "data"))
        case "image":
            return _image(part.get("source"), index)
        case kind:
            return remarks.left_out(index, kind)


def _image(source: JsonValue, index: int) -> Image:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        return Image(media_type=str(source.get("media_type")), data=text_of(source, index, "data"))
    if kind == "url":
        return Image(media_type="image/*", url=text_of(source, index, "url"))
    raise InvalidRequest(f"Item {index}: a picture needs a source of type base64 or url.")
