"""Messages as other systems write them: Anthropic, OpenAI chat, OpenAI Responses, the AI SDK, and rows of a database.

Each reader takes one message and returns its role and blocks as an `Item`, or as several if tool calls and their
results stand in one message. A part that has no equivalent here becomes a line of text, and a remark says so. An item
that is not a message is an InvalidRequest that names its place.
"""

from datetime import UTC, datetime
from itertools import groupby

from msgspec import DecodeError, Struct, json, structs

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId
from turnkeep.model.legacy import legacy_blocks
from turnkeep.model.messages import Legacy
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Reasoning, Role, Text, ToolResult, ToolUse
from turnkeep_client.wire.events import Source

_ROLES: dict[JsonValue, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


class Item(Struct, frozen=True, kw_only=True):
    """One message: its role, its blocks, and its time if it has one. `index` is its place in the document.

    `turn` names its turn, and `sequence` orders the items of a turn, where the other system has turns. `is_internal` is
    None where the other system does not say.
    """

    role: Role
    blocks: tuple[Block, ...]
    ts: int | None = None
    index: int = 0
    sources: tuple[Source, ...] = ()
    turn: str | None = None
    sequence: int = 0
    is_internal: bool | None = None
    provider: str | None = None


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
    match item.get("type") or "message":
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


# The AI SDK


def read_ui_message(message: JsonObject, index: int, remarks: Remarks) -> list[Item]:
    """A message with `parts` (AI SDK 4 to 6), as one item for each step and one for the results of its calls."""
    reader = _UIMessageReader(_openai_role(message, index), index, remarks)
    for part in _ui_parts(message, index):
        reader.add(part)
    return reader.items(time_of(message.get("createdAt"), index, "createdAt"))


def _ui_parts(message: JsonObject, index: int) -> list[JsonObject]:
    if message.get("parts") is not None:
        return parts_of(message["parts"], index)
    calls = parts_of(message.get("toolInvocations"), index)
    told = [{"type": "tool-invocation", "toolInvocation": call} for call in calls]
    return [*told, *parts_of(message.get("content"), index)]


class _UIMessageReader:
    """Reads the parts of one message of the AI SDK. The blocks and the results of a step are in `_steps`."""

    def __init__(self, role: Role, index: int, remarks: Remarks) -> None:
        self._role = role
        self._index = index
        self._remarks = remarks
        self._steps: list[tuple[list[Block], list[Block]]] = [([], [])]
        self._sources: list[Source] = []

    def items(self, ts: int | None) -> list[Item]:
        found: list[Item] = []
        for blocks, results in self._steps:
            found.append(Item(role=self._role, blocks=tuple(blocks), ts=ts))
            if results:
                found.append(Item(role="user", blocks=tuple(results), ts=ts))
        last = max(place for place, item in enumerate(found) if item.role == self._role)
        found[last] = structs.replace(found[last], sources=tuple(self._sources))
        return found

    def add(self, part: JsonObject) -> None:
        index = self._index
        match part.get("type"):
            case "step-start":
                self._begin_step()
            case "text":
                self._say(Text(text=text_of(part, index)))
            case "reasoning":
                self._say(_ui_reasoning(part, index))
            case "file":
                self._say(self._file(part))
            case "source-url" | "source-document" | "source":
                self._sources.append(_ui_source(part))
            case "tool-invocation" if isinstance(part.get("toolInvocation"), dict):
                self._call(part["toolInvocation"], part["toolInvocation"].get("toolName"))
            case "dynamic-tool":
                self._call(part, part.get("toolName"))
            case str(kind) if kind.startswith("tool-") and "toolCallId" in part:
                self._call(part, kind.removeprefix("tool-"))
            case kind:
                self._say(self._remarks.left_out(index, kind))

    def _begin_step(self) -> None:
        if self._steps[-1][0]:
            self._steps.append(([], []))

    def _say(self, block: Block) -> None:
        if self._steps[-1][1]:  # the model speaks again after results
            self._begin_step()
        self._steps[-1][0].append(block)

    def _call(self, part: JsonObject, name: JsonValue) -> None:
        own = call_id(part.get("toolCallId"), self._index, "toolCallId")
        given = next((part[field] for field in ("input", "args", "rawInput") if part.get(field) is not None), None)
        blocks, results = self._steps[-1]
        blocks.append(
            ToolUse(id=own, name=tool_name(name, self._index), input=arguments(given, self._index, self._remarks))
        )
        match part.get("state"):
            case "output-available" | "result":
                outcome = part.get("output") if "output" in part else part.get("result")
                results.append(ToolResult(call_id=own, content=words_of_value(outcome)))
            case "output-error" | "output-denied":
                why = part.get("errorText") or "The call was denied."
                results.append(ToolResult(call_id=own, content=words_of_value(why), is_error=True))
            case _:
                self._remarks.add(self._index, f"the call of {name!r} has no result; its outcome is unknown.")

    def _file(self, part: JsonObject) -> Block:
        kind = part.get("mediaType") or part.get("mimeType") or ""
        url = part.get("url") or part.get("data")
        if isinstance(kind, str) and kind.startswith("image/") and isinstance(url, str) and self._role == "user":
            is_address = url.startswith(("data:", "https:", "http:"))
            return image_at(url, self._index) if is_address else Image(media_type=kind, data=url)
        return self._remarks.left_out(self._index, f"file {part.get('filename') or kind}".strip())


def _ui_reasoning(part: JsonObject, index: int) -> Reasoning:
    text = text_of(part, index, "text" if "text" in part else "reasoning")
    metadata = part.get("providerMetadata")
    by_provider = metadata if isinstance(metadata, dict) else {}
    anthropic, openai = by_provider.get("anthropic"), by_provider.get("openai")
    if isinstance(anthropic, dict):
        signature, data = anthropic.get("signature"), anthropic.get("redactedData")
        return Reasoning(text=text, provider="anthropic", signature=_text(signature), data=_text(data))
    if isinstance(openai, dict):
        data, own = openai.get("reasoningEncryptedContent"), openai.get("itemId")
        return Reasoning(text=text, provider="openai", data=_text(data), item_id=_text(own))
    return Reasoning(text=text)


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _ui_source(part: JsonObject) -> Source:
    told = part.get("source")
    source = told if isinstance(told, dict) else part
    url = _text(source.get("url"))
    title = _text(source.get("title")) or _text(source.get("filename")) or url or "Source"
    return Source(title=title, snippet="", url=url)


# Rows of a database


def read_row(row: JsonObject, index: int, remarks: Remarks) -> list[Item]:
    """A row with `content_blocks`, or one from before there were any: then its `tool_calls`, or else its `content`.

    Rows with the same `turn_id` are one turn. A row without one is a turn of its own.
    """
    role = "user" if row.get("role") in {"tool", "function"} else _openai_role(row, index)
    blocks = tuple(_anthropic_block(part, index, remarks) for part in _stored_blocks(row, index))
    if not blocks:
        content, calls = (_decoded(row.get(name)) for name in ("content", "tool_calls"))
        blocks = legacy_blocks(Legacy(content=content, tool_calls=calls))
    time = row.get("created_at") if row.get("ts") is None else row.get("ts")
    turn = row.get("turn_id")
    internal, sequence = row.get("internal"), row.get("turn_sequence")
    whole = Item(
        role=role,
        blocks=blocks,
        ts=time_of(time, index, "created_at"),
        turn=f"row {index}" if turn is None else str(turn),
        sequence=sequence if isinstance(sequence, int) else 0,
        is_internal=internal if isinstance(internal, bool) else None,
    )
    return _by_side(whole)


def _stored_blocks(row: JsonObject, index: int) -> list[JsonObject]:
    stored = row.get("content_blocks")
    if isinstance(stored, str):
        try:
            stored = json.decode(stored)
        except DecodeError as exc:
            raise InvalidRequest(f"Item {index}: `content_blocks` is a text that is not JSON: {exc}.") from exc
    return parts_of(stored, index)


def _decoded(value: JsonValue) -> JsonValue:
    """A list or object that was written as a text is read. Any other text stays a text."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
        try:
            return json.decode(value)
        except DecodeError:
            return value
    return value


def _by_side(item: Item) -> list[Item]:
    """The item, or several: where the results of calls stand beside the calls, each side is an item of its own."""
    if item.role != "assistant" or not any(isinstance(block, ToolResult) for block in item.blocks):
        return [item]
    sides = groupby(item.blocks, key=lambda block: isinstance(block, ToolResult))
    return [
        structs.replace(item, role="user" if is_result else "assistant", blocks=tuple(blocks), is_internal=None)
        for is_result, blocks in sides
    ]


# Checks that all forms share


def time_of(value: JsonValue, index: int, field: str) -> int | None:
    """A time in milliseconds: from a number of seconds or milliseconds, or from a text as of ISO 8601."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
            return int(value * 1000 if value < 1e11 else value)
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(f"Item {index}: `{field}` is not a time: {str(value)[:60]!r}.") from exc
    raise InvalidRequest(f"Item {index}: `{field}` is not a time: {str(value)[:60]!r}.")


def words_of_value(value: JsonValue) -> str:
    """Any JSON as text: a text as it is, else its JSON."""
    return value if isinstance(value, str) else json.encode(value).decode()


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
