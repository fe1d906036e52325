"""The endpoints of AG-UI: run an agent in a thread, and attach to a thread again.

A client sends all messages of its thread each time. The server has them already, so what counts is the end of them: a
question of the user, results of client tools, or, in `resume`, decisions about calls. Without any of these the client
has lost its connection, and is given the thread as it is.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api.ag_ui.run_stream import RunEvents, RunInfo, messages_of, snapshot_run
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy
from turnkeep.api.http.responses import address_of
from turnkeep.api.native.turns import STREAM, read_events
from turnkeep.api.wires import (
    MESSAGE_KEY,
    NAME_CHARS,
    STEERED,
    Answer,
    Asked,
    SentFile,
    WireQuery,
    answer_calls,
    ask,
    body_of,
    chat_of,
    chat_to_attach,
    check_count,
    check_decision,
    check_own_rate,
    checked_answers,
    client_tools,
    decision_of,
    file_id_in,
    folded_turns,
    is_asked,
    last_wait,
    latest_messages,
    options_of,
    picture_at,
    stream,
    text_of,
    turn_of_message,
)
from turnkeep.errors import Conflict, InvalidRequest
from turnkeep.ids import FileId, TurnId, new_turn_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import PublicMessage
from turnkeep.model.turns import Turn
from turnkeep.model.waits import CallAnswer
from turnkeep.streaming.connection import HEADERS
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Block, FileRef, JsonObject, JsonValue, Text, TextPart

endpoints = Endpoints("ag-ui")


class ThreadTool(Struct, frozen=True, kw_only=True):
    """A tool that the page runs."""

    name: str
    description: str = ""
    parameters: JsonObject | None = None


class ResumedInterrupt(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to an interrupt, whose id is that of a call."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class RunRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The input of a run. `state`, `context` and `forwardedProps` are not used."""

    thread_id: str
    run_id: str
    messages: list[JsonObject] = []
    tools: list[ThreadTool] | None = None
    resume: list[ResumedInterrupt] | None = None
    protocol_version: str | None = None


class ConnectQuery(WireQuery, frozen=True, kw_only=True):
    """`protocol_version` is that of the client. Without it, the events are those that clients of 0.0.59 read too."""

    protocol_version: str | None = None


@endpoints.add(
    "POST",
    "/ag-ui",
    policy=Policy.MEMBER,
    query=WireQuery,
    raw_body="application/json",
    responses=(STREAM,),
    headers=("Idempotency-Key",),
    errors=(404, 409, 413, 422, 429, 503, 507),
    limits_itself=True,
    is_described=False,
)
async def run_by_ag_ui(call: ApiCall[Nothing, WireQuery]) -> ASGIApp:
    """Run an agent in a thread: the input and the events of AG-UI's `HttpAgent`."""
    body = await body_of(call, RunRequest)
    check_count("`messages`", body.messages)
    decisions = _decisions(body)
    thread = await chat_of(call, body.thread_id)
    turn = await _last_turn(call, thread)
    _check_resume(body, decisions, turn)
    if turn is not None and turn.status == "waiting":
        answers = _answers(body, decisions, turn)
        if answers:
            return await _go_on(call, body, thread, turn, answers)
    if _has_question(body):
        asked = await _question(call, body)
        known = await _known_turn(call, thread, asked)
        if known is not None:
            check_own_rate(call)
            return stream(call, known, RunEvents(turn_id=known.id, run=_run(body, has_snapshot=True)))
        claimed = await ask(call, asked, thread)
        if thread is not None and claimed.turn.error is not None and claimed.turn.error.code == STEERED:
            return await _attach(call, thread, _run(body))  # another turn has taken the words
        run = _run(body, has_snapshot=not claimed.is_new)
        return stream(call, claimed.turn, RunEvents(turn_id=claimed.turn.id, run=run))
    if thread is None:
        raise InvalidRequest("`messages` has no message of the user at its end. Add one, and run again.")
    check_own_rate(call)
    return await _attach(call, thread, _run(body))


@endpoints.add(
    "GET",
    "/ag-ui/threads/{thread_id}/connect",
    policy=Policy.MEMBER,
    query=ConnectQuery,
    responses=(STREAM,),
    is_described=False,
)
async def connect_by_ag_ui(call: ApiCall[Nothing, ConnectQuery]) -> ASGIApp:
    """Attach to a thread: its messages, and the events of the turn that runs in it."""
    thread_id = call.path("thread_id")
    thread = await chat_to_attach(call, thread_id)
    run = RunInfo(thread_id=thread_id, run_id=new_turn_id(), is_legacy=call.query.protocol_version is None)
    return _finite(snapshot_run(run)) if thread is None else await _attach(call, thread, run)


def _run(body: RunRequest, *, has_snapshot: bool = False) -> RunInfo:
    return RunInfo(
        thread_id=body.thread_id,
        run_id=body.run_id,
        is_legacy=body.protocol_version is None,
        messages=body.messages,
        has_snapshot=has_snapshot,
    )


