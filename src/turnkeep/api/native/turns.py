"""Turns: ask, read, stop, follow, regenerate, edit, and read the trace.

The `message` of a request becomes the blocks and files of a question. Images inside a message are checked before
anything is stored: a provider refuses a request with a broken image in it, and would refuse every later request of that
conversation too. A claimed turn is answered in one of three ways: with its stream, with the settled turn, or with 202.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, assert_never, cast

import msgspec
from msgspec import UNSET
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.idempotency import idempotency_key, request_hash
from turnkeep.api.http.requests import command_of
from turnkeep.api.http.responses import address_of, events_url, json_response, no_content
from turnkeep.api.identity.authentication import check_enabled, live_key
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.query_parameters import EventsQuery, StreamQuery, TurnReplayQuery
from turnkeep.clock import system_clock
from turnkeep.compiler import Target, compile
from turnkeep.compiler.utterances import MAX_IMAGE_CHARS
from turnkeep.config import Settings
from turnkeep.engine import Draining, EndedTurn, Options, Question
from turnkeep.engine.assembly import budget_of, instructions_of, offers_of, read_turns_before, rows_before_call
from turnkeep.errors import InvalidRequest, NotFound, OutOfScope, TooManyFiles, Unauthorized
from turnkeep.fair_queue import Owner, owner_of
from turnkeep.files.images import RASTER_TYPES
from turnkeep.files.signed_urls import Grant
from turnkeep.ids import AgentId, ConversationId, FileId, KeyId, TurnId, UserId, WorkspaceId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message, PublicMessage, finish_of
from turnkeep.model.principals import Principal, UserRef
from turnkeep.model.timeline import WHOLE_RESULT, TimelineSpans, timeline_of
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import Abilities
from turnkeep.runtime import Runtime
from turnkeep.store.commands import Claimed, NewConversation, TurnTrace
from turnkeep.store.ports import Store
from turnkeep.streaming.follow import follow, is_over
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import START, Cursor, parse_cursor
from turnkeep.tools.addresses import AddressGuard, AddressRefused
from turnkeep.tools.schemas import check_all_declared
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Block, Image, JsonValue, Text, ToolResult, Usage
from turnkeep_client.wire.conversations import ConversationFields, TimelineAccess
from turnkeep_client.wire.display import parts_of
from turnkeep_client.wire.events import Failure, Recorded, Result, Step

endpoints = Endpoints("turns")

TURN_HEADER = "turnkeep-turn"
ANY_IMAGE = "image/*"
CONVERSATION_FIELDS = tuple(ConversationFields.__annotations__)
"""Fields of a body that the first turn gives to its conversation, such as `kind`. No later turn changes them. The other
fields that turns and conversations share, such as `model`, may differ from turn to turn."""
EVENTS_AT_ONCE = 1_000
NEWEST_MESSAGES = 6
"""The message of a turn that has just settled is nearly always among these last ones of the transcript."""

STREAM = ResponseSpec(status=200, meaning="The stream of the turn", type=str, media_type="text/event-stream")
ENDED = ResponseSpec(status=204, meaning="The turn has ended; no event follows this cursor")

TURN_RESPONSES = (
    ResponseSpec(status=200, meaning="The settled turn, also when it failed or was stopped", type=wire.Answered),
    STREAM,
    ResponseSpec(status=202, meaning="The turn continues in the background; follow its events", type=wire.Accepted),
)
ASKING: dict[str, Any] = {
    "query": StreamQuery,
    "responses": TURN_RESPONSES,
    "headers": ("Idempotency-Key",),
    "errors": (404, 409, 429, 503, 507),
    "limits_itself": True,
}
TURN = ResponseSpec(status=200, meaning="The turn", type=wire.Turn)

_IMAGE_TYPES = ", ".join(sorted(RASTER_TYPES))


@endpoints.add("POST", "/v1/turns", policy=Policy.MEMBER, body=wire.NewTurn, **ASKING)
async def create_turn(call: ApiCall[wire.NewTurn, StreamQuery]) -> ASGIApp:
    """Ask something, in a conversation or in a new one. Accept decides between the stream and a waiting answer."""
    body = call.body
    options = await checked_options(call)
    blocks, named = await blocks_of(body.message, call.runtime, owner=owner_of(call.principal))
    attachments = attachments_of(body.attachment_ids, named, call.runtime.settings)
    conversation_id: ConversationId | None = None
    new = NewConversation()
    if body.conversation_id is None:
        # The first turn's agent and model become the conversation's; on later turns they hold for that turn.
        new = command_of(NewConversation, body, agent_id=options.agent_id, metadata={})
        options = msgspec.structs.replace(options, agent_id=None, model=None)
        if body.external_id is not None and _has_fields_besides(body, "external_id"):
            known = await call.runtime.store.conversation_of_host(call.principal, body.external_id)
            if known is not None:
                await _check_fits(call, options, known)
    else:
        conversation_id = ConversationId(known_id(body.conversation_id, "conv"))
        if _has_fields_besides(body):
            known = await call.runtime.store.conversation(call.principal, conversation_id)
            await _check_fits(call, options, known)
    question = Question(
        principal=call.principal,
        message=blocks,
        conversation_id=conversation_id,
        new=new,
        attachment_ids=attachments,
        options=options,
        workspace=call.identity.workspace,
    )
    return await respond(call, await call.runtime.engine.ask(question))


@endpoints.add("GET", "/v1/turns/{turn_id}", policy=Policy.MEMBER, responses=(TURN,), errors=(404,))
async def read_one_turn(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """A turn, with its answer if it has ended."""
    turn = await turn_for_approver(call.runtime.store, call.principal, turn_id_of(call))
    return json_response(await read_turn(call.runtime.store, turn))


@endpoints.add("POST", "/v1/turns/{turn_id}/cancel", policy=Policy.MEMBER, responses=(TURN,), errors=(404, 503))
async def cancel_turn(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Stop a turn, and answer once it is settled. A settled one stays as it is."""
    turn = await call.runtime.engine.cancel(call.principal, turn_id_of(call))
    return json_response(await read_turn(call.runtime.store, turn))


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/events",
    policy=Policy.MEMBER,
    query=EventsQuery,
    headers=("Last-Event-ID",),
    responses=(STREAM, ENDED),
    errors=(404, 422),
)
async def follow_turn(call: ApiCall[Nothing, EventsQuery]) -> ASGIApp:
    """The stream of a turn, from its beginning or from a cursor."""
    turn = await call.runtime.store.turn(call.principal, turn_id_of(call))
    return await _follow(call, turn, call.query.after, format=call.query.format)


