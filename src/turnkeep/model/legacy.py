"""Legacy rows: what a row carried before it had blocks, read as blocks.

Reading never fails: a part of an old row that has no meaning here is left out.
"""

from collections.abc import Iterable, Sequence

import msgspec

from turnkeep.ids import CallId
from turnkeep.model.messages import Legacy
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Text, ToolResult, ToolUse


def legacy_blocks(legacy: Legacy) -> tuple[Block, ...]:
    said = list(_content(legacy.content))
    if not isinstance(legacy.tool_calls, list) or not legacy.tool_calls:
        return tuple(said)
    calls = [block for call in legacy.tool_calls if isinstance(call, dict) for block in _call(call)]
    # With results inside, the row is a whole turn folded into one, and its text is the answer that came after.
    if any(isinstance(block, ToolResult) for block in calls):
        return (*calls, *said)
    return (*said, *calls)


def _call(call: JsonObject) -> list[Block]:
    """A call as OpenAI, Anthropic or the AI SDK write it, with its result where it stands beside it."""
    if call.get("type") == "tool_result" or "tool_call_id" in call:
        return [_result(call)]
    function = call.get("function")
    source = function if isinstance(function, dict) else call
    name = _first(source, "name", "toolName", "tool_name")
    if not isinstance(name, str) or not name:
        return []
    call_id = CallId(_words(_first(call, "id", "call_id", "toolCallId")) or f"call_{name}")
    given = arguments_from(_first(source, "arguments", "args", "input"))
    blocks: list[Block] = [ToolUse(id=call_id, name=name, input=given)]
    outcome = _first(call, "result", "output")
    if outcome is not None:
        blocks.append(ToolResult(call_id=call_id, content=_words(outcome), is_error=bool(call.get("isError"))))
    return blocks


def arguments_from(value: JsonValue) -> JsonObject:
    """Arguments as an object, whether they came as one or as the JSON text of one; never a failure."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value.strip() else {}
        except msgspec.DecodeError:
            return {"arguments": value}
    if isinstance(value, dict):
        return value
    return {} if value is None else {"arguments": value}


def _content(content: JsonValue) -> Iterable[Block]:
    if isinstance(content, str):
        return [Text(text=content)]
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return []
    return [block for part in content for block in _part(part)]


def _part(part: JsonValue) -> Sequence[Block]:
    if isinstance(part, str):
        return [Text(text=part)]
    if not isinstance(part, dict):
        return []
    match part.get("type"):
        case "tool_use" | "tool_call" | "function_call" | "tool-call":
            return _call(part)
        case "tool_result" | "tool-result" | "function_call_output":
            return [_result(part)]
        case "image":
            return _picture(part.get("source"))
        case _:
            text = part.get("text")
            return [Text(text=text)] if isinstance(text, str) else []


def _picture(source: JsonValue) -> Sequence[Block]:
    if not isinstance(source, dict):
        return []
    kind, data, url = source.get("media_type"), source.get("data"), source.get("url")
    media_type = kind if isinstance(kind, str) else "image/png"
    if isinstance(data, str):
        return [Image(media_type=media_type, data=data)]
    return [Image(media_type=media_type, url=url)] if isinstance(url, str) else []


def _result(part: JsonObject) -> ToolResult:
    call_id = CallId(_words(_first(part, "tool_use_id", "tool_call_id", "call_id", "toolCallId")))
    content = _words(_first(part, "content", "output", "result"))
    return ToolResult(call_id=call_id, content=content, is_error=bool(part.get("is_error")))


def _words(value: JsonValue) -> str:
    """Any JSON as text: a string as it is, a list of text parts joined, else its JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and "text" in part for part in value):
        return "\n".join(str(part["text"]) for part in value)
    return msgspec.json.encode(value).decode()


def _first(source: JsonObject, *names: str) -> JsonValue:
    return next((source[name] for name in names if source.get(name) is not None), None)
