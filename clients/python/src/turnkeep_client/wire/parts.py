"""Parts: the pieces of what a reader sees of a message. `display.py` folds them from events."""

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType, field

from turnkeep_client.wire.base import known_words
from turnkeep_client.wire.blocks import JsonValue
from turnkeep_client.wire.ids import FileId

StepStatus = Literal["running", "succeeded", "failed"]


class _Part(Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class TextPart(_Part, frozen=True, kw_only=True, tag="text"):
    text: str


class ReasoningPart(_Part, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class StepPart(_Part, frozen=True, kw_only=True, tag="step"):
    id: str
    name: str
    status: Annotated[str, known_words(StepStatus)]
    args: JsonValue | UnsetType = UNSET
    result: JsonValue | UnsetType = UNSET
    error: JsonValue | UnsetType = UNSET
    duration_ms: int | float | UnsetType = field(default=UNSET, name="durationMs")


class FilePart(_Part, frozen=True, kw_only=True, tag="file"):
    file_id: FileId
    name: str
    mime_type: str
    size: int


Part = TextPart | ReasoningPart | StepPart | FilePart
