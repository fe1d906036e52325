"""The verbs of conversations, and of links that share them."""

from collections.abc import Sequence
from typing import Protocol

from turnkeep.ids import ConversationId, FileId, OrgId, OutboxId, ShareId, TurnId, UserId, WorkspaceId
from turnkeep.model.conversations import Conversation, ConversationFolder, Hit, NewShare, OpenShare, Share
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.outbox import OutboxEntry
from turnkeep.model.principals import Principal
from turnkeep.store.commands import (
    EVERYTHING,
    ConversationChange,
    ConversationFilter,
    ConversationWithQueue,
    Exported,
    NewConversation,
    Page,
    Purged,
)
from turnkeep_client.wire.blocks import Usage


class ConversationStore(Protocol):
    """Conversations, as lists and as transcripts."""

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation:
        """Raises ExternalIdTaken if the principal has a conversation of the new one's `external_id`. Of several that
        come at the same time, one makes it."""

    async def conversation_of_host(self, principal: Principal, external_id: str) -> Conversation | None:
        """The principal's own conversation of this external id, if there is one that is not deleted. A service that
        acts for no user finds those that belong to no user."""

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation: ...

    async def conversation_with_queue(
        self, principal: Principal, conversation_id: ConversationId
    ) -> ConversationWithQueue:
        """The same, with what waits in it. Both are of one moment: a turn that starts meanwhile runs or waits here,
        never both or neither."""

    async def conversations(
        self,
        principal: Principal,
        *,
        query: str | None = None,
        only: ConversationFilter = EVERYTHING,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Newest change first; runs are listed only if `only` asks for them, and those with `is_listed` false never.
        `query` searches titles and visible messages: every word of it must occur, the last one perhaps as the beginning
        of a word; works for CJK."""

    async def index_pending(self, *, limit: int = 500) -> int:
        """Make settled turns searchable; return how many conversations were brought up to date.

        One call does a bounded amount of work. `due_work` says whether there is more."""

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        """`head_turn_id` switches the visible chain to that turn's branch; ConversationBusy while one runs, also for
        `removed`."""

    async def folders(self, principal: Principal) -> list[ConversationFolder]:
        """The folders of the principal's conversations, by name. At most a thousand."""

    async def rename_folder(self, principal: Principal, name: str, new_name: str | None) -> int:
        """Give the folder another name, which may be that of another folder; None takes all conversations out of it.
        Returns how many were moved, those in the trash included. Raises NotFound if there are none."""

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        """Soft, with its files; a turn that runs is asked to stop in the same transaction."""

    async def deleted_conversations(
        self, principal: Principal, *, limit: int = 20, cursor: str | None = None
    ) -> Page[Conversation]:
        """What the principal can restore, the last deleted first: what was deleted and is not purged yet. Runs and
        those that no list shows are left out."""

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        """Undo the delete; revives only the files which that delete took. One that is not deleted stays as it is.

        Its external id is lost if another conversation of its owner has taken it meanwhile.
        """

    async def delete_idle(self, *, unchanged_since: int, limit: int = 100) -> int:
        """Delete conversations that have not changed since that moment and in which no turn runs or waits, as
        `delete_conversation` does; return how many. Takes some at a time. What was imported later stays."""

    async def delete_unlisted(self, *, unchanged_since: int, limit: int = 100) -> int:
        """The same for conversations that no list shows."""

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        """Erase what was soft-deleted before that moment and in which no turn runs any more."""

    async def transcript(
        self,
        principal: Principal,
        conversation_id: ConversationId,
        *,
        order: Order = "asc",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PublicMessage]:
        """Visible messages along the head's chain. The cost does not depend on the length of the conversation."""

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        """All rows, internal ones included, every branch. Forbidden for anyone but a service."""

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        """Everything, without loss. Forbidden for anyone but a service."""

    async def import_conversation(
        self, principal: Principal, exported: Exported, *, attached: Sequence[FileId] = ()
    ) -> Conversation:
        """The same conversation again under new ids, owned by the principal; running turns are refused.

        It keeps its external id unless the principal has a conversation of that id. Files in `attached` are here
        already: they keep their ids and join the conversation, as with `change_conversation`.
        """

    async def want_titles(self, turn_ids: Sequence[TurnId], *, by_default: bool) -> bool:
        """Note that the conversations of these turns want a title: those whose title is the beginning of the question,
        after one of their first three turns has succeeded. The same turn again notes nothing new while that is open.
        `by_default`: whether those of a workspace without a `title_model` want one. Return whether any was noted."""

    async def take_titles(self, *, limit: int = 10, lease_seconds: float) -> list[OutboxEntry]:
        """Lease titles that are to be written. No other worker gets them until the lease has ended."""

    async def end_title(
        self, entry_id: OutboxId, title: str | None, *, model: str, usage: Usage, cost: float | None
    ) -> bool:
        """Write the title, unless a user has given one meanwhile, and count what it has used, in one transaction;
        return whether it was written. None keeps the title for good. A title that was ended already changes nothing."""


class ShareStore(Protocol):
    """Links that show one branch of a conversation to everybody who has them. They are known by their hash alone.

    A link ends when its time is over, when it is revoked, when a message of the branch is edited or answered again,
    when the conversation is deleted (a restore does not bring it back) or erased, and when its user is disabled or
    erased.
    """

    async def share_conversation(self, principal: Principal, conversation_id: ConversationId, new: NewShare) -> Share:
        """Share the branch as it is now. Links of anybody that have expired are deleted. Conflict if there is no such
        turn that has ended."""

    async def shares(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
    ) -> list[Share]:
        """The links that have not ended, newest first: of conversations of this user, or of all users."""

    async def revoke_share(
        self, org_id: OrgId, workspace_id: WorkspaceId, share_id: ShareId, *, user_id: UserId | None = None
    ) -> None:
        """End a link at once. NotFound if there is no such link, or not of this user."""

    async def open_share(self, secret_hash: bytes) -> OpenShare | None:
        """The link of this token, by one look-up; None if there is none, or if it has ended."""

    async def shared_messages(
        self, opened: OpenShare, *, limit: int = 20, cursor: str | None = None, file_id: FileId | None = None
    ) -> Page[PublicMessage]:
        """What the link shows, oldest first: questions and answers of whole turns, `limit` of them. With `file_id` only
        those turns whose messages may name this file."""
