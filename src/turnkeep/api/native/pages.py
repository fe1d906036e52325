"""Pages: Markdown documents of a workspace. Everyone in it reads and searches them, admins write them."""

from typing import Any

from msgspec import UNSET, structs
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.queries import PagesQuery
from turnkeep.ids import PageId
from turnkeep.model import knowledge
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep_client import wire
from turnkeep_client.wire.knowledge import KnowledgePage, NewPage, PageChange, PageItem

SNIPPET_CHARS = 200

endpoints = Endpoints("knowledge")

PAGE = Reply(status=200, meaning="The page", type=KnowledgePage)
ONE = "/v1/pages/{page_id}"


@endpoints.add(
    "GET",
    "/v1/pages",
    policy=Policy.MEMBER,
    query=PagesQuery,
    replies=(Reply(status=200, meaning="Pages, newest first, or best first in a search", type=wire.Page[PageItem]),),
)
async def list_pages(call: Call[Nothing, PagesQuery]) -> ASGIApp:
    """The pages of the workspace, without their content; with `q` those that match, each with a snippet."""
    if call.query.q is not None and call.query.q.strip():
        return json_response(await _found(call, call.query.q))
    page = await call.runtime.store.pages(call.principal, limit=call.query.limit, cursor=call.query.cursor or None)
    return json_response(wire.Page(data=[views.page_item_of(each) for each in page.data], next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/pages",
    policy=Policy.ADMIN,
    body=NewPage,
    replies=(Reply(status=201, meaning="The new page", type=KnowledgePage),),
    errors=(507,),
)
async def create_page(call: Call[NewPage, Nothing]) -> ASGIApp:
    """Write a page. It can be found at once."""
    page = await call.runtime.store.create_page(call.principal, title=call.body.title, content=call.body.content)
    return _answer(page, status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(PAGE,))
async def read_page(call: Call[Nothing, Nothing]) -> ASGIApp:
    """A page with its Markdown."""
    return _answer(await call.runtime.store.page(call.principal, _page_id(call)))


@endpoints.add("PUT", ONE, policy=Policy.ADMIN, body=NewPage, replies=(PAGE,), errors=(507,))
async def replace_page(call: Call[NewPage, Nothing]) -> ASGIApp:
    """Write a page anew."""
    title, content = call.body.title, call.body.content
    return _answer(await call.runtime.store.change_page(call.principal, _page_id(call), title=title, content=content))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=PageChange, replies=(PAGE,), errors=(507,))
async def change_page(call: Call[PageChange, Nothing]) -> ASGIApp:
    """Change the title or the content; what is not given stays."""
    title = None if call.body.title is UNSET else call.body.title
    content = None if call.body.content is UNSET else call.body.content
    return _answer(await call.runtime.store.change_page(call.principal, _page_id(call), title=title, content=content))


@endpoints.add("DELETE", ONE, policy=Policy.ADMIN, replies=(Reply(status=204, meaning="The page is gone"),))
async def delete_page(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete a page for good."""
    await call.runtime.store.delete_page(call.principal, _page_id(call))
    return no_content()


async def _found(call: Call[Nothing, PagesQuery], query: str) -> wire.Page[PageItem]:
    store, limit = call.runtime.store, call.query.limit
    of = f"pages that have {query}"
    offset = decode_cursor(call.query.cursor, of, tuple[int])[0] if call.query.cursor else 0
    found = await store.search_pages(call.principal, query, limit=limit, offset=offset, chars=SNIPPET_CHARS)
    data = [
        structs.replace(
            views.page_item_of(await store.page(call.principal, hit.page_id)), snippet=hit.excerpt, place=hit.place
        )
        for hit in found.hits
    ]
    return wire.Page(data=data, next_cursor=None if found.next_offset is None else encode_cursor(of, found.next_offset))


def _page_id(call: Call[Any, Any]) -> PageId:
    return PageId(call.id("page_id", "page"))


def _answer(page: knowledge.KnowledgePage, *, status: int = 200) -> ASGIApp:
    return json_response(views.page_of(page), status=status)
