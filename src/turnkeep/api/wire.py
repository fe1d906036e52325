"""The values of the wire, field for field as the contract lists them.

What comes in is strict: an unknown field, a wrong type or an unknown word is refused with its name.
"""

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep.model.conversations import Kind
from turnkeep.model.turns import IfBusy, TurnStatus
from turnkeep_client.wire.blocks import Block, FileRef, JsonObject, JsonValue, Role
from turnkeep_client.wire.events import Source, WrittenFile
from turnkeep_client.wire.parts import Part
from turnkeep_client.wire.usage import Usage

Item = TypeVar("Item")

Name = Annotated[str, Meta(min_length=1, max_length=200)]
UserName = Annotated[str, Meta(min_length=1, max_length=255)]
Limit = Annotated[int, Meta(ge=1, le=100)]
Count = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Model = Annotated[str, Meta(min_length=1, max_length=200)]
Id = Annotated[str, Meta(max_length=100)]
Cursor = Annotated[str, Meta(max_length=1_000)]


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body that somebody sent."""


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a list, and the cursor of the next (null: this was the last)."""

    data: Sequence[Item]
    next_cursor: str | None = None


# --- turns


class TextBlock(Asked, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(Asked, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """A picture inside the message: base64 `data`, or a `url` that the provider fetches."""

    media_type: Annotated[str, Meta(max_length=100)]
    data: str | None = None
    url: str | None = None


class FileBlock(Asked, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file of the bag, as if it stood in `attachment_ids`. Only the id counts; the rest may come along, so that a
    block of the transcript can be sent back as it is."""

    file_id: Id
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None


class _Options(Asked, frozen=True, kw_only=True):
    """How a turn is asked for. In a conversation that exists, `kind` and `workflow_id` may only repeat what it has."""

    agent_id: Id | None = None
    model: Model | None = None
    if_busy: IfBusy = "reject"
    background: bool = False
    metadata: JsonObject = {}
    kind: Literal["chat", "sandbox"] | None = None
    workflow_id: Annotated[str, Meta(max_length=200)] | None = None


class NewRun(Asked, frozen=True, kw_only=True):
    """What an agent is to do, and the files it is to do it with."""

    prompt: str
    attachment_ids: list[Id] = []


class NewTurn(_Options, frozen=True, kw_only=True):
    """The body of `POST /v1/turns`. Without `conversation_id` it opens a conversation."""

    message: str | list[TextBlock | ImageBlock | FileBlock] = ""
    conversation_id: Id | None = None
    attachment_ids: list[Id] = []


class Again(_Options, frozen=True, kw_only=True):
    """The options of a regenerated turn; the question stays as it was."""


class Edit(_Options, frozen=True, kw_only=True):
    """Another question in the place of the old one. It has the files that it names, in `attachment_ids` or in blocks;
    without `attachment_ids` and file blocks those of the old one stay."""

    message: str | list[TextBlock | ImageBlock | FileBlock]
    attachment_ids: list[Id] | UnsetType = UNSET


class TurnFailure(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class Turn(Struct, frozen=True, kw_only=True):
    """A turn. `response` is the final text, `files` what the sandbox wrote back."""

    id: str
    conversation_id: str
    status: TurnStatus
    attempt: int
    model: str | None
    usage: Usage
    error: TurnFailure | None
    started_at: int | None
    settled_at: int | None
    response: str | None
    files: Sequence[WrittenFile]


class Message(Struct, frozen=True, kw_only=True):
    """A visible message. `siblings` are the turns that start from the same place, where there are several."""

    id: str
    conversation_id: str
    turn_id: str
    role: Role
    content: Sequence[Part]
    attachments: Sequence[FileRef]
    sources: Sequence[Source]
    usage: Usage | None
    status: TurnStatus
    created_at: int
    siblings: Sequence[str] | UnsetType = UNSET


class Answered(Struct, frozen=True, kw_only=True):
    """What a waiting POST answers, also for a turn that failed or was stopped."""

    conversation_id: str
    turn: Turn
    message: Message | None


class Accepted(Struct, frozen=True, kw_only=True):
    """The turn exists and goes on by itself."""

    conversation_id: str
    turn_id: str
    events_url: str


# --- conversations


class NewConversation(Asked, frozen=True, kw_only=True):
    title: Name | None = None
    agent_id: Id | None = None
    model: Model | None = None
    kind: Literal["chat", "sandbox"] = "chat"
    workflow_id: Annotated[str, Meta(max_length=200)] | None = None
    metadata: JsonObject = {}


class ConversationPatch(Asked, frozen=True, kw_only=True):
    """Fields to change; those left out stay. `null` takes the model or the agent away."""

    title: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    agent_id: Id | UnsetType | None = UNSET
    head_turn_id: Id | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET


class RunningTurn(Struct, frozen=True, kw_only=True):
    id: str
    events_url: str


class QueuedTurn(Struct, frozen=True, kw_only=True):
    """A turn that waits for those ahead of it, with the message that it will answer. That one joins the transcript when
    the turn starts."""

    id: str
    events_url: str
    message: Message


class Conversation(Struct, frozen=True, kw_only=True):
    """A thread. `message_count` counts visible messages. `queued_turns` are those that wait, in the order in which they
    will run; lists leave them out. `snippet` comes with a search."""

    id: str
    workspace_id: str
    user_id: str | None
    kind: Kind
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
    queued_turns: Sequence[QueuedTurn] | UnsetType = UNSET
    snippet: str | UnsetType | None = UNSET


class TraceRow(Struct, frozen=True, kw_only=True):
    """One stored row, internal ones included. `blocks` is what the model said or was told."""

    id: str
    conversation_id: str
    turn_id: str
    turn_sequence: int
    iteration: int | None
    role: Role
    internal: bool
    blocks: Sequence[Block]
    content: Sequence[Part] | None
    attachments: Sequence[FileRef]
    sources: Sequence[Source]
    metadata: JsonObject
    usage: Usage | None
    provider: str | None
    created_at: int


class Replay(Struct, frozen=True, kw_only=True):
    """What the next turn would send of the past. `system` stands beside the messages where the provider has it so."""

    messages: Sequence[JsonObject]
    system: JsonValue
    turns_included: int
    turns_dropped: int
    chars: int


# --- account


class Me(Struct, frozen=True, kw_only=True):
    """Who the server takes the caller for, and what a page must know before it asks: the model that answers where
    nothing else is named, and the limits of files."""

    user_id: str | None
    workspace_id: str
    role: Literal["member", "admin", "service"]
    model: str
    max_file_bytes: int
    max_files_per_message: int


class NewToken(Asked, frozen=True, kw_only=True):
    user: UserName
    workspace_id: Id | None = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 3_600
    role: Literal["member", "admin"] | UnsetType = UNSET


class Token(Struct, frozen=True, kw_only=True):
    token: str
    expires_at: int


class NewKey(Asked, frozen=True, kw_only=True):
    name: Name
    monthly_message_limit: Count | None = None
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    allowed_tools: Annotated[list[Name], Meta(max_length=200)] | None = None


class Key(Struct, frozen=True, kw_only=True):
    """A service key. `workspace_id` is the one workspace that it is pinned to; null: it speaks for the whole org. `key`
    is the secret itself, shown once, when it is made."""

    id: str
    name: str
    workspace_id: str | None
    monthly_message_limit: int | None
    requests_per_minute: int | None
    allowed_tools: Sequence[str] | None
    created_at: int
    revoked_at: int | None
    key: str | UnsetType = UNSET


class NewOrg(Asked, frozen=True, kw_only=True):
    name: Name


class Org(Struct, frozen=True, kw_only=True):
    """A tenant. `key` is its first service key, shown once, when it is made."""

    id: str
    name: str
    created_at: int
    key: str | UnsetType = UNSET


class NewWorkspace(Asked, frozen=True, kw_only=True):
    name: Name
    model: Model | None = None
    monthly_message_limit: Count | None = None
    user_monthly_message_limit: Count | None = None


class WorkspacePatch(Asked, frozen=True, kw_only=True):
    """Fields to change; null takes a model or a limit away."""

    name: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    monthly_message_limit: Count | UnsetType | None = UNSET
    user_monthly_message_limit: Count | UnsetType | None = UNSET


class Workspace(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    is_default: bool
    model: str | None
    monthly_message_limit: int | None
    user_monthly_message_limit: int | None
    created_at: int


class ModelName(Struct, frozen=True, kw_only=True):
    """A model that this server can reach, as it is named in requests."""

    id: str
    provider: str


class Health(Struct, frozen=True, kw_only=True):
    status: Literal["ok", "ready"]
