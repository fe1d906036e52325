"""Pages of lists that are short enough to be read whole."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from turnkeep.api import wire
from turnkeep.api.native.queries import ListQuery
from turnkeep.errors import InvalidRequest

Item = TypeVar("Item")


def page_of(items: Sequence[Item], query: ListQuery, *, name: Callable[[Item], str]) -> wire.Page[Item]:
    """The items after the one that the cursor names. Raises InvalidRequest if there is none of that name."""
    start = 0
    if query.cursor:
        names = [name(item) for item in items]
        if query.cursor not in names:
            raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.")
        start = names.index(query.cursor) + 1
    data = items[start : start + query.limit]
    more = start + query.limit < len(items)
    return wire.Page(data=data, next_cursor=name(data[-1]) if more else None)
