"""What groups of verbs share: the transport, and lists that are read page by page."""

from collections.abc import AsyncGenerator
from typing import Any, TypeVar
from urllib.parse import quote

from turnkeep.client.answers import Page
from turnkeep.client.transport import Transport
from turnkeep_client.wire.blocks import JsonObject

Item = TypeVar("Item")

PAGE_ITEMS = 100


class Verbs:
    """A group of verbs on one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _pages(
        self, path: str, item: type[Item], *, limit: int | None = None, **query: Any
    ) -> AsyncGenerator[Item, None]:
        """All items of a list, or the first `limit`; the next page is asked for when it is needed."""
        left, cursor = limit, None
        while left is None or left > 0:
            count = PAGE_ITEMS if left is None else min(left, PAGE_ITEMS)
            page = await self._page(path, item, limit=count, cursor=cursor, **query)
            for one in page.data:
                yield one
            left = None if left is None else left - len(page.data)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _page(self, path: str, item: type[Item], **query: Any) -> Page[Item]:
        return await self._transport.call("GET", path, Page[item], query=query)  # type: ignore[valid-type]


def part(value: str) -> str:
    """An id as a part of a path, so that a stray slash asks for nothing else."""
    return quote(value, safe="")


def given(**fields: Any) -> JsonObject:
    """The fields that say something; None leaves one out."""
    return {name: value for name, value in fields.items() if value is not None}