async def _attach(call: ApiCall[Any, Any], thread: Conversation, run: RunInfo) -> ASGIApp:
    """All messages of the thread, and then what happens in it until its turn ends or waits."""
    running = thread.running_turn_id
    history = await _history(call, thread, without=running)
    run = msgspec.structs.replace(run, messages=history, has_snapshot=True)
    if running is None:
        return _finite(snapshot_run(run))
    turn = await call.runtime.store.turn(call.principal, running)
    return stream(call, turn, RunEvents(turn_id=turn.id, run=run))


def _finite(body: bytes) -> ASGIApp:
    return Response(body, headers={name.decode(): value.decode() for name, value in HEADERS})


# Questions


async def _question(call: ApiCall[Any, WireQuery], body: RunRequest) -> Asked:
    message = body.messages[-1]
    blocks: list[Block] = []
    file_ids: list[FileId] = []
    new_files: list[SentFile] = []
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise InvalidRequest("The `content` of a message is a text or a list of parts.")
    check_count("`content` of the last message", parts)
    for n, part in enumerate(parts):
        if not isinstance(part, dict):
            raise InvalidRequest(f"`content[{n}]` is no object.")
        if part.get("type") == "text":
            if (text := text_of(part, f"content[{n}]")).strip():
                blocks.append(Text(text=text))
            continue
        url, data, media_type = _source(part)
        if data is not None:
            new_files.append(await asyncio.to_thread(_sent_file, part, data, media_type, n))
        elif (file_id := file_id_in(url)) is not None:
            file_ids.append(file_id)
        else:
            blocks.append(await picture_at(call, url, media_type, f"content[{n}]"))
    return Asked(
        chat_id=body.thread_id,
        message_id=str(message.get("id") or ""),
        blocks=tuple(blocks),
        file_ids=tuple(file_ids),
        new_files=tuple(new_files),
        tools=client_tools((each.name, each.description, each.parameters or {}) for each in body.tools or ()),
    )


async def _known_turn(call: ApiCall[Any, Any], thread: Conversation | None, asked: Asked) -> Turn | None:
    """The turn of a question that the client has attached to, and sends with the addresses of its files."""
    if thread is None or not asked.file_ids or not asked.message_id:
        return None
    turn_id = await turn_of_message(call, thread, asked.message_id)
    if turn_id is None or not await is_asked(call, turn_id, asked):
        return None
    return await call.runtime.store.turn(call.principal, turn_id)


def _source(part: JsonObject) -> tuple[str, str | None, str]:
    """The address or the base64 text of a part, and its type. Older clients send it as `binary`."""
    source = part.get("source")
    if isinstance(source, dict):
        value, media_type = str(source.get("value", "")), str(source.get("mimeType") or "")
        return (value, None, media_type) if source.get("type") == "url" else ("", value, media_type)
    data = part.get("data")
    return str(part.get("url") or ""), data if isinstance(data, str) else None, str(part.get("mimeType") or "")


def _sent_file(part: JsonObject, data: str, media_type: str, n: int) -> SentFile:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"`content[{n}]` is not valid base64.") from exc
    metadata = part.get("metadata")
    name = part.get("filename") or (metadata.get("filename") if isinstance(metadata, dict) else None)
    return SentFile.named(name, media_type, raw)


# Answers


async def _last_turn(call: ApiCall[Any, Any], thread: Conversation | None) -> Turn | None:
    """The turn that runs or waits in the thread, or else the last one."""
    last = None if thread is None else thread.running_turn_id or thread.head_turn_id
    return None if last is None else await call.runtime.store.turn(call.principal, last)


def _has_question(body: RunRequest) -> bool:
    return bool(body.messages) and body.messages[-1].get("role") == "user"


def _decisions(body: RunRequest) -> dict[str, wire.Decision]:
    """The decisions in `resume`, by call. Raises InvalidRequest for an entry that does not say what is decided."""
    found: dict[str, wire.Decision] = {}
    for n, entry in enumerate(body.resume or ()):
        if entry.interrupt_id in found:
            raise InvalidRequest(f"`resume` answers the interrupt {entry.interrupt_id[:NAME_CHARS]!r} twice.")
        found[entry.interrupt_id] = _decision(entry, f"resume[{n}]")
    return found


def _decision(entry: ResumedInterrupt, place: str) -> wire.Decision:
    """A cancelled interrupt denies the call. A resolved one must say what is decided: no call runs because of a payload
    that means something else."""
    said = entry.payload if isinstance(entry.payload, dict) else {"approved": entry.payload}
    args, is_allowed = said.get("args"), said.get("approved")
    if is_allowed is None and isinstance(args, dict):
        is_allowed = True
    if entry.status == "cancelled":
        is_allowed = False
    if not isinstance(is_allowed, bool) or not (args is None or isinstance(args, dict)):
        raise InvalidRequest(
            f"`{place}.payload` does not say whether the call is allowed. Send `true`, `false`, or an object with "
            "`approved`: true or false. An object with `args` allows the call with these arguments."
        )
    return decision_of(entry.interrupt_id, is_allowed=is_allowed, reason=said.get("reason"), args=args)


