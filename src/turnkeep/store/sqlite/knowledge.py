"""Pages, the text of files, and their passages, inside one session."""

from collections.abc import Sequence
from typing import Any

from turnkeep.ids import OrgId, PageId
from turnkeep.model.knowledge import FileText, KnowledgePage, PageHit, PageSummary
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.fulltext import CANDIDATES, RANKED, TITLE_WEIGHT, Indexed, Place, fts_text, index_of
from turnkeep.store.knowing import no_page, page_hits, to_page, to_summary
from turnkeep.store.rows import json_text
from turnkeep.store.sqlite import directory
from turnkeep.store.sqlite.owning import in_workspace
from turnkeep.store.sqlite.session import Session


def create_page(
    session: Session, principal: Principal, page_id: PageId, title: str, content: str, index: Sequence[Indexed]
) -> None:
    directory.workspace(session, principal.org_id, principal.workspace_id)
    values = in_workspace(principal) | {"id": page_id, "title": title, "content": content, "now": session.now}
    session.run("insert_page", values)
    add_passages(session, principal.org_id, principal.workspace_id, page_id, index)


def change_page(
    session: Session, principal: Principal, page_id: PageId, title: str | None, content: str | None
) -> None:
    row = session.row("page_for_write", in_workspace(principal) | {"page": page_id})
    if row is None:
        raise no_page()
    title = row[1] if title is None else title
    content = row[2] if content is None else content
    session.run("update_page", {"page": page_id, "title": title, "content": content, "now": session.now})
    drop_passages(session, principal.org_id, page_id)
    add_passages(session, principal.org_id, principal.workspace_id, page_id, index_of(title, content))


def delete_page(session: Session, principal: Principal, page_id: PageId) -> None:
    if session.row("page_for_write", in_workspace(principal) | {"page": page_id}) is None:
        raise no_page()
    drop_passages(session, principal.org_id, page_id)
    session.run("delete_page", {"page": page_id})


def my_page(session: Session, page_id: PageId) -> KnowledgePage:
    row = session.row("my_page", {"page": page_id})
    if row is None:
        raise no_page()
    return to_page(row)


def my_pages(session: Session, limit: int, cursor: str | None) -> Page[PageSummary]:
    before = None if cursor is None else decode_cursor(cursor, "pages", tuple[str])[0]
    rows = session.rows("my_pages_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_summary(row) for row in rows], limit=limit, cursor_of=lambda page: encode_cursor("pages", page.id)
    )


def find_pages(session: Session, principal: Principal, query: SearchQuery, any_word: bool) -> list[Place]:
    return _places(session, "search_pages", in_workspace(principal), query, any_word)


def find_texts(
    session: Session, org_id: OrgId, sha256s: Sequence[str], query: SearchQuery, any_word: bool
) -> list[Place]:
    whose = {"org": org_id, "owners": json_text(list(sha256s))}
    return _places(session, "search_file_texts", whose, query, any_word)


def my_hits(session: Session, places: Sequence[Place], query: SearchQuery, chars: int) -> tuple[PageHit, ...]:
    """What was found, as its reader sees it."""
    rows = session.rows("my_page_texts", {"ids": json_text([place.owner for place in places])})
    return page_hits(places, {row[0]: (row[1], row[2]) for row in rows}, query, chars)


def file_texts(session: Session, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
    rows = session.rows("file_texts", {"org": org_id, "owners": json_text(list(sha256s))})
    return {row[0]: FileText(sha256=row[0], text=row[1], problem=row[2]) for row in rows}


def save_file_text(session: Session, org_id: OrgId, text: FileText, index: Sequence[Indexed]) -> None:
    values = {"org": org_id, "sha256": text.sha256, "text": text.text, "problem": text.problem, "now": session.now}
    session.run("save_file_text", values)
    drop_passages(session, org_id, text.sha256)
    add_passages(session, org_id, None, text.sha256, index)


def drop_lost_texts(session: Session, limit: int) -> int:
    """Erase texts whose last file is gone."""
    lost = session.rows("texts_without_file", {"limit": limit})
    for org_id, sha256 in lost:
        drop_passages(session, org_id, sha256)
        session.run("drop_file_text", {"org": org_id, "owner": sha256})
    return len(lost)


def add_passages(session: Session, org_id: str, workspace_id: str | None, owner: str, index: Sequence[Indexed]) -> None:
    """Those of a page name its workspace; the text of a file belongs to whoever has a file of these bytes."""
    whose = {"org": org_id, "workspace": workspace_id, "owner": owner}
    for each in index:
        values = whose | {"start": each.start, "stop": each.stop, "place": each.place}
        n = session.rows("add_passage", values)[0][0]
        session.run("add_passage_tokens", {"n": n, "title": " ".join(each.title), "body": " ".join(each.body)})


def drop_passages(session: Session, org_id: str, owner: str) -> None:
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
