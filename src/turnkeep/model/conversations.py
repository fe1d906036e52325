"""Conversations: threads of turns, and what follows from their rows: a title, a preview, and the events of past turns.

Appended and imported turns have rows but no events. A reader who opens their stream gets what a live stream would
have shown: the same display, the same order, one terminal event.

Decision: docs/decisions/0204
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from turnkeep.ids import AgentId, ConversationId, MessageId, ShareId, TurnId, UserId, WorkspaceId
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.model.waits import WaitReason
from turnkeep_client.wire.blocks import Block, JsonObject, Reasoning, ToolResult, ToolUse, Usage, paragraphs_of, text_of
from turnkeep_client.wire.conversations import ConversationFolder, Kind
from turnkeep_client.wire.display import fold, parts_of
from turnkeep_client.wire.events import (
    Failure,
    Result,
    Sources,
    Steered,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

__all__ = [
    "PREVIEW_CHARS",
    "TITLE_CHARS",
    "Conversation",
    "ConversationFolder",
    "GivenFields",
    "Hit",
    "Kind",
    "NewShare",
    "OpenShare",
    "Share",
    "TitleSource",
    "TurnSettings",
    "events_from_rows",
    "first_event",
    "first_line",
    "title_and_preview",
]


TitleSource = Literal["user", "model", "question"]
"""Who wrote the title of a conversation."""


class GivenFields(Struct, frozen=True, kw_only=True):
    """What the caller says of a conversation. A field has the name of its column, and the store handles all alike."""

    kind: Kind = "chat"
    agent_id: AgentId | None = None
    model: str | None = None
    workflow_id: str | None = None
    external_id: str | None = None
    """The id of the host's application. No two conversations of a user that are not deleted have the same."""
    title: str | None = None
    metadata: JsonObject = {}
    folder: str | None = None
    """The name of the folder in which the lists of pages show it."""
    is_pinned: bool = False
    instructions: str | None = None
    """What the model is told before each answer, after the instructions of the agent."""
    temperature: float | None = None
    is_listed: bool = True
    """Whether lists and searches show it. One that is not listed is deleted when it was not used for a while."""

    @property
    def turn_settings(self) -> "TurnSettings":
        return TurnSettings(
            kind=self.kind,
            agent_id=self.agent_id,
            model=self.model,
            instructions=self.instructions,
            temperature=self.temperature,
        )


class TurnSettings(Struct, frozen=True, kw_only=True):
    """What a conversation gives to each of its turns."""

    kind: Kind
    agent_id: AgentId | None
    model: str | None
    instructions: str | None
    temperature: float | None


class Conversation(GivenFields, frozen=True, kw_only=True):
    """A thread. The counts are of what a reader sees on the head's chain, and are kept incrementally."""

    id: ConversationId
    workspace_id: WorkspaceId
    user_id: UserId | None
    preview: str | None
    message_count: int
    turn_count: int
    head_turn_id: TurnId | None
    running_turn_id: TurnId | None
    created_at: int
    updated_at: int
    deleted_at: int | None = None
    waiting_for: WaitReason | None = None
    """What the running turn waits for, if it does."""
    read_at: int | None = None
    """When a background turn was asked, or the user read the conversation, whichever is later. None: its turns had a
    reader while they ran."""

    titled_by: TitleSource | None = None
    """None: the title is the beginning of the question, and a model may write another one. `question`: it stays so."""

    @property
    def is_unread(self) -> bool:
        """Whether an answer has come since then."""
        return self.read_at is not None and self.running_turn_id is None and self.updated_at > self.read_at


class Hit(Struct, frozen=True, kw_only=True):
    """A conversation that a search found, with the place where it matched (matches between `**`)."""

    conversation: Conversation
    snippet: str | None


class Share(Struct, frozen=True, kw_only=True):
    """A link that shows one branch of a conversation to everybody who has it, up to the turn `turn_id`, until
    `expires_at`. `title` is that of the conversation when it was shared. `user_id` is whose conversation it is."""

    id: ShareId
    workspace_id: WorkspaceId
    conversation_id: ConversationId
    user_id: UserId | None
    turn_id: TurnId
    title: str | None
    with_files: bool
    created_at: int
    expires_at: int


