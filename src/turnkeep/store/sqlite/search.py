"""The search over titles and visible messages on SQLite: how its index is filled, and what a query finds.

Tokens are made in Python; SQLite's full-text table only keeps them. The index is filled after turns have settled, in
chunks, so that no turn and no other write waits for it.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from turnkeep.ids import ConversationId, WorkspaceId
from turnkeep.model.conversations import Hit
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, parse_query, snippet, tokens_of
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, list_cursor, list_of
from turnkeep.store.fulltext import fts_text
from turnkeep.store.rows import json_text, to_conversation, to_message
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import owner_of
from turnkeep_client.wire.blocks import Part
from turnkeep_client.wire.display import parts_of, words_of

LATEST = 2**62
"""Later than every change."""
CHUNK_TURNS = 100
INDEXED_BEFORE_SEARCH = 500


class SqliteSearch(StoreThreads):
    """The search over titles and visible messages."""

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
        done = 0
        if titles := await self._read(_pending_titles, workspace_id, limit):
            await self._write(_index_titles, titles)
        for pending in await self._read(_pending, workspace_id, limit):
            after, is_ours = pending.after, True
            while is_ours:
                chunk = await self._read(_next_chunk, pending.conversation_id, after)
                is_ours = chunk.last > after and await self._write(_write_chunk, chunk)
                after = chunk.last
                if chunk.is_complete:
                    break
            done += is_ours
        return done


class Pending(Struct, frozen=True):
    """A conversation that has settled turns after `after`."""

    conversation_id: ConversationId
    after: int


class Chunk(Struct, frozen=True):
    """Entries for the turns after `after` up to `last`: `(turn_id, turn_sequence, tokens)`."""

    conversation_id: ConversationId
    after: int
    last: int
    is_complete: bool
    entries: Sequence[tuple[str, int, str]]


def _pending(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[Pending]:
    found = session.rows("pending_conversations", {"workspace": workspace_id, "limit": limit})
    return [Pending(conversation_id, after) for conversation_id, after in found]


def _pending_titles(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[ConversationId]:
    found = session.rows("pending_titles", {"workspace": workspace_id, "limit": limit})
    return [conversation_id for (conversation_id,) in found]


def _next_chunk(session: Session, conversation_id: ConversationId, after: int) -> Chunk:
    """Read and tokenise the next turns. It may run beside the writer; `write_chunk` looks whether it still holds."""
    settled = session.rows("settled_up_to", {"conversation": conversation_id})
    end = settled[0][0] if settled else after
    last = min(end, after + CHUNK_TURNS)
    found = session.rows("rows_to_index", {"conversation": conversation_id, "after": after, "last": last})
    entries = [
        (message.turn_id, message.turn_sequence, " ".join(tokens_of(words_of(_content_of(message)))))
        for message in map(to_message, found)
    ]
    return Chunk(conversation_id, after, last, last >= end, entries)


def _write_chunk(session: Session, chunk: Chunk) -> bool:
    """Add the entries. False if another worker has indexed these turns meanwhile."""
    which: dict[str, Any] = {"conversation": chunk.conversation_id}
    if not session.run("mark_indexed", which | {"after": chunk.after, "last": chunk.last}):
        return False
    for turn_id, sequence, tokens in chunk.entries:
        if tokens:
            _add(session, which | {"turn": turn_id, "sequence": sequence}, tokens)
    _index_titles(session, [chunk.conversation_id])
    return True


def _index_titles(session: Session, conversation_ids: Sequence[ConversationId]) -> None:
    """Let the titles of these conversations be found as they are now."""
    for conversation_id in conversation_ids:
        for (title,) in session.rows("title_of", {"conversation": conversation_id}):
            refresh_title(session, conversation_id, title)


def refresh_title(session: Session, conversation_id: ConversationId, title: str) -> None:
    """Let this title be found instead of the one before."""
    which = {"conversation": conversation_id}
    old = session.row("title_entry", which)
    if old is not None:
        session.run("drop_tokens", {"n": old[0]})
        session.run("drop_entry", {"n": old[0]})
    tokens = " ".join(tokens_of(title))
    if tokens:
        _add(session, which | {"turn": conversation_id, "sequence": -1}, tokens)


def _add(session: Session, entry: dict[str, Any], tokens: str) -> None:
    n = session.rows("add_entry", entry)[0][0]
    session.run("add_tokens", {"n": n, "tokens": tokens})


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
