"""The endpoints of the AI SDK: ask and go on, resume a stream, and read the messages of a chat.

The SDK sends the whole chat each time. The server has it already, so only the last message counts. If that is the
user's, it is a question, an edit of one, or one to be answered again. If it is the assistant's, it brings decisions and
results for which a turn waits.
"""

import asyncio
import base64
import binascii
from itertools import groupby
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp

from turnkeep.api.ai_sdk.message_stream import HEADER, MessageStream, message_of
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.native.turns import STREAM, read_events
from turnkeep.api.wires import (
    MESSAGE_KEY,
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
    check_own_rate,
    client_tools,
    decision_of,
    file_id_in,
    folded_turns,
    has_other_words,
    is_asked,
    last_wait,
    latest_messages,
    picture_at,
    regenerate,
    stream,
    text_of,
    turn_of_message,
)
from turnkeep.errors import Conflict, InvalidRequest, NotFound
from turnkeep.ids import FileId, TurnId
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import PublicMessage
from turnkeep.model.turns import Turn
from turnkeep.model.waits import CallAnswer
from turnkeep_client.wire.blocks import Block, JsonObject, Text, TextPart

endpoints = Endpoints("ai-sdk")

ENDED = ResponseSpec(status=204, meaning="No turn runs in this chat")


class SdkTool(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that the page executes."""

    name: str
    description: str = ""
    input_schema: JsonObject = {}


class SdkRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the SDK's transport sends. `tools` is ours: a page adds it to the body of its transport."""

    id: str
    messages: list[msgspec.Raw]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    tools: list[SdkTool] = []


class ChatMessagesQuery(WireQuery, frozen=True, kw_only=True):
    cursor: str | None = None


class SdkMessage(Struct, frozen=True, kw_only=True):
    role: str
    id: str = ""
    parts: list[JsonObject] = []


@endpoints.add(
    "POST",
    "/ai-sdk/chat",
    policy=Policy.MEMBER,
    query=WireQuery,
    raw_body="application/json",
    responses=(STREAM,),
    headers=("Idempotency-Key",),
    errors=(404, 409, 413, 422, 429, 503, 507),
    limits_itself=True,
    is_described=False,
)
async def chat_by_ai_sdk(call: ApiCall[Nothing, WireQuery]) -> ASGIApp:
    """Ask, or go on after an approval or a client tool: the request and the stream of the AI SDK's `useChat`."""
    body = await body_of(call, SdkRequest)
    message = _last_message(body)
    chat = await chat_of(call, body.id)
    if message.role == "assistant":
        return await _go_on(call, chat, message)
    asked = await _question(call, body, message)
    turn = await _asked(call, body, chat, asked)
    return _stream(call, turn)


@endpoints.add(
    "GET",
    "/ai-sdk/chat/{chat_id}/stream",
    policy=Policy.MEMBER,
    query=WireQuery,
    responses=(STREAM, ENDED),
    is_described=False,
)
async def resume_by_ai_sdk(call: ApiCall[Nothing, WireQuery]) -> ASGIApp:
    """The stream of the turn that runs in a chat, from its beginning. The SDK's `resume` calls it."""
    chat = await chat_to_attach(call, call.path("chat_id"))
    if chat is None or chat.running_turn_id is None:
        return no_content()
    return _stream(call, await call.runtime.store.turn(call.principal, chat.running_turn_id))


@endpoints.add(
    "GET",
    "/ai-sdk/chat/{chat_id}/messages",
    policy=Policy.MEMBER,
    query=ChatMessagesQuery,
    responses=(ResponseSpec(status=200, meaning="The messages of the chat, in the SDK's form", type=dict[str, Any]),),
    is_described=False,
)
async def list_messages_by_ai_sdk(call: ApiCall[Nothing, ChatMessagesQuery]) -> ASGIApp:
    """The newest messages of a chat as the AI SDK's `UIMessage`, with the parts that a live stream has shown. A
    `next_cursor` gets those before them."""
    chat_id = call.path("chat_id")
    is_newest = call.query.cursor is None  # an older page does not have the question that runs next
    chat = await (chat_to_attach if is_newest else chat_of)(call, chat_id)
    if chat is None:
        raise NotFound("There is no chat of this id.")
    messages, cursor = await _messages(call, chat)
    shown = {"id": chat_id, "conversation_id": chat.id, "messages": messages, "next_cursor": cursor}
    return json_response(shown)


def _stream(call: ApiCall[Any, Any], turn: Turn, *, after: int = 0) -> ASGIApp:
    encoder = MessageStream(turn_id=turn.id, base_url=_base_url(call), after=after)
    return stream(call, turn, encoder, headers=(HEADER,))


def _base_url(call: ApiCall[Any, Any]) -> str:
    return address_of(call.runtime.settings, call.headers.get("host"))


# Questions


def _last_message(body: SdkRequest) -> SdkMessage:
    if not body.messages:
        raise InvalidRequest("`messages` is empty. Send the chat with its last message.")
    try:
        message = msgspec.json.decode(body.messages[-1], type=SdkMessage)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"The last message is not one of the AI SDK: {exc}.") from exc
    if message.role not in {"user", "assistant"}:
        raise InvalidRequest(f"The last message has the role {message.role!r}. It must be `user` or `assistant`.")
    check_count("`parts` of the last message", message.parts)
    return message


