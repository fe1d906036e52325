"""What the server answers, as values. Fields that a later server adds are passed over; words it adds stay words."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from turnkeep_client.wire.blocks import Block, FileRef, JsonObject, JsonValue
from turnkeep_client.wire.display import words_of
from turnkeep_client.wire.events import Source, WrittenFile
from turnkeep_client.wire.parts import Part
from turnkeep_client.wire.usage import MonthlyUsage, Usage

Item = TypeVar("Item")

File = WrittenFile
"""A file: `{id, conversation_id, message_id, name, mime_type, size, sha256, source, created_at}`."""

__all__ = [
    "Accepted",
    "Agent",
    "Answer",
    "Conversation",
    "Failed",
    "File",
    "Imported",
    "Key",
    "Message",
    "ModelName",
    "MonthlyUsage",
    "Org",
    "Page",
    "QueuedTurn",
    "Replay",
    "RunningTurn",
    "Token",
    "TraceRow",
    "Turn",
    "Upload",
    "UploadTicket",
    "Workspace",
]


class _Answer(Struct, frozen=True, kw_only=True):
    pass


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a list. `next_cursor` asks for the next one; None means that this was the last."""

    data: Sequence[Item]
    next_cursor: str | None = None


class Failed(_Answer, frozen=True, kw_only=True):
    """Why a turn ended without an answer."""

    code: str
    message: str


class Answer(_Answer, frozen=True, kw_only=True):
    """What a turn came to. `text` is what was said last; `content` is everything a reader sees, in order."""

    conversation_id: str
    turn_id: str
    message_id: str | None
    status: str
    text: str
    content: Sequence[Part]
    sources: Sequence[Source] = ()
    files: Sequence[File] = ()
    usage: Usage = Usage()
    error: Failed | None = None

    def __str__(self) -> str:
        return self.text


class Accepted(_Answer, frozen=True, kw_only=True):
    """A turn that goes on by itself."""

    conversation_id: str
    turn_id: str
    events_url: str


class Turn(_Answer, frozen=True, kw_only=True):
    """A turn. `response` is the final text, `files` what the sandbox wrote back."""

    id: str
    conversation_id: str
    status: str
    attempt: int
    model: str | None = None
    usage: Usage = Usage()
    error: Failed | None = None
    started_at: int | None = None
    settled_at: int | None = None
    response: str | None = None
    files: Sequence[File] = ()

    @property
    def is_settled(self) -> bool:
        return self.status not in {"queued", "running"}


class Message(_Answer, frozen=True, kw_only=True):
    """A visible message. `siblings` are the turns that start from the same place, where there are several."""

    id: str
    conversation_id: str
    turn_id: str
    role: str
    content: Sequence[Part]
    created_at: int
    status: str
    attachments: Sequence[FileRef] = ()
    sources: Sequence[Source] = ()
    usage: Usage | None = None
    siblings: Sequence[str] = ()

    @property
    def text(self) -> str:
        """What was said, without what was thought or done."""
        return words_of(self.content)


class RunningTurn(_Answer, frozen=True, kw_only=True):
    id: str
    events_url: str


class QueuedTurn(_Answer, frozen=True, kw_only=True):
    """A turn that waits for those ahead of it, with the message that it will answer."""

    id: str
    events_url: str
    message: Message


class Conversation(_Answer, frozen=True, kw_only=True):
    """A thread. `message_count` counts visible messages. `queued_turns` are those that wait, in the order in which they
    will run; lists leave them out. `snippet` comes with a search."""

    id: str
    workspace_id: str
    user_id: str | None
    kind: str
    agent_id: str | None
    model: str | None
    workflow_id: str | None
    title: str | None
    preview: str | None
    message_count: int
    turn_count: int
    head_turn_id: str | None
    running_turn: RunningTurn | None
    metadata: JsonObject
    created_at: int
    updated_at: int
    queued_turns: Sequence[QueuedTurn] = ()
    snippet: str | None = None


class TraceRow(_Answer, frozen=True, kw_only=True):
    """One stored row, internal ones included. `blocks` is what the model said or was told."""

    id: str
    conversation_id: str
    turn_id: str
    turn_sequence: int
    iteration: int | None
    role: str
    internal: bool
    blocks: Sequence[Block]
    created_at: int
    content: Sequence[Part] | None = None
    attachments: Sequence[FileRef] = ()
    sources: Sequence[Source] = ()
    metadata: JsonObject = {}
    usage: Usage | None = None
    provider: str | None = None


class Imported(_Answer, frozen=True, kw_only=True):
    """A conversation made of a history, and what of it has no equal here and became a line of text."""

    conversation: Conversation
    remarks: Sequence[str] = ()


class Replay(_Answer, frozen=True, kw_only=True):
    """What the next turn would send of the past."""

    messages: Sequence[JsonObject]
    turns_included: int
    turns_dropped: int
    chars: int
    system: JsonValue = None


class Agent(_Answer, frozen=True, kw_only=True):
    """A saved agent, with its secrets masked. Members see id, name and model; the rest is empty for them."""

    id: str
    name: str
    model: str | None
    workspace_id: str = ""
    instructions: str = ""
    tools: Sequence[str | JsonObject] = ()
    mcp_servers: Sequence[JsonObject] = ()
    skills: Sequence[JsonObject] = ()
    sandbox: bool = False
    environment: JsonObject = {}
    created_at: int | None = None
    updated_at: int | None = None
    warnings: Sequence[str] = ()


class UploadTicket(_Answer, frozen=True, kw_only=True):
    """Where the bytes of a promised file go."""

    method: str
    url: str
    headers: dict[str, str]
    expires_at: int


class Upload(_Answer, frozen=True, kw_only=True):
    """A promised file, and where its bytes go."""

    file: File
    upload: UploadTicket


class Token(_Answer, frozen=True, kw_only=True):
    token: str
    expires_at: int


class Key(_Answer, frozen=True, kw_only=True):
    """A service key, of one workspace or (None) of the whole org. `key` is the secret itself, shown once, when it is
    made."""

    id: str
    name: str
    created_at: int
    workspace_id: str | None = None
    monthly_message_limit: int | None = None
    requests_per_minute: int | None = None
    allowed_tools: Sequence[str] | None = None
    revoked_at: int | None = None
    key: str | UnsetType = UNSET


class Org(_Answer, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: int


class Workspace(_Answer, frozen=True, kw_only=True):
    id: str
    name: str
    is_default: bool
    created_at: int
    model: str | None = None
    monthly_message_limit: int | None = None
    user_monthly_message_limit: int | None = None


class ModelName(_Answer, frozen=True, kw_only=True):
    """A model that the server can reach, as it is named in requests."""

    id: str
    provider: str