class NewShare(Struct, frozen=True, kw_only=True):
    """What a new link is made with. `secret_hash` is that of its token. Without `turn_id` the branch ends with the last
    turn on the visible chain that has ended."""

    secret_hash: bytes
    seconds: float
    turn_id: TurnId | None = None
    with_files: bool = False


class OpenShare(Struct, frozen=True, kw_only=True):
    """A link that was opened. What it shows is read as `owner`, who sees no other conversation than its user does."""

    share: Share
    owner: Principal


PREVIEW_CHARS = 120
TITLE_CHARS = 80


def title_and_preview(blocks: tuple[Block, ...]) -> tuple[str | None, str | None]:
    """Those of a conversation that begins with these words, as long as it has no others."""
    text = paragraphs_of(blocks)
    return first_line(text, limit=TITLE_CHARS), first_line(text, limit=PREVIEW_CHARS)


def first_line(text: str, *, limit: int) -> str | None:
    """The first line that says something, cut to `limit` characters; None if there is none."""
    for line in text.splitlines():
        words = " ".join(line.split())
        if words:
            return words if len(words) <= limit else words[: limit - 1].rstrip() + "…"
    return None


def events_from_rows(turn: Turn, rows: Sequence[Message]) -> tuple[TurnEvent, ...]:
    """The events of a settled turn, first to last. A turn without rows has none."""
    if not rows:
        return ()
    final = next((row for row in reversed(rows) if row.role == "assistant" and not row.internal), None)
    events: list[TurnEvent] = [first_event(turn, rows[0].id)]
    names: dict[str, str] = {}
    has_failed = turn.status != "succeeded"
    for row in rows:
        if row.role == "user" and not row.internal and row is not rows[0]:
            events.append(Steered(message_id=row.id, message=paragraphs_of(row.blocks)))
        elif row is not final or (has_failed and text_of(row.blocks)):
            events.extend(_events_of(row, names))
    if final is not None and final.sources:
        events.append(Sources(sources=final.sources))
    events.append(_terminal_of(turn, final, events))
    return tuple(events)


def first_event(turn: Turn, user_message_id: MessageId) -> TurnBegan:
    """The event with which every turn begins: it waits, or it runs."""
    return TurnBegan(
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        user_message_id=user_message_id,
        status="queued" if turn.status == "queued" else "running",
        attempt=turn.attempt,
    )


def _events_of(row: Message, names: dict[str, str]) -> list[TurnEvent]:
    calls = [block for block in row.blocks if isinstance(block, ToolUse)]
    results = [block for block in row.blocks if isinstance(block, ToolResult)]
    events: list[TurnEvent] = []
    if row.role == "assistant":
        names |= {call.id: call.name for call in calls}
        events.append(
            ToolCalls(
                iteration=row.iteration or 0,
                text=text_of(row.blocks),
                calls=tuple(ToolCall(id=call.id, name=call.name, args=call.input) for call in calls),
            )
        )
        events.extend(Step(id=call.id, name=call.name, status="running", args=call.input) for call in calls)
    events.extend(_step_of(result, names.get(result.call_id, "tool")) for result in results)
    return events


def _step_of(result: ToolResult, name: str) -> Step:
    if result.is_error:
        return Step(id=result.call_id, name=name, status="failed", error=result.content)
    return Step(id=result.call_id, name=name, status="succeeded", result=result.content)


def _terminal_of(turn: Turn, final: Message | None, events: Sequence[TurnEvent]) -> TurnEvent:
    if turn.error is not None or turn.status != "succeeded":
        code = turn.error.code if turn.error else turn.status
        message = turn.error.message if turn.error else "This turn ended without an answer."
        if final is None:
            return Failure(code=code, message=message)
        return Failure(code=code, message=message, message_id=final.id)
    if final is None:
        return Result(message_id=MessageId(""), message="", content=fold(events).content, usage=turn.usage)
    content = final.display if final.display is not None else (*fold(events).content, *parts_of(final.blocks))
    return Result(
        message_id=final.id,
        message=text_of(tuple(block for block in final.blocks if not isinstance(block, Reasoning))),
        content=content,
        usage=final.usage or Usage(),
    )
