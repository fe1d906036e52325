"""Turns as OpenAI's items: what a response was asked, and what a conversation holds.

An item has the same id wherever it is shown: in the output of its response, in the input of a response, and in the list
of its conversation. The id names the turn, so that a page of a long conversation begins with the turn of the last item
of the page before. Ids of approvals name their calls instead, because clients send them back; for those the pages are
searched.

A deleted item is noted at its turn, and its blocks are removed from what models are sent. A call and its result are
removed together, whichever is deleted: models refuse one without the other. The one that was not deleted is listed
until it is deleted too. The trace of the turn, and its responses, keep all of it.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, structs

from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.native.turns import read_events
from turnkeep.api.openai.messages import DECISION, OWN_ROW
from turnkeep.api.openai.response_events import ResponseSegment, approval_id, notes_of_turn
from turnkeep.api.openai.segments import Segment, Waits, segments_of
from turnkeep.api.wires import READ_BYTES
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message, Order, kept_rows
from turnkeep.model.turns import Turn
from turnkeep.store.commands import RemovedBlocks
from turnkeep.streaming.frames import event_frame
from turnkeep_client.wire.blocks import FileRef, Image, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse
from turnkeep_client.wire.events import Approval, Recorded, Steered, ToolCalls

MAX_LIMIT = 100
TURNS_AT_ONCE = 20
MAX_REFERENCED_TURNS = 100
FILES_PLACE = -1
"""The place of the attachments of a row among its blocks."""
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_.+")

Place = tuple[int, int]
"""The sequence of a row in its turn, and the place of a block in the row."""


class ConversationItem(Struct, frozen=True, kw_only=True):
    """An item, and the blocks of which it was made."""

    fields: JsonObject
    places: tuple[Place, ...] = ()
    call_id: str | None = None
    """The call that it is, or of which it is the result."""

    @property
    def id(self) -> str:
        return str(self.fields["id"])


async def items_of_turn(call: ApiCall[Any, Any], turn: Turn) -> list[ConversationItem]:
    """The items of a turn that were not deleted, in their order. What a response says is listed once it has ended."""
    rows = await call.runtime.store.turn_rows(turn.id)
    if rows and all(row.metadata == OWN_ROW for row in rows):
        items = [item for row in rows for item in _items_of_row(row)]
    else:
        items = _items_of_events(turn, rows, await read_events(call.runtime.store, turn.id))
    removed = notes_of_turn(turn).removed
    return [item for item in items if removed_key(turn, item.id) not in removed] if removed else items


def removed_key(turn: Turn, item_id: str) -> str:
    """How a turn notes that an item was deleted: without the id of the turn, which changes when it is imported."""
    return item_id.replace(turn.id.removeprefix("turn_"), "")


def _items_of_events(turn: Turn, rows: Sequence[Message], events: Sequence[Recorded]) -> list[ConversationItem]:
    items: list[ConversationItem] = []
    for segment in segments_of(events):
        if segment.index == 0:
            items += [*_question_items(turn, rows), *_spoken_items(segment, events, rows)]
        else:
            items += _answer_items(turn, segment, events, rows)
        if segment.until is not None:
            items += _output_items(turn, segment, events, rows)
    return items


def _output_items(
    turn: Turn, segment: Segment, events: Sequence[Recorded], rows: Sequence[Message]
) -> Iterable[ConversationItem]:
    """What the response of the segment has put out."""
    encoder = ResponseSegment(turn, segment)
    encoder.ends_at, encoder.before = segment.until, events[: segment.after]
    for recorded in events[segment.after : segment.until]:
        encoder.encode(event_frame(recorded))
    spoken = [row for row in rows if row.role == "assistant"]
    final = next((row for row in reversed(spoken) if not row.internal), None)
    earlier = sum(isinstance(each.event, ToolCalls) for each in encoder.before)
    for fields in encoder.response()["output"]:
        round_ = encoder.rounds.get(fields["id"])
        row = final if round_ is None else next(iter(spoken[earlier + round_ :]), None)
        kinds = Reasoning if fields["type"] == "reasoning" else (Text, Image)
        is_said = row is not None and fields["type"] in {"message", "reasoning"}
        yield ConversationItem(
            fields=fields,
            places=_places(row, kinds) if row is not None and is_said else (),
            call_id=fields.get("call_id") or encoder.calls.get(fields["id"]),
        )


def _places(row: Message, kinds: Any) -> tuple[Place, ...]:
    return tuple((row.turn_sequence, place) for place, block in enumerate(row.blocks) if isinstance(block, kinds))


def _question_items(turn: Turn, rows: Sequence[Message]) -> list[ConversationItem]:
    """The messages of the question, and the calls and results after them that came with it."""
    asked = next((row for row in rows if row.role == "user" and not row.internal), None)
    opening = rows[1 : 1 + len(turn.snapshot.opening)]
    question = [] if asked is None else _apart(asked, notes_of_turn(turn).sizes)
    return [*question, *(item for row in opening for item in _items_of_row(row))]


def _apart(row: Message, sizes: Sequence[int]) -> list[ConversationItem]:
    """The messages of which the row was made, if there were several."""
    if sum(sizes) != len(row.blocks):
        return _items_of_row(row)
    made: list[ConversationItem] = []
    start = 0
    for place, size in enumerate(sizes):
        is_last = place == len(sizes) - 1
        blocks = row.blocks[start : start + size]
        part = structs.replace(row, blocks=blocks, attachments=row.attachments if is_last else ())
        made += _items_of_row(part, suffix="" if is_last else f"_{place}", start=start)
        start += size
    return made


def _spoken_items(segment: Segment, events: Sequence[Recorded], rows: Sequence[Message]) -> list[ConversationItem]:
    """Words that steered the turn in this segment."""
    told = {each.event.message_id for each in events[segment.after : segment.until] if isinstance(each.event, Steered)}
    return [item for row in rows if row.id in told for item in _items_of_row(row)]


def _answer_items(
    turn: Turn, segment: Segment, events: Sequence[Recorded], rows: Sequence[Message]
) -> list[ConversationItem]:
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
    items: list[ConversationItem] = []
    for place, (call_id, is_approval) in enumerate(waited.items()):
        call = None if turn.wait is None else turn.wait.call(call_id)
        answer = None if call is None else call.answer
        if is_approval and answer is not None:
            decided = {
                "type": DECISION,
                "approval_request_id": approval_id(call_id),
                "approve": answer.verdict == "allow",
            }
            items.append(ConversationItem(fields={"id": f"mcpa_{call_id}", **decided, "reason": answer.reason}))
        elif not is_approval and (call_id in results or answer is not None):
            value = results.get(call_id, "" if answer is None else answer.value)
            own = f"fco_{_hex(turn.id)}_{segment.after}_{place}"
            items.append(ConversationItem(fields=_output(own, call_id, value), call_id=call_id))
    return [*items, *_spoken_items(segment, events, rows)]


def _told_items(turn: Turn) -> list[ConversationItem]:
    """The messages of the request that instruct the model. They hold for its turn, and are no part of the
    conversation."""
    items: list[ConversationItem] = []
    end = len(turn.snapshot.instructions)
    for place, (role, size) in reversed(list(enumerate(notes_of_turn(turn).told))):
        text = turn.snapshot.instructions[max(0, end - size) : end]
        items.insert(
            0, ConversationItem(fields=_message(f"msg_{_hex(turn.id)}_told_{place}", role, [_text(text, role)]))
        )
        end -= size + len("\n\n")
    return items


async def input_items(call: ApiCall[Any, Any], turn: Turn, segment: Segment, order: Order) -> AsyncIterator[JsonObject]:
    """What the response of this segment was asked: its instructions, the turns before it that came with the request,
    the messages of the question, and the calls and results after them; or with what its turn went on."""
    rows = await call.runtime.store.turn_rows(turn.id)
    if segment.index:
        events = await read_events(call.runtime.store, turn.id)
        own, told = _answer_items(turn, segment, events, rows), list[ConversationItem]()
    else:
        own, told = _question_items(turn, rows), _told_items(turn)
    groups = (told, None, own) if order == "asc" else (own[::-1], None, told[::-1])
    for group in groups:
        for item in group or ():
            yield item.fields
        if group is None and segment.index == 0 and notes_of_turn(turn).has_history:
            async for fields in conversation_items(call, turn.conversation_id, order, until=turn.ordinal):
                yield fields


def _message(own: str, role: str, parts: Sequence[JsonObject]) -> JsonObject:
    return {"id": own, "type": "message", "role": role, "status": "completed", "content": list(parts)}


def _output(own: str, call_id: str, value: JsonValue) -> JsonObject:
    output = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"id": own, "type": "function_call_output", "call_id": call_id, "output": output, "status": "completed"}


def _hex(turn_id: TurnId) -> str:
    return turn_id.removeprefix("turn_")


def _items_of_row(row: Message, *, suffix: str = "", start: int = 0) -> list[ConversationItem]:
    """The items of a row, which begins with the block at `start`."""
    own, sequence = f"{_hex(row.turn_id)}_r{row.turn_sequence}", row.turn_sequence
    items: list[ConversationItem] = []
    parts: list[JsonObject] = []
    spoken: list[Place] = [(sequence, FILES_PLACE)] if row.attachments else []
    for place, block in enumerate((*row.blocks, *row.attachments), start):
        match block:
            case Text():
                parts.append(_text(block.text, row.role))
                spoken.append((sequence, place))
            case Image():
                url = block.url or f"data:{block.media_type};base64,{block.data}"
                parts.append({"type": "input_image", "image_url": url, "detail": "auto", "file_id": None})
                spoken.append((sequence, place))
            case FileRef():
                parts.append({"type": "input_file", "file_id": block.file_id, "filename": block.name})
            case Reasoning() if block.text:
                summary = [{"type": "summary_text", "text": block.text}]
                fields = {"id": f"rs_{own}_{place}", "type": "reasoning", "summary": summary}
                items.append(ConversationItem(fields=fields, places=((sequence, place),)))
            case _:
                pass
    if parts:
        items.append(ConversationItem(fields=_message(f"msg_{own}{suffix}", row.role, parts), places=tuple(spoken)))
    for place, block in enumerate(row.blocks, start):
        if isinstance(block, ToolUse):
            arguments = msgspec.json.encode(block.input).decode()
            called = {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments}
            fields = {"id": f"fc_{own}_{place}", **called, "status": "completed"}
            items.append(ConversationItem(fields=fields, call_id=block.id))
        elif isinstance(block, ToolResult):
            fields = _output(f"fco_{own}_{place}", block.call_id, block.content)
            items.append(ConversationItem(fields=fields, call_id=block.call_id))
    return items


async def removal_of(call: ApiCall[Any, Any], turn: Turn, item: ConversationItem) -> tuple[RemovedBlocks, ...]:
    """What is removed of the rows of its turn with the item, and of the turns beside it if those have the result of its
    call, or the call. A message of which no words are left is removed whole."""
    store = call.runtime.store
    rows = await store.turn_rows(turn.id)
    places: dict[tuple[TurnId, int], set[int]] = {}
    for sequence, place in item.places:
        places.setdefault((turn.id, sequence), set()).add(place)
    if item.call_id is not None:
        orders: tuple[Order, ...] = ("asc", "desc")
        for order in orders if not _has_both(item.call_id, rows) else ():
            for beside in await store.chain(turn.conversation_id, order=order, past=turn.ordinal, limit=1):
                rows += await store.turn_rows(beside.id)
        for row, place in _places_of_call(item.call_id, rows):
            places.setdefault((row.turn_id, row.turn_sequence), set()).add(place)
    return tuple(
        RemovedBlocks(turn_id=row.turn_id, turn_sequence=row.turn_sequence, removed=_removed(row, gone))
        for row in rows
        if (gone := places.get((row.turn_id, row.turn_sequence)))
    )


def _has_both(call_id: str, rows: Sequence[Message]) -> bool:
    """Whether the rows have the call and its result."""
    found = {type(row.blocks[place]) for row, place in _places_of_call(call_id, rows)}
    return found == {ToolUse, ToolResult}


def _places_of_call(call_id: str, rows: Sequence[Message]) -> list[tuple[Message, int]]:
    """Where the call and its results are."""
    return [
        (row, place)
        for row in rows
        for place, block in enumerate(row.blocks)
        if (isinstance(block, ToolUse) and block.id == call_id)
        or (isinstance(block, ToolResult) and block.call_id == call_id)
    ]


def _removed(row: Message, gone: Iterable[int]) -> tuple[int, ...] | Literal["all"]:
    if row.removed == "all":
        return "all"
    places = {*gone, *row.removed}
    said = [place for place, block in enumerate(row.blocks) if isinstance(block, Text | Image)]
    is_left = any(place not in places for place in said) or bool(row.attachments and FILES_PLACE not in places)
    return "all" if not row.internal and not is_left else tuple(sorted(places))


async def rows_up_to(call: ApiCall[Any, Any], turn: Turn) -> list[Message]:
    """The rows of the turns up to this one, oldest first: of a long history the newest turns, about `READ_BYTES` of
    them, which is more than any model is sent."""
    store, left = call.runtime.store, READ_BYTES
    found: list[Sequence[Message]] = []
    at: Turn | None = turn
    while at is not None and left > 0:
        if at.active:
            rows, is_whole = await _visible_rows_up_to(call, at, left)
            if is_whole:
                return [row for each in (rows, *reversed(found)) for row in each]
        own = kept_rows(await store.turn_rows(at.id))
        found.append(own)
        left -= len(msgspec.json.encode(own))
        at = None if at.parent_turn_id is None else await store.turn(call.principal, at.parent_turn_id)
    return [row for each in reversed(found) for row in each]


async def _visible_rows_up_to(call: ApiCall[Any, Any], turn: Turn, most: int) -> tuple[list[Message], bool]:
    """The same for a turn of the visible chain, many turns at once. False if it has left the chain meanwhile."""
    store = call.runtime.store
    found: list[Sequence[Message]] = []
    before: int | None = turn.ordinal + 1
    while before is not None and most > 0:
        window = await store.window(turn.conversation_id, turns=TURNS_AT_ONCE, before=before)
        rows = window.rows
        before = window.first
        if window.is_cut and before is not None:
            oldest = rows[0].turn_id
            rows = tuple(row for row in rows if row.turn_id != oldest) or tuple(await store.turn_rows(oldest))
            before += rows[0].turn_id != oldest
        found.append(rows)
        most -= len(msgspec.json.encode(rows))
    is_whole = (await store.turn(call.principal, turn.id)).active
    return [row for each in reversed(found) for row in each], is_whole


def turn_of_item(item_id: str) -> TurnId | None:
    """The turn that the id of an item names."""
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None else TurnId(f"turn_{found[1]}")


async def find_item(
    call: ApiCall[Any, Any], conversation_id: ConversationId, item_id: str
) -> tuple[Turn, ConversationItem]:
    """An item of the visible chain, and its turn. Raises NotFound."""
    named = await _turn_named(call, conversation_id, item_id)
    turns = _chain(call, conversation_id, "desc") if named is None else _alone(named)
    async for turn in turns:
        for item in await items_of_turn(call, turn):
            if item.id == item_id:
                return turn, item
    raise NotFound(f"There is no item {item_id[:80]!r} in this conversation.")


async def referenced_items(call: ApiCall[Any, Any], given: Sequence[JsonValue], field: str) -> list[JsonValue]:
    """These items, with those in the place of references that they name. Raises InvalidField for an item that is not
    there, or that its id alone does not find (approvals)."""
    found: list[JsonValue] = []
    known: dict[TurnId, dict[str, JsonObject]] = {}
    for item in given:
        if not isinstance(item, dict) or item.get("type") != "item_reference":
            found.append(item)
            continue
        item_id = str(item.get("id"))
        turn_id = turn_of_item(item_id)
        if turn_id is not None and turn_id not in known:
            if len(known) == MAX_REFERENCED_TURNS:
                raise InvalidField(
                    f"`{field}` refers to items of over {MAX_REFERENCED_TURNS} responses. Send the items themselves.",
                    field=field,
                )
            try:
                turn = await call.runtime.store.turn(call.principal, turn_id)
                known[turn_id] = {each.id: each.fields for each in await items_of_turn(call, turn)}
            except NotFound:
                known[turn_id] = {}
        fields = None if turn_id is None else known[turn_id].get(item_id)
        if fields is None:
            raise InvalidField(
                f"`{field}`: there is no item {item_id[:80]!r}. Send the item itself, or name the response before it "
                "in `previous_response_id`.",
                field=field,
            )
        found.append(fields)
    return found


async def conversation_items(
    call: ApiCall[Any, Any],
    conversation_id: ConversationId,
    order: Order,
    *,
    after: str | None = None,
    until: int | None = None,
) -> AsyncIterator[JsonObject]:
    """The items of the visible chain in this order. With `after`, perhaps only those from the turn of that item on;
    with `until`, those of turns before this ordinal."""
    first = None if after is None else await _turn_named(call, conversation_id, after)
    async for turn in _chain(call, conversation_id, order, first=first, until=until):
        items = await items_of_turn(call, turn)
        for item in items if order == "asc" else reversed(items):
            yield item.fields


async def _turn_named(call: ApiCall[Any, Any], conversation_id: ConversationId, item_id: str) -> Turn | None:
    """The turn that the id of an item names, if it is on the visible chain of the conversation."""
    turn_id = turn_of_item(item_id)
    if turn_id is None:
        return None
    try:
        turn = await call.runtime.store.turn(call.principal, turn_id)
    except NotFound:
        return None
    return turn if turn.active and turn.conversation_id == conversation_id else None


async def _alone(turn: Turn) -> AsyncIterator[Turn]:
    yield turn


async def _chain(
    call: ApiCall[Any, Any],
    conversation_id: ConversationId,
    order: Order,
    *,
    first: Turn | None = None,
    until: int | None = None,
) -> AsyncIterator[Turn]:
    """The turns of the visible chain, from `first` on. They are read a few at a time."""
    if first is not None:
        yield first
    past = first.ordinal if first is not None else until if order == "desc" else None
    while turns := await call.runtime.store.chain(conversation_id, order=order, past=past, limit=TURNS_AT_ONCE):
        for turn in turns:
            if until is not None and turn.ordinal >= until:
                return
            yield turn
        past = turns[-1].ordinal


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


class ItemsQuery(Struct, frozen=True, kw_only=True):
    """Which page of a list a request asks for."""

    order: Order
    limit: int
    after: str | None


def page_query(call: ApiCall[Any, Any], *, most: int = MAX_LIMIT) -> ItemsQuery:
    """Raises InvalidField for what is none."""
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
    return ItemsQuery(order="asc" if order == "asc" else "desc", limit=limit, after=query.get("after") or None)


async def page_of(items: AsyncIterator[JsonObject], query: ItemsQuery) -> JsonObject:
    """One page of a list in OpenAI's form. The items come in the order of the query, and are read no further than the
    page needs. A page of large items is shorter."""
    data: list[JsonObject] = []
    has_begun, left = query.after is None, READ_BYTES
    async for item in items:
        if has_begun:
            data.append(item)
            left -= len(msgspec.json.encode(item))
        elif item["id"] == query.after:
            has_begun = True
        if len(data) > query.limit or (left < 0 and len(data) > 1):
            break
    if not has_begun:
        raise InvalidField(f"There is no item {str(query.after)[:80]!r} here.", field="after")
    most = len(data) - 1 if left < 0 and len(data) > 1 else query.limit
    return listed(data[:most], has_more=len(data) > most)


async def page_of_items(call: ApiCall[Any, Any], items: Sequence[JsonObject], *, most: int = MAX_LIMIT) -> JsonObject:
    """The same of a list in memory. `items` are the oldest first."""
    query = page_query(call, most=most)

    async def ordered() -> AsyncIterator[JsonObject]:
        for item in items if query.order == "asc" else reversed(items):
            yield item

    return await page_of(ordered(), query)


def listed(data: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> JsonObject:
    """These items as OpenAI's list."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": has_more,
    }
