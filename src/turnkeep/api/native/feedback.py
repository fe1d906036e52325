"""Feedback: users rate answers, and admins export the ratings for evaluations."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.query_parameters import ListQuery, page_of
from turnkeep.ids import AgentId, ConversationId, TurnId
from turnkeep.knowledge.csv_files import csv_lines
from turnkeep.model.principals import Principal
from turnkeep.store.checks import LATEST_MS
from turnkeep_client import wire

ONE = "/v1/turns/{turn_id}/feedback"
HEADER = (
    *("turn_id", "conversation_id", "external_id", "name", "agent_id", "model", "rating", "comment"),
    *("input_tokens", "output_tokens", "created_at", "updated_at"),
)

endpoints = Endpoints("feedback")


class FeedbackQuery(ListQuery, frozen=True, kw_only=True):
    """`since` is the earliest time of a rating. A file (`csv`, `jsonl`) has all ratings, without pages."""

    rating: wire.Rating | None = None
    agent_id: wire.Id | None = None
    since: Annotated[int, Meta(ge=0, le=LATEST_MS)] = 0
    format: Literal["json", "csv", "jsonl"] = "json"


@endpoints.add(
    "PUT",
    ONE,
    policy=Policy.MEMBER,
    body=wire.NewFeedback,
    responses=(ResponseSpec(status=200, meaning="The rating", type=wire.Feedback),),
    errors=(404, 409, 507),
)
async def rate_turn(call: ApiCall[wire.NewFeedback, Nothing]) -> ASGIApp:
    """Rate the answer of a turn, `up` or `down`, perhaps with a comment. It replaces the rating of the caller."""
    turn_id = await _rateable(call)
    rated = await call.runtime.store.rate_turn(call.principal, turn_id, call.body.rating, call.body.comment)
    return json_response(views.feedback_of(rated))


@endpoints.add(
    "DELETE",
    ONE,
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="The rating is removed"),),
    errors=(404, 507),
)
async def delete_feedback(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Take the caller's rating of a turn back."""
    await call.runtime.store.delete_feedback(call.principal, await _rateable(call))
    return no_content()


@endpoints.add(
    "GET",
    "/v1/conversations/{conversation_id}/feedback",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="The caller's ratings", type=wire.Page[wire.Feedback]),),
    errors=(404,),
)
async def list_my_feedback(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The caller's own ratings in a conversation."""
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    await call.runtime.store.conversation(call.principal, conversation_id)
    found = await call.runtime.store.feedback_of(call.principal, conversation_id)
    return json_response(page_of([views.feedback_of(one) for one in found], call.query, name=lambda one: one.turn_id))


@endpoints.add(
    "GET",
    "/v1/feedback",
    policy=Policy.ADMIN,
    query=FeedbackQuery,
    responses=(
        ResponseSpec(status=200, meaning="Ratings, newest first", type=wire.Page[wire.FeedbackItem]),
        ResponseSpec(status=200, meaning="All of them as CSV", type=str, media_type="text/csv"),
        ResponseSpec(status=200, meaning="One JSON object per line", type=str, media_type="application/x-ndjson"),
    ),
    feature="export",
)
async def list_feedback(call: ApiCall[Nothing, FeedbackQuery]) -> ASGIApp:
    """What the users of the workspace think of answers, with turn, model and agent. `format=csv` and `format=jsonl` are
    files with all of it. Of what was said they have only the comments."""
    query = call.query
    if query.format == "json":
        return json_response(await _page(call, limit=query.limit, cursor=query.cursor or None))
    pages = _pages(call, await _page(call, limit=100, cursor=None))
    is_csv = query.format == "csv"
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="feedback.{query.format}"',
    }
    media_type = "text/csv" if is_csv else "application/x-ndjson"
    return StreamingResponse(_csv(pages) if is_csv else _lines(pages), headers=headers, media_type=media_type)


async def _page(call: ApiCall[Any, FeedbackQuery], *, limit: int, cursor: str | None) -> wire.Page[wire.FeedbackItem]:
    query, principal, store = call.query, call.principal, call.runtime.store
    page = await store.all_feedback(
        principal.org_id,
        principal.workspace_id,
        rating=query.rating,
        agent_id=None if query.agent_id is None else AgentId(known_id(query.agent_id, "agent")),
        since=query.since,
        limit=limit,
        cursor=cursor,
    )
    reached = [rated for rated in page.data if _reaches(principal, rated.agent_id)]
    users = await shown_users(store, principal, [rated.feedback.user_id for rated in reached])
    return wire.Page(data=[views.feedback_item_of(rated, users) for rated in reached], next_cursor=page.next_cursor)


def _reaches(principal: Principal, agent_id: AgentId | None) -> bool:
    """Whether the scopes of the caller allow the agent of a turn. A turn without one is for callers of all agents."""
    if agent_id is None:
        return principal.scopes is None or principal.scopes.agents == "*"
    return principal.reaches(agent_id)


async def _pages(
    call: ApiCall[Any, FeedbackQuery], first: wire.Page[wire.FeedbackItem]
) -> AsyncIterator[wire.Page[wire.FeedbackItem]]:
    """All pages. The first is read before the response begins, so that a refusal gets its own status."""
    yield first
    cursor = first.next_cursor
    while cursor is not None:
        page = await _page(call, limit=100, cursor=cursor)
        yield page
        cursor = page.next_cursor


async def _csv(pages: AsyncIterator[wire.Page[wire.FeedbackItem]]) -> AsyncIterator[str]:
    yield csv_lines([HEADER])
    async for page in pages:
        yield csv_lines([_cells(item) for item in page.data])


def _cells(item: wire.FeedbackItem) -> list[str | float | bool | None]:
    user = item.user
    return [
        item.turn_id,
        item.conversation_id,
        None if user is None else user.external_id,
        None if user is None else user.name,
        item.agent_id,
        item.model,
        item.rating,
        item.comment,
        item.usage.input_tokens,
        item.usage.output_tokens,
        item.created_at,
        item.updated_at,
    ]


async def _lines(pages: AsyncIterator[wire.Page[wire.FeedbackItem]]) -> AsyncIterator[bytes]:
    async for page in pages:
        yield b"".join(msgspec.json.encode(item) + b"\n" for item in page.data)


async def _rateable(call: ApiCall[Any, Any]) -> TurnId:
    """The turn in the path. A key that acts for no user cannot rate, and is not told of turns that it may not see."""
    turn_id = TurnId(call.id("turn_id", "turn"))
    call.notes["turn_id"] = turn_id
    if call.principal.user_id is None:
        await call.runtime.store.turn(call.principal, turn_id)
    return turn_id
