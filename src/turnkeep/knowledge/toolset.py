"""The native tools over knowledge, for the runtime to register."""

from turnkeep.knowledge.file_tools import VisibleFiles, read_file, search_files
from turnkeep.knowledge.page_tools import search_conversations, search_pages
from turnkeep.knowledge.table_tools import save_to_table, search_user_tables
from turnkeep.knowledge.texts import FileTexts
from turnkeep.store.ports import Store
from turnkeep.tools.ports import Tool


def knowledge_tools(store: Store, texts: FileTexts) -> list[Tool]:
    visible = VisibleFiles(store)
    return [
        search_pages(store),
        search_user_tables(store),
        save_to_table(store),
        search_conversations(store),
        search_files(store, visible, texts),
        read_file(visible, texts),
    ]
