"""Conversations on SQLite: created, listed, searched, read, changed, deleted, purged, exported and imported.

The search is over titles and visible messages. Its tokens are made in Python; SQLite's full-text table only keeps them.
The index is filled after turns have settled, in chunks, so that no turn and no other write waits for it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import ExternalIdTaken, InvalidRequest
from turnkeep.ids import (
    AgentId,
    ConversationId,
    FileId,
    OutboxId,
    TurnId,
    WorkspaceId,
    check_id,
    first_conversation_id,
    new_conversation_id,
)
from turnkeep.model.conversations import Conversation, ConversationFolder, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.outbox import OutboxEntry
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, parse_query, snippet, tokens_of
from turnkeep.model.turns import Turn
from turnkeep.store import checks
from turnkeep.store.checks import check_service
from turnkeep.store.commands import (
    EVERYTHING,
    PAGE_BYTES,
    ConversationChange,
    ConversationFilter,
    ConversationWithQueue,
    Exported,
    NewConversation,
    Page,
    Purged,
    RemovedBlocks,
    TurnTrace,
    page_of,
    rows_that_fit,
)
from turnkeep.store.cursors import (
    TRASH,
    decode_cursor,
    encode_cursor,
    list_cursor,
    list_of,
    messages_of,
    rows_of,
    trash_cursor,
)
from turnkeep.store.exports import checked_and_renamed
from turnkeep.store.fulltext import CHUNK_TURNS, SWEPT_WRITES, PendingConversation, fts_text, index_in_chunks
from turnkeep.store.rows import (
    conversation_record,
    json_text,
    to_content,
    to_conversation,
    to_file,
    to_message,
    to_public_message,
    to_recorded,
    to_removed,
    to_turn,
    turns_with_siblings,
    with_versions,
)
from turnkeep.store.rules.claims import counted_scopes, named_rows, named_traces
from turnkeep.store.rules.conversations import (
    FOLDERS,
    Ahead,
    Head,
    changed,
    check_expected_head,
    check_head,
    check_idle,
    check_new,
    imported_conversation,
    imported_rows,
    insertion,
    new_conversation,
    no_conversation,
    no_folder,
    removed_with,
    without_external_id,
)
from turnkeep.store.rules.files import imported_files
from turnkeep.store.sqlite.directory import check_user, has_workspace
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Row, Session, in_workspace, owner_of
from turnkeep.store.sqlite.leases import cancel_all_waiting, show_chain
from turnkeep.store.sqlite.outbox import has_due, take_due
from turnkeep.store.sqlite.turns import ALL, append_turn, attach_files, trace_of
from turnkeep_client.wire.blocks import Part, Usage
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

    async def conversation_of_host(self, principal: Principal, external_id: str) -> Conversation | None:
        return await self._read(_of_host, principal, checks.check_external_id(external_id))

    async def conversations(
        self,
        principal: Principal,
        *,
        query: str | None = None,
        only: ConversationFilter = EVERYTHING,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        checks.check_limit(limit)
        checks.check_filter(only)
        if query is not None:
            checks.check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
            return await self._search(principal, query, only, limit, cursor)
        if only != EVERYTHING:
            return await self._filtered(principal, only, limit, cursor)
        return await self._see(principal, _my_list, principal, limit, cursor)

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        check_id(conversation_id, "conv")
        checks.check_change(change)
        if change.agent_id is not None:
            check_id(change.agent_id, "agent")
        if change.head_turn_id is not None:
            check_id(change.head_turn_id, "turn")
        for turn in change.appended:
            checks.check_append(conversation_id, turn)
        return await self._write(_change, principal, conversation_id, change)

    async def folders(self, principal: Principal) -> list[ConversationFolder]:
        return await self._see(principal, _my_folders, principal)

    async def rename_folder(self, principal: Principal, name: str, new_name: str | None) -> int:
        checks.check_folder(name)
        if new_name is not None:
            checks.check_folder(new_name)
        return await self._write(_rename_folder, principal, name, new_name)

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        await self._write(_delete, principal, check_id(conversation_id, "conv"))

    async def deleted_conversations(
        self, principal: Principal, *, limit: int = 20, cursor: str | None = None
    ) -> Page[Conversation]:
        checks.check_limit(limit)
        return await self._read(_trash, principal, limit, cursor)

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        return await self._write(_restore, principal, check_id(conversation_id, "conv"))

    async def delete_idle(self, *, unchanged_since: int, limit: int = 100) -> int:
        return await self._write(_delete_old, "idle_conversations", unchanged_since, limit)

    async def delete_unlisted(self, *, unchanged_since: int, limit: int = 100) -> int:
        return await self._write(_delete_old, "old_unlisted_conversations", unchanged_since, limit)

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

    async def _filtered(
        self, principal: Principal, only: ConversationFilter, limit: int, cursor: str | None
    ) -> Page[Hit]:
        """An index gives the ids of this owner's page. What the reader gets is then read on the client path."""
        of = list_of(None, only)
        found = await self._read(_listed, principal, only, list_key(cursor, of), limit + 1)
        hits, fit = await self._see(principal, _my_listed, found, limit)
        return page_of(hits, limit=fit, cursor_of=lambda hit: list_cursor(of, hit))

    async def _search(
        self, principal: Principal, query: str, only: ConversationFilter, limit: int, cursor: str | None
    ) -> Page[Hit]:
        """The index gives candidates of this owner. What the reader gets is then read on the client path."""
        wanted = parse_query(query)
        of = list_of(query, only)
        before = list_key(cursor, of)
        if wanted.is_empty:
            return Page(data=())
        await self._index(principal.workspace_id, INDEXED_BEFORE_SEARCH)
        found = await self._read(_candidates, principal, wanted, only, before, limit + 1)
        places = await self._read(_newest_matches, wanted, found) if found else {}
        hits, fit = await self._see(principal, _my_hits, wanted, found, places, limit)
        return page_of(hits, limit=fit, cursor_of=lambda hit: list_cursor(of, hit))

    async def index_pending(self, *, limit: int = 500) -> int:
        indexed = await self._index(None, limit, SWEPT_WRITES)
        await self._write(_park_waiting)
        return indexed

    async def _index(self, workspace_id: WorkspaceId | None, limit: int, writes: int | None = None) -> int:
        """Tokens are made by a reader; the writer only stores them, a chunk at a time."""

        async def write(group: Sequence[PendingConversation]) -> list[ConversationId]:
            return await self._write(_write_chunks, await self._read(_chunks_of, group))

        done = await index_in_chunks(lambda: self._read(_pending, workspace_id, limit), write, writes=writes)
        if titles := await self._read(_pending_titles, workspace_id, limit):
            await self._write(_add_titles, titles)
        return done

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        check_service(principal)
        return await self._read(_export, principal, check_id(conversation_id, "conv"))

    async def import_conversation(
        self, principal: Principal, exported: Exported, *, attached: Sequence[FileId] = ()
    ) -> Conversation:
        checks.check_ids(attached, "file")
        renamed = await asyncio.to_thread(checked_and_renamed, exported, principal, attached)
        return await self._write(_import_renamed, principal, renamed, attached)

    async def want_titles(self, turn_ids: Sequence[TurnId], *, by_default: bool) -> bool:
        return bool(turn_ids) and await self._write(_want_titles, list(turn_ids), by_default)

    async def take_titles(self, *, limit: int = 10, lease_seconds: float) -> list[OutboxEntry]:
        if not await self._read(has_due, True):
            return []
        return await self._write(take_due, limit, int(lease_seconds * 1000), True)

    async def end_title(
        self, entry_id: OutboxId, title: str | None, *, model: str, usage: Usage, cost: float | None
    ) -> bool:
        checks.check_title(title)
        return await self._write(_end_title, entry_id, title, model, usage, cost)


