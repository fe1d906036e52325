"""Search on PostgreSQL: filling the index, and what a query finds in it.

Tokens are our own (`searching.py`); PostgreSQL only keeps them, in a tsvector with a GIN index. Candidates come from
the index on the engine's path, filtered by their owner there, since row-level security would keep it from being used.
What is shown is read through the client path.
"""

from turnkeep.ids import ConversationId, WorkspaceId
from turnkeep.model.conversations import Hit
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, snippet, tokens_of
from turnkeep.store.postgres.database import Database, owner_of
from turnkeep.store.rows import to_content, to_conversation
from turnkeep_client.wire.display import words_of

CHUNK_TURNS = 100
INDEXED_BEFORE_SEARCH = 500


class Search:
    """The index of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def index_pending(self, workspace_id: WorkspaceId | None, *, limit: int) -> int:
        """Make settled turns searchable; return how many conversations were brought up to date. Each step moves the
        mark of its conversation only from where it found it, so several workers do not do the same twice."""
        done = 0
        await self._index_titles(workspace_id, limit)
        for conversation_id, after in await self._database.read("pending_conversations", workspace_id, limit):
            done += await self._index(conversation_id, after)
        return done

    async def find(self, principal: Principal, query: SearchQuery, before: tuple[int, str], limit: int) -> list[Hit]:
        """Conversations of the principal that match, newest change first, with the place where they match."""
        await self.index_pending(principal.workspace_id, limit=INDEXED_BEFORE_SEARCH)
        match = _tsquery(query)
        found = await self._database.read("found_conversations", *owner_of(principal), match, *before, limit)
        ids = [row[0] for row in found]
        if not ids:
            return []
        rows = await self._database.read_as(principal, "my_found", ids)
        texts = await self._matching_texts(principal, ids, match)
        hits = []
        for conversation in map(to_conversation, rows):
            shown = snippet(texts.get(conversation.id, ""), query)
            if shown is None and conversation.title is not None:
                shown = snippet(conversation.title, query)
            hits.append(Hit(conversation=conversation, snippet=shown))
        return hits

    async def _index_titles(self, workspace_id: WorkspaceId | None, limit: int) -> None:
        titles = sorted(tuple(row) for row in await self._database.read("pending_titles", workspace_id, limit))
        if titles:
            await self._database.write(
                "index_titles",
                [conversation_id for conversation_id, _ in titles],
                [title for _, title in titles],
                [" ".join(tokens_of(title)) for _, title in titles],
            )

    async def _index(self, conversation_id: ConversationId, after: int) -> bool:
        """Chunk by chunk, so that a long import is neither read nor locked whole."""
        while True:
            found = await self._database.read("settled_up_to", conversation_id)
            if not found or found[0][0] <= after:
                return bool(found)
            end, title = found[0]
            last = min(end, after + CHUNK_TURNS)
            rows = await self._database.read("rows_to_index", conversation_id, after, last)
            entries = [
                (turn_id, sequence, " ".join(tokens_of(words_of(to_content(blocks, display)))))
                for turn_id, sequence, blocks, display in rows
            ]
            kept = [entry for entry in entries if entry[2]]
            answer = await self._database.write(
                "index_turns",
                conversation_id,
                after,
                last,
                title,
                None if title is None else tokens_of(title),
                [entry[0] for entry in kept],
                [entry[1] for entry in kept],
                [entry[2] for entry in kept],
            )
            if not answer[0][0]:
                return False
            after = last
            if after >= end:
                return True

    async def _matching_texts(
        self, principal: Principal, ids: list[ConversationId], match: str
    ) -> dict[ConversationId, str]:
        """The words of the newest matching message of each conversation that has one."""
        places = await self._database.read("found_messages", ids, match)
        if not places:
            return {}
        turns, sequences = [place[0] for place in places], [place[1] for place in places]
        rows = await self._database.read_as(principal, "my_messages", turns, sequences)
        return {row[0]: words_of(to_content(row[1], row[2])) for row in rows}


def _tsquery(query: SearchQuery) -> str:
    """Every token must occur, the prefixes as beginnings. Tokens hold only letters, digits and marks; they are quoted
    all the same, so that nothing depends on it."""
    words = [_quoted(word) for word in query.words]
    prefixes = [_quoted(prefix) + ":*" for prefix in query.prefixes]
    return " & ".join(words + prefixes)


def _quoted(token: str) -> str:
    return "'" + token.replace("\\", "\\\\").replace("'", "''") + "'"
