"""The verbs of `ConversationStore`: each checks what it is given, then runs as one job or a few."""

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, WorkspaceId, check_id, new_conversation_id
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import parse_query
from turnkeep.store import checks, shapes
from turnkeep.store.commands import (
    ConversationChange,
    ConversationWithQueue,
    Exported,
    NewConversation,
    Page,
    Purged,
    page_of,
)
from turnkeep.store.cursors import list_cursor, list_of
from turnkeep.store.renaming import rename
from turnkeep.store.sqlite import conversations, indexing, reading, transferring
from turnkeep.store.sqlite.lanes import Lanes
from turnkeep.store.sqlite.owning import check_service
from turnkeep.store.sqlite.session import Session

QUERY_CHARS = 1_000
INDEXED_BEFORE_SEARCH = 500


class ConversationVerbs(Lanes):
    """Conversations, as lists and as transcripts. Promises are those of `ports.ConversationStore`."""

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation:
        shapes.check_new_conversation(new)
        return await self._write(conversations.create, principal, new, new_conversation_id())

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        return await self._see(principal, reading.my_conversation, check_id(conversation_id, "conv"))

    async def conversation_with_queue(
        self, principal: Principal, conversation_id: ConversationId
    ) -> ConversationWithQueue:
        return await self._see(principal, reading.my_conversation_with_queue, check_id(conversation_id, "conv"))

    async def conversations(
        self, principal: Principal, *, query: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> Page[Hit]:
        checks.check_limit(limit)
        if query is None:
            return await self._see(principal, reading.my_list, principal, limit, cursor)
        checks.check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
        return await self._search(principal, query, limit, cursor)

    async def _search(self, principal: Principal, query: str, limit: int, cursor: str | None) -> Page[Hit]:
        """Candidates from the index, filtered by their owner there; what is shown comes through the client path."""
        wanted = parse_query(query)
        of = list_of(query)
        before = reading.list_key(cursor, of)
        if wanted.is_empty:
            return Page(data=())
        await self._index(principal.workspace_id, INDEXED_BEFORE_SEARCH)
        found = await self._read(indexing.candidates, principal, wanted, before, limit + 1)
        places = await self._read(indexing.newest_matches, wanted, found) if found else {}
        hits = await self._see(principal, reading.my_hits, wanted, found, places)
        return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))

    async def index_pending(self, *, limit: int = 500) -> int:
        return await self._index(None, limit)

    async def _index(self, workspace_id: WorkspaceId | None, limit: int) -> int:
        """Tokens are made by a reader; the writer only stores them, a chunk at a time."""
        done = 0
        if titles := await self._read(indexing.pending_titles, workspace_id, limit):
            await self._write(indexing.index_titles, titles)
        for pending in await self._read(indexing.pending, workspace_id, limit):
            after, is_ours = pending.after, True
            while is_ours:
                chunk = await self._read(indexing.next_chunk, pending.conversation_id, after)
                is_ours = chunk.last > after and await self._write(indexing.write_chunk, chunk)
                after = chunk.last
                if chunk.is_complete:
                    break
            done += is_ours
        return done

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        check_id(conversation_id, "conv")
        shapes.check_change(change)
        if change.agent_id is not None:
            check_id(change.agent_id, "agent")
        if change.head_turn_id is not None:
            check_id(change.head_turn_id, "turn")
        return await self._write(conversations.change, principal, conversation_id, change)

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        await self._write(conversations.delete, principal, check_id(conversation_id, "conv"))

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        return await self._write(conversations.restore, principal, check_id(conversation_id, "conv"))

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        return await self._write(conversations.purge, deleted_before, limit)

    async def transcript(
        self,
        principal: Principal,
        conversation_id: ConversationId,
        *,
        order: Order = "asc",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PublicMessage]:
        check_id(conversation_id, "conv")
        checks.check_limit(limit)
        if order not in {"asc", "desc"}:
            raise InvalidRequest("order must be asc or desc.")
        return await self._see(principal, reading.transcript, conversation_id, order, limit, cursor)

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        check_service(principal)
        check_id(conversation_id, "conv")
        checks.check_limit(limit)

        def traced(session: Session) -> Page[Message]:
            with session.snapshot():
                reading.own_conversation(session, principal, conversation_id)
                return reading.conversation_trace(session, conversation_id, limit, cursor)

        return await self._read(traced)

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        check_service(principal)
        return await self._read(transferring.export, principal, check_id(conversation_id, "conv"))

    async def import_conversation(self, principal: Principal, exported: Exported) -> Conversation:
        shapes.check_exported(exported)
        renamed = rename(exported, workspace_id=principal.workspace_id, user_id=principal.user_id)
        return await self._write(transferring.import_renamed, principal, renamed)