def _want_titles(session: Session, turn_ids: Sequence[TurnId], by_default: bool) -> bool:
    return session.run("want_titles", {"turns": json_text(turn_ids), "now": session.now, "by_default": by_default}) > 0


def _end_title(
    session: Session, entry_id: OutboxId, title: str | None, model: str, usage: Usage, cost: float | None
) -> bool:
    ended = session.row("ended_title", {"id": entry_id})
    if ended is None:
        return False
    conversation_id, turn_id = ended
    is_written = session.run("write_title", {"conversation": conversation_id, "title": title}) > 0 and title is not None
    if is_written and title is not None:
        refresh_title(session, conversation_id, title)
    turn = session.row("titled_turn", {"turn": turn_id})
    if turn is not None and usage.input_tokens + usage.output_tokens:
        org_id, workspace_id, user_id, key_id, agent_id, source = turn
        month, spent = month_of(session.now), (usage.input_tokens, usage.output_tokens, cost or 0.0)
        scopes = counted_scopes(workspace_id, user_id, [] if key_id is None else [key_id])
        session.many("count_tokens", [(org_id, *scope, month, *spent) for scope in scopes])
        session.run(
            "count_title",
            {
                "org_id": org_id,
                "workspace_id": workspace_id,
                "user_id": user_id,
                "agent_id": agent_id,
                "source": source,
                "model": model,
                "now": session.now,
                "input": usage.input_tokens,
                "output": usage.output_tokens,
                "cache_read": usage.cache_read_tokens,
                "cache_write": usage.cache_write_tokens,
                "cost": cost,
            },
        )
    return is_written


