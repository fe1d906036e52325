"""OpenAI's Chat Completions: the agent's model for a turn in a sandbox.

No provider's key leaves the server. A call is answered only for the token of a turn that runs, only with the model of
that turn, and is broken off when the turn ends; its tokens are counted with the turn's own, on whichever worker.
Errors have OpenAI's shape, since it is OpenAI's clients that read them.

Reasoning is sent as `reasoning_details`, opaque objects beside the message, and comes back unchanged. So its signatures
survive a client that knows nothing of them.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.disconnects import ClientDisconnected
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.problem_details import status_of
from turnkeep.api.http.requests import read_body
from turnkeep.api.http.responses import json_response
from turnkeep.api.identity.turn_tokens import bearer, sandbox_turn_id, turn_has_ended, while_turn_runs
from turnkeep.clock import system_clock
from turnkeep.compiler import compile
from turnkeep.compiler.window import UNLIMITED
from turnkeep.engine.loop import usage_of_part
from turnkeep.engine.observer import ObservedModelCall
from turnkeep.errors import InvalidRequest, TurnkeepError, WorldError
from turnkeep.ids import CallId, ConversationId, MessageId, TurnId, new_call_id
from turnkeep.model.messages import Message
from turnkeep.model.sampling import Sampling
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import Delta, ModelRequest, ProviderFailed, ProviderTimedOut, Reply, Restarted, ToolOffer
from turnkeep.runtime import Runtime
from turnkeep_client.wire.blocks import (
    Block,
    Image,
    JsonObject,
    JsonValue,
    Reasoning,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    text_of,
)

BODY_BYTES = 32 * 1024 * 1024
"""Large enough for a history with images. Only a sandbox with the token of a turn can send it."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


endpoints = Endpoints("sandbox")
DETAILS = "reasoning_details"


class _Url(Struct, frozen=True):
    url: str


class _TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: _Url


class _Function(Struct, frozen=True):
    name: str
    arguments: str = ""


class _Call(Struct, frozen=True):
    id: str
    function: _Function


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of any role; which fields count depends on it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart | _ImagePart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_details: list[JsonValue] | None = None


