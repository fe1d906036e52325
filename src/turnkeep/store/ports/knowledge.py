"""The verbs of knowledge: pages, tables and the texts of files."""

from collections.abc import Sequence
from typing import Protocol

from turnkeep.ids import OrgId, PageId, TableId
from turnkeep.model.knowledge import (
    Cell,
    Column,
    FileText,
    Found,
    KnowledgePage,
    KnowledgeTable,
    PageHit,
    PageSummary,
    Row,
    RowHit,
    RowQuery,
    TextHit,
)
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Page


class KnowledgeStore(Protocol):
    """Pages, tables and the text of files. Everyone in a workspace reads them; who may write them is decided before.

    Searches are by our own tokens: every word must occur (the last perhaps as the beginning of one), best first; where
    that finds too little, texts follow in which some of the words occur.
    """

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage: ...

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage: ...

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        """Newest first."""

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        """None leaves a field as it is. It is found by its new words once this returns."""

    async def delete_page(self, principal: Principal, page_id: PageId) -> None: ...

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        """The best pages, each with an excerpt of at most about `chars` characters from where it matches best."""

    async def create_table(
        self, principal: Principal, *, name: str, columns: Sequence[Column], description: str = ""
    ) -> KnowledgeTable:
        """Raises Conflict if a table of the workspace has this name (names that differ only in case are equal)."""

    async def table(self, principal: Principal, table_id: TableId) -> KnowledgeTable: ...

    async def tables(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[KnowledgeTable]:
        """Newest first."""

    async def change_table(
        self,
        principal: Principal,
        table_id: TableId,
        *,
        name: str | None = None,
        description: str | None = None,
        columns: Sequence[Column] | None = None,
    ) -> KnowledgeTable:
        """None leaves a field as it is. Columns keep what they hold by their key; Conflict if the list leaves out a
        column, or gives one another type, while the table has rows."""

    async def delete_table(self, principal: Principal, table_id: TableId) -> None:
        """It is gone at once; its rows are erased bit by bit by `purge_knowledge`."""

    async def add_rows(
        self,
        principal: Principal,
        table_id: TableId,
        rows: Sequence[Sequence[Cell]],
        *,
        batch: str,
        digest: str | None = None,
    ) -> list[int]:
        """Add these rows, all or none; return their numbers. The same `batch` again adds nothing, and answers them;
        IdempotencyConflict if it had another `digest`."""

    async def added_rows(
        self, principal: Principal, table_id: TableId, *, batch: str, digest: str | None = None
    ) -> range | None:
        """The numbers of the rows that were added or imported as this batch; None if none were. Raises as above."""

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        """Rows in the order of their numbers, those greater than `after`. `limit` up to 1,000."""

    async def row(self, principal: Principal, table_id: TableId, number: int) -> Row: ...

    async def change_row(self, principal: Principal, table_id: TableId, number: int, cells: Sequence[Cell]) -> Row: ...

    async def delete_row(self, principal: Principal, table_id: TableId, number: int) -> None: ...

    async def find_rows(
        self, principal: Principal, query: RowQuery, *, table: KnowledgeTable | None, limit: int = 10, offset: int = 0
    ) -> Found[RowHit]:
        """Rows of this table, or of all tables of the workspace (then without filters and sort)."""

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        """Reserve the numbers of `count` rows, and return the first. Conflict while another import is under way."""

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        """Write some of the reserved rows, which are not visible yet. Conflict if the import was given up."""

    async def finish_import(
        self, table: KnowledgeTable, *, import_id: str, batch: str | None = None, digest: str | None = None
    ) -> KnowledgeTable:
        """Show all of them, at once, and keep them as this batch. Conflict if there is one of this name already."""

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        """Erase what it wrote, as if it had never been."""

    async def file_texts(self, org_id: OrgId, keys: Sequence[str]) -> dict[str, FileText]:
        """The texts with these keys, as far as they are known."""

    async def save_file_text(self, org_id: OrgId, text: FileText, *, unit: str) -> None:
        """Keep the text of some bytes and let it be found. `unit` is what its form feeds separate (page, slide, …).

        Everybody in the org with a file of these bytes finds it. So no name of a file is kept with it. Nothing is kept
        if the last such file was erased meanwhile."""

    async def search_file_texts(
        self, org_id: OrgId, keys: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        """The best places in these texts. The caller has seen to it that its principal may read the files."""

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        """Erase rows of deleted tables, imports that were silent since `silent_before` (or `before`), the names of
        batches older than `before`, and texts whose last file is gone; return how much was erased, 0 at the end."""
