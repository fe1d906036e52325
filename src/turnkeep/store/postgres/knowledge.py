"""Pages and the text of files on PostgreSQL.

Candidates come from the index on the engine's path, filtered by their owner there, since row-level security would keep
it from being used. What is shown is read through the client path.
"""

from collections.abc import Sequence
from typing import Any

from turnkeep.ids import OrgId, PageId, check_id, new_page_id
from turnkeep.model.knowledge import FileText, Found, KnowledgePage, PageHit, PageSummary, TextHit
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.fulltext import (
    CANDIDATES,
    RANKED,
    Indexed,
    Place,
    best_of_each,
    index_of,
    joined,
    loose,
    tsquery_text,
    tsvector_text,
)
from turnkeep.store.knowing import check_page, check_search, no_page, page_hits, part_of, text_hits, to_page, to_summary
from turnkeep.store.postgres.database import Database, Statements

AFTER_EVERY_PAGE = "page_g"


class PostgresKnowledge:
    """Pages and the text of files. Promises are those of `ports.KnowledgeStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage:
        check_page(title, content)
        page_id = new_page_id()
        index = _arrays(index_of(title, content), scope=principal.workspace_id)
        await self._database.write(
            "create_page", principal.org_id, principal.workspace_id, page_id, title, content, *index
        )
        return await self.page(principal, page_id)

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage:
        rows = await self._database.read_as(principal, "my_page", check_id(page_id, "page"))
        if not rows:
            raise no_page()
        return to_page(rows[0])

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        check_limit(limit)
        before = AFTER_EVERY_PAGE if cursor is None else decode_cursor(cursor, "pages", tuple[str])[0]
        rows = await self._database.read_as(principal, "my_pages", before, limit + 1)
        return page_of(
            [to_summary(row) for row in rows], limit=limit, cursor_of=lambda page: encode_cursor("pages", page.id)
        )

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        check_page(title, content)
        check_id(page_id, "page")

        async def work(statements: Statements) -> None:
            rows = await statements.fetch("page_for_write", principal.org_id, principal.workspace_id, page_id)
            if not rows:
                raise no_page()
            new_title = rows[0][0] if title is None else title
            new_content = rows[0][1] if content is None else content
            await statements.fetch("update_page", page_id, new_title, new_content)
            index = _arrays(index_of(new_title, new_content), scope=principal.workspace_id)
            await statements.fetch("index_passages", principal.org_id, principal.workspace_id, page_id, *index)

        await self._database.transact(work)
        return await self.page(principal, page_id)

    async def delete_page(self, principal: Principal, page_id: PageId) -> None:
        check_id(page_id, "page")
        rows = await self._database.write("delete_page", principal.org_id, principal.workspace_id, page_id)
        if not rows[0][0]:
            raise no_page()

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty:
            return Found()
        scope = principal.workspace_id
        whose = (principal.org_id, principal.workspace_id)
        places = await self._places("search_pages", scope, wanted, *whose)
        if looser := loose(wanted, len(best_of_each(places))):
            places = joined(places, await self._places("search_pages", scope, looser, *whose, any_word=True))
        shown, next_offset = part_of(best_of_each(places), limit=limit, offset=offset)
        if not shown:
            return Found()
        rows = await self._database.read_as(principal, "my_page_texts", [place.owner for place in shown])
        texts = {row[0]: (row[1], row[2]) for row in rows}
        return Found(hits=page_hits(shown, texts, wanted, chars), next_offset=next_offset)

    async def file_texts(self, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
        rows = await self._database.read("file_texts", org_id, list(sha256s))
        return {row[0]: FileText(sha256=row[0], text=row[1], problem=row[2]) for row in rows}

    async def save_file_text(self, org_id: OrgId, text: FileText, *, title: str, unit: str) -> None:
        index = _arrays([] if text.problem else index_of(title, text.text, unit=unit), scope=org_id)
        await self._database.write("save_file_text", org_id, text.sha256, text.text, text.problem, *index)

    async def search_file_texts(
        self, org_id: OrgId, sha256s: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty or not sha256s:
            return Found()
        whose = (org_id, list(sha256s))
        places = await self._places("search_file_texts", org_id, wanted, *whose)
        if looser := loose(wanted, len(places)):
            places = joined(places, await self._places("search_file_texts", org_id, looser, *whose, any_word=True))
        shown, next_offset = part_of(places, limit=limit, offset=offset)
        texts = await self.file_texts(org_id, list({place.owner for place in shown}))
        return Found(hits=text_hits(shown, texts, wanted, chars), next_offset=next_offset)

    async def _places(
        self, name: str, scope: str, query: SearchQuery, *whose: Any, any_word: bool = False
    ) -> list[Place]:
        words = tsquery_text(query, any_word=any_word)
        rows = await self._database.read(name, *whose, f"'@{scope}' & ({words})", words, CANDIDATES, RANKED)
        return [Place(*row) for row in rows]


def _arrays(index: Sequence[Indexed], *, scope: str) -> tuple[list[int], list[int], list[str | None], list[str]]:
    """Passages as they travel: starts, stops, places, tokens."""
    return (
        [each.start for each in index],
        [each.stop for each in index],
        [each.place for each in index],
        [tsvector_text(((each.title, "A"), (each.body, "D")), (scope,)) for each in index],
    )