def _check_resume(body: RunRequest, decisions: Mapping[str, wire.Decision], turn: Turn | None) -> None:
    """Raises AlreadyDecided for a decision that contradicts the one that holds, and Conflict for one about a call that
    the thread does not wait for.

    Before a client asks anything new it must name the interrupts that it still has open, so it cancels those of a turn
    that has ended. That decides nothing.
    """
    for entry in body.resume or ():
        waited = None if turn is None or turn.wait is None else turn.wait.call(entry.interrupt_id)
        is_asked = waited is not None and waited.reason == "approval"
        if entry.status == "cancelled" and (
            not is_asked or (turn is not None and turn.is_settled and _has_question(body))
        ):
            continue
        if turn is None or waited is None or not is_asked:
            raise Conflict(
                f"The thread does not wait for the interrupt {entry.interrupt_id[:NAME_CHARS]!r}. Attach to it again."
            )
        check_decision(turn, waited, decisions[entry.interrupt_id])


def _answers(body: RunRequest, decisions: Mapping[str, wire.Decision], turn: Turn) -> dict[str, Answer]:
    """The decisions and results for open calls of this turn."""
    open_calls = set() if turn.wait is None else {waited.id for waited in turn.wait.open_calls}
    found: dict[str, Answer] = {call_id: made for call_id, made in decisions.items() if call_id in open_calls}
    for message in body.messages:
        call_id, error = message.get("toolCallId"), message.get("error")
        if message.get("role") != "tool" or call_id not in open_calls:
            continue
        if isinstance(error, str) and error:
            found[call_id] = CallAnswer(verdict="error", value=error)
        else:
            found[call_id] = CallAnswer(verdict="result", value=message.get("content"))
    return found


async def _go_on(
    call: ApiCall[Any, WireQuery],
    body: RunRequest,
    thread: Conversation | None,
    turn: Turn,
    answers: dict[str, Answer],
) -> ASGIApp:
    """Answer the calls, and stream what follows. Words that come with the answers reach the model in the same turn."""
    check_own_rate(call)
    after = last_wait(await read_events(call.runtime.store, turn.id), answers)
    await checked_answers(call, turn, answers)  # before the words are stored
    steered: str | None = None
    if _has_question(body) and thread is not None:
        asked = await _question(call, body)
        if await turn_of_message(call, thread, asked.message_id) is None:
            if asked.file_ids or asked.new_files or not asked.blocks:
                raise InvalidRequest(
                    "Files cannot come with the answers to calls. Send the answers alone, or with words, and the files "
                    "with the next message."
                )
            options = await options_of(call, asked)
            _, claimed = await call.runtime.engine.steer(call.principal, turn.id, asked.blocks, options)
            steered = claimed.user_message_id
    turn = await answer_calls(call, turn, answers)
    answered = frozenset(str(message.get("toolCallId")) for message in body.messages if message.get("role") == "tool")
    run = msgspec.structs.replace(_run(body), answered=answered, steered=steered)
    return stream(call, turn, RunEvents(turn_id=turn.id, run=run, after=after))


# Messages


async def _history(call: ApiCall[Any, Any], thread: Conversation, *, without: TurnId | None) -> list[JsonObject]:
    """The newest messages of the thread, under the ids that its clients know. Of the turn `without` only the
    question."""
    messages, _ = await latest_messages(call, thread)
    answered = {message.turn_id for message in messages if message.role == "assistant"} - {without}
    answers = await folded_turns(call, answered, messages_of)
    shown: list[JsonObject] = []
    asked: set[TurnId] = set()
    for message in messages:
        if message.role == "assistant":
            shown += answers.get(message.turn_id, ())
        elif message.turn_id not in asked:
            asked.add(message.turn_id)
            shown.append(_user_message(call, message))
    return shown


def _user_message(call: ApiCall[Any, Any], message: PublicMessage) -> JsonObject:
    """The message under the id that the client gave it. Files are parts with their addresses here."""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    content: JsonValue = "\n\n".join(texts)
    if message.attachments:
        parts: list[JsonValue] = [{"type": "text", "text": text} for text in texts]
        content = [*parts, *(_file_part(call, ref) for ref in message.attachments)]
    return {"id": message.metadata.get(MESSAGE_KEY) or message.id, "role": message.role, "content": content}


def _file_part(call: ApiCall[Any, Any], ref: FileRef) -> JsonObject:
    kind = ref.mime_type.partition("/")[0]
    url = f"{address_of(call.runtime.settings, call.headers.get('host'))}/v1/files/{ref.file_id}/content"
    return {
        "type": kind if kind in {"image", "audio", "video"} else "document",
        "source": {"type": "url", "value": url, "mimeType": ref.mime_type},
        "metadata": {"filename": ref.name},
    }
