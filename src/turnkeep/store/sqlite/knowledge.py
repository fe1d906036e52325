"""Pages, the text of files, and the passages by which both are found, on SQLite."""

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
    TITLE_WEIGHT,
    Indexed,
    Place,
    best_of_each,
    fts_text,
    index_of,
    joined,
    loose,
)
from turnkeep.store.rows import json_text, to_page, to_summary
from turnkeep.store.rules.knowledge import (
    changed_page,
    check_page,
    check_search,
    no_page,
    page_hits,
    part_of,
    text_hits,
)
from turnkeep.store.rules.refusals import no_workspace
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import in_workspace


class SqliteKnowledge(StoreThreads):
    """Pages and the text of files. Promises are those of `ports.KnowledgeStore`."""

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage:
        check_page(title, content)
        page_id = new_page_id()
        await self._write(_create_page, principal, page_id, title, content, index_of(title, content))
        return await self.page(principal, page_id)

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage:
        return await self._see(principal, _my_page, check_id(page_id, "page"))

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        check_limit(limit)
        return await self._see(principal, _my_pages, limit, cursor)

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        check_page(title, content)
        await self._write(_change_page, principal, check_id(page_id, "page"), title, content)
        return await self.page(principal, page_id)

    async def delete_page(self, principal: Principal, page_id: PageId) -> None:
        await self._write(_delete_page, principal, check_id(page_id, "page"))

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty:
            return Found()
        places = await self._read(_find_pages, principal, wanted, False)
        if looser := loose(wanted, len(best_of_each(places))):
            places = joined(places, await self._read(_find_pages, principal, looser, True))
        shown, next_offset = part_of(best_of_each(places), limit=limit, offset=offset)
        if not shown:
            return Found()
        hits = await self._see(principal, _my_hits, shown, wanted, chars)
        return Found(hits=hits, next_offset=next_offset)

    async def file_texts(self, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
        return await self._read(_file_texts, org_id, sha256s)

    async def save_file_text(self, org_id: OrgId, text: FileText, *, title: str, unit: str) -> None:
        index = [] if text.problem else index_of(title, text.text, unit=unit)
        await self._write(_save_file_text, org_id, text, index)

    async def search_file_texts(
        self, org_id: OrgId, sha256s: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        wanted = check_search(query, limit, offset)
        if wanted.is_empty or not sha256s:
            return Found()
        places: list[Place] = await self._read(_find_texts, org_id, sha256s, wanted, False)
        if looser := loose(wanted, len(places)):
            places = joined(places, await self._read(_find_texts, org_id, sha256s, looser, True))
        shown, next_offset = part_of(places, limit=limit, offset=offset)
        texts = await self.file_texts(org_id, list({place.owner for place in shown}))
        return Found(hits=text_hits(shown, texts, wanted, chars), next_offset=next_offset)


def _create_page(
    session: Session, principal: Principal, page_id: PageId, title: str, content: str, index: Sequence[Indexed]
) -> None:
    if session.row("workspace_exists", in_workspace(principal)) is None:
        raise no_workspace()
    values = in_workspace(principal) | {"id": page_id, "title": title, "content": content, "now": session.now}
    session.run("insert_page", values)
    _add_passages(session, principal.org_id, principal.workspace_id, page_id, index)


def _change_page(
    session: Session, principal: Principal, page_id: PageId, title: str | None, content: str | None
) -> None:
    row = session.row("page_for_write", in_workspace(principal) | {"page": page_id})
    title, content = changed_page(row, title, content)
    session.run("update_page", {"page": page_id, "title": title, "content": content, "now": session.now})
    _drop_passages(session, principal.org_id, page_id)
    _add_passages(session, principal.org_id, principal.workspace_id, page_id, index_of(title, content))


def _delete_page(session: Session, principal: Principal, page_id: PageId) -> None:
    if session.row("page_for_write", in_workspace(principal) | {"page": page_id}) is None:
        raise no_page()
    _drop_passages(session, principal.org_id, page_id)
    session.run("delete_page", {"page": page_id})


def _my_page(session: Session, page_id: PageId) -> KnowledgePage:
    row = session.row("my_page", {"page": page_id})
    if row is None:
        raise no_page()
    return to_page(row)


def _my_pages(session: Session, limit: int, cursor: str | None) -> Page[PageSummary]:
    before = None if cursor is None else decode_cursor(cursor, "pages", tuple[str])[0]
    rows = session.rows("my_pages_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_summary(row) for row in rows], limit=limit, cursor_of=lambda page: encode_cursor("pages", page.id)
    )


def _find_pages(session: Session, principal: Principal, query: SearchQuery, any_word: bool) -> list[Place]:
    return _places(session, "search_pages", in_workspace(principal), query, any_word)


def _find_texts(
    session: Session, org_id: OrgId, sha256s: Sequence[str], query: SearchQuery, any_word: bool
) -> list[Place]:
    whose = {"org": org_id, "owners": json_text(list(sha256s))}
    return _places(session, "search_file_texts", whose, query, any_word)


def _my_hits(session: Session, places: Sequence[Place], query: SearchQuery, chars: int) -> tuple[PageHit, ...]:
    """What was found, as its reader sees it."""
    rows = session.rows("my_page_texts", {"ids": json_text([place.owner for place in places])})
    return page_hits(places, {page_id: (title, content) for page_id, title, content in rows}, query, chars)


def _file_texts(session: Session, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
    rows = session.rows("file_texts", {"org": org_id, "owners": json_text(list(sha256s))})
    return {sha256: FileText(sha256=sha256, text=text, problem=problem) for sha256, text, problem in rows}


def _save_file_text(session: Session, org_id: OrgId, text: FileText, index: Sequence[Indexed]) -> None:
    values = {"org": org_id, "sha256": text.sha256, "text": text.text, "problem": text.problem, "now": session.now}
    session.run("save_file_text", values)
    _drop_passages(session, org_id, text.sha256)
    _add_passages(session, org_id, None, text.sha256, index)


def drop_lost_texts(session: Session, limit: int) -> int:
    """Erase texts whose last file is gone."""
    lost = session.rows("texts_without_file", {"limit": limit})
    for org_id, sha256 in lost:
        _drop_passages(session, org_id, sha256)
        session.run("drop_file_text", {"org": org_id, "owner": sha256})
    return len(lost)


def _add_passages(
    session: Session, org_id: str, workspace_id: str | None, owner: str, index: Sequence[Indexed]
) -> None:
    """Passages of a page name its workspace. The text of a file belongs to everyone who has a file of these bytes."""
    whose = {"org": org_id, "workspace": workspace_id, "owner": owner}
    for each in index:
        values = whose | {"start": each.start, "stop": each.stop, "place": each.place}
        n = session.rows("add_passage", values)[0][0]
        session.run("add_passage_tokens", {"n": n, "title": " ".join(each.title), "body": " ".join(each.body)})


def _drop_passages(session: Session, org_id: str, owner: str) -> None:
    session.run("drop_passage_tokens", {"org": org_id, "owner": owner})
    session.run("drop_passages", {"org": org_id, "owner": owner})


def _places(session: Session, name: str, whose: dict[str, Any], query: SearchQuery, any_word: bool) -> list[Place]:
    values = whose | {
        "query": fts_text(query, any_word=any_word),
        "title_weight": TITLE_WEIGHT,
        "candidates": CANDIDATES,
        "limit": RANKED,
    }
    return [Place(*row) for row in session.rows(name, values)]