@endpoints.add(
    "POST",
    "/v1/turns/{turn_id}/stream-url",
    policy=Policy.MEMBER,
    body=wire.NewStreamUrl,
    is_body_optional=True,
    responses=(ResponseSpec(status=201, meaning="The address, and until when it can be opened", type=wire.StreamUrl),),
    errors=(404,),
)
async def create_stream_url(call: ApiCall[wire.NewStreamUrl, Nothing]) -> ASGIApp:
    """Make an address of the stream that needs no key, for `EventSource`: for this turn only, and a short time."""
    body, principal, identity = call.body, call.principal, call.identity
    turn = await call.runtime.store.turn(principal, turn_id_of(call))
    await cursor_of(call.runtime, turn, body.after, format=body.format)
    expires_at = system_clock() + body.ttl_seconds * 1000
    if identity.expires_at is not None:
        expires_at = min(expires_at, identity.expires_at)
    reader = {
        "ws": principal.workspace_id,
        "user": principal.user_id or "",
        "key": principal.key_id or "",
        "session": "" if identity.session is None else identity.session.id,
    }
    signed = call.runtime.addresses.sign(
        "GET",
        f"/v1/turns/{turn.id}/stream",
        org_id=principal.org_id,
        expires_at=expires_at,
        facts=reader | {"format": body.format, "after": body.after or ""},
    )
    url = address_of(call.runtime.settings, call.headers.get("host")) + signed
    return json_response(wire.StreamUrl(url=url, expires_at=expires_at), status=201)


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/stream",
    policy=Policy.SIGNED,
    headers=("Last-Event-ID",),
    responses=(STREAM, ENDED),
    errors=(403, 422),
)
async def follow_signed_turn(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The stream of a turn, at the address that was made for it. A browser reconnects at the same address."""
    grant = call.runtime.addresses.verify("GET", call.request.scope["path"], call.query_string)
    principal = await _reader_of(call.runtime.store, grant)
    turn = await call.runtime.store.turn(principal, turn_id_of(call))
    return await _follow(call, turn, grant.facts["after"], format=cast(FormatName, grant.facts["format"]))


async def _reader_of(store: Store, grant: Grant) -> Principal:
    """For whom the address was made, as they are now. Raises Unauthorized or Forbidden if they may not read now."""
    workspace_id, user_id, key_id = WorkspaceId(grant.facts["ws"]), grant.facts["user"], grant.facts["key"]
    session_id = grant.facts.get("session")  # addresses of the release before have none
    if key_id and await live_key(store, grant.org_id, KeyId(key_id)) is None:
        raise Unauthorized("The key with which this address was made is revoked.")
    if not user_id:
        return Principal(org_id=grant.org_id, workspace_id=workspace_id, user_id=None, role="service")
    member = next(iter(await store.members_by_id(grant.org_id, [UserId(user_id)])), None)
    if member is None:
        raise Unauthorized("The user of this address is gone.")
    check_enabled(member)
    if session_id and all(each.id != session_id for each in await store.sessions(grant.org_id, member.id)):
        raise Unauthorized("The session in which this address was made has ended.")
    return Principal(org_id=grant.org_id, workspace_id=workspace_id, user_id=member.id, role="member")


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/trace",
    policy=Policy.SERVICE,
    responses=(
        ResponseSpec(status=200, meaning="One event or log line per line", type=str, media_type="application/x-ndjson"),
    ),
    errors=(404,),
    feature="export",
)
async def trace_turn(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The run trace: every event, with the sandbox's log lines where they came."""
    trace = await call.runtime.store.trace(call.principal, turn_id_of(call))
    call.principal.check_agent(trace.turn.snapshot.agent_id)
    users = await shown_users(call.runtime.store, call.principal, [trace.turn.user_id])
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in _lines(trace, users.get(trace.turn.user_id)))
    return Response(body, headers={"cache-control": "no-store"}, media_type="application/x-ndjson")


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/timeline",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=200, meaning="What happened in the turn, with times", type=wire.Timeline),),
    errors=(404,),
)
async def read_timeline(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Model calls, tools, waits, retries and takeovers of a turn, with times, tokens and cost.

    An admin sees the outline of the turns of others: names, times and counts, and nothing that was said.
    """
    turn, access, built = await _timeline(call)
    users = await shown_users(call.runtime.store, call.principal, [turn.user_id])
    return json_response(
        views.timeline_of(
            turn,
            built.spans,
            access=access,
            cost=_cost_of(call, turn)(turn.usage),
            user=users.get(turn.user_id),
            now=system_clock(),
        )
    )


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/timeline/{span_id}",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=200, meaning="What the span has in it", type=wire.SpanContent),),
    errors=(404,),
)
async def read_span(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Arguments, result and words of one span of a timeline. Admins and service keys get whole results, other users
    what the stream shows."""
    _, _, built = await _timeline(call)
    content = built.contents.get(call.path("span_id"))
    if content is None:
        raise NotFound("This turn has no such span, or you may not see what is in it.")
    return json_response(content)


@endpoints.add(
    "GET",
    "/v1/turns/{turn_id}/replay",
    policy=Policy.ADMIN,
    query=TurnReplayQuery,
    responses=(ResponseSpec(status=200, meaning="What the model was sent", type=wire.TurnReplay),),
    errors=(404,),
    feature="export",
)
async def replay_turn(call: ApiCall[Nothing, TurnReplayQuery]) -> ASGIApp:
    """Exactly what one call of the model was sent, made again from what is stored, with the tools that were offered. An
    admin can read it of their own turns."""
    runtime, query = call.runtime, call.query
    turn, access = await _turn_and_access(call)
    if access != "full":
        raise NotFound("No such turn.")
    if turn.snapshot.sandbox:
        raise InvalidRequest(
            "The model of this turn was called by its sandbox, and the server did not see the requests."
        )
    rows = rows_before_call(turn, await runtime.store.turn_rows(turn.id), query.iteration)
    agent = turn.snapshot.agent or AgentSpec(name="")
    model = turn.model or runtime.settings.model
    target = query.provider or runtime.providers.named(model).target
    can = await abilities_for(runtime, model, target)
    budget = budget_of(agent, runtime.settings)
    past = await read_turns_before(runtime.store, whole_workspace(call.principal), turn, budget)
    compiled = compile(
        (*past, *rows),
        target=target,
        open_turn=turn.id,
        budget=budget,
        system=instructions_of(turn, is_bound_to_output="output" in can.options),
        sees_images=can.sees_images,
        thinking=can.thinking,
        contents=await runtime.files.contents(
            [*past, *rows], turn.snapshot.principal or call.principal, sees_images=can.sees_images
        ),
    )
    toolbox = await runtime.tools.toolbox(
        turn.snapshot.agent,
        turn.snapshot.principal or call.principal,
        turn.conversation_id,
        turn.snapshot.client_tools,
    )
    return json_response(views.turn_replay_of(compiled, offers_of(toolbox, compiled.tool_names), toolbox.notes))


async def _timeline(call: ApiCall[Any, Any]) -> tuple[Turn, TimelineAccess, TimelineSpans]:
    turn, access = await _turn_and_access(call)
    trace = await call.runtime.store.trace(whole_workspace(call.principal), turn.id)
    built = timeline_of(
        trace.turn,
        trace.rows,
        trace.events,
        trace.logs,
        access=access,
        cost=_cost_of(call, trace.turn),
        now=system_clock(),
    )
    return trace.turn, access, built


async def _turn_and_access(call: ApiCall[Any, Any]) -> tuple[Turn, TimelineAccess]:
    """The turn, and how much of it the caller may see. Raises NotFound if that is nothing.

    Internal data of all conversations is for service keys of the whole org. Admins see it in their own conversations:
    they see the agents of the workspace anyway. Of the turns of others they see what usage needs.
    """
    principal, store, turn_id = call.principal, call.runtime.store, turn_id_of(call)
    is_admin = principal.role == "admin" and principal.scopes is None
    try:
        turn = await store.turn(principal, turn_id)
    except NotFound:
        if not is_admin:
            raise
        return await store.turn(whole_workspace(principal), turn_id), "outline"
    if is_admin or (principal.is_org_wide and _may_trace(principal, turn)):
        return turn, "full"
    return turn, "reader"


def _may_trace(principal: Principal, turn: Turn) -> bool:
    """Whether the scopes allow the trace of this turn."""
    try:
        principal.check_feature("export")
        principal.check_agent(turn.snapshot.agent_id)
    except (NotFound, OutOfScope):
        return False
    return True


async def abilities_for(runtime: Runtime, model: str, target: Target) -> Abilities:
    """The abilities of a model, if a replay has the shape of its provider."""
    try:
        provider = runtime.providers.named(model)
    except InvalidRequest:
        return Abilities()
    return await provider.abilities(model) if provider.target == target else Abilities()


def _cost_of(call: ApiCall[Any, Any], turn: Turn) -> Callable[[Usage], float | None]:
    return partial(call.runtime.prices.cost, turn.model or call.runtime.settings.model)


@endpoints.add(
    "POST",
    "/v1/conversations/{conversation_id}/turns/{turn_id}/regenerate",
    policy=Policy.MEMBER,
    body=wire.Again,
    is_body_optional=True,
    **ASKING,
)
async def regenerate_turn(call: ApiCall[wire.Again, StreamQuery]) -> ASGIApp:
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
async def edit_turn(call: ApiCall[wire.Edit, StreamQuery]) -> ASGIApp:
    """Ask something else in the same place: a new turn beside the old one."""
    turn_id, options = await _beside(call)
    body, engine = call.body, call.runtime.engine
    blocks, named = await blocks_of(body.message, call.runtime, owner=owner_of(call.principal))
    given = body.attachment_ids
    attachments: tuple[FileId, ...] | None = None
    if given is not UNSET or named:
        attachments = attachments_of(given or (), named, call.runtime.settings)
    claimed = await engine.edit(call.principal, turn_id, blocks, options, attachment_ids=attachments)
    return await respond(call, claimed)


async def _follow(call: ApiCall[Any, Any], turn: Turn, after: str | None, *, format: FormatName) -> ASGIApp:
    # A browser that reconnects repeats the address it began with, and says in the header how far it really came.
    text = call.headers.get("last-event-id") or after
    cursor, is_at_end = await cursor_of(call.runtime, turn, text, format=format)
    return no_content() if is_at_end else stream_turn(call.runtime, turn, format=format, cursor=cursor)


def turn_id_of(call: ApiCall[Any, Any]) -> TurnId:
    turn_id = TurnId(call.id("turn_id", "turn"))
    call.notes["turn_id"] = turn_id
    return turn_id


def _has_fields_besides(body: wire.NewTurn, *others: str) -> bool:
    """Whether the body names fields that belong to the conversation, apart from `others`."""
    return any(getattr(body, field) is not None for field in CONVERSATION_FIELDS if field not in others)


async def _check_fits(call: ApiCall[Any, Any], options: Options, conversation: Conversation) -> None:
    """Raises InvalidRequest for another value of a field that belongs to the conversation, unless the request repeats
    one that was already accepted: the instructions may have been changed since."""
    for field in CONVERSATION_FIELDS:
        asked, actual = getattr(call.body, field), getattr(conversation, field)
        if asked is None or asked == actual or await call.runtime.engine.is_repeat(call.principal, options):
            continue
        raise InvalidRequest(
            f"`{field}` of this conversation is {'not set' if actual is None else f'{actual!r:.200}'}, and a turn does "
            "not change it. Leave it out, or begin another conversation."
        )


async def _beside(call: ApiCall[wire.Again, Any] | ApiCall[wire.Edit, Any]) -> tuple[TurnId, Options]:
    """The turn of the path, beside which a new one is asked. It must belong to the conversation of the path."""
    options = await checked_options(call)
    turn_id = turn_id_of(call)
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    conversation = await call.runtime.store.conversation(call.principal, conversation_id)
    turn = await call.runtime.store.turn(call.principal, turn_id)
    if turn.conversation_id != conversation_id:
        raise NotFound("No such turn in this conversation.")
    await _check_fits(call, options, conversation)
    return turn_id, options


async def blocks_of(
    message: str | Sequence[wire.TextBlock | wire.ImageBlock | wire.FileBlock], runtime: Runtime, *, owner: Owner
) -> tuple[tuple[Block, ...], list[FileId]]:
    """The blocks of the message, and the files that it names. Empty texts are left out: no provider accepts them."""
    if isinstance(message, str):
        return ((Text(text=message),) if message.strip() else ()), []
    blocks: list[Block] = []
    files: list[FileId] = []
    for n, block in enumerate(message):
        match block:
            case wire.TextBlock():
                if block.text.strip():
                    blocks.append(Text(text=block.text))
            case wire.ImageBlock():
                blocks.append(await image_of(block, runtime, owner=owner, place=f"message[{n}]"))
            case wire.FileBlock():
                files.append(FileId(known_id(block.file_id, "file")))
            case _:
                assert_never(block)
    return tuple(blocks), files


def attachments_of(given: Sequence[str], named: Sequence[FileId], settings: Settings) -> tuple[FileId, ...]:
    """The files of a message, from `attachment_ids` and from its blocks."""
    return check_attachments([*given, *(file_id for file_id in named if file_id not in given)], settings)


def check_attachments(file_ids: Sequence[str], settings: Settings, *, beside: int = 0) -> tuple[FileId, ...]:
    """The ids, if a message may have so many files. `beside` is the number of files that come with the message."""
    limit = settings.max_files_per_message
    if len(file_ids) + beside > limit:
        raise TooManyFiles(f"A message may carry {limit} files, this one has {len(file_ids) + beside}.")
    return tuple(FileId(known_id(file_id, "file")) for file_id in file_ids)


async def image_of(block: wire.ImageBlock, runtime: Runtime, *, owner: Owner, place: str) -> Image:
    """The image as models accept it. Raises InvalidRequest, which names the block by its place in the body."""
    if block.data is not None and block.url is None:
        return await _inline_image(block.data, block.media_type, runtime, owner=owner, place=place)
    if block.url is not None and block.data is None:
        return _remote_image(block.url, block.media_type, runtime, place)
    raise InvalidRequest(f"An image has either `data` or a `url`, and `{place}` has both or neither.")


async def _inline_image(data: str, media_type: str, runtime: Runtime, *, owner: Owner, place: str) -> Image:
    """The bytes decide the media type, as for files. An image that is too large for models is made smaller."""
    if media_type not in RASTER_TYPES:
        raise InvalidRequest(f"`{place}.media_type` must be one of {_IMAGE_TYPES}. Attach anything else as a file.")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f"`{place}.data` is not base64: the standard alphabet, padded, without line breaks or a `data:` prefix."
        ) from exc
    picture = await runtime.pictures.for_model(raw, owner)
    if picture is None:
        raise InvalidRequest(f"`{place}.data` is no picture that can be read. It must be one of {_IMAGE_TYPES}.")
    encoded = base64.b64encode(picture.data).decode()
    if len(encoded) > MAX_IMAGE_CHARS:
        raise InvalidRequest(f"`{place}.data` is over {MAX_IMAGE_CHARS:,} characters. Attach the picture as a file.")
    return Image(media_type=picture.media_type, data=encoded)


