"""Conversations on SQLite: created, listed, searched, read, changed, deleted, purged, exported and imported.

The search is over titles and visible messages. Its tokens are made in Python; SQLite's full-text table only keeps them.
The index is filled after turns have settled, in chunks, so that no turn and no other write waits for it.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import (
    AgentId,
    ConversationId,
    TurnId,
    WorkspaceId,
    check_id,
    first_conversation_id,
    new_conversation_id,
)
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, parse_query, snippet, tokens_of
from turnkeep.model.turns import Turn
from turnkeep.store import checks
from turnkeep.store.checks import check_service
from turnkeep.store.commands import (
    ConversationChange,
    ConversationWithQueue,
    Exported,
    NewConversation,
    Page,
    Purged,
    TurnTrace,
    page_of,
    rows_that_fit,
)
from turnkeep.store.cursors import decode_cursor, encode_cursor, list_cursor, list_of, messages_of, rows_of
from turnkeep.store.exports import checked_and_renamed
from turnkeep.store.fulltext import PendingConversation, PendingIndex, fts_text
from turnkeep.store.rows import (
    conversation_record,
    json_text,
    to_content,
    to_conversation,
    to_file,
    to_message,
    to_public_message,
    to_recorded,
    to_turn,
)
from turnkeep.store.rules.conversations import (
    Ahead,
    Head,
    changed,
    check_head,
    check_new,
    imported_conversation,
    imported_rows,
    insertion,
    new_conversation,
    no_conversation,
)
from turnkeep.store.rules.files import imported_files
from turnkeep.store.sqlite.directory import check_user, has_workspace
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Row, Session, in_workspace, owner_of
from turnkeep.store.sqlite.leases import cancel_all_waiting, show_chain
from turnkeep.store.sqlite.turns import ALL, trace_of
from turnkeep_client.wire.blocks import Part
from turnkeep_client.wire.display import parts_of, words_of

QUERY_CHARS = 1_000
LATEST = 2**62
"""Later than every change."""
INDEXED_BEFORE_SEARCH = 500

PURGED = (
    "purge_tokens_of_search",
    "purge_search",
    "purge_events",
    "purge_logs",
    "purge_messages",
    "purge_tokens",
    "purge_files",
    "purge_outbox",
    "purge_turns",
    "purge_conversation",
)
"""What belongs to a conversation. What depends on others comes first."""


class SqliteConversations(StoreThreads):
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

    async def delete_idle(self, *, unchanged_since: int, limit: int = 100) -> int:
        return await self._write(_delete_idle, unchanged_since, limit)

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

    async def _search(self, principal: Principal, query: str, limit: int, cursor: str | None) -> Page[Hit]:
        """The index gives candidates of this owner. What the reader gets is then read on the client path."""
        wanted = parse_query(query)
        of = list_of(query)
        before = list_key(cursor, of)
        if wanted.is_empty:
            return Page(data=())
        await self._index(principal.workspace_id, INDEXED_BEFORE_SEARCH)
        found = await self._read(_candidates, principal, wanted, before, limit + 1)
        places = await self._read(_newest_matches, wanted, found) if found else {}
        hits = await self._see(principal, _my_hits, wanted, found, places)
        return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))

    async def index_pending(self, *, limit: int = 500) -> int:
        return await self._index(None, limit)

    async def _index(self, workspace_id: WorkspaceId | None, limit: int) -> int:
        """Tokens are made by a reader; the writer only stores them, a chunk at a time."""
        pending = PendingIndex(await self._read(_pending, workspace_id, limit))
        while group := pending.next_group():
            chunks = await self._read(_chunks_of, group)
            pending.mark(group, await self._write(_write_chunks, chunks))
        if titles := await self._read(_pending_titles, workspace_id, limit):
            await self._write(_add_titles, titles)
        return pending.done

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        check_service(principal)
        return await self._read(_export, principal, check_id(conversation_id, "conv"))

    async def import_conversation(self, principal: Principal, exported: Exported) -> Conversation:
        renamed = await asyncio.to_thread(checked_and_renamed, exported, principal)
        return await self._write(_import_renamed, principal, renamed)


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


def conversation_for_write(session: Session, principal: Principal, conversation_id: ConversationId) -> Row:
    """`head_turn_id, next_ordinal, kind, running turn, first waiting turn` of a conversation of the principal's."""
    found = session.row("conversation_for_write", owner_of(principal) | {"conversation": conversation_id})
    if found is None:
        raise no_conversation()
    return found


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
        limit = rows_that_fit(found, limit)
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
    limit = rows_that_fit(found, limit)
    shown = [(to_message(message), at) for *message, at in found[:limit]]
    last, last_ordinal = shown[-1] if len(found) > limit else (None, 0)
    return Page(
        data=tuple(message for message, _ in shown),
        next_cursor=None if last is None else encode_cursor(of, last_ordinal, last.turn_sequence),
    )


