"""`search_pages`: the workspace's pages, by their words. `search_conversations`: what this user has talked about."""

from typing import Annotated

from msgspec import Meta, Struct, structs

from turnkeep.knowledge.tooling import SNIPPET_CHARS, KnowledgeTool, cut, fitted, nothing, room_for
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import loosened, parse_query
from turnkeep.store.ports import ConversationStore, KnowledgeStore
from turnkeep.tools.ports import CallContext, Outcome, Passage, Tool
from turnkeep_client.wire.events import Source

AT_ONCE = 5
CONVERSATIONS_LOOKED_AT = 100

Words = Annotated[str, Meta(min_length=1, max_length=500, description="Words to look for")]
Offset = Annotated[int, Meta(ge=0, le=10_000, description="Pass over so many results: for the next ones")]


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Words
    offset: Offset = 0


def search_pages(store: KnowledgeStore) -> Tool:
    async def run(asked: Search, context: CallContext) -> Outcome:
        found = await store.search_pages(
            context.principal, asked.query, limit=AT_ONCE, offset=asked.offset, chars=room_for(context, AT_ONCE)
        )
        passages = [
            Passage(
                source=Source(
                    title=hit.title, snippet=cut(hit.excerpt, SNIPPET_CHARS), page_id=hit.page_id, place=hit.place
                ),
                text=hit.excerpt,
            )
            for hit in found.hits
        ]
        if not passages:
            return nothing(asked.query)
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset)

    return KnowledgeTool(
        "search_pages",
        """Search the pages (documents) of this workspace by words. Returns excerpts, best first, each with a number
        to cite it by.""",
        Search,
        run,
    )


def search_conversations(store: ConversationStore) -> Tool:
    async def run(asked: Search, context: CallContext) -> Outcome:
        here = await store.conversation(context.principal, context.conversation_id)
        hits = await _earlier(store, context.principal, here, asked.query)
        shown = hits[asked.offset : asked.offset + AT_ONCE]
        if not shown:
            return nothing(asked.query)
        end = asked.offset + len(shown)
        passages = [_passage(hit, room_for(context, AT_ONCE)) for hit in shown]
        return fitted(passages, context, offset=asked.offset, next_offset=end if end < len(hits) else None)

    return KnowledgeTool(
        "search_conversations",
        """Search this user's earlier conversations by words: what was asked and answered before. Newest first.""",
        Search,
        run,
    )


async def _earlier(store: ConversationStore, principal: Principal, here: Conversation, query: str) -> list[Hit]:
    """Conversations of the user of this one that match, without this one. A key that acts for nobody may read them
    all; a model that answers one user must not."""
    if here.user_id is not None:
        principal = structs.replace(principal, user_id=here.user_id)
    for words in dict.fromkeys((query, _without_common(query))):
        found = await store.conversations(principal, query=words, limit=CONVERSATIONS_LOOKED_AT)
        hits = [
            hit for hit in found.data if hit.conversation.user_id == here.user_id and hit.conversation.id != here.id
        ]
        if hits:
            return hits
    return []


def _without_common(query: str) -> str:
    wanted = loosened(parse_query(query))
    return " ".join((*wanted.words, *wanted.prefixes))


def _passage(hit: Hit, chars: int) -> Passage:
    conversation = hit.conversation
    snippet = (hit.snippet or conversation.preview or "").replace("**", "")
    title = conversation.title or cut(conversation.preview or "A conversation", 80)
    source = Source(title=title, snippet=cut(snippet, SNIPPET_CHARS), conversation_id=conversation.id)
    return Passage(source=source, text=cut(snippet, chars))
