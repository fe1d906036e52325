"""Blocks: the pieces of a message, as the model said them or was told them.

This is the protocol truth from which every provider's request is made. What a person sees is made of parts
(`display.py`), which are folded from events.
"""

from typing import Any, Literal

from msgspec import Struct

from turnkeep_client.wire.ids import CallId, FileId

JsonValue = Any
"""Whatever JSON can say. Spelled so that signatures tell JSON from real looseness."""

JsonObject = dict[str, JsonValue]


class _Block(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Text(_Block, frozen=True, kw_only=True, tag="text"):
    """Words, from the user or from the model."""

    text: str


class Reasoning(_Block, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought aloud, with what its provider needs to take it back unchanged.

    `signature` and `data` are opaque and mean something only to `provider`; `data` is the encrypted or redacted
    form. `item_id` is the provider's own name for the item.
    """

    text: str = ""
    provider: str | None = None
    signature: str | None = None
    data: str | None = None
    item_id: str | None = None


class ToolUse(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """The model asked for a tool. Nothing has run yet."""

    id: CallId
    name: str
    input: JsonObject


class ToolResult(_Block, frozen=True, kw_only=True, tag="tool_result"):
    """What a tool call came to, as the model is told it (already cut to its limit)."""

    call_id: CallId
    content: str
    is_error: bool = False


class Image(_Block, frozen=True, kw_only=True, tag="image"):
    """A picture inside the message: base64 `data`, or a `url` where it came with one."""

    media_type: str
    data: str | None = None
    url: str | None = None


class FileRef(_Block, frozen=True, kw_only=True, tag="file"):
    """A file of the conversation's bag, by reference: enough to show a chip without another query."""

    file_id: FileId
    name: str
    mime_type: str
    size: int


Block = Text | Reasoning | ToolUse | ToolResult | Image | FileRef

Role = Literal["user", "assistant", "system"]


def text_of(blocks: tuple[Block, ...]) -> str:
    """The words of a model alone, in order: its blocks are pieces of one text."""
    return "".join(block.text for block in blocks if isinstance(block, Text))


def paragraphs_of(blocks: tuple[Block, ...]) -> str:
    """The words of a user alone, in order: each block is a text of its own."""
    return "\n\n".join(block.text for block in blocks if isinstance(block, Text) and block.text.strip())