class _Declared(Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    parameters: JsonObject = {}


class ChatTool(Struct, frozen=True, kw_only=True):
    function: _Declared


class _StreamOptions(Struct, frozen=True, kw_only=True):
    include_usage: bool = False


class ChatRequest(Struct, frozen=True, kw_only=True):
    """The fields of a request that the gateway uses. The rest (temperature and so on) is ignored."""

    model: str
    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: JsonValue = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    @property
    def may_call(self) -> bool:
        return bool(self.tool_choice != "none")

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def read_request(raw: bytes) -> ChatRequest:
    try:
        request = msgspec.json.decode(raw, type=ChatRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The request does not fit Chat Completions: {exc}.") from exc
    if not any(message.role in {"user", "tool"} for message in request.messages):
        raise InvalidRequest("`messages` needs at least one message of the user.")
    return request


def system_of(request: ChatRequest) -> str:
    """The system prompt: all messages with instructions."""
    return "\n\n".join(_texts(message) for message in request.messages if _instructs(message))


def rows_of(request: ChatRequest, turn_id: TurnId) -> list[Message]:
    """The messages as rows of one open turn, as the compiler reads them."""
    spoken = [message for message in request.messages if not _instructs(message)]
    return [
        Message(
            id=MessageId(f"msg_{place}"),
            turn_id=turn_id,
            conversation_id=ConversationId(""),
            turn_sequence=place,
            role="assistant" if message.role == "assistant" else "user",
            blocks=_blocks(message),
            created_at=0,
            internal=True,
        )
        for place, message in enumerate(spoken)
    ]


def offers_of(request: ChatRequest) -> list[ToolOffer]:
    return [
        ToolOffer(
            name=tool.function.name,
            description=tool.function.description,
            input_schema=tool.function.parameters or {"type": "object"},
        )
        for tool in request.tools or ()
    ]


class ChatCompletion:
    """One reply in OpenAI's format: whole, or in chunks."""

    def __init__(self, *, call_id: CallId, model: str, created: int) -> None:
        self.call_id = call_id
        self._head = {"id": f"chatcmpl-{call_id}", "created": created, "model": model}

    def begun(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def said(self, text: str, kind: Literal["text", "reasoning"]) -> bytes:
        """More text. An empty chunk keeps the connection alive."""
        if not text:
            return self._chunk({})
        return self._chunk({"content" if kind == "text" else "reasoning_content": text})

    def ended(self, reply: Reply, *, unsaid: str, wants_usage: bool) -> Iterator[bytes]:
        """The chunks that are known only at the end."""
        if unsaid:
            yield self._chunk({"content": unsaid})
        if details := details_of(reply.blocks):
            yield self._chunk({DETAILS: details})
        calls = calls_of(reply)
        for place, call in enumerate(calls):
            yield self._chunk({"tool_calls": [{"index": place, **call}]})
        yield self._chunk({}, finish_reason=finish_reason_of(reply))
        if wants_usage:
            usage = {"object": "chat.completion.chunk", "choices": [], "usage": usage_of(reply.usage)}
            yield _frame({**self._head, **usage})
        yield b"data: [DONE]\n\n"

    def whole(self, reply: Reply) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": text_of(reply.blocks) or None}
        if thought := "\n\n".join(block.text for block in reply.blocks if isinstance(block, Reasoning) and block.text):
            message["reasoning_content"] = thought
        if details := details_of(reply.blocks):
            message[DETAILS] = details
        calls = calls_of(reply)
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": finish_reason_of(reply)}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage_of(reply.usage)}

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _frame({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def error_body(message: str, *, kind: str, code: str) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_frame(message: str, *, code: str) -> bytes:
    """An error inside a stream that has begun. SDKs raise on it."""
    return _frame(error_body(message, kind="server_error", code=code))


def details_of(blocks: Sequence[Block]) -> list[JsonObject]:
    return [msgspec.to_builtins(block) for block in blocks if isinstance(block, Reasoning)]


def calls_of(reply: Reply) -> list[JsonObject]:
    return [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": _arguments(block, reply)}}
        for block in reply.blocks
        if isinstance(block, ToolUse)
    ]


def finish_reason_of(reply: Reply) -> str:
    if any(isinstance(block, ToolUse) for block in reply.blocks):
        return "tool_calls"
    return "length" if reply.finish == "length" else "stop"


def usage_of(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
    }


def _arguments(call: ToolUse, reply: Reply) -> str:
    """The arguments as JSON. Malformed arguments stay unreadable, so that the client notices it too."""
    if (wrong := reply.malformed.get(call.id)) is not None:
        return f"({wrong})"
    return msgspec.json.encode(call.input).decode()


def _frame(value: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _instructs(message: ChatMessage) -> bool:
    return message.role in {"system", "developer"}


def _blocks(message: ChatMessage) -> tuple[Block, ...]:
    match message.role:
        case "tool":
            text = _texts(message)
            call_id = CallId(message.tool_call_id or "")
            # The format has no field for it, so a failed result says it in words.
            return (ToolResult(call_id=call_id, content=text, is_error=text.startswith("Error: ")),)
        case "assistant":
            return (*_thoughts(message), *_parts(message), *map(_use, message.tool_calls or ()))
        case "user" | "system" | "developer":
            return tuple(_parts(message))
        case _:
            assert_never(message.role)


def _thoughts(message: ChatMessage) -> list[Reasoning]:
    try:
        return msgspec.convert(message.reasoning_details or [], type=list[Reasoning])
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"`{DETAILS}` must come back as they were sent: {exc}.") from exc


def _use(call: _Call) -> ToolUse:
    try:
        given = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        given = {}
    return ToolUse(id=CallId(call.id), name=call.function.name, input=given)


def _parts(message: ChatMessage) -> Iterator[Block]:
    if isinstance(message.content, str):
        if message.content:
            yield Text(text=message.content)
        return
    for part in message.content or ():
        if isinstance(part, _TextPart):
            if part.text:
                yield Text(text=part.text)
        else:
            yield _image(part.image_url.url)


def _image(url: str) -> Image:
    if not url.startswith("data:"):
        return Image(media_type="image/*", url=url)
    head, _, data = url.removeprefix("data:").partition(",")
    media_type, _, encoding = head.partition(";")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest("A picture is not valid base64.") from exc
    if encoding != "base64":
        raise InvalidRequest("A picture inside a message must be base64.")
    return Image(media_type=media_type, data=data)


def _texts(message: ChatMessage) -> str:
    return "\n\n".join(block.text for block in _parts(message) if isinstance(block, Text))


@endpoints.add(
    "POST",
    "/v1/sandbox/{turn_id}/chat/completions",
    policy=Policy.TURN,
    responses=(ResponseSpec(status=200, meaning="OpenAI's chat completion, or its chunks"),),
    is_described=False,
)
async def complete_chat(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The model of a running turn, for its sandbox."""
    try:
        turn = await call.runtime.gateway_tokens.turn(call.runtime.store, sandbox_turn_id(call), bearer(call))
        request = read_request(await read_body(call.receive, call.headers, limit=BODY_BYTES))
        asked = await _model_request(call.runtime, turn, request)
    except TurnkeepError as exc:
        return _refused(exc)
    return _ModelCall(call.runtime, turn, request, asked)


async def _model_request(runtime: Runtime, turn: Turn, request: ChatRequest) -> ModelRequest:
    """What the provider is sent: the same compilation as for a loop in the server."""
    model = turn.model or runtime.settings.model
    if request.model != model:
        raise InvalidRequest(f"This turn may use only the model {model!r}.")
    provider = runtime.providers.named(model)
    can = await provider.abilities(model)
    compiled = compile(
        rows_of(request, turn.id),
        target=provider.target,
        open_turn=turn.id,
        budget=UNLIMITED,
        system=system_of(request),
        sees_images=can.sees_images,
        thinking=can.thinking,
    )
    offers = {offer.name: offer for offer in offers_of(request)}
    for name in compiled.tool_names:
        gone = ToolOffer(name=name, description="No longer available.", input_schema={"type": "object"})
        offers.setdefault(name, gone)
    return ModelRequest(
        model=model,
        messages=compiled.messages,
        system=compiled.system,
        may_think=compiled.thinking,
        tools=tuple(offers.values()),
        may_call=request.may_call,
        sampling=Sampling(temperature=turn.snapshot.temperature),
        timeout_seconds=runtime.settings.provider_timeout_seconds,
    )


class _ModelCall:
    """The response to one model call, as an ASGI app."""

    def __init__(self, runtime: Runtime, turn: Turn, request: ChatRequest, asked: ModelRequest) -> None:
        self._runtime = runtime
        self._turn = turn
        self._request = request
        self._asked = asked
        self._has_begun = False
        self._said_chars = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the reply is complete, the client disconnects, or the turn ends."""
        last: ASGIApp | TurnkeepError | None
        try:
            last = await while_turn_runs(self._runtime.store, self._turn, receive, self._stream(send))
        except ClientDisconnected:
            return
        except TurnkeepError as exc:
            last = exc
        await self._finish(last, scope, receive, send)

    async def _stream(self, send: Send) -> ASGIApp | None:
        """Send the reply while it comes. If the client wants it whole, return the response instead."""
        completion = ChatCompletion(call_id=new_call_id(), model=self._asked.model, created=system_clock() // 1000)
        said, observed = list[str](), ObservedModelCall(self._turn, self._asked)
        self._runtime.observer.model_call_began(observed)
        try:
            reply = observed.reply = await self._read_reply(completion, send, said, observed)
        except BaseException as exc:
            observed.error = exc
            raise
        finally:
            observed.end()
            self._runtime.observer.model_called(observed)
            if observed.reply is None and self._said_chars:
                await self._count_part(completion.call_id)
        return await self._end(completion, send, reply, "".join(said))

    async def _read_reply(
        self, completion: ChatCompletion, send: Send, said: list[str], observed: ObservedModelCall
    ) -> Reply:
        """The complete reply. Its text is sent while it comes."""
        loop, limit = asyncio.get_running_loop(), self._asked.timeout_seconds
        provider = self._runtime.providers.named(self._asked.model)
        try:
            async with asyncio.timeout(limit) as timer, aclosing(provider.speak(self._asked)) as spoken:
                async for piece in spoken:
                    timer.reschedule(None)  # a slow client must not count against the model
                    match piece:
                        case Delta():
                            if not self._said_chars and observed.first_at is None:
                                observed.first_at = time.monotonic()
                            await self._send_delta(completion, send, piece, said)
                        case Restarted():
                            if said and self._request.stream:
                                raise ProviderFailed(f"The model broke off and began again: {piece.reason}")
                        case Reply():
                            return piece
                    timer.reschedule(loop.time() + limit)
        except TimeoutError as exc:
            raise ProviderTimedOut(f"The model sent nothing for {limit:g} seconds.") from exc
        raise ProviderFailed("The model's stream ended without an answer.")

    async def _send_delta(self, completion: ChatCompletion, send: Send, piece: Delta, said: list[str]) -> None:
        if not self._said_chars:
            with suppress(WorldError):  # if the call is cut off, it may not be counted
                await self._runtime.store.open_call(self._turn.id, self._turn.attempt, call_id=completion.call_id)
        self._said_chars += len(piece.text)
        if self._request.stream:
            await self._send(completion, send, completion.said(piece.text, piece.kind))
            if piece.kind == "text":
                said.append(piece.text)

    async def _count_part(self, call_id: CallId) -> None:
        """Count a call that was stopped, or failed, after some text. The turn waits a moment for this when it ends."""
        used = usage_of_part(self._asked, self._said_chars)
        with suppress(WorldError):
            await self._runtime.store.count_usage(self._turn.id, self._turn.attempt, used, call_id=call_id)

    async def _end(self, completion: ChatCompletion, send: Send, reply: Reply, said: str) -> ASGIApp | None:
        """Add the tokens to those of the turn, then send the end of the reply."""
        turn, call_id = self._turn, completion.call_id
        if not await self._runtime.store.count_usage(turn.id, turn.attempt, reply.usage, call_id=call_id):
            raise turn_has_ended()
        if not self._request.stream:
            return json_response(completion.whole(reply))
        text = text_of(reply.blocks)
        unsaid = text.removeprefix(said) if text.startswith(said) else ""
        rest = completion.ended(reply, unsaid=unsaid, wants_usage=self._request.wants_usage)
        await self._send(completion, send, b"".join(rest))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _send(self, completion: ChatCompletion, send: Send, body: bytes) -> None:
        """The response begins with the first text, so that a refusal of the provider can still become a status."""
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            body = completion.begun() + body
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _finish(self, last: ASGIApp | TurnkeepError | None, scope: Scope, receive: Receive, send: Send) -> None:
        match last:
            case None:
                return
            case TurnkeepError() if self._has_begun:
                frame = error_frame(last.detail, code=last.code)
                await send({"type": "http.response.body", "body": frame, "more_body": False})
            case TurnkeepError():
                await _refused(last)(scope, receive, send)
            case answer:
                await answer(scope, receive, send)


def _refused(error: TurnkeepError) -> ASGIApp:
    """The error in OpenAI's format. The runner decides whether to try again, not its SDK."""
    match error:
        case ProviderTimedOut():
            status = 504
        case ProviderFailed():
            status = 502
        case _:
            status = status_of(type(error))
    kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
    body = error_body(error.detail, kind=kind, code=error.code)
    return json_response(body, status=status, headers={"x-should-retry": "false"})
