"""Stored rows as OpenAI's items: what a response was asked, and what a conversation holds."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import structs

from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.openai.messages import DECISION, OWN_ROW
from turnkeep.api.openai.response_events import approval_id, notes_of_turn
from turnkeep.api.openai.segments import Segment, Waits
from turnkeep.api.wires import ReadLimit
from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, MessageId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep_client.wire.blocks import FileRef, Image, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse
from turnkeep_client.wire.events import Approval, Recorded, Steered

MAX_LIMIT = 100
TURNS_AT_ONCE = 50


def items_of(rows: Sequence[Message]) -> list[JsonObject]:
    """The items of these rows, in their order. Each has an id of its own, which stays the same.

    Rows that a turn keeps for itself (calls of the server's tools and their results) are left out. Those that the
    caller sent are shown.
    """
    return [item for row in rows if is_shown(row) for item in _items_of_row(row)]


def asking_items(turn: Turn, before: Sequence[Message], rows: Sequence[Message]) -> list[JsonObject]:
    """What the first response of the turn was asked: its instructions, the turns before it that came with the request,
    the messages of the question, and the calls and results after them."""
    notes = notes_of_turn(turn)
    own, told = turn.id.removeprefix("turn_"), list[JsonObject]()
    end = len(turn.snapshot.instructions)
    for place, (role, size) in reversed(list(enumerate(notes.told))):
        text = turn.snapshot.instructions[max(0, end - size) : end]
        told.insert(0, _message(f"msg_{own}_told_{place}", role, [_text(text, role)]))
        end -= size + len("\n\n")
    asked = next((row for row in rows if row.role == "user" and not row.internal), None)
    opening = [structs.replace(row, metadata=OWN_ROW) for row in rows[1 : 1 + len(turn.snapshot.opening)]]
    question = [] if asked is None else [item for row in _apart(asked, notes.sizes) for item in _items_of_row(row)]
    return [*told, *items_of(before), *question, *items_of(opening)]


def _apart(row: Message, sizes: Sequence[int]) -> list[Message]:
    """The messages of which the row was made, if there were several."""
    if sum(sizes) != len(row.blocks):
        return [row]
    made: list[Message] = []
    start = 0
    for place, size in enumerate(sizes):
        is_last = place == len(sizes) - 1
        own = row.id if is_last else MessageId(f"{row.id}_{place}")
        blocks = row.blocks[start : start + size]
        made.append(structs.replace(row, id=own, blocks=blocks, attachments=row.attachments if is_last else ()))
        start += size
    return made


def answering_items(
    turn: Turn, segment: Segment, events: Sequence[Recorded], rows: Sequence[Message]
) -> list[JsonObject]:
    """With what a turn that waited went on: the results and decisions for its calls, and the words beside them."""
    waited = {
        str(call.id): isinstance(each.event, Approval)
        for each in events[max(0, segment.after - 2) : segment.after]
        if isinstance(each.event, Waits)
        for call in each.event.calls
    }
    results = {
        str(block.call_id): block.content for row in rows for block in row.blocks if isinstance(block, ToolResult)
    }
    items: list[JsonObject] = []
    for call_id, is_approval in waited.items():
        call = None if turn.wait is None else turn.wait.call(call_id)
        answer = None if call is None else call.answer
        if is_approval and answer is not None:
            decided = {
                "type": DECISION,
                "approval_request_id": approval_id(call_id),
                "approve": answer.verdict == "allow",
            }
            items.append({"id": f"mcpa_{call_id}", **decided, "reason": answer.reason})
        elif not is_approval and (call_id in results or answer is not None):
            value = results.get(call_id, "" if answer is None else answer.value)
            items.append(_output(f"fco_{call_id}", call_id, value))
    spoken = {
        each.event.message_id for each in events[segment.after : segment.until] if isinstance(each.event, Steered)
    }
    return [*items, *items_of([row for row in rows if row.id in spoken])]


def _message(own: str, role: str, parts: Sequence[JsonObject]) -> JsonObject:
    return {"id": own, "type": "message", "role": role, "status": "completed", "content": list(parts)}


def _output(own: str, call_id: str, value: JsonValue) -> JsonObject:
    output = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"id": own, "type": "function_call_output", "call_id": call_id, "output": output, "status": "completed"}


def is_shown(row: Message) -> bool:
    return not row.internal or row.metadata == OWN_ROW


def without_last_item(row: Message) -> list[Message]:
    """The row without the blocks of its last item; nothing if there are no others."""
    calls = [block for block in row.blocks if isinstance(block, ToolUse | ToolResult)]
    if calls:
        kept = tuple(block for block in row.blocks if block is not calls[-1])
    else:
        kept = tuple(block for block in row.blocks if isinstance(block, Reasoning) and len(_items_of_row(row)) > 1)
    return [structs.replace(row, blocks=kept, attachments=())] if kept else []


async def all_rows(
    call: ApiCall[Any, Any], conversation_id: ConversationId, *, before: int | None = None
) -> list[Message]:
    """All rows of the visible chain, oldest first; with `before`, those of the turns before this ordinal. Raises
    TooLarge."""
    store, limit = call.runtime.store, ReadLimit()
    found: list[list[Message]] = []
    turns = TURNS_AT_ONCE
    while True:
        window = await store.window(conversation_id, turns=turns, before=before)
        if window.is_cut and turns > 1:
            turns = max(1, turns // 4)
            continue
        rows = await store.turn_rows(window.rows[-1].turn_id) if window.is_cut else list(window.rows)
        limit.add(rows)
        found.append(rows)
        if window.first is None or not rows:
            return [row for each in reversed(found) for row in each]
        before = window.first


def _items_of_row(row: Message) -> list[JsonObject]:
    own = row.id.removeprefix("msg_")
    items: list[JsonObject] = []
    parts: list[JsonObject] = []
    for block in (*row.blocks, *row.attachments):
        match block:
            case Text():
                parts.append(_text(block.text, row.role))
            case Image():
                url = block.url or f"data:{block.media_type};base64,{block.data}"
                parts.append({"type": "input_image", "image_url": url, "detail": "auto", "file_id": None})
            case FileRef():
                parts.append({"type": "input_file", "file_id": block.file_id, "filename": block.name})
            case Reasoning() if block.text:
                summary = [{"type": "summary_text", "text": block.text}]
                items.append({"id": f"rs_{own}_{len(items)}", "type": "reasoning", "summary": summary})
            case _:
                pass
    if parts:
        items.append(_message(row.id, row.role, parts))
    for place, block in enumerate(row.blocks):
        if isinstance(block, ToolUse):
            arguments = msgspec.json.encode(block.input).decode()
            called = {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments}
            items.append({"id": f"fc_{own}_{place}", **called, "status": "completed"})
        elif isinstance(block, ToolResult):
            items.append(_output(f"fco_{own}_{place}", block.call_id, block.content))
    return items


def _text(text: str, role: str) -> JsonObject:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def query_of(call: ApiCall[Any, Any]) -> dict[str, str]:
    """The parameters of the query. The endpoint names those that there are."""
    try:
        return dict(parse_qsl(call.query_string.decode("ascii"), keep_blank_values=True))
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The query string is malformed.") from exc


def page_of_items(call: ApiCall[Any, Any], items: Sequence[JsonObject], *, most: int = MAX_LIMIT) -> JsonObject:
    """One page of a list in OpenAI's form. `items` are the oldest first."""
    query = query_of(call)
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidField("`order` is asc or desc.", field="order")
    try:
        limit = int(query.get("limit", "20" if most == MAX_LIMIT else str(most)))
    except ValueError as exc:
        raise InvalidField("`limit` is a number.", field="limit") from exc
    if not 1 <= limit <= most:
        raise InvalidField(f"`limit` is a number from 1 to {most}.", field="limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after := query.get("after"):
        place = next((n for n, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise InvalidField(f"There is no item {after[:80]!r} here.", field="after")
        ordered = ordered[place + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > limit,
    }
