"""Conversations: threads of turns."""

from msgspec import Struct

from turnkeep.ids import AgentId, ConversationId, TurnId, UserId, WorkspaceId
from turnkeep_client.wire.blocks import Block, JsonObject, paragraphs_of
from turnkeep_client.wire.conversations import Kind

__all__ = [
    "PREVIEW_CHARS",
    "TITLE_CHARS",
    "Conversation",
    "GivenFields",
    "Hit",
    "Kind",
    "first_line",
    "title_and_preview",
]


class GivenFields(Struct, frozen=True, kw_only=True):
    """What the caller says of a conversation. A field has the name of its column, and the store handles all alike."""

    kind: Kind = "chat"
    agent_id: AgentId | None = None
    model: str | None = None
    workflow_id: str | None = None
    title: str | None = None
    metadata: JsonObject = {}


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


class Hit(Struct, frozen=True, kw_only=True):
    """A conversation that a search found, with the place where it matched (matches between `**`)."""

    conversation: Conversation
    snippet: str | None


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