async def _asked(call: ApiCall[Any, WireQuery], body: SdkRequest, chat: Conversation | None, asked: Asked) -> Turn:
    """The turn of this question. One that the server knows already is asked again, edited, or followed. One that is
    asked again with other words is edited: the request of an edit was lost before."""
    known: TurnId | None = None
    if chat is not None and body.trigger == "regenerate-message":
        known = await turn_of_message(call, chat, body.message_id or asked.message_id)
        known = known or await turn_of_message(call, chat, asked.message_id)
        if known is not None and not await has_other_words(call, known, asked):
            return (await regenerate(call, asked, known)).turn
    elif chat is not None and body.message_id is not None:
        known = await turn_of_message(call, chat, body.message_id)
        # Only the last question can be a repeated request. An earlier one is edited, also with the same words: the page
        # has dropped what followed it.
        is_last = known is not None and known == (chat.running_turn_id or chat.head_turn_id)
        if known is not None and is_last and await is_asked(call, known, asked):
            return await call.runtime.store.turn(call.principal, known)
    return (await ask(call, asked, chat, beside=known)).turn


async def _question(call: ApiCall[Any, Any], body: SdkRequest, message: SdkMessage) -> Asked:
    blocks: list[Block] = []
    file_ids: list[FileId] = []
    new_files: list[SentFile] = []
    for n, part in enumerate(message.parts):
        match part.get("type"):
            case "text":
                if (text := text_of(part, f"parts[{n}]")).strip():
                    blocks.append(Text(text=text))
            case "file":
                url, place = str(part.get("url", "")), f"parts[{n}]"
                if (file_id := file_id_in(url)) is not None:
                    file_ids.append(file_id)
                elif url.startswith("data:"):
                    new_files.append(await asyncio.to_thread(_sent_file, part, url, place))
                else:
                    blocks.append(await picture_at(call, url, str(part.get("mediaType") or ""), place))
            case _:
                pass  # such as `data-…`, which pages keep for themselves
    return Asked(
        chat_id=body.id,
        message_id=message.id,
        blocks=tuple(blocks),
        file_ids=tuple(file_ids),
        new_files=tuple(new_files),
        tools=client_tools((each.name, each.description, each.input_schema) for each in body.tools),
    )


def _sent_file(part: JsonObject, url: str, place: str) -> SentFile:
    """The file of a data address. Takes a moment for a large one: call it in a thread."""
    head, comma, text = url.removeprefix("data:").partition(",")
    if not comma:
        raise InvalidRequest(f"`{place}.url` is no valid data: address.")
    media_type, _, parameters = head.partition(";")
    try:
        data = unquote_to_bytes(text) if "%" in text else text.encode()
        if f";{parameters}".endswith(";base64"):
            data = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"`{place}.url` is not valid base64.") from exc
    kind = str(part.get("mediaType") or media_type or "application/octet-stream")
    return SentFile.named(part.get("filename"), kind, data)


# Answers