def _remote_image(url: str, media_type: str, runtime: Runtime, place: str) -> Image:
    """The provider fetches the image, perhaps inside the operator's network. So the same rule holds as for tools."""
    if media_type not in RASTER_TYPES | {ANY_IMAGE}:
        raise InvalidRequest(
            f"`{place}.media_type` must be one of {_IMAGE_TYPES}, or {ANY_IMAGE} where it is not known."
        )
    if url[:5].lower() == "data:":
        raise InvalidRequest(f"`{place}.url` is a data: address. Send what follows its comma as `data`.")
    guard = AddressGuard(allow_private=runtime.settings.allow_private_addresses)
    try:
        return Image(media_type=media_type, url=str(guard.check_url(url)))
    except AddressRefused as exc:
        raise InvalidRequest(f"`{place}.url` cannot be used. {exc.detail}") from exc


def _lines(trace: TurnTrace, user: UserRef | None) -> Iterator[dict[str, Any]]:
    """Events in order, each followed by the log lines after it. Steps have the whole result of their call, where
    readers get its beginning. The first has the settings that the turn ran with, and the user who asked."""
    logs = list(trace.logs)
    results = _whole_results(trace.rows)

    def logged(until: int) -> Iterator[dict[str, Any]]:
        while logs and logs[0].after_seq <= until:
            line = logs.pop(0)
            yield {"type": "log", **msgspec.to_builtins(line)}

    yield from logged(0)
    for recorded in trace.events:
        event = recorded.event
        if isinstance(event, Step) and event.result is not UNSET and event.id in results:
            event = msgspec.structs.replace(event, result=results[event.id])
        line = {"seq": recorded.seq, **msgspec.to_builtins(event)}
        if recorded.seq == 1:
            line["user"] = None if user is None else msgspec.to_builtins(user)
            line["snapshot"] = views.snapshot_of(trace.turn.snapshot)
        yield line
        yield from logged(recorded.seq)
    yield from logged(1 << 62)


