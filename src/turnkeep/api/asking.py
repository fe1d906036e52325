"""From a body to a question, and from a claimed turn to one of its three answers: stream, wait, or 202."""

from collections.abc import Sequence
from typing import Any, assert_never

from starlette.datastructures import Headers
from starlette.types import ASGIApp

from turnkeep.api import wire
from turnkeep.api.http.disconnects import CallerLeft, while_connected
from turnkeep.api.http.endpoints import Call, known_id
from turnkeep.api.http.idempotency import idempotency_key, request_hash
from turnkeep.api.http.links import events_url
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.queries import StreamQuery
from turnkeep.api.pictures import picture_of
from turnkeep.api.reading import read_answer
from turnkeep.api.streams import stream_turn
from turnkeep.config import Settings
from turnkeep.engine import Draining, Options
from turnkeep.errors import TooManyFiles
from turnkeep.ids import AgentId, FileId
from turnkeep.model.blocks import Block, Text
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep.store.commands import Claimed

TURN_HEADER = "turnkeep-turn"


async def blocks_of(
    message: str | Sequence[wire.TextBlock | wire.ImageBlock | wire.FileBlock], runtime: Runtime
) -> tuple[tuple[Block, ...], list[FileId]]:
    """What is said, and the files it names. Empty words are left out: no provider takes them."""
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
                blocks.append(await picture_of(block, runtime, place=f"message[{n}]"))
            case wire.FileBlock():
                files.append(FileId(known_id(block.file_id, "file")))
            case _:
                assert_never(block)
    return tuple(blocks), files


def attachments_of(given: Sequence[str], named: Sequence[FileId], settings: Settings) -> tuple[FileId, ...]:
    """The files of a message, from `attachment_ids` and from its blocks."""
    return check_attachments([*given, *(file_id for file_id in named if file_id not in given)], settings)


def check_attachments(file_ids: Sequence[str], settings: Settings) -> tuple[FileId, ...]:
    limit = settings.max_files_per_message
    if len(file_ids) > limit:
        raise TooManyFiles(f"A message may carry {limit} files, this one names {len(file_ids)}.")
    return tuple(FileId(known_id(file_id, "file")) for file_id in file_ids)


def options_of(call: Call[Any, Any]) -> Options:
    """How the turn is asked for."""
    body = call.body
    key = idempotency_key(call)
    return Options(
        agent_id=None if body.agent_id is None else AgentId(known_id(body.agent_id, "agent")),
        model=body.model,
        if_busy=body.if_busy,
        background=body.background,
        source=call.identity.source,
        metadata=body.metadata,
        idempotency_key=key,
        request_hash=None if key is None else request_hash(call),
    )


async def check_rate(call: Call[Any, Any], options: Options) -> None:
    """Refuse what is over the key's rate, unless it repeats a request that was already accepted."""
    if call.over_limit is not None and not await call.runtime.engine.is_repeat(call.principal, options):
        raise call.over_limit


async def respond(call: Call[Any, StreamQuery], claimed: Claimed) -> ASGIApp:
    """The answer that the caller asked for: 202, the stream, or the settled turn."""
    turn = claimed.turn
    call.notes["turn_id"] = turn.id
    if not claimed.is_new:
        # Who repeats a request is answered with what it may see now; who made it, with what became of it.
        await call.runtime.store.turn(call.principal, turn.id)
    if call.body.background:
        return _accepted(turn)
    if wants_stream(call.headers):
        return stream_turn(call.runtime, turn, format=call.query.format)
    try:
        settled = await while_connected(call.receive, call.runtime.engine.wait(turn.id))
    except Draining:
        return _accepted(turn)
    except CallerLeft:
        return no_content()
    answer = await read_answer(call.runtime.store, call.principal, settled)
    return json_response(answer, headers={TURN_HEADER: turn.id})


def wants_stream(headers: Headers) -> bool:
    """Whether Accept names the event stream at all; those who want both get the stream."""
    for item in headers.get("accept", "").lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        if media_type == "text/event-stream":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in {"0", "0.0", "0.00", "0.000"}


def _accepted(turn: Turn) -> ASGIApp:
    url = events_url(turn.id)
    body = wire.Accepted(conversation_id=turn.conversation_id, turn_id=turn.id, events_url=url)
    return json_response(body, status=202, headers={TURN_HEADER: turn.id, "location": url})
