"""OpenAI's Chat Completions: requests → rows for the compiler, replies → completions and chunks. No I/O.

Reasoning is sent as `reasoning_details`, opaque objects beside the message, and comes back unchanged. So its signatures
survive a client that knows nothing of them.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId, ConversationId, MessageId, TurnId
from turnkeep.model.messages import Message
from turnkeep.providers.ports import Reply, ToolOffer
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


class Completion:
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
        yield self._chunk({}, finish_reason="tool_calls" if calls else "stop")
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
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
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