def _whole_results(rows: Sequence[Message]) -> dict[str, JsonValue]:
    """The results that events have only the beginning of, by the id of the call."""
    return {
        block.call_id: row.metadata[WHOLE_RESULT]
        for row in rows
        if row.internal and WHOLE_RESULT in row.metadata
        for block in row.blocks
        if isinstance(block, ToolResult)
    }


def options_of(call: ApiCall[Any, Any]) -> Options:
    """The options of a question, from the body and the headers."""
    body = call.body
    key = idempotency_key(call)
    return Options(
        agent_id=None if body.agent_id is None else AgentId(known_id(body.agent_id, "agent")),
        model=body.model,
        if_busy=body.if_busy,
        drop_queue=bool(body.drop_queue),
        background=body.background,
        source=call.identity.source,
        metadata=body.metadata,
        client_tools=tuple(msgspec.to_builtins(tool) for tool in body.tools or ()),
        idempotency_key=key,
        request_hash=None if key is None else request_hash(call),
    )


async def checked_options(call: ApiCall[Any, Any]) -> Options:
    """The same, within the rate of the key, and with tools that can be offered."""
    options = options_of(call)
    await check_rate(call, options)
    if call.body.tools:
        await asyncio.to_thread(check_all_declared, call.body.tools)
    return options