def _create(
    session: Session, principal: Principal, new: NewConversation, conversation_id: ConversationId
) -> Conversation:
    check_new(has_workspace=has_workspace(session, principal), has_agent=_has_agent(session, principal, new.agent_id))
    check_user(session, principal)
    conversation = new_conversation(principal, new, conversation_id, session.now)
    session.run("insert_conversation", insertion(conversation, principal.org_id))
    if new.title is not None:
        refresh_title(session, conversation_id, new.title)
    return by_id(session, conversation_id)


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


def _delete_idle(session: Session, unchanged_since: int, limit: int) -> int:
    which = {"since": unchanged_since, "end": first_conversation_id(unchanged_since), "limit": limit}
    found = session.rows("idle_conversations", which)
    for (conversation_id,) in found:
        session.run("delete_conversation", {"conversation": conversation_id, "now": session.now})
        session.run("delete_files_with", {"conversation": conversation_id, "now": session.now})
    return len(found)


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
        for name in PURGED:
            session.run(name, which)
    alone = session.rows("purge_deleted_files", {"before": deleted_before, "limit": limit})
    keys.extend(key for (key,) in alone)
    return Purged(conversations=len(purged), storage_keys=tuple(sorted(keys)))


def by_id(session: Session, conversation_id: ConversationId) -> Conversation:
    return to_conversation(session.rows("conversation_by_id", {"conversation": conversation_id})[0])


Entry = tuple[ConversationId, str, int, str]
"""What a search can find: the conversation, the turn and the sequence of its row, and its tokens. A title stands under
the id of the conversation, with sequence -1."""
TitleEntry = tuple[str, Entry]
"""A title as it was read, and its entry."""


class Chunk(Struct, frozen=True):
    """Entries for the turns after `after` up to `last`, and for the title if no search finds it yet."""

    conversation_id: ConversationId
    after: int
    last: int
    entries: Sequence[Entry]
    titles: Sequence[TitleEntry]


