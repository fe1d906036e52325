"""OpenAI's conversations and their items.

A conversation is one of Turnkeep's: it is listed, read and asked in the native API as well. Items that are added
outside of a response become turns that have happened elsewhere: a message of the user begins one, and what follows
belongs to it. Any item can be deleted while no turn runs or waits: it is not listed any more, and not sent to models.
The trace of its turn keeps it (`items.py`).

Decision: docs/decisions/1012
"""

from typing import Any

from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.responses import json_response
from turnkeep.api.openai.items import (
    conversation_items,
    find_item,
    items_of_turn,
    listed,
    page_of,
    page_query,
    removal_of,
    removed_key,
)
from turnkeep.api.openai.messages import (
    AskedQuestion,
    GivenRows,
    attached_in,
    conversation_of,
    metadata_of,
    plain_items,
    read_json,
    read_rows,
    stored_files,
    without_approvals,
)
from turnkeep.api.openai.models import BASE, INCLUDE, OK, PAGE_NAMES, ROUTE
from turnkeep.api.openai.response_events import WIRE_KEY
from turnkeep.api.openai.responses import turns_of_rows
from turnkeep.api.openai.segments import explained
from turnkeep.errors import ConversationBusy
from turnkeep.ids import ConversationId
from turnkeep.model.conversations import Conversation
from turnkeep.store.commands import ConversationChange, NewConversation
from turnkeep_client.wire.blocks import JsonObject

endpoints = Endpoints("openai")

ALL = f"{BASE}/conversations"
ONE = f"{ALL}/{{conversation_id}}"
ITEMS = f"{ONE}/items"
ITEM = f"{ITEMS}/{{item_id}}"
MAX_ITEMS = 20


@endpoints.add("POST", ALL, responses=(OK,), raw_body="application/json", errors=(507,), **ROUTE)
async def create_openai_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Make a conversation, perhaps with items in it."""
    body = await read_json(call)
    new = NewConversation(metadata=metadata_of(body))
    given = await _given_rows(call, body, is_optional=True)
    if not given.rows:
        return json_response(_object(await call.runtime.store.create_conversation(call.principal, new)))
    async with stored_files(call, AskedQuestion(past=given)) as (past, _):
        return json_response(_object(await conversation_of(call, past.rows, new)))


@endpoints.add("GET", ONE, responses=(OK,), errors=(404,), **ROUTE)
async def read_openai_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One conversation."""
    return json_response(_object(await _conversation(call)))


@endpoints.add("POST", ONE, responses=(OK,), raw_body="application/json", errors=(404, 507), **ROUTE)
async def change_openai_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Change the metadata of a conversation."""
    body = await read_json(call)
    if body.get("metadata") is None:
        return json_response(_object(await _conversation(call)))
    change = ConversationChange(metadata=metadata_of(body))
    return json_response(_object(await call.runtime.store.change_conversation(call.principal, _id(call), change)))


@endpoints.add("DELETE", ONE, responses=(OK,), errors=(404,), **ROUTE)
async def delete_openai_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a conversation."""
    await call.runtime.store.delete_conversation(call.principal, _id(call))
    return json_response({"id": _id(call), "object": "conversation.deleted", "deleted": True})


@endpoints.add(
    "POST",
    ITEMS,
    responses=(OK,),
    query_names=(INCLUDE,),
    raw_body="application/json",
    errors=(404, 507),
    **ROUTE,
)
async def add_openai_items(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Add up to 20 items."""
    body = await read_json(call)
    conversation = await _conversation(call)
    given = await _given_rows(call, body)
    async with stored_files(call, AskedQuestion(past=given), conversation.id) as (past, _):
        turns = turns_of_rows(conversation.id, past.rows)
        change = ConversationChange(appended=turns, attached=attached_in(past.rows))
        if turns:
            await _change(call, conversation, change)
    store = call.runtime.store
    made = [await store.turn(call.principal, turn.turn_id) for turn in turns]
    return json_response(listed([item.fields for turn in made for item in await items_of_turn(call, turn)]))


@endpoints.add("GET", ITEMS, responses=(OK,), query_names=(*PAGE_NAMES, INCLUDE), errors=(404,), **ROUTE)
async def list_openai_items(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The items of a conversation, the newest first unless the query says otherwise."""
    conversation, query = await _conversation(call), page_query(call)
    items = conversation_items(call, conversation.id, query.order, after=query.after)
    return json_response(await page_of(items, query))


@endpoints.add("GET", ITEM, responses=(OK,), query_names=(INCLUDE,), errors=(404,), **ROUTE)
async def read_openai_item(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One item."""
    _, item = await find_item(call, (await _conversation(call)).id, call.path("item_id"))
    return json_response(item.fields)


@endpoints.add("DELETE", ITEM, responses=(OK,), errors=(404,), **ROUTE)
async def delete_openai_item(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete an item. It is not listed any more, and models are not sent it any more."""
    conversation = await _conversation(call)
    turn, item = await find_item(call, conversation.id, call.path("item_id"))
    await _change(call, conversation, ConversationChange(removed=await removal_of(call, turn, item)))
    await call.runtime.store.add_notes(
        call.principal, turn.id, {WIRE_KEY: {"removed": {removed_key(turn, item.id): True}}}
    )
    return json_response(_object(conversation))


async def _change(call: ApiCall[Any, Any], conversation: Conversation, change: ConversationChange) -> None:
    """Change the conversation. Raises ConversationBusy, with advice for this wire."""
    try:
        if conversation.running_turn_id is not None:
            raise ConversationBusy(conversation.running_turn_id, None)
        await call.runtime.store.change_conversation(call.principal, conversation.id, change)
    except ConversationBusy as busy:
        raise await explained(call.runtime, busy) from busy


async def _given_rows(call: ApiCall[Any, Any], body: JsonObject, *, is_optional: bool = False) -> GivenRows:
    items = body.get("items")
    if items is None and is_optional:
        return GivenRows()
    if not isinstance(items, list) or len(items) > MAX_ITEMS or (not items and not is_optional):
        raise InvalidField(f"`items` is a list of 1 to {MAX_ITEMS} items.", field="items")
    kept = without_approvals(plain_items(items, "items"))
    return await read_rows(call, kept, "openai_responses", "items") if kept else GivenRows()


async def _conversation(call: ApiCall[Any, Any]) -> Conversation:
    return await call.runtime.store.conversation(call.principal, _id(call))


def _id(call: ApiCall[Any, Any]) -> ConversationId:
    return ConversationId(call.id("conversation_id", "conv"))


def _object(conversation: Conversation) -> JsonObject:
    given = {key: value for key, value in conversation.metadata.items() if isinstance(value, str)}
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at // 1000,
        "metadata": given,
    }