async def turn_for_approver(store: Store, principal: Principal, turn_id: TurnId) -> Turn:
    """A turn of the caller. An admin also sees the turn of another user while it waits for an admin's approval."""
    try:
        return await store.turn(principal, turn_id)
    except NotFound:
        if principal.role != "admin":
            raise
    turn = await store.turn(whole_workspace(principal), turn_id)
    is_asked = turn.status == "waiting" and turn.wait is not None and turn.wait.reason == "approval"
    if not is_asked or "admin" not in approvers_of(turn):
        raise NotFound("No such turn.")
    return turn


def whole_workspace(principal: Principal) -> Principal:
    """The principal as one who sees the workspace and not only the own conversations."""
    return msgspec.structs.replace(principal, user_id=None, user=None, role="service")


def approvers_of(turn: Turn) -> tuple[str, ...]:
    agent = turn.snapshot.agent
    return ("author",) if agent is None else agent.approvers


async def check_rate(call: ApiCall[Any, Any], options: Options) -> None:
    """Raises RateLimited over the rate of the key, unless the request repeats one that was already accepted."""
    if call.over_limit is not None and not await call.runtime.engine.is_repeat(call.principal, options):
        raise call.over_limit


async def respond(call: ApiCall[Any, StreamQuery], claimed: Claimed) -> ASGIApp:
    """The response that the client asked for: 202, the stream, or the settled turn."""
    turn = claimed.turn
    call.notes["turn_id"] = turn.id
    if not claimed.is_new:
        # A repeated request may see only what its caller may see now. The first request always gets its outcome.
        await call.runtime.store.turn(call.principal, turn.id)
    if call.body.background:
        return accepted(turn)
    if wants_stream(call.headers):
        return stream_turn(call.runtime, turn, format=call.query.format)
    try:
        ended = await while_connected(call.receive, call.runtime.engine.ending(turn.id))
    except Draining:
        return accepted(turn)
    except ClientDisconnected:
        return no_content()
    answer = await read_answer(call.runtime.store, call.principal, ended)
    return json_response(answer, headers={TURN_HEADER: turn.id})


