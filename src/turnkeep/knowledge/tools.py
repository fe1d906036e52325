"""The native tools over knowledge: their list, `search_pages` and `search_conversations`."""

from msgspec import structs

from turnkeep.knowledge.file_texts import FileTexts
from turnkeep.knowledge.file_tools import VisibleFiles, read_file, search_files
from turnkeep.knowledge.table_tools import save_to_table, search_user_tables
from turnkeep.knowledge.tool_base import SNIPPET_CHARS, KnowledgeTool, Search, cut, fitted, nothing, room_for
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import loosened, parse_query
from turnkeep.store.ports import ConversationStore, KnowledgeStore, Store
from turnkeep.tools.ports import CallContext, Outcome, Passage, Tool
from turnkeep_client.wire.events import Source

AT_ONCE = 5
CONVERSATIONS_LOOKED_AT = 100


def knowledge_tools(store: Store, texts: FileTexts) -> list[Tool]:
    """All knowledge tools, for the runtime to register."""
    visible = VisibleFiles(store)
    return [
        search_pages(store),
        search_user_tables(store),
        save_to_table(store),
        search_conversations(store),
        search_files(store, visible, texts),
        read_file(visible, texts),
    ]


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
    """Other conversations of the same user that match.

    A service key without a user may read the conversations of all users. A model that answers one user must not.
    """
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
