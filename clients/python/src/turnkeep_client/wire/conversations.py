"""Conversations and turns on the wire: how they are asked for, and what is shown of them and of their messages."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep_client.wire.account import UserRef
from turnkeep_client.wire.agents import ClientTools
from turnkeep_client.wire.base import Id, Model, Name, RequestBody, known_words
from turnkeep_client.wire.blocks import Block, FileRef, Finish, JsonObject, JsonValue, Part, Role, Usage
from turnkeep_client.wire.display import words_of
from turnkeep_client.wire.events import DecidedCall, Source, ToolCall
from turnkeep_client.wire.files import File

Kind = Literal["chat", "sandbox", "run"]
"""`chat`: the loop runs in the server; `sandbox`: in a sandbox; `run`: one turn, no thread, never listed."""
NewKind = Literal["chat", "sandbox"]
"""The kinds that a caller may ask for; `POST /v1/agents/{agent_id}/runs` makes the others."""

TurnStatus = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]
WaitReason = Literal["approval", "client_tools"]
"""What a turn waits for: the decision of a person, or results of tools that the caller runs."""
IfBusy = Literal["reject", "enqueue", "interrupt"]
StreamFormat = Literal["native", "openai", "anthropic"]
"""How a stream is written: our own frames, or the chunks that pages made for others already parse."""
ExternalId = Annotated[str, Meta(min_length=1, max_length=200)]
TurnStatusWord = Annotated[str, known_words(TurnStatus)]
RoleWord = Annotated[str, known_words(Role)]


class TextBlock(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """A picture inside the message: base64 `data`, or a `url` that the provider fetches."""

    media_type: Annotated[str, Meta(max_length=100)]
    data: str | None = None
    url: str | None = None


class FileBlock(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file of the bag, as if it stood in `attachment_ids`. Only the id counts; the rest may come along, so that a
    block of the transcript can be sent back as it is."""

    file_id: Id
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None
    reading: str | None = None


class _ConversationOptions(RequestBody, frozen=True, kw_only=True):
    """What a caller says about a conversation when it is opened: on its own, or with its first turn."""

    kind: NewKind | None = None
    workflow_id: Annotated[str, Meta(max_length=200)] | None = None
    external_id: ExternalId | None = None
    """The id of the host's application. The conversation of the user that has it is used; if there is none, it is
    made."""


class ConversationFields(TypedDict, total=False):
    """The same fields as keyword arguments of the client. A test compares both."""

    kind: NewKind | None
    workflow_id: str | None
    external_id: str | None


class _TurnOptions(_ConversationOptions, frozen=True, kw_only=True):
    """How a turn is asked for. In a conversation that exists, the fields of the conversation may only repeat what it
    has."""

    agent_id: Id | None = None
    model: Model | None = None
    if_busy: IfBusy = "reject"
    drop_queue: bool | None = None
    """With `if_busy`: `interrupt`. Turns that wait are cancelled."""
    background: bool = False
    metadata: JsonObject = field(default_factory=dict)
    tools: ClientTools | None = None
    """Tools that the caller runs. The turn waits for the results of their calls."""


class NewRun(RequestBody, frozen=True, kw_only=True):
    """The task of an agent, and the files for it."""

    prompt: str
    attachment_ids: list[Id] = field(default_factory=list)


class NewTurn(_TurnOptions, frozen=True, kw_only=True):
    """The body of `POST /v1/turns`. Without `conversation_id` it opens a conversation, or uses that of the
    `external_id`."""

    message: str | list[TextBlock | ImageBlock | FileBlock] = ""
    conversation_id: Id | None = None
    attachment_ids: list[Id] = field(default_factory=list)


class Again(_TurnOptions, frozen=True, kw_only=True):
    """The options of a regenerated turn; the question stays as it was."""


class Edit(_TurnOptions, frozen=True, kw_only=True):
    """Another question in the place of the old one. It has the files that it names, in `attachment_ids` or in blocks;
    without `attachment_ids` and file blocks those of the old one stay."""

    message: str | list[TextBlock | ImageBlock | FileBlock]
    attachment_ids: list[Id] | UnsetType = UNSET


class TurnFailure(Struct, frozen=True, kw_only=True):
    """Why a turn ended without an answer."""

    code: str
    message: str


