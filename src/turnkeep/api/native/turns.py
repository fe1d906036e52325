"""Turns: ask, look, stop, follow, and read the trace."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.agent_wire import snapshot_of
from turnkeep.api.asking import (
    attachments_of,
    blocks_of,
    check_rate,
    options_of,
    respond,
)
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply, known_id
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.queries import EventsQuery, StreamQuery
from turnkeep.api.reading import read_turn
from turnkeep.api.streams import cursor_of, stream_turn
from turnkeep.engine import Options, Question
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, FileId, TurnId
from turnkeep.model.conversations import Conversation
from turnkeep.store.commands import NewConversation, TurnTrace

endpoints = Endpoints("turns")

STREAM = Reply(status=200, meaning="The stream of the turn", type=str, media_type="text/event-stream")

TURN_REPLIES = (
    Reply(status=200, meaning="The settled turn, also when it failed or was stopped", type=wire.Answered),
    STREAM,
    Reply(status=202, meaning="The turn goes on by itself; follow its events", type=wire.Accepted),
)
ASKING: dict[str, Any] = {
    "query": StreamQuery,
    "replies": TURN_REPLIES,
    "headers": ("Idempotency-Key",),
    "errors": (404, 409, 429, 503, 507),
    "limits_itself": True,
}
TURN = Reply(status=200, meaning="The turn", type=wire.Turn)


@endpoints.add("POST", "/v1/turns", policy=Policy.MEMBER, body=wire.NewTurn, **ASKING)
async def create_turn(call: Call[wire.NewTurn, StreamQuery]) -> ASGIApp:
    """Ask something, in a conversation or in a new one. Accept decides between the stream and a waiting answer."""
    body = call.body
    options = options_of(call)
    await check_rate(call, options)
    blocks, named = await blocks_of(body.message, call.runtime)
    attachments = attachments_of(body.attachment_ids, named, call.runtime.settings)
    conversation_id: ConversationId | None = None
    new = NewConversation()
    if body.conversation_id is None:
        # The first turn's agent and model become the conversation's; on later turns they hold for that turn.
        new = NewConversation(
            kind=body.kind or "chat", agent_id=options.agent_id, model=options.model, workflow_id=body.workflow_id
        )
        options = msgspec.structs.replace(options, agent_id=None, model=None)
    else:
        conversation_id = ConversationId(known_id(body.conversation_id, "conv"))
        if body.kind is not None or body.workflow_id is not None:
            _check_fits(body, await call.runtime.store.conversation(call.principal, conversation_id))
    question = Question(
        principal=call.principal,
        message=blocks,
        conversation_id=conversation_id,
        new=new,
        attachment_ids=attachments,
        options=options,
    )
    return await respond(call, await call.runtime.engine.ask(question))


@endpoints.add("GET", "/v1/turns/{turn_id}", policy=Policy.MEMBER, replies=(TURN,), errors=(404,))
async def read_one_turn(call: Call[Nothing, Nothing]) -> ASGIApp:
    """A turn and what it has come to."""
    turn = await call.runtime.store.turn(call.principal, turn_id_of(call))
    return json_response(await read_turn(call.runtime.store, turn))


@endpoints.add("POST", "/v1/turns/{turn_id}/cancel", policy=Policy.MEMBER, replies=(TURN,), errors=(404, 503))
async def cancel_turn(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Stop a turn, and answer once it is settled. A settled one stays as it is."""
    turn = await call.runtime.engine.cancel(call.principal, turn_id_of(call))
    return json_response(await read_turn(call.runtime.store, turn))


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/events",
    policy=Policy.MEMBER,
    query=EventsQuery,
    headers=("Last-Event-ID",),
    replies=(STREAM, Reply(status=204, meaning="There is nothing after this cursor, and never will be")),
    errors=(404, 422),
)
async def follow_turn(call: Call[Nothing, EventsQuery]) -> ASGIApp:
    """The stream of a turn, from its beginning or from a cursor."""
    turn = await call.runtime.store.turn(call.principal, turn_id_of(call))
    # A browser that reconnects repeats the address it began with, and says in the header how far it really came.
    text = call.headers.get("last-event-id") or call.query.after
    cursor, is_at_end = await cursor_of(call.runtime, turn, text, format=call.query.format)
    if is_at_end:
        return no_content()
    return stream_turn(call.runtime, turn, format=call.query.format, cursor=cursor)


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/trace",
    policy=Policy.SERVICE,
    replies=(Reply(status=200, meaning="One event or log line per line", type=str, media_type="application/x-ndjson"),),
    errors=(404,),
)
async def trace_turn(call: Call[Nothing, Nothing]) -> ASGIApp:
    """The run trace: every event, with the sandbox's log lines where they came."""
    trace = await call.runtime.store.trace(call.principal, turn_id_of(call))
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in _lines(trace))
    return Response(body, headers={"cache-control": "no-store"}, media_type="application/x-ndjson")


