"""Query parameters of the native API, and pages of lists that are short enough to be read whole."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.knowledge.table_rows import Condition
from turnkeep.model.messages import Order
from turnkeep.store.checks import LATEST_MS
from turnkeep_client import wire
from turnkeep_client.wire import Cursor, Limit
from turnkeep_client.wire.conversations import ExternalId, Kind, StreamFormat
from turnkeep_client.wire.knowledge import Words

Item = TypeVar("Item")


class StreamQuery(Struct, frozen=True, kw_only=True):
    format: StreamFormat = "native"


class EventsQuery(StreamQuery, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=50)] | None = None


class PageQuery(Struct, frozen=True, kw_only=True):
    limit: Limit = 20
    cursor: Cursor | None = None


class ListQuery(Struct, frozen=True, kw_only=True):
    limit: Limit = 100
    cursor: Cursor | None = None


class SavedFilesQuery(PageQuery, frozen=True, kw_only=True):
    scope: Literal["workspace"] = "workspace"


class ConversationsQuery(PageQuery, frozen=True, kw_only=True):
    """`user` is the id of a user, or the host's id. `since` is the earliest time of the last change. `is_filed`:
    whether they are in a folder. `deleted` lists what can be restored instead."""

    q: Annotated[str, Meta(max_length=500)] | None = None
    external_id: ExternalId | None = None
    user: wire.UserName | None = None
    agent_id: wire.Id | None = None
    kind: Kind | None = None
    since: Annotated[int, Meta(ge=0, le=LATEST_MS)] | None = None
    deleted: bool = False
    is_pinned: bool | None = None
    folder: wire.FolderName | None = None
    is_filed: bool | None = None


class UsersQuery(ListQuery, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] | None = None


class RevocationQuery(Struct, frozen=True, kw_only=True):
    """`keep_made`: the keys that the revoked key has made stay valid."""

    keep_made: bool = False


class MessagesQuery(PageQuery, frozen=True, kw_only=True):
    order: Order = "asc"
    limit: Limit = 50


class ReplayQuery(Struct, frozen=True, kw_only=True):
    provider: Literal["anthropic", "openai_chat", "openai_responses", "sandbox"] | None = None


class TurnReplayQuery(ReplayQuery, frozen=True, kw_only=True):
    """`iteration` counts the calls of the model from 0; by default it is the last one."""

    iteration: Annotated[int, Meta(ge=0, le=10_000)] | None = None


class UsageQuery(Struct, frozen=True, kw_only=True):
    """`user` is the id of a user, or the host's id."""

    month: Annotated[str, Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")] | None = None
    group_by: wire.GroupBy | None = None
    user: wire.UserName | None = None
    agent_id: wire.Id | None = None
    model: wire.Model | None = None
    format: Literal["json", "csv"] = "json"


class UsageTurnsQuery(PageQuery, frozen=True, kw_only=True):
    """`day` is one of the month, as `2026-11-30`."""

    month: Annotated[str, Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")] | None = None
    day: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    user: wire.UserName | None = None
    agent_id: wire.Id | None = None
    model: wire.Model | None = None
    limit: Limit = 50


class PagesQuery(PageQuery, frozen=True, kw_only=True):
    q: Words | None = None


class RowsQuery(PageQuery, frozen=True, kw_only=True):
    """`filter` is a JSON list of conditions; `sort` a column, with `-` before it for the greatest first. `from_row`
    is the number at which a list by number begins."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    from_row: Annotated[int, Meta(ge=1, le=999_999_999)] | None = None
    q: Words | None = None
    filter: Annotated[str, Meta(max_length=2_000)] | None = None
    sort: Annotated[str, Meta(max_length=201)] | None = None
    format: Annotated[str, Meta(pattern="^(json|csv)$")] | None = None

    def conditions(self) -> list[Condition]:
        if not self.filter:
            return []
        try:
            return msgspec.json.decode(self.filter, type=list[Condition])
        except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
            raise InvalidRequest(
                f'`filter` must be a JSON list such as [{{"column": "Price", "op": "ge", "value": 10}}]: {exc}.'
            ) from exc


class CsvQuery(Struct, frozen=True, kw_only=True):
    """For a body of CSV: the name of a new table, and what separates its cells (detected by default)."""

    name: Annotated[str, Meta(max_length=200)] | None = None
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] | None = None


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