def wants_stream(headers: Headers) -> bool:
    """Whether Accept names the event stream. A client that accepts both gets the stream."""
    for item in headers.get("accept", "").lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        if media_type == "text/event-stream":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in {"0", "0.0", "0.00", "0.000"}


def accepted(turn: Turn) -> ASGIApp:
    url = events_url(turn.id)
    body = wire.Accepted(conversation_id=turn.conversation_id, turn_id=turn.id, events_url=url)
    return json_response(body, status=202, headers={TURN_HEADER: turn.id, "location": url})


async def cursor_of(runtime: Runtime, turn: Turn, text: str | None, *, format: FormatName) -> tuple[Cursor, bool]:
    """The cursor of a client, and whether nothing will ever follow it.

    Raises InvalidRequest for a cursor that is malformed, that the turn has not reached, or that is of another format.
    """
    if not text:
        return START, False
    cursor = parse_cursor(text)
    if cursor.state and format == "native":
        raise InvalidRequest(
            f"The cursor {text} is of another format. Continue in the format that gave it, or leave it out."
        )
    return cursor, await is_over(runtime.store, runtime.hub, turn.id, cursor)


def stream_turn(runtime: Runtime, turn: Turn, *, format: FormatName, cursor: Cursor = START) -> ASGIApp:
    """The stream of the turn after the cursor. While it is open, the turn counts as watched."""
    encoder = encoder_for(format, turn_id=turn.id, model=turn.model, created_at=turn.created_at, cursor=cursor)
    stream = runtime.streams.respond(
        lambda take: follow(runtime.store, runtime.hub, turn.id, cursor, take=take),
        encoder,
        attach=lambda: runtime.engine.attach(turn.id),
        runs_here=lambda: runtime.engine.runs(turn.id),
        headers=((b"turnkeep-turn", turn.id.encode()),),
    )
    return cast(ASGIApp, stream)


