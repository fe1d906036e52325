"""What comes from outside, made fit to be kept: no NUL, no half surrogate pairs, no bottomless JSON.

Models and tools may send any of it.
"""

import msgspec

from turnkeep.ids import CallId
from turnkeep.model.json_depth import TOO_DEEP, is_too_deep
from turnkeep.providers.ports import Reply
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse

_REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    if text.isascii():
        return text.replace("\0", _REPLACEMENT)
    # What cannot be encoded becomes "?" bytes; going through surrogatepass first joins pairs that were split.
    fit = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return fit.replace("\0", _REPLACEMENT)


def clean_json(value: JsonValue) -> JsonValue:
    """The same JSON with every text in it made fit, names included. What is nested too deeply becomes its text."""
    if not is_too_deep(value):
        return _cleaned(value)
    try:
        return clean_text(msgspec.json.encode(value).decode())
    except (UnicodeEncodeError, RecursionError):
        return f"({TOO_DEEP}, not shown)"


def clean_reply(reply: Reply) -> Reply:
    """The reply made fit. A call whose arguments are nested too deeply counts as malformed."""
    too_deep: dict[CallId, str] = {
        block.id: TOO_DEEP for block in reply.blocks if isinstance(block, ToolUse) and is_too_deep(block.input)
    }
    blocks = tuple(_clean_block(block) for block in reply.blocks)
    return msgspec.structs.replace(reply, blocks=blocks, malformed=too_deep | reply.malformed)


def _cleaned(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(name)): _cleaned(each) for name, each in value.items()}
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case _:
            return value


def _clean_block(block: Block) -> Block:
    match block:
        case Text():
            return Text(text=clean_text(block.text))
        case Reasoning():
            return Reasoning(
                text=clean_text(block.text),
                provider=block.provider,
                signature=block.signature,
                data=block.data,
                item_id=block.item_id,
            )
        case ToolUse():
            cleaned: JsonObject = {} if is_too_deep(block.input) else _cleaned(block.input)
            return ToolUse(id=block.id, name=clean_text(block.name), input=cleaned)
        case ToolResult():
            return ToolResult(call_id=block.call_id, content=clean_text(block.content), is_error=block.is_error)
        case _:
            return block
