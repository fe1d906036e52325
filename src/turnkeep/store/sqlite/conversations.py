"""Conversations on SQLite: how they are created, listed, read, changed, deleted and purged."""

from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import AgentId, ConversationId, TurnId, check_id, new_conversation_id
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.store import checks
from turnkeep.store.commands import (
    ConversationChange,
    ConversationWithQueue,
    NewConversation,
    Page,
    Purged,
    page_of,
)
from turnkeep.store.cursors import decode_cursor, encode_cursor, list_cursor, list_of, messages_of, rows_of
from turnkeep.store.rows import conversation_record, json_text, to_conversation, to_message, to_public_message
from turnkeep.store.rules.conversations import (
    Ahead,
    Head,
    changed,
    check_head,
    check_new,
    insertion,
    new_conversation,
)
from turnkeep.store.rules.refusals import check_service, no_conversation
from turnkeep.store.sqlite.io.session import Row, Session
from turnkeep.store.sqlite.leases import cancel_all_waiting, show_chain
from turnkeep.store.sqlite.ownership import in_workspace, owner_of
from turnkeep.store.sqlite.search import LATEST, SqliteSearch, list_key, refresh_title

QUERY_CHARS = 1_000

_PURGED = (
    "purge_tokens_of_search",
    "purge_search",
    "purge_events",
    "purge_logs",
    "purge_messages",
    "purge_tokens",
    "purge_files",
    "purge_turns",
    "purge_conversation",
)
"""What belongs to a conversation. What depends on others comes first."""


class SqliteConversations(SqliteSearch):
    """Conversations, as lists and as transcripts. Promises are those of `ports.ConversationStore`."""

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation:
        checks.check_new_conversation(new)
        return await self._write(_create, principal, new, new_conversation_id())

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        return await self._see(principal, _my_conversation, check_id(conversation_id, "conv"))

    async def conversation_with_queue(
        self, principal: Principal, conversation_id: ConversationId
    ) -> ConversationWithQueue:
        return await self._see(principal, _my_conversation_with_queue, check_id(conversation_id, "conv"))

    async def conversations(
        self, principal: Principal, *, query: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> Page[Hit]:
        checks.check_limit(limit)
        if query is None:
            return await self._see(principal, _my_list, principal, limit, cursor)
        checks.check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
        return await self._search(principal, query, limit, cursor)

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        check_id(conversation_id, "conv")
        checks.check_change(change)
        if change.agent_id is not None:
            check_id(change.agent_id, "agent")
        if change.head_turn_id is not None:
            check_id(change.head_turn_id, "turn")
        return await self._write(_change, principal, conversation_id, change)

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        await self._write(_delete, principal, check_id(conversation_id, "conv"))

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        return await self._write(_restore, principal, check_id(conversation_id, "conv"))

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        return await self._write(_purge, deleted_before, limit)

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
        return await self._see(principal, _transcript, conversation_id, order, limit, cursor)

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        check_service(principal)
        check_id(conversation_id, "conv")
        checks.check_limit(limit)

        def traced(session: Session) -> Page[Message]:
            with session.snapshot():
                own_conversation(session, principal, conversation_id)
                return _conversation_trace(session, conversation_id, limit, cursor)

        return await self._read(traced)


def _my_conversation(session: Session, conversation_id: ConversationId) -> Conversation:
    row = session.row("my_conversation", {"conversation": conversation_id})
    if row is None:
        raise no_conversation()
    return to_conversation(row)


def _my_conversation_with_queue(session: Session, conversation_id: ConversationId) -> ConversationWithQueue:
    with session.snapshot():
        conversation = _my_conversation(session, conversation_id)
        waiting = session.rows("my_queue", (conversation_id,))
    queue = tuple(to_public_message(conversation_id, (*row, None)) for row in waiting)
    return ConversationWithQueue(conversation=conversation, queue=queue)


def own_conversation(session: Session, principal: Principal, conversation_id: ConversationId) -> Conversation:
    """The same on the engine's path, for what reads internal rows next."""
    row = session.row("own_conversation", owner_of(principal) | {"conversation": conversation_id})
    if row is None:
        raise no_conversation()
    return to_conversation(row)


def _my_list(session: Session, principal: Principal, limit: int, cursor: str | None) -> Page[Hit]:
    of = list_of(None)
    updated_at, id_ = list_key(cursor, of)
    values = owner_of(principal) | {"updated_at": updated_at, "id": id_, "limit": limit + 1}
    name = "my_conversations_of_workspace" if values["user"] is None else "my_conversations_of_user"
    del values["org"]
    if values["user"] is None:
        del values["user"]
    hits = [Hit(conversation=to_conversation(row), snippet=None) for row in session.rows(name, values)]
    return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))


def _transcript(
    session: Session, conversation_id: ConversationId, order: Order, limit: int, cursor: str | None
) -> Page[PublicMessage]:
    of = messages_of(conversation_id, order)
    with session.snapshot():
        if order == "asc":
            ordinal, sequence = (0, -1) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
            found = session.rows("transcript_forward", (conversation_id, ordinal, sequence, limit + 1))
        else:
            ordinal, sequence = (LATEST, 0) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
            found = session.rows("transcript_backward", (conversation_id, ordinal, sequence, limit + 1))
        if not found and session.row("my_conversation_exists", {"conversation": conversation_id}) is None:
            raise no_conversation()
        shown = [_Shown(row[:-3], *row[-3:]) for row in found[:limit]]
        siblings = _siblings(session, conversation_id, shown)
    last = shown[-1] if len(found) > limit else None
    return Page(
        data=tuple(to_public_message(conversation_id, (*each.message, siblings.get(each.turn_id))) for each in shown),
        next_cursor=None if last is None else encode_cursor(of, last.ordinal, last.turn_sequence),
    )


