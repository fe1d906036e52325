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
Rating = Literal["up", "down"]
"""What a user thinks of an answer."""
SpanKind = Literal["queue", "model", "tool", "wait", "takeover", "retry", "steer", "files", "log"]
SpanStatus = Literal["running", "succeeded", "failed", "stopped"]
TimelineAccess = Literal["outline", "reader", "full"]
"""How much of a timeline the caller sees: only names, times and counts; also what readers see; or everything."""
IfBusy = Literal["reject", "enqueue", "interrupt"]
StreamFormat = Literal["native", "openai", "anthropic"]
"""How a stream is written: our own frames, or the chunks that pages made for others already parse."""
ExternalId = Annotated[str, Meta(min_length=1, max_length=200)]
Instructions = Annotated[str, Meta(min_length=1, max_length=10_000)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
FolderName = Annotated[str, Meta(min_length=1, max_length=100)]
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
    instructions: Instructions | None = None
    temperature: Temperature | None = None


class ConversationFields(TypedDict, total=False):
    """The same fields as keyword arguments of the client. A test compares both."""

    kind: NewKind | None
    workflow_id: str | None
    external_id: str | None
    instructions: str | None
    temperature: float | None


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
    ended. `siblings` are the turns that start from the same place, where there are several. `versions` are the same
    turns in groups: those of one group answer the same question."""

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
    versions: Sequence[Sequence[str]] = ()

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


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work of a turn. `name` is the model, the tool, what is waited for, the reason of a takeover, or the
    level of a log line. `ended_at` is null while it is under way.

    `parent_id` is the model call that asked for a tool, or that was tried again. `cost` is that of today's prices.
    `note` is a sentence: the reason of a retry, a log line, the number of files, the attempt after a takeover. With
    `is_estimated` the beginning was not stored, and is that of the last thing before it.
    """

    id: str
    kind: Annotated[str, known_words(SpanKind)]
    name: str
    status: Annotated[str, known_words(SpanStatus)]
    started_at: int
    ended_at: int | None
    parent_id: str | None = None
    iteration: int | None = None
    first_token_ms: int | None = None
    usage: Usage | None = None
    cost: float | None = None
    note: str | None = None
    is_estimated: bool = False
    has_content: bool = False


class SpanContent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a span has in it: arguments and result of a tool call, what the model said and asked for, or the calls and
    decisions of a wait (`result`). `is_cut`: the result is only its beginning."""

    id: str
    args: JsonValue = None
    result: JsonValue = None
    error: JsonValue = None
    text: str | None = None
    reasoning: str | None = None
    calls: Sequence[JsonValue] = ()
    is_cut: bool = False


class Timeline(Struct, frozen=True, kw_only=True):
    """What happened in a turn, with times. `now` is the time of the server, for spans that are under way. `cost` is
    null without a price. `user` is the one who asked."""

    turn_id: str
    conversation_id: str
    status: TurnStatusWord
    access: Annotated[str, known_words(TimelineAccess)]
    attempt: int
    model: str | None
    agent_id: str | None
    agent_name: str | None
    user: UserRef | None
    error: TurnFailure | None
    usage: Usage
    cost: float | None
    created_at: int
    started_at: int | None
    settled_at: int | None
    now: int
    spans: Sequence[Span]


class Replay(Struct, frozen=True, kw_only=True):
    """What the next turn would send of the past. `system` stands beside the messages where the provider has it so."""

    messages: Sequence[JsonObject]
    system: JsonValue
    turns_included: int
    turns_dropped: int
    chars: int


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool as it is described to the model."""

    name: str
    description: str
    input_schema: JsonObject


class TurnReplay(Replay, frozen=True, kw_only=True):
    """What a call of a turn was sent. The tools of MCP servers are those that they have now; `missing` says which tools
    of the agent cannot be had now."""

    tools: Sequence[OfferedTool]
    missing: Sequence[str]


class NewConversation(_ConversationOptions, frozen=True, kw_only=True):
    title: Name | None = None
    agent_id: Id | None = None
    model: Model | None = None
    kind: NewKind = "chat"
    metadata: JsonObject = field(default_factory=dict)
    folder: FolderName | None = None


class ConversationPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; those left out stay. `null` takes the model, the agent, the folder, the instructions or the
    temperature away."""

    title: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    agent_id: Id | UnsetType | None = UNSET
    head_turn_id: Id | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET
    folder: FolderName | UnsetType | None = UNSET
    is_pinned: bool | UnsetType = UNSET
    is_unread: bool | UnsetType = UNSET
    instructions: Instructions | UnsetType | None = UNSET
    temperature: Temperature | UnsetType | None = UNSET


class FolderChange(RequestBody, frozen=True, kw_only=True):
    """Another name for a folder; with `null`, its conversations are in no folder any more."""

    name: FolderName
    new_name: FolderName | None


class ConversationFolder(Struct, frozen=True, kw_only=True):
    """A folder of conversations. It exists while conversations are in it."""

    name: str
    conversations: int


class MovedConversations(Struct, frozen=True, kw_only=True):
    """How many conversations a change of their folder has moved, those in the trash included."""

    conversations: int


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
    will run; lists leave them out. `snippet` comes with every hit of a search. Those that are deleted have
    `deleted_at`, and `purge_at`, the time from which they can no longer be restored."""

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
    folder: str | None = None
    is_pinned: bool = False
    is_unread: bool = False
    """Whether an answer of a background turn has ended since the conversation was last read."""
    instructions: str | None = None
    """What the model is told before each answer, after the instructions of the agent. Lists leave it out."""
    temperature: float | None = None
    queued_turns: Sequence[QueuedTurn] = ()
    snippet: str | None = None
    deleted_at: int | None = None
    purge_at: int | None = None


class FoundConversation(Conversation, frozen=True, kw_only=True):
    """A hit of a search. `snippet` is null if no message has all the words."""

    snippet: str | None


class NewFeedback(RequestBody, frozen=True, kw_only=True):
    """What the user thinks of the answer of a turn. It replaces what the user said of it before."""

    rating: Rating
    comment: Annotated[str, Meta(max_length=4_000)] | None = None


class Feedback(Struct, frozen=True, kw_only=True):
    """A rating of the caller."""

    turn_id: str
    conversation_id: str
    rating: Annotated[str, known_words(Rating)]
    comment: str | None
    created_at: int
    updated_at: int


class FeedbackItem(Feedback, frozen=True, kw_only=True):
    """A rating of any user, with the model and the agent of the turn and what it used, for evaluations."""

    user: UserRef | None
    model: str | None
    agent_id: str | None
    usage: Usage


class NewShare(RequestBody, frozen=True, kw_only=True):
    """A link to a conversation. The branch ends with `turn_id`, by default with the last turn that has ended.
    `ttl_seconds` is 30 days by default, or what the server allows."""

    turn_id: Id | None = None
    with_files: bool = False
    ttl_seconds: Annotated[int, Meta(ge=60, le=31_536_000)] | None = None


class Share(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link that shows one branch of a conversation, up to `turn_id`, to everybody who has it. `user` is whose
    conversation it is. `title` is that of the conversation when it was shared; of conversations of others it is null.
    `url` is the link itself, shown once, when it is made."""

    id: str
    conversation_id: str
    turn_id: str
    user: UserRef | None
    title: str | None
    with_files: bool
    created_at: int
    expires_at: int
    url: str | None = None


class SharedMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a share link shows of a message: without ids, reasoning, and the arguments and results of its steps.
    `hidden_files` counts the files that it does not show."""

    role: RoleWord
    content: Sequence[Part]
    attachments: Sequence[FileRef]
    sources: Sequence[Source]
    hidden_files: int
    status: TurnStatusWord
    created_at: int
    finish: Annotated[str, known_words(Finish)] | None = None

    @property
    def text(self) -> str:
        """The text of the message, without steps."""
        return words_of(self.content)


class SharedConversation(Struct, frozen=True, kw_only=True):
    """What a share link shows, oldest first. The time in `created_at` is that of the link."""

    title: str | None
    with_files: bool
    created_at: int
    expires_at: int
    data: Sequence[SharedMessage]
    next_cursor: str | None


class Imported(Struct, frozen=True, kw_only=True):
    """Conversations made of a history: the first one, and all of them. `remarks` say what was left out, and which parts
    have no equivalent here and became a line of text."""

    conversation: Conversation
    remarks: Sequence[str]
    conversations: Sequence[Conversation] = ()
