"""Text from outside, made fit to be kept: no NUL, no half surrogate pairs. Models and tools may send either."""

from turnkeep.model.blocks import Block, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse

_REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    if text.isascii():
        return text.replace("\0", _REPLACEMENT)
    # What cannot be encoded becomes "?" bytes; going through surrogatepass first joins pairs that were split.
    fit = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return fit.replace("\0", _REPLACEMENT)


def clean_json(value: JsonValue) -> JsonValue:
    """The same JSON with every text in it made fit, names included."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(name)): clean_json(each) for name, each in value.items()}
        case list() | tuple():
            return [clean_json(each) for each in value]
        case _:
            return value


def clean_blocks(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(_clean_block(block) for block in blocks)


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
            cleaned: JsonObject = clean_json(block.input)
            return ToolUse(id=block.id, name=clean_text(block.name), input=cleaned)
        case ToolResult():
            return ToolResult(call_id=block.call_id, content=clean_text(block.content), is_error=block.is_error)
        case _:
            return block