class _Shown(Struct, frozen=True):
    """A row of a transcript, and where it stands. The fields are in the order of the queries `transcript_…`."""

    message: Row
    parent_turn_id: TurnId | None
    ordinal: int
    turn_sequence: int

    @property
    def turn_id(self) -> TurnId:
        turn_id: TurnId = self.message[1]
        return turn_id


def _siblings(
    session: Session, conversation_id: ConversationId, shown: list[_Shown]
) -> dict[TurnId, tuple[TurnId, ...]]:
    """For each turn of a page that has others beside it: all of them, in order."""
    parents: dict[str, list[tuple[int, TurnId]]] = {}
    for each in shown:
        parents.setdefault(each.parent_turn_id or "", []).append((each.ordinal, each.turn_id))
    if not parents:
        return {}
    beside = session.rows("branches", (conversation_id, json_text(list(parents))))
    families: dict[str, set[tuple[int, TurnId]]] = {}
    for parent, ordinal, turn_id in beside:
        families.setdefault(parent, set(parents[parent])).add((ordinal, turn_id))
    return {
        turn_id: tuple(each for _, each in sorted(family))
        for parent, family in families.items()
        for _, turn_id in parents[parent]
    }


def _conversation_trace(
    session: Session, conversation_id: ConversationId, limit: int, cursor: str | None
) -> Page[Message]:
    of = rows_of(conversation_id)
    ordinal, sequence = (0, -1) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
    found = session.rows(
        "conversation_rows",
        {"conversation": conversation_id, "ordinal": ordinal, "sequence": sequence, "limit": limit + 1},
    )
    shown = [(to_message(message), at) for *message, at in found[:limit]]
    last, last_ordinal = shown[-1] if len(found) > limit else (None, 0)
    return Page(
        data=tuple(message for message, _ in shown),
        next_cursor=None if last is None else encode_cursor(of, last_ordinal, last.turn_sequence),
    )


def _create(
    session: Session, principal: Principal, new: NewConversation, conversation_id: ConversationId
) -> Conversation:
    insert_conversation(session, principal, new, conversation_id)
    if new.title is not None:
        refresh_title(session, conversation_id, new.title)
    return by_id(session, conversation_id)


def insert_conversation(
    session: Session, principal: Principal, new: NewConversation, conversation_id: ConversationId
) -> None:
    has_workspace = session.row("workspace_exists", in_workspace(principal)) is not None
    check_new(has_workspace=has_workspace, has_agent=_has_agent(session, principal, new.agent_id))
    conversation = new_conversation(principal, new, conversation_id, session.now)
    session.run("insert_conversation", insertion(conversation, principal.org_id))


def _has_agent(session: Session, principal: Principal, agent_id: AgentId | None) -> bool:
    """Also if none is named."""
    return agent_id is None or session.row("agent_exists", in_workspace(principal) | {"agent": agent_id}) is not None


def _change(
    session: Session, principal: Principal, conversation_id: ConversationId, wanted: ConversationChange
) -> Conversation:
    """Change what is given. A new head shows that turn's branch; refused while a turn runs or waits."""
    before = own_conversation(session, principal, conversation_id)
    check_new(has_workspace=True, has_agent=_has_agent(session, principal, wanted.agent_id))
    more_turns, more_messages = 0, 0
    if wanted.head_turn_id is not None:
        head = session.row("turn_as_head", {"conversation": conversation_id, "turn": wanted.head_turn_id})
        ahead = session.row("turn_ahead", {"conversation": conversation_id})
        check_head(Head(*head) if head else None, Ahead(*ahead) if ahead else None)
        more_turns, more_messages = show_chain(session, conversation_id, wanted.head_turn_id)
    after = changed(before, wanted, session.now, more_turns=more_turns, more_messages=more_messages)
    session.run("change_conversation", conversation_record(after))
    if wanted.title is not None:
        refresh_title(session, conversation_id, wanted.title)
    return by_id(session, conversation_id)


def _delete(session: Session, principal: Principal, conversation_id: ConversationId) -> None:
    running = own_conversation(session, principal, conversation_id).running_turn_id
    which = {"conversation": conversation_id, "now": session.now}
    session.run("delete_conversation", which)
    session.run("delete_files_with", which)
    if running is not None:
        session.run("request_cancel", {"turn": running, "now": session.now})
    cancel_all_waiting(session, conversation_id)


def _restore(session: Session, principal: Principal, conversation_id: ConversationId) -> Conversation:
    which = {"conversation": conversation_id}
    found = session.row("restorable_conversation", owner_of(principal) | which)
    if found is None:
        raise no_conversation()
    (is_deleted,) = found
    if is_deleted:
        session.run("restore_conversation", which)
        session.run("restore_files", which)
    return by_id(session, conversation_id)


def _purge(session: Session, deleted_before: int, limit: int) -> Purged:
    """Erase whole conversations, and files that were deleted by themselves."""
    keys: list[str] = []
    purged = session.rows("purgeable", {"before": deleted_before, "limit": limit})
    for (conversation_id,) in purged:
        which = {"conversation": conversation_id}
        keys.extend(key for (key,) in session.rows("storage_keys", which))
        for name in _PURGED:
            session.run(name, which)
    alone = session.rows("purge_deleted_files", {"before": deleted_before, "limit": limit})
    keys.extend(key for (key,) in alone)
    return Purged(conversations=len(purged), storage_keys=tuple(sorted(keys)))


def by_id(session: Session, conversation_id: ConversationId) -> Conversation:
    return to_conversation(session.rows("conversation_by_id", {"conversation": conversation_id})[0])
