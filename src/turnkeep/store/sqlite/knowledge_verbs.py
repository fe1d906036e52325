"""The verbs of `KnowledgeStore` for pages and the text of files: each checks what it is given, then runs as jobs."""

from collections.abc import Sequence

from turnkeep.ids import OrgId, PageId, check_id, new_page_id
from turnkeep.model.knowledge import FileText, Found, KnowledgePage, PageHit, PageSummary, TextHit
from turnkeep.model.principals import Principal
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page
from turnkeep.store.fulltext import Place, best_of_each, index_of, joined, loose
from turnkeep.store.knowing import check_page, check_search, part_of, text_hits
from turnkeep.store.sqlite import knowledge
from turnkeep.store.sqlite.io.executors import StoreThreads


class KnowledgeVerbs(StoreThreads):
    """Pages and the text of files. Promises are those of `ports.KnowledgeStore`."""

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage:
        check_page(title, content)
        page_id = new_page_id()
        await self._write(knowledge.create_page, principal, page_id, title, content, index_of(title, content))
        return await self.page(principal, page_id)

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage:
        return await self._see(principal, knowledge.my_page, check_id(page_id, "page"))

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        check_limit(limit)
        return await self._see(principal, knowledge.my_pages, limit, cursor)

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        check_page(title, content)
        await self._write(knowledge.change_page, principal, check_id(page_id, "page"), title, content)
        return await self.page(principal, page_id)

    async def delete_page(self, principal: Principal, page_id: PageId) -> None:
        await self._write(knowledge.delete_page, principal, check_id(page_id, "page"))

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty:
            return Found()
        places = await self._read(knowledge.find_pages, principal, wanted, False)
        if looser := loose(wanted, len(best_of_each(places))):
            places = joined(places, await self._read(knowledge.find_pages, principal, looser, True))
        shown, next_offset = part_of(best_of_each(places), limit=limit, offset=offset)
        if not shown:
            return Found()
        hits = await self._see(principal, knowledge.my_hits, shown, wanted, chars)
        return Found(hits=hits, next_offset=next_offset)

    async def file_texts(self, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
        return await self._read(knowledge.file_texts, org_id, sha256s)

    async def save_file_text(self, org_id: OrgId, text: FileText, *, title: str, unit: str) -> None:
        index = [] if text.problem else index_of(title, text.text, unit=unit)
        await self._write(knowledge.save_file_text, org_id, text, index)

    async def search_file_texts(
        self, org_id: OrgId, sha256s: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty or not sha256s:
            return Found()
        places: list[Place] = await self._read(knowledge.find_texts, org_id, sha256s, wanted, False)
        if looser := loose(wanted, len(places)):
            places = joined(places, await self._read(knowledge.find_texts, org_id, sha256s, looser, True))
        shown, next_offset = part_of(places, limit=limit, offset=offset)
        texts = await self.file_texts(org_id, list({place.owner for place in shown}))
        return Found(hits=text_hits(shown, texts, wanted, chars), next_offset=next_offset)
