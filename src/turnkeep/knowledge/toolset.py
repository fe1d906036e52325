"""The native tools over knowledge, for the runtime to register."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnkeep.knowledge.file_tools import VisibleFiles, read_file, search_files
from turnkeep.knowledge.page_tools import search_conversations, search_pages
from turnkeep.knowledge.ports import FileBytes
from turnkeep.knowledge.table_tools import save_to_table, search_user_tables
from turnkeep.knowledge.texts import FileTexts
from turnkeep.store.ports import Store
from turnkeep.tools.ports import Tool


@asynccontextmanager
async def open_knowledge_tools(store: Store, files: FileBytes) -> AsyncIterator[list[Tool]]:
    """The tools, until the end of the block; then files that are being read are let go."""
    texts = FileTexts(store, files)
    visible = VisibleFiles(store)
    try:
        yield [
            search_pages(store),
            search_user_tables(store),
            save_to_table(store),
            search_conversations(store),
            search_files(store, visible, texts),
            read_file(visible, texts),
        ]
    finally:
        await texts.close()
