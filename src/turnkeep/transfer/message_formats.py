"""Messages as other systems write them: Anthropic, OpenAI chat and OpenAI Responses.

Each reader takes one message and returns an `Item`: a role and blocks. A part that has no equivalent here becomes a
line of text, and a remark says so. An item that is not a message is an InvalidRequest that names its place.
"""

from msgspec import DecodeError, Struct, json

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Reasoning, Role, Text, ToolResult, ToolUse

_ROLES: dict[JsonValue, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


class Item(Struct, frozen=True, kw_only=True):
    """One message: its role, its blocks, and its time if it has one."""

    role: Role
    blocks: tuple[Block, ...]
    ts: int | None = None


def is_empty(item: Item) -> bool:
    """Whether the message has no blocks, or only blank texts. A tool result without text is not empty."""
    return all(isinstance(block, Text) and not block.text.strip() for block in item.blocks)


class Remarks:
    """Notes for the person who imports: parts that have no equivalent here."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def left_out(self, index: int, kind: JsonValue) -> Text:
        """A line of text in place of a part that cannot be kept."""
        self.said.append(f"Item {index}: a piece of type {kind!r} has no equal here; a line of text stands for it.")
        return Text(text=f"[{kind}: left out]")

    def add(self, index: int, remark: str) -> None:
        self.said.append(f"Item {index}: {remark}")


# Anthropic


def read_anthropic(item: JsonObject, index: int, remarks: Remarks) -> Item:
    role = item.get("role")
    if role not in {"user", "assistant", "system"}:
        raise InvalidRequest(f"Item {index}: `role` must be user or assistant, not {role!r}.")
    blocks = tuple(_anthropic_block(part, index, remarks) for part in parts_of(item.get("content"), index))
    return Item(role=role, blocks=blocks)


def _anthropic_block(part: JsonObject, index: int, remarks: Remarks) -> Block:
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
            return _anthropic_image(part.get("source"), index)
        case kind:
            return remarks.left_out(index, kind)


def _anthropic_image(source: JsonValue, index: int) -> Image:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        return Image(media_type=str(source.get("media_type")), data=text_of(source, index, "data"))
    if kind == "url":
        return Image(media_type="image/*", url=text_of(source, index, "url"))
    raise InvalidRequest(f"Item {index}: a picture needs a source of type base64 or url.")


# OpenAI


def read_chat(item: JsonObject, index: int, remarks: Remarks) -> Item:
    if item.get("role") in {"tool", "function"}:
        return Item(role="user", blocks=(_tool_message(item, index, remarks),))
    role = _openai_role(item, index)
    blocks: list[Block] = [_openai_part(part, index, remarks) for part in parts_of(item.get("content"), index)]
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
            role = _openai_role(item, index)
            parts = parts_of(item.get("content"), index)
            return Item(role=role, blocks=tuple(_openai_part(part, index, remarks) for part in parts))
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


def _openai_role(item: JsonObject, index: int) -> Role:
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


def _openai_part(part: JsonObject, index: int, remarks: Remarks) -> Block:
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


# Checks that all forms share


def call_id(value: JsonValue, index: int, field: str) -> CallId:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: `{field}` must be a text, not {value!r}.")
    return CallId(value)


def tool_name(value: JsonValue, index: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: the name of a tool must be a text, not {value!r}.")
    return value


def arguments(value: JsonValue, index: int, remarks: Remarks) -> JsonObject:
    """Arguments as an object. A text that is not JSON (the model was cut off) is kept as a text."""
    if isinstance(value, str):
        try:
            value = json.decode(value) if value.strip() else {}
        except DecodeError:
            remarks.add(index, "the arguments of a call are not JSON; they are kept as text under `arguments`.")
            return {"arguments": value}
    if value is None:
        return {}
    if not isinstance(value, dict):
        remarks.add(index, "the arguments of a call are not an object; they are kept under `arguments`.")
        return {"arguments": value}
    return value


def parts_of(content: JsonValue, index: int) -> list[JsonObject]:
    """Content as a list of parts. A text is one text part."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        if all(isinstance(part, dict) for part in parts):
            return parts
    raise InvalidRequest(f"Item {index}: `content` must be a text or a list of parts.")


def text_of(part: JsonObject, index: int, field: str = "text") -> str:
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequest(f"Item {index}: a part of type {part.get('type')!r} needs a text in `{field}`.")
    return text


def image_at(url: JsonValue, index: int) -> Image:
    """An image from its address, which may contain the image itself (`data:`)."""
    if not isinstance(url, str):
        raise InvalidRequest(f"Item {index}: a picture needs an address.")
    if url.startswith("data:"):
        head, _, data = url.partition(",")
        return Image(media_type=head[5:].partition(";")[0], data=data)
    return Image(media_type="image/*", url=url)


def words_of(content: JsonValue, index: int, remarks: Remarks) -> str:
    """A tool result as text. Parts of other types are replaced by a line that names them."""
    if content is None:
        return ""
    if not isinstance(content, str | list):
        return json.encode(content).decode()
    words: list[str] = []
    for part in parts_of(content, index):
        text = part.get("text")
        words.append(text if isinstance(text, str) else remarks.left_out(index, part.get("type")).text)
    return "\n".join(words)
