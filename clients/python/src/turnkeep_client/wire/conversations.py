"""Conversations on the wire."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep_client.wire.base import Id, Model, Name, RequestBody, known_words
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.turns import Message

Kind = Literal["chat", "sandbox", "run"]
"""`chat`: the loop runs in the server; `sandbox`: in a sandbox; `run`: one turn, no thread, never listed."""


class NewConversation(RequestBody, frozen=True, kw_only=True):
    title: Name | None = None
    agent_id: Id | None = None
    model: Model | None = None
    kind: Literal["chat", "sandbox"] = "chat"
    workflow_id: Annotated[str, Meta(max_length=200)] | None = None
    metadata: JsonObject = field(default_factory=dict)


class ConversationPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; those left out stay. `null` takes the model or the agent away."""

    title: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    agent_id: Id | UnsetType | None = UNSET
    head_turn_id: Id | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET


class RunningTurn(Struct, frozen=True, kw_only=True):
    """The turn that runs in a conversation now."""

    id: str
    events_url: str


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
    user_id: str | None
    kind: Annotated[str, known_words(Kind)]
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
    snippet: str | UnsetType | None = UNSET
    """Null for a hit that has no message with all the words. Absent where nothing was searched."""


class Imported(Struct, frozen=True, kw_only=True):
    """A conversation made of a history, and what of it has no equal here and became a line of text."""

    conversation: Conversation
    remarks: Sequence[str]