async def read_events(store: Store, turn_id: TurnId) -> list[Recorded]:
    """All events of a turn so far."""
    events: list[Recorded] = []
    while True:
        batch = await store.events(turn_id, after=len(events), limit=EVENTS_AT_ONCE)
        events += batch
        if len(batch) < EVENTS_AT_ONCE:
            return events


async def read_turn(store: Store, turn: Turn) -> wire.Turn:
    return views.turn_of(turn, await read_events(store, turn.id))


async def read_answer(store: Store, principal: Principal, ended: EndedTurn) -> wire.Answered:
    """A settled turn and its message, if it has one. Also if the conversation was deleted meanwhile."""
    turn, record = ended.turn, ended.record
    if record is not None:
        events, message = record.events, _last_visible(turn, record.rows)
    else:
        events = await read_events(store, turn.id)
        message = await _message(store, principal, turn, events)
    return wire.Answered(
        conversation_id=turn.conversation_id,
        turn=views.turn_of(turn, events),
        message=None if message is None else views.message_of(message),
    )


async def _message(store: Store, principal: Principal, turn: Turn, events: Sequence[Recorded]) -> PublicMessage | None:
    terminal = events[-1].event if events else None
    if not isinstance(terminal, Result | Failure) or not terminal.message_id:
        return None
    with suppress(NotFound):  # deleted meanwhile: the client that waited still gets the message
        page = await store.transcript(principal, turn.conversation_id, order="desc", limit=NEWEST_MESSAGES)
        for message in page.data:
            if message.id == terminal.message_id:
                return message
    # The turn is on another branch, far back in the transcript, or deleted.
    return _last_visible(turn, await store.turn_rows(turn.id))


def _last_visible(turn: Turn, rows: Sequence[Message]) -> PublicMessage | None:
    """The visible message of the assistant, from the rows of the turn."""
    for row in reversed(rows):
        if row.role == "assistant" and not row.internal:
            return PublicMessage(
                id=row.id,
                conversation_id=row.conversation_id,
                turn_id=row.turn_id,
                role=row.role,
                content=row.display if row.display is not None else parts_of(row.blocks),
                attachments=row.attachments,
                sources=row.sources,
                usage=row.usage,
                status=turn.status,
                created_at=row.created_at,
                error=turn.error,
                model=row.provider or turn.model,
                metadata=row.metadata or turn.metadata,
                finish=finish_of(row.role, turn.status, turn.report),
            )
    return None