class WaitingFor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn waits for. `calls` are those of this `type`; `client_calls` come along while both are missing.
    `approvers` says who decides (`author`, `admin`), where that is not the user who asked alone. `decided` are the
    decisions that hold already."""

    type: Annotated[str, known_words(WaitReason)]
    calls: Sequence[ToolCall]
    expires_at: int
    client_calls: Sequence[ToolCall] = ()
    approvers: Sequence[str] | None = None
    decided: Sequence[DecidedCall] = ()


class Decision(RequestBody, frozen=True, kw_only=True):
    """What a person decides about one call. `args` allow it with other arguments. With `remember`, later calls of the
    same tool in this conversation need no decision."""

    call_id: Annotated[str, Meta(min_length=1, max_length=200)]
    decision: Literal["allow", "deny"]
    args: JsonObject | None = None
    reason: Annotated[str, Meta(max_length=2_000)] | None = None
    remember: Literal["conversation"] | None = None


class Decisions(RequestBody, frozen=True, kw_only=True):
    """The body of `POST /v1/turns/{turn_id}/approvals`."""

    decisions: Annotated[list[Decision], Meta(min_length=1, max_length=1_000)]


class ClientResult(RequestBody, frozen=True, kw_only=True):
    """What a call of a client tool gave: either a `result`, which is any JSON, or an `error`."""

    call_id: Annotated[str, Meta(min_length=1, max_length=200)]
    result: JsonValue | UnsetType = UNSET
    error: Annotated[str, Meta(min_length=1, max_length=16_000)] | None = None


class ClientResults(RequestBody, frozen=True, kw_only=True):
    """The body of `POST /v1/turns/{turn_id}/results`."""

    results: Annotated[list[ClientResult], Meta(min_length=1, max_length=1_000)]


class NewSteer(RequestBody, frozen=True, kw_only=True):
    """Words for a turn that is under way."""

    message: Annotated[str, Meta(min_length=1)]


class Steering(Struct, frozen=True, kw_only=True):
    """The words are stored. `turn_id` is the turn that they steer. If it ends before they reach the model, they are the
    question of `queued_turn_id`."""

    conversation_id: str
    turn_id: str
    message_id: str
    queued_turn_id: str


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn. `response` is the final text, `files` what the sandbox wrote back, `metadata` what the caller gave with
    it."""

    id: str
    conversation_id: str
    status: TurnStatusWord
    attempt: int
    model: str | None
    usage: Usage
    error: TurnFailure | None
    started_at: int | None
    settled_at: int | None
    response: str | None
    files: Sequence[File]
    metadata: JsonObject
    waiting_for: WaitingFor | None = None
    """Absent unless the turn waits."""

    @property
    def is_settled(self) -> bool:
        """Whether the turn has ended."""
        return self.status not in {"queued", "running", "waiting"}


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A visible message. `error` is why its turn failed or was stopped. `model` is the model that wrote it; of a
    question, the model that was asked. `metadata` is what the caller gave with the turn. `finish` says how an answer
    ended. `siblings` are the turns that start from the same place, where there are several."""

    id: str
    conversation_id: str
    turn_id: str
    role: RoleWord
    content: Sequence[Part]
    attachments: Sequence[FileRef]
    sources: Sequence[Source]
    usage: Usage | None
    status: TurnStatusWord
    error: TurnFailure | None
    model: str | None
    metadata: JsonObject
    created_at: int
    finish: Annotated[str, known_words(Finish)] | None = None
    """Absent for a question, and for an answer that failed or was stopped."""
    siblings: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The text of the message, without reasoning and steps."""
        return words_of(self.content)


class Answered(Struct, frozen=True, kw_only=True):
    """What a waiting POST answers, also for a turn that failed or was stopped."""

    conversation_id: str
    turn: Turn
    message: Message | None


class Accepted(Struct, frozen=True, kw_only=True):
    """The turn was accepted and continues in the background."""

    conversation_id: str
    turn_id: str
    events_url: str


class NewStreamUrl(RequestBody, frozen=True, kw_only=True):
    """What a signed stream address is for: the whole stream, or what follows a cursor; and how long it is valid."""

    after: Annotated[str, Meta(max_length=50)] | None = None
    format: StreamFormat = "native"
    ttl_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 300


class StreamUrl(Struct, frozen=True, kw_only=True):
    """Where the stream of one turn can be opened until then. The address is the permission; send no key with it."""

    url: str
    expires_at: int


class TraceRow(Struct, frozen=True, kw_only=True):
    """One stored row, internal ones included. `blocks` is what the model said or was told. `user` is the one to whom
    the conversation belongs."""

    id: str
    conversation_id: str
    user: UserRef | None
    turn_id: str
    turn_sequence: int
    iteration: int | None
    role: RoleWord
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


class NewConversation(_ConversationOptions, frozen=True, kw_only=True):
    title: Name | None = None
    agent_id: Id | None = None
    model: Model | None = None
    kind: NewKind = "chat"
    metadata: JsonObject = field(default_factory=dict)


class ConversationPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; those left out stay. `null` takes the model or the agent away."""

    title: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    agent_id: Id | UnsetType | None = UNSET
    head_turn_id: Id | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET


class RunningTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turn that runs in a conversation now. `waiting_for` says what it waits for, if it does."""

    id: str
    events_url: str
    waiting_for: Annotated[str, known_words(WaitReason)] | None = None


class QueuedTurn(Struct, frozen=True, kw_only=True):
    """A turn that waits for those ahead of it, with the message that it will answer. That one joins the transcript when
    the turn starts."""

    id: str
    events_url: str
    message: Message


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thread. `message_count` counts visible messages. `queued_turns` are those that wait, in the order in which they
    will run; lists leave them out. `snippet` comes with every hit of a search."""

    id: str
    workspace_id: str
    user: UserRef | None
    user_id: str | None
    kind: Annotated[str, known_words(Kind)]
    agent_id: str | None
    model: str | None
    workflow_id: str | None
    external_id: str | None
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


class FoundConversation(Conversation, frozen=True, kw_only=True):
    """A hit of a search. `snippet` is null if no message has all the words."""

    snippet: str | None


class Imported(Struct, frozen=True, kw_only=True):
    """Conversations made of a history: the first one, and all of them. `remarks` say what was left out, and which parts
    have no equivalent here and became a line of text."""

    conversation: Conversation
    remarks: Sequence[str]
    conversations: Sequence[Conversation] = ()