def _park_waiting(session: Session) -> None:
    session.run("park_waiting")


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
    values = owner_of(principal) | {"updated_at": updated_at, "id": id_, "limit": limit + 1, "bytes": PAGE_BYTES}
    name = "my_conversations_of_workspace" if values["user"] is None else "my_conversations_of_user"
    del values["org"]
    if values["user"] is None:
        del values["user"]
    rows = session.rows(name, values)
    hits = [Hit(conversation=to_conversation(row), snippet=None) for row in rows]
    return page_of(hits, limit=rows_that_fit(rows, limit), cursor_of=lambda hit: list_cursor(of, hit))


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
        messages = [to_public_message(conversation_id, (*each.message, siblings.get(each.turn_id))) for each in shown]
        beside = turns_with_siblings(messages)
        # The first question of a turn is its question: the last row wins, and that is the first one.
        questions: dict[TurnId, str] = dict(session.rows("questions", (json_text(beside),))) if beside else {}
    last = shown[-1] if len(found) > limit else None
    return Page(
        data=with_versions(messages, questions),
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


def _of_host(session: Session, principal: Principal, external_id: str) -> Conversation | None:
    """The conversation of the principal that has this external id."""
    values = {"workspace": principal.workspace_id, "owner": principal.user_id or "", "external_id": external_id}
    found = session.row("conversation_of_host", values)
    return None if found is None else to_conversation(found)


def _create(
    session: Session, principal: Principal, new: NewConversation, conversation_id: ConversationId
) -> Conversation:
    check_new(has_workspace=has_workspace(session, principal), has_agent=_has_agent(session, principal, new.agent_id))
    check_user(session, principal)
    if new.external_id is not None and (taken := _of_host(session, principal, new.external_id)) is not None:
        raise ExternalIdTaken(taken.id)
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
    if wanted.appended or wanted.removed:
        check_idle(_ahead(session, conversation_id))
    check_expected_head(before.head_turn_id, wanted)
    if wanted.head_turn_id is not None:
        head = session.row("turn_as_head", {"conversation": conversation_id, "turn": wanted.head_turn_id})
        check_head(Head(*head) if head else None, _ahead(session, conversation_id))
        more_turns, more_messages = show_chain(session, conversation_id, wanted.head_turn_id)
    elif "head_turn_id" in wanted.without:
        check_idle(_ahead(session, conversation_id))
        more_turns, more_messages = show_chain(session, conversation_id, None)
    more_messages -= _remove_blocks(session, conversation_id, wanted.removed)
    after = changed(before, wanted, session.now, more_turns=more_turns, more_messages=more_messages)
    session.run("change_conversation", conversation_record(after))
    if wanted.title is not None:
        refresh_title(session, conversation_id, wanted.title)
    rows = [row for turn in wanted.appended for row in turn.rows]
    joined = attach_files(session, principal, conversation_id, wanted.attached, rows)
    for turn in wanted.appended:
        named = structs.replace(turn, rows=named_rows(turn.rows, joined))
        append_turn(session, principal, conversation_id, named)
    return by_id(session, conversation_id)


def _my_folders(session: Session, principal: Principal) -> list[ConversationFolder]:
    rows = session.rows("my_folders", {"workspace": principal.workspace_id, "limit": FOLDERS})
    return [ConversationFolder(name=name, conversations=count) for name, count in rows]


def _rename_folder(session: Session, principal: Principal, name: str, new_name: str | None) -> int:
    moved = session.run("rename_folder", owner_of(principal) | {"name": name, "new_name": new_name})
    if not moved:
        raise no_folder()
    return moved


def _remove_blocks(session: Session, conversation_id: ConversationId, removed: Sequence[RemovedBlocks]) -> int:
    """Remove these blocks; return how many messages of the visible chain are hidden with it."""
    hidden = 0
    for each in removed:
        which = {"conversation": conversation_id, "turn": each.turn_id, "sequence": each.turn_sequence}
        found = session.row("removed_of", which)
        if found is None:
            continue
        text, is_visible, is_active = found
        before = to_removed(text) if text else ()
        after = removed_with(before, each.removed)
        del which["conversation"]
        session.run("remove_blocks", which | {"removed": json_text(after)})
        if after == "all" and before != "all" and is_visible:
            hidden += is_active
            _forget_entry(session, which | {"conversation": conversation_id})
    if removed:
        session.run("take_ordinal", {"conversation": conversation_id})
    return hidden


def _forget_entry(session: Session, which: dict[str, Any]) -> None:
    """Let no search find this message any more."""
    for (n,) in session.rows("entry_of_row", which):
        session.run("drop_tokens", {"n": n})
        session.run("drop_entry", {"n": n})


def _ahead(session: Session, conversation_id: ConversationId) -> Ahead | None:
    ahead = session.row("turn_ahead", {"conversation": conversation_id})
    return Ahead(*ahead) if ahead else None


def _delete(session: Session, principal: Principal, conversation_id: ConversationId) -> None:
    running = own_conversation(session, principal, conversation_id).running_turn_id
    which = {"conversation": conversation_id, "now": session.now}
    session.run("delete_conversation", which)
    session.run("delete_files_with", which)
    if running is not None:
        session.run("request_cancel", {"turn": running, "now": session.now})
    cancel_all_waiting(session, conversation_id)


def _delete_old(session: Session, query: str, unchanged_since: int, limit: int) -> int:
    which = {"since": unchanged_since, "end": first_conversation_id(unchanged_since), "limit": limit}
    found = session.rows(query, which)
    for (conversation_id,) in found:
        session.run("delete_conversation", {"conversation": conversation_id, "now": session.now})
        session.run("delete_files_with", {"conversation": conversation_id, "now": session.now})
    return len(found)


def _trash(session: Session, principal: Principal, limit: int, cursor: str | None) -> Page[Conversation]:
    deleted_at, id_ = list_key(cursor, TRASH)
    values = owner_of(principal) | {"deleted_at": deleted_at, "id": id_, "limit": limit + 1}
    rows = session.rows("deleted_conversations", values)
    return page_of([to_conversation(row) for row in rows], limit=rows_that_fit(rows, limit), cursor_of=trash_cursor)


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
    found = session.rows("pending_conversations", {"workspace": workspace_id, "limit": limit, "turns": CHUNK_TURNS})
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
    session: Session,
    principal: Principal,
    query: SearchQuery,
    only: ConversationFilter,
    before: tuple[int, str],
    limit: int,
) -> list[ConversationId]:
    """Conversations of the principal that match, newest change first."""
    updated_at, id_ = before
    values = owner_of(principal) | _filter_values(only)
    values |= {"query": fts_text(query), "updated_at": updated_at, "id": id_}
    values |= {"limit": limit, "bytes": PAGE_BYTES}
    return [conversation_id for (conversation_id,) in session.rows("search", values)]


