"""The outbox: reports to other systems, kept from the moment of the event until they are delivered."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, OrgId, OutboxId, UserId, WorkspaceId

OutboxType = Literal["turn.succeeded", "turn.failed", "turn.cancelled", "turn.waiting"]


class OutboxEntry(Struct, frozen=True, kw_only=True):
    """One thing that happened. A receiver may get it more than once, and recognises it by its id.

    `subject_id` is what it happened to: the turn, for `turn.…`. `attempts` is how often a worker has taken the entry in
    order to deliver it.
    """

    id: OutboxId
    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    type: OutboxType
    conversation_id: ConversationId | None
    subject_id: str
    created_at: int
    attempts: int = 0
