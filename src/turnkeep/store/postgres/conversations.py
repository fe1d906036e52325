"""Conversations on PostgreSQL: their making, their lists and transcripts, their end."""

from operator import itemgetter
from typing import Any

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, check_id, new_conversation_id
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import parse_query, tokens_of
from turnkeep.store.checks import check_limit, check_text
from turnkeep.store.commands import (
    ConversationChange,
    ConversationWithQueue,
    NewConversation,
    Page,
    Purged,
    page_of,
)
from turnkeep.store.cursors import decode_cursor, encode_cursor, list_cursor, list_of, messages_of, rows_of
from turnkeep.store.postgres.database import Database, check_service, owner_of
from turnkeep.store.postgres.search import Search
from turnkeep.store.rows import (
    CONVERSATION_COLUMNS,
    json_or_null,
    to_conversation,
    to_message,
    to_public_message,
)
from turnkeep.store.shapes import check_change, check_new_conversation

LAST = 2**31 - 1
LATEST = 2**63 - 1
QUERY_CHARS = 1_000
_MESSAGE_WIDTH = 16
_CONVERSATION_WIDTH = len(CONVERSATION_COLUMNS.split(","))


class PostgresConversations:
    """Conversations, as lists and as transcripts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._search = Search(database)

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation:
        check_new_conversation(new)
        rows = await self._database.write(
            "create_conversation",
            principal.org_id,
            principal.workspace_id,
            principal.user_id,
            new_conversation_id(),
            new.kind,
            new.agent_id,
            new.model,
            new.workflow_id,
            new.title,
            None if new.title is None else tokens_of(new.title),
            json_or_null(new.metadata),
        )
        return to_conversation(rows[0])

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        check_id(conversation_id, "conv")
        rows = await self._database.read_as(principal, "my_conversation", conversation_id)
        if not rows:
            raise NotFound("No such conversation.")
        return to_conversation(rows[0])

    async def conversation_with_queue(
        self, principal: Principal, conversation_id: ConversationId
    ) -> ConversationWithQueue:
        check_id(conversation_id, "conv")
        rows = await self._database.read_as(principal, "my_conversation_with_queue", conversation_id)
        if not rows:
            raise NotFound("No such conversation.")
        messages = [row[_CONVERSATION_WIDTH:] for row in rows]
        return ConversationWithQueue(
            conversation=to_conversation(rows[0]),
            queue=tuple(to_public_message(conversation_id, (*row, None)) for row in messages if row[0] is not None),
        )

    async def conversations(
        self, principal: Principal, *, query: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> Page[Hit]:
        check_limit(limit)
        of = list_of(query)
        before = (LATEST, "") if cursor is None else decode_cursor(cursor, of, tuple[int, str])
        if query is None:
            rows = await self._database.read_as(principal, "my_conversations", *before, limit + 1)
            hits = [Hit(conversation=to_conversation(row), snippet=None) for row in rows]
        else:
            check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
            wanted = parse_query(query)
            if wanted.is_empty:
                return Page(data=())
            hits = await self._search.find(principal, wanted, before, limit + 1)
        return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))

    async def index_pending(self, *, limit: int = 500) -> int:
        return await self._search.index_pending(None, limit=limit)

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        check_id(conversation_id, "conv")
        check_change(change)
        if change.agent_id is not None:
            check_id(change.agent_id, "agent")
        if change.head_turn_id is not None:
            check_id(change.head_turn_id, "turn")
        rows = await self._database.write(
            "change_conversation",
            *owner_of(principal),
            conversation_id,
            change.title,
            None if change.title is None else tokens_of(change.title),
            "" if "model" in change.without else change.model,
            "" if "agent_id" in change.without else change.agent_id,
            change.metadata is not None,
            json_or_null(change.metadata),
            change.head_turn_id,
        )
        return to_conversation(rows[0])

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        check_id(conversation_id, "conv")
        await self._database.write("delete_conversation", *owner_of(principal), conversation_id)

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        check_id(conversation_id, "conv")
        rows = await self._database.write("restore_conversation", *owner_of(principal), conversation_id)
        return to_conversation(rows[0])

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        doomed = [row[0] for row in await self._database.read("purgeable", deleted_before, limit)]
        files = dict(map(tuple, await self._database.read("purgeable_files", doomed, deleted_before, limit)))
        # The keys are read before and told by what is gone after: so none is forgotten if an answer is lost between.
        await self._database.write("purge", deleted_before, doomed, list(files))
        left = {row[0] for row in await self._database.read("not_purged", doomed, list(files))}
        return Purged(
            conversations=len([id_ for id_ in doomed if id_ not in left]),
            storage_keys=tuple(sorted(key for id_, key in files.items() if id_ not in left)),
        )

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
        check_limit(limit)
        if order not in {"asc", "desc"}:
            raise InvalidRequest("order must be asc or desc.")
        is_ascending = order == "asc"
        of = messages_of(conversation_id, order)
        place = (0, -1) if is_ascending else (LAST, 0)
        if cursor is not None:
            place = _place(cursor, of)
        rows = await self._database.read_as(
            principal, "my_transcript", conversation_id, is_ascending, *place, limit + 1
        )
        rows.sort(key=itemgetter(-2, -1), reverse=not is_ascending)
        return Page(
            data=tuple([to_public_message(conversation_id, row) for row in rows[:limit]]),
            next_cursor=encode_cursor(of, *rows[limit - 1][-2:]) if len(rows) > limit else None,
        )

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        check_service(principal)
        check_id(conversation_id, "conv")
        check_limit(limit)
        of = rows_of(conversation_id)
        place = (0, -1) if cursor is None else _place(cursor, of)
        if not await self._database.read("own_conversation", *owner_of(principal), conversation_id):
            raise NotFound("No such conversation.")
        rows: list[Any] = await self._database.read("conversation_rows", conversation_id, *place, limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(
            data=tuple(to_message(row[:_MESSAGE_WIDTH]) for row in rows[:limit]),
            next_cursor=None if last is None else encode_cursor(of, last[_MESSAGE_WIDTH], last[1]),
        )


def _place(cursor: str, of: str) -> tuple[int, int]:
    ordinal, sequence = decode_cursor(cursor, of, tuple[int, int])
    if not (0 <= ordinal <= LAST and -1 <= sequence <= LAST):
        raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.")
    return ordinal, sequence
