"""What messages are made of: blocks, parts, and the tokens that they cost.

A block is a piece of a message as the model wrote or received it. The requests to every provider are made from
blocks. A part is a piece of what a reader sees. `display.py` folds parts from events.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from turnkeep_client.wire.base import CallId, FileId, known_words

JsonValue = Any
"""Any JSON value. The name says that it is JSON, where `Any` would say nothing."""

JsonObject = dict[str, JsonValue]

Role = Literal["user", "assistant", "system"]
Finish = Literal["complete", "length", "empty"]
"""How an answer ended: by itself, at the model's token limit, or without a word."""
Reading = Literal["text", "image", "named", "too_long"]
"""How the model was given an attached file: as its text, as a picture, by its name alone, or as the beginning of its
text."""
StepStatus = Literal["running", "succeeded", "failed"]


class _Block(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Text(_Block, frozen=True, kw_only=True, tag="text"):
    """Words, from the user or from the model."""

    text: str


class Reasoning(_Block, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning of the model, with what its provider needs to accept it again.

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
    """The result of a tool call as the model gets it (already cut to its limit)."""

    call_id: CallId
    content: str
    is_error: bool = False


class Image(_Block, frozen=True, kw_only=True, tag="image"):
    """A picture inside the message: base64 `data`, or a `url` where it came with one."""

    media_type: str
    data: str | None = None
    url: str | None = None


class FileRef(_Block, frozen=True, kw_only=True, tag="file", omit_defaults=True):
    """A file of the conversation's bag, by reference: enough to show a chip without another query. `reading` is known
    once the turn has ended."""

    file_id: FileId
    name: str
    mime_type: str
    size: int
    reading: Annotated[str, known_words(Reading)] | None = None


Block = Text | Reasoning | ToolUse | ToolResult | Image | FileRef


class _Part(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A piece of a message. With `is_cut` it was too long: the events of the turn have the whole of it."""


class TextPart(_Part, frozen=True, kw_only=True, tag="text", omit_defaults=True):
    text: str
    is_cut: bool | None = None


class ReasoningPart(_Part, frozen=True, kw_only=True, tag="reasoning", omit_defaults=True):
    text: str
    is_cut: bool | None = None


class StepPart(_Part, frozen=True, kw_only=True, tag="step", omit_defaults=True):
    id: str
    name: str
    status: Annotated[str, known_words(StepStatus)]
    args: JsonValue | UnsetType = UNSET
    result: JsonValue | UnsetType = UNSET
    error: JsonValue | UnsetType = UNSET
    duration_ms: int | float | None = field(default=None, name="durationMs")
    is_cut: bool | None = None


class FilePart(_Part, frozen=True, kw_only=True, tag="file"):
    file_id: FileId
    name: str
    mime_type: str
    size: int


Part = TextPart | ReasoningPart | StepPart | FilePart


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens, summed over every model call of a turn.

    `input_tokens` is all that the models read. What came from a cache, and what was written into one, is part of it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


def text_of(blocks: tuple[Block, ...]) -> str:
    """The words of a model alone, in order: its blocks are pieces of one text."""
    return "".join(block.text for block in blocks if isinstance(block, Text))


def paragraphs_of(blocks: tuple[Block, ...]) -> str:
    """The words of a user alone, in order: each block is a text of its own."""
    return "\n\n".join(block.text for block in blocks if isinstance(block, Text) and block.text.strip())