async def _go_on(call: ApiCall[Any, WireQuery], chat: Conversation | None, message: SdkMessage) -> ASGIApp:
    """Give the turn the decisions and results in its message, and stream what follows."""
    check_own_rate(call)
    turn_id = None if chat is None else await turn_of_message(call, chat, message.id)
    if turn_id is None:
        raise NotFound(
            "The last message is one of the assistant that this chat does not have. Send a message of the user."
        )
    turn = await call.runtime.store.turn(call.principal, turn_id)
    answers = _answers(message)
    events = await read_events(call.runtime.store, turn_id)
    after = last_wait(events, answers)
    if not after:
        raise Conflict("This turn waits for nothing. Send a message of the user.")
    if turn.status in {"failed", "cancelled"}:
        raise Conflict(f"This turn has ended ({turn.status}) and takes no more answers. Send a message of the user.")
    turn = await answer_calls(call, turn, answers)
    return _stream(call, turn, after=after)


def _answers(message: SdkMessage) -> dict[str, Answer]:
    """The decisions and results in the parts of a message, by call. Of two parts of one call the later one counts."""
    found: dict[str, Answer] = {}
    for part in message.parts:
        call_id, kind = part.get("toolCallId"), part.get("type")
        if not isinstance(call_id, str) or not isinstance(kind, str):
            continue
        approval = part.get("approval")
        match part.get("state"):
            case "approval-responded" if isinstance(approval, dict):
                is_allowed = approval.get("approved") is True
                found[call_id] = decision_of(call_id, is_allowed=is_allowed, reason=approval.get("reason"))
            case "output-available" if not part.get("preliminary"):
                found[call_id] = CallAnswer(verdict="result", value=part.get("output"))
            case "output-error":
                found[call_id] = CallAnswer(verdict="error", value=str(part.get("errorText") or "The tool failed."))
            case _:
                pass
    return found


# Messages


async def _messages(call: ApiCall[Any, ChatMessagesQuery], chat: Conversation) -> tuple[list[JsonObject], str | None]:
    """The newest messages, or those before the cursor; and the cursor of those before them. A turn that ended before it
    said anything has a message too, as in a live stream."""
    messages, cursor = await latest_messages(call, chat, cursor=call.query.cursor)
    waiting = None if call.query.cursor is not None else await _waiting_turn(call, chat)
    answered = {message.turn_id for message in messages if message.role == "assistant"}
    silent = {message.turn_id for message in messages if _has_failed(message)} - answered
    base_url = _base_url(call)
    answers = await folded_turns(
        call,
        [*answered, *silent, *([] if waiting is None else [waiting])],
        lambda turn_id, frames: message_of(turn_id, frames, base_url=base_url),
    )
    shown: list[JsonObject] = []
    for turn_id, group in groupby(messages, lambda message: message.turn_id):
        first = next(group)
        if first.role == "user":
            shown.append(_user_message(call, first))
        # The answer to the last question of an older page may be on the page that the client has.
        may_be_elsewhere = call.query.cursor is not None and turn_id == messages[-1].turn_id
        if turn_id in answered or (turn_id in silent and not (may_be_elsewhere and _has_content(answers[turn_id]))):
            shown.append(answers[turn_id])
    if waiting is not None and waiting not in answered:
        shown.append(answers[waiting])
    return shown, cursor


def _has_content(message: JsonObject) -> bool:
    return any(part["type"] != "step-start" for part in message["parts"])


def _has_failed(message: PublicMessage) -> bool:
    """Whether the turn of this message ended without an answer. Words that another turn has taken are no such turn."""
    is_taken = message.error is not None and message.error.code == STEERED
    return message.status in {"failed", "cancelled"} and not is_taken


async def _waiting_turn(call: ApiCall[Any, Any], chat: Conversation) -> TurnId | None:
    if chat.running_turn_id is None:
        return None
    running = await call.runtime.store.turn(call.principal, chat.running_turn_id)
    return running.id if running.status == "waiting" else None


def _user_message(call: ApiCall[Any, Any], message: PublicMessage) -> JsonObject:
    """The message under the id that the client gave it."""
    parts: list[JsonObject] = []
    for ref in message.attachments:
        url = f"{_base_url(call)}/v1/files/{ref.file_id}/content"
        parts.append({"type": "file", "url": url, "mediaType": ref.mime_type, "filename": ref.name})
    parts += [{"type": "text", "text": part.text} for part in message.content if isinstance(part, TextPart)]
    metadata = {"turn_id": message.turn_id, "message_id": message.id}
    message_id = message.metadata.get(MESSAGE_KEY) or message.id
    return {"id": message_id, "role": message.role, "metadata": metadata, "parts": parts}