@endpoints.add(
    "POST",
    "/v1/conversations/{conversation_id}/turns/{turn_id}/regenerate",
    policy=Policy.MEMBER,
    body=wire.Again,
    is_body_optional=True,
    **ASKING,
)
async def regenerate_turn(call: Call[wire.Again, StreamQuery]) -> ASGIApp:
    """Ask the same again: a new turn beside the old one."""
    turn_id, options = await _beside(call)
    return await respond(call, await call.runtime.engine.regenerate(call.principal, turn_id, options))


@endpoints.add(
    "POST",
    "/v1/conversations/{conversation_id}/turns/{turn_id}/edit",
    policy=Policy.MEMBER,
    body=wire.Edit,
    **ASKING,
)
async def edit_turn(call: Call[wire.Edit, StreamQuery]) -> ASGIApp:
    """Ask something else in the same place: a new turn beside the old one."""
    turn_id, options = await _beside(call)
    body, engine = call.body, call.runtime.engine
    blocks, named = await blocks_of(body.message, call.runtime)
    given = body.attachment_ids
    attachments: tuple[FileId, ...] | None = None
    if given is not UNSET or named:
        attachments = attachments_of(given or (), named, call.runtime.settings)
    claimed = await engine.edit(call.principal, turn_id, blocks, options, attachment_ids=attachments)
    return await respond(call, claimed)


def turn_id_of(call: Call[Any, Any]) -> TurnId:
    turn_id = TurnId(call.id("turn_id", "turn"))
    call.notes["turn_id"] = turn_id
    return turn_id


def _check_fits(body: wire.NewTurn | wire.Again | wire.Edit, conversation: Conversation) -> None:
    """Kind and workflow are the conversation's, for good: a turn may repeat them, and not change them."""
    for field in ("kind", "workflow_id"):
        asked, actual = getattr(body, field), getattr(conversation, field)
        if asked is not None and asked != actual:
            raise InvalidRequest(
                f"`{field}` of this conversation is {'not set' if actual is None else actual!r} and stays so. "
                "Leave it out, or begin another conversation."
            )


async def _beside(call: Call[wire.Again, Any] | Call[wire.Edit, Any]) -> tuple[TurnId, Options]:
    """The turn of the path, which must be one of the conversation of the path."""
    options = options_of(call)
    await check_rate(call, options)
    turn_id = turn_id_of(call)
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    conversation = await call.runtime.store.conversation(call.principal, conversation_id)
    turn = await call.runtime.store.turn(call.principal, turn_id)
    if turn.conversation_id != conversation_id:
        raise NotFound("No such turn in this conversation.")
    _check_fits(call.body, conversation)
    return turn_id, options


def _lines(trace: TurnTrace) -> Iterator[dict[str, Any]]:
    """Events in order, each followed by what was logged after it. The first carries what the turn ran with."""
    logs = list(trace.logs)

    def logged(until: int) -> Iterator[dict[str, Any]]:
        while logs and logs[0].after_seq <= until:
            line = logs.pop(0)
            yield {"type": "log", **msgspec.to_builtins(line)}

    yield from logged(0)
    for recorded in trace.events:
        line = {"seq": recorded.seq, **msgspec.to_builtins(recorded.event)}
        if recorded.seq == 1:
            line["snapshot"] = snapshot_of(trace.turn.snapshot)
        yield line
        yield from logged(recorded.seq)
    yield from logged(1 << 62)