def _filter_values(only: ConversationFilter) -> dict[str, Any]:
    return {
        "external_id": only.external_id,
        "agent": only.agent_id,
        "kind": only.kind,
        "since": only.since or 0,
        "pinned": only.is_pinned,
        "folder": only.folder,
        "filed": only.is_filed,
    }


def _listed(
    session: Session, principal: Principal, only: ConversationFilter, before: tuple[int, str], limit: int
) -> list[ConversationId]:
    """Conversations of the principal that the filter leaves, newest change first."""
    name = "listed_conversations"
    if only.external_id is not None:
        name = "listed_of_external_id"
    elif only.agent_id is not None:
        name = "listed_of_agent"
    elif only.folder is not None:
        name = "listed_of_folder"
    elif only.kind is not None and only.kind != "chat":
        name = "listed_of_kind"
    updated_at, id_ = before
    values = owner_of(principal) | _filter_values(only) | {"updated_at": updated_at, "id": id_, "limit": limit}
    if name == "listed_conversations" and only.is_pinned and values["user"] is not None:
        name = "listed_pinned"
    return [conversation_id for (conversation_id,) in session.rows(name, values)]


def _my_listed(session: Session, conversation_ids: list[ConversationId], limit: int) -> tuple[list[Hit], int]:
    """These conversations, read as the client sees them, in the order of the ids; and how many of them a page shows."""
    rows = session.rows("my_conversations_by_id", {"ids": json_text(conversation_ids)})
    places = {conversation_id: place for place, conversation_id in enumerate(conversation_ids)}
    found = sorted(((to_conversation(row), row) for row in rows), key=lambda each: places[each[0].id])
    hits = [Hit(conversation=conversation, snippet=None) for conversation, _ in found]
    return hits, rows_that_fit([row for _, row in found], limit)


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
    limit: int,
) -> tuple[list[Hit], int]:
    """What a search found, read as the client sees it, in the order of the ids; and how many of it a page shows."""
    rows = session.rows("my_conversations_by_id", {"ids": json_text(conversation_ids)})
    seen = [(to_conversation(row), row) for row in rows]
    by_id = {conversation.id: (conversation, row) for conversation, row in seen}
    found = [by_id[conversation_id] for conversation_id in conversation_ids if conversation_id in by_id]
    hits = []
    for conversation, _ in found:
        shown = None
        if conversation.id in places:
            turn_id, sequence = places[conversation.id]
            row = session.row("my_message", {"turn": turn_id, "sequence": sequence})
            shown = snippet(words_of(_content_of(to_message(row))), query) if row is not None else None
        if shown is None and conversation.title is not None:
            shown = snippet(conversation.title, query)
        hits.append(Hit(conversation=conversation, snippet=shown))
    return hits, rows_that_fit([row for _, row in found], limit)


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


def _import_renamed(
    session: Session, principal: Principal, exported: Exported, attached: Sequence[FileId]
) -> Conversation:
    """Insert what is given as it is; its ids were made for this database."""
    check_new(has_workspace=has_workspace(session, principal), has_agent=True)
    check_user(session, principal)
    external_id = exported.conversation.external_id
    if external_id is not None and _of_host(session, principal, external_id) is not None:
        exported = without_external_id(exported)
    conversation = exported.conversation
    session.run("insert_conversation", imported_conversation(exported, principal))
    if conversation.title is not None:
        refresh_title(session, conversation.id, conversation.title)
    brought = [row for trace in exported.turns for row in trace.rows] if attached else []
    joined = attach_files(session, principal, conversation.id, attached, brought)
    for rows in imported_rows(named_traces(exported.turns, joined), principal):
        session.many("insert_imported_turn", rows.turns)
        session.many("insert_imported_message", rows.messages)
        session.many("insert_imported_event", rows.events)
        session.many("insert_imported_log", rows.logs)
    session.many("insert_file", imported_files(exported.files, principal))
    return by_id(session, conversation.id)
