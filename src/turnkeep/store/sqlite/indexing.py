"""The search index: which entries there are, how they come into being, and what a query finds among them.

Tokens are made by our own rules in Python; SQLite's full-text table only keeps them. It is filled after turns have
settled, in chunks, so that no turn and no other write waits for it.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from turnkeep.ids import ConversationId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, tokens_of
from turnkeep.store.rows import json_text, to_message
from turnkeep.store.sqlite.owning import owner_of
from turnkeep.store.sqlite.reading import content_of
from turnkeep.store.sqlite.session import Session
from turnkeep_client.wire.display import words_of

CHUNK_TURNS = 100


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


def pending(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[Pending]:
    found = session.rows("pending_conversations", {"workspace": workspace_id, "limit": limit})
    return [Pending(conversation_id, after) for conversation_id, after in found]


def pending_titles(session: Session, workspace_id: WorkspaceId | None, limit: int) -> list[ConversationId]:
    found = session.rows("pending_titles", {"workspace": workspace_id, "limit": limit})
    return [conversation_id for (conversation_id,) in found]


def next_chunk(session: Session, conversation_id: ConversationId, after: int) -> Chunk:
    """Read and tokenise the next turns. It may run beside the writer; `write_chunk` looks whether it still holds."""
    settled = session.rows("settled_up_to", {"conversation": conversation_id})
    end = settled[0][0] if settled else after
    last = min(end, after + CHUNK_TURNS)
    found = session.rows("rows_to_index", {"conversation": conversation_id, "after": after, "last": last})
    entries = [
        (message.turn_id, message.turn_sequence, " ".join(tokens_of(words_of(content_of(message)))))
        for message in map(to_message, found)
    ]
    return Chunk(conversation_id, after, last, last >= end, entries)


def write_chunk(session: Session, chunk: Chunk) -> bool:
    """Add the entries, unless somebody else has indexed these turns meanwhile (False)."""
    which: dict[str, Any] = {"conversation": chunk.conversation_id}
    if not session.run("mark_indexed", which | {"after": chunk.after, "last": chunk.last}):
        return False
    for turn_id, sequence, tokens in chunk.entries:
        if tokens:
            _add(session, which | {"turn": turn_id, "sequence": sequence}, tokens)
    index_titles(session, [chunk.conversation_id])
    return True


def index_titles(session: Session, conversation_ids: Sequence[ConversationId]) -> None:
    """Let the titles of these conversations be found as they are now."""
    for conversation_id in conversation_ids:
        row = session.row("title_of", {"conversation": conversation_id})
        if row is not None and row[0] is not None:
            refresh_title(session, conversation_id, row[0])


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


def candidates(
    session: Session, principal: Principal, query: SearchQuery, before: tuple[int, str], limit: int
) -> list[ConversationId]:
    """Conversations of the principal that match, newest change first."""
    updated_at, id_ = before
    values = owner_of(principal) | {"query": _match(query), "updated_at": updated_at, "id": id_, "limit": limit}
    return [conversation_id for (conversation_id,) in session.rows("search", values)]


def newest_matches(
    session: Session, query: SearchQuery, conversation_ids: Sequence[ConversationId]
) -> dict[ConversationId, tuple[str, int]]:
    """The place `(turn_id, turn_sequence)` of the newest matching message of each conversation that has one."""
    found = session.rows("newest_matches", {"query": _match(query), "ids": json_text(conversation_ids)})
    return {conversation_id: (turn_id, sequence) for conversation_id, turn_id, sequence, _ in found}


def _match(query: SearchQuery) -> str:
    """FTS5's words for it. Tokens hold no quotes, so quoting makes them plain words to it."""
    return " ".join([*(f'"{word}"' for word in query.words), *(f'"{prefix}"*' for prefix in query.prefixes)])