def _pending(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[PendingConversation]:
    found = session.rows("pending_conversations", {"workspace": workspace_id, "limit": limit})
    return [PendingConversation(*row) for row in found]


def _pending_titles(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[TitleEntry]:
    found = session.rows("pending_titles", {"workspace": workspace_id, "limit": limit})
    return [entry for row in found for entry in _title_entries(*row)]


def _chunks_of(session: Session, group: Sequence[PendingConversation]) -> list[Chunk]:
    """Read and tokenise the next turns. It may run beside the writer; `_write_chunks` looks whether it still holds."""
    return [_chunk_of(session, each) for each in group]


def _chunk_of(session: Session, pending: PendingConversation) -> Chunk:
    id_ = pending.id
    entries = [
        (id_, turn_id, sequence, tokens)
        for turn_id, sequence, blocks, display in session.rows("rows_to_index", (id_, pending.after, pending.last))
        if (tokens := _tokens(words_of(to_content(blocks, display))))
    ]
    return Chunk(id_, pending.after, pending.last, entries, _title_entries(id_, pending.title))


def _title_entries(conversation_id: ConversationId, title: str | None) -> list[TitleEntry]:
    """Empty for a title of punctuation alone."""
    tokens = _tokens(title or "")
    return [(title, (conversation_id, conversation_id, -1, tokens))] if title and tokens else []


def _tokens(text: str) -> str:
    return " ".join(tokens_of(text))


def _write_chunks(session: Session, chunks: Sequence[Chunk]) -> list[ConversationId]:
    """Add the entries; return the conversations that were marked. For others another worker was quicker."""
    marked = [each for each in chunks if session.run("mark_indexed", (each.conversation_id, each.after, each.last))]
    _add(session, [entry for chunk in marked for entry in chunk.entries])
    _add_titles(session, [title for chunk in marked for title in chunk.titles])
    return [chunk.conversation_id for chunk in marked]


def _add_titles(session: Session, titles: Sequence[TitleEntry]) -> None:
    """Let these titles be found, unless they were changed or added since they were read."""
    _add(session, [entry for title, entry in titles if session.row("pending_title", (entry[0], title)) is not None])


def refresh_title(session: Session, conversation_id: ConversationId, title: str) -> None:
    """Let this title be found instead of the one before."""
    old = session.row("title_entry", {"conversation": conversation_id})
    if old is not None:
        session.run("drop_tokens", {"n": old[0]})
        session.run("drop_entry", {"n": old[0]})
    _add(session, [entry for _, entry in _title_entries(conversation_id, title)])


def _add(session: Session, entries: Sequence[Entry]) -> None:
    """All entries with one statement, and all tokens with another. Only this thread writes, so it gives the numbers."""
    if not entries:
        return
    [(last,)] = session.rows("last_entry")
    numbered = list(enumerate(entries, start=last + 1))
    session.many("add_entry", [(n, conversation, turn, sequence) for n, (conversation, turn, sequence, _) in numbered])
    session.many("add_tokens", [(n, tokens) for n, (_, _, _, tokens) in numbered])


def _candidates(
    session: Session, principal: Principal, query: SearchQuery, before: tuple[int, str], limit: int
) -> list[ConversationId]:
    """Conversations of the principal that match, newest change first."""
    updated_at, id_ = before
    values = owner_of(principal) | {"query": fts_text(query), "updated_at": updated_at, "id": id_, "limit": limit}
    return [conversation_id for (conversation_id,) in session.rows("search", values)]


def _newest_matches(
    session: Session, query: SearchQuery, conversation_ids: Sequence[ConversationId]
) -> dict[ConversationId, tuple[str, int]]:
    """The place `(turn_id, turn_sequence)` of the newest matching message of each conversation that has one."""
    found = session.rows("newest_matches", {"query": fts_text(query), "ids": json_text(conversation_ids)})
    return {conversation_id: (turn_id, sequence) for conversation_id, turn_id, sequence, _ in found}


def _my_hits(
    session: Session,
    query: SearchQuery,
    conversation_ids: list[ConversationId],
    places: dict[ConversationId, tuple[str, int]],
) -> list[Hit]:
    """What a search found, read as the client sees it, in the order of the ids."""
    rows = session.rows("my_conversations_by_id", {"ids": json_text(conversation_ids)})
    found = {conversation.id: conversation for conversation in map(to_conversation, rows)}
    hits = []
    for conversation_id in conversation_ids:
        if conversation_id not in found:
            continue
        conversation = found[conversation_id]
        shown = None
        if conversation_id in places:
            turn_id, sequence = places[conversation_id]
            row = session.row("my_message", {"turn": turn_id, "sequence": sequence})
            shown = snippet(words_of(_content_of(to_message(row))), query) if row is not None else None
        if shown is None and conversation.title is not None:
            shown = snippet(conversation.title, query)
        hits.append(Hit(conversation=conversation, snippet=shown))
    return hits


def _content_of(message: Message) -> tuple[Part, ...]:
    """What a reader sees of a visible row."""
    return message.display if message.display is not None else parts_of(message.blocks)


def list_key(cursor: str | None, of: str) -> tuple[int, str]:
    """Where a page of conversations begins: before this `(updated_at, id)`."""
    return (LATEST, "") if cursor is None else decode_cursor(cursor, of, tuple[int, str])


def _export(session: Session, principal: Principal, conversation_id: ConversationId) -> Exported:
    with session.snapshot():
        conversation = own_conversation(session, principal, conversation_id)
        which = {"conversation": conversation_id}
        return Exported(
            conversation=conversation,
            turns=tuple(_export_turn(session, to_turn(row)) for row in session.rows("conversation_turns", which)),
            files=tuple(to_file(row) for row in session.rows("files_of_conversation", which)),
        )


def _export_turn(session: Session, turn: Turn) -> TurnTrace:
    stored = session.rows("events_after", (turn.id, 0, ALL))
    return trace_of(session, turn, [to_recorded(*row) for row in stored])


def _import_renamed(session: Session, principal: Principal, exported: Exported) -> Conversation:
    """Insert what is given as it is; its ids were made for this database."""
    conversation = exported.conversation
    check_new(has_workspace=has_workspace(session, principal), has_agent=True)
    check_user(session, principal)
    session.run("insert_conversation", imported_conversation(exported, principal))
    if conversation.title is not None:
        refresh_title(session, conversation.id, conversation.title)
    for rows in imported_rows(exported.turns, principal):
        session.many("insert_imported_turn", rows.turns)
        session.many("insert_imported_message", rows.messages)
        session.many("insert_imported_event", rows.events)
        session.many("insert_imported_log", rows.logs)
    session.many("insert_file", imported_files(exported.files, principal))
    return by_id(session, conversation.id)
