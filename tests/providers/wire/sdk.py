"""The official SDKs as a reference: what their own clients make of a stream, and samples of every event they know."""

import types
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import anthropic
import httpx2
import msgspec
import openai
from anthropic.types import RawContentBlockStartEvent, RawMessageStreamEvent
from anthropic.types.raw_content_block_delta import RawContentBlockDelta
from anthropic.types.raw_content_block_start_event import ContentBlock
from msgspec import Struct
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from turnkeep_client.wire.blocks import Usage

Json = dict[str, Any]


class Heard(Struct, frozen=True, kw_only=True):
    """What a reply says, and why it ended, in words that all protocols share. `calls` are names and arguments."""

    text: str = ""
    reasoning: str = ""
    proofs: tuple[str, ...] = ()
    calls: tuple[tuple[str, Any], ...] = ()
    usage: Usage = Usage()
    is_cut_off: bool = False


class _Chunks(httpx2.SyncByteStream):
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks


def sdk_events(vendor: str, chunks: Sequence[bytes], *, status: int = 200) -> Iterator[Any]:
    """The objects that the SDK's own client makes of these bytes. Raises the SDK's errors."""
    headers = {"content-type": "text/event-stream" if status == 200 else "application/json"}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, headers=headers, stream=_Chunks(chunks)))
    http = httpx2.Client(transport=transport)
    if vendor == "anthropic":
        claude = anthropic.Anthropic(api_key="k", base_url="http://sdk", max_retries=0, http_client=http)
        message: Any = {"role": "user", "content": "Hi"}
        yield from claude.messages.create(model="m", max_tokens=1, messages=[message], stream=True)
        return
    client = openai.OpenAI(api_key="k", base_url="http://sdk", max_retries=0, http_client=http)
    if vendor == "openai_chat":
        yield from client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], stream=True)
    else:
        yield from client.responses.create(model="m", input="Hi", stream=True)


def sdk_heard(vendor: str, chunks: Sequence[bytes]) -> Heard:
    """The whole reply, put together by the SDK's own code."""
    events = sdk_events(vendor, chunks)
    return {"anthropic": _messages, "openai_chat": _chat, "openai_responses": _responses}[vendor](events)


def _messages(events: Iterator[Any]) -> Heard:
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    blocks, usage = snapshot.content, snapshot.usage
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Heard(
        text="".join(block.text for block in blocks if block.type == "text"),
        reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
        proofs=tuple(
            block.signature if block.type == "thinking" else block.data
            for block in blocks
            if block.type in {"thinking", "redacted_thinking"}
        ),
        calls=tuple((block.name, block.input) for block in blocks if block.type == "tool_use"),
        usage=Usage(
            input_tokens=usage.input_tokens + read + written,
            output_tokens=usage.output_tokens,
            cache_read_tokens=read,
            cache_write_tokens=written,
        ),
        is_cut_off=snapshot.stop_reason == "max_tokens",
    )


def _chat(events: Iterator[Any]) -> Heard:
    state: Any = ChatCompletionStreamState()
    for event in events:
        state.handle_chunk(event)
    completion = state.current_completion_snapshot
    message = completion.choices[0].message
    extra = message.model_extra or {}
    details = completion.usage.prompt_tokens_details
    return Heard(
        text=(message.content or "") + (message.refusal or ""),
        reasoning=extra.get("reasoning_content") or extra.get("reasoning") or "",
        calls=tuple(
            (call.function.name, msgspec.json.decode(call.function.arguments or "{}"))
            for call in message.tool_calls or ()
        ),
        usage=Usage(
            input_tokens=completion.usage.prompt_tokens,
            output_tokens=completion.usage.completion_tokens,
            cache_read_tokens=details.cached_tokens,
            cache_write_tokens=(details.model_extra or {}).get("cache_write_tokens", 0)
            if not hasattr(details, "cache_write_tokens")
            else details.cache_write_tokens,
        ),
        is_cut_off=completion.choices[0].finish_reason == "length",
    )


def _responses(events: Iterator[Any]) -> Heard:
    response = [event.response for event in events if event.type in {"response.completed", "response.incomplete"}][-1]
    thoughts = [item for item in response.output if item.type == "reasoning"]
    details = response.usage.input_tokens_details
    said = [part for item in response.output if item.type == "message" for part in item.content]
    return Heard(
        text="".join(part.refusal if part.type == "refusal" else part.text for part in said),
        reasoning="".join(part.text for item in thoughts for part in item.summary),
        proofs=tuple(item.encrypted_content for item in thoughts if item.encrypted_content),
        calls=tuple(
            (item.name, msgspec.json.decode(item.arguments or "{}"))
            for item in response.output
            if item.type == "function_call"
        ),
        usage=Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cache_read_tokens=details.cached_tokens,
            cache_write_tokens=details.cache_write_tokens,
        ),
        is_cut_off=response.incomplete_details is not None,
    )


# Samples


def event_samples(vendor: str) -> list[Json]:
    """One event of each type that the SDK knows, and for Claude one of each kind of block and delta."""
    match vendor:
        case "anthropic":
            events = [_sample(member) for member in _members(RawMessageStreamEvent)]
            starts = [{"index": 7, "content_block": _sample(member)} for member in _members(ContentBlock)]
            deltas = [{"index": 0, "delta": _sample(member)} for member in _members(RawContentBlockDelta)]
            name = get_args(RawContentBlockStartEvent.model_fields["type"].annotation)[0]
            events += [{"type": name, **start} for start in starts]
            events += [{"type": "content_block_delta", **delta} for delta in deltas]
            return [event | {"index": 0} if event["type"] == "content_block_delta" else event for event in events]
        case "openai_chat":
            return [_sample(ChatCompletionChunk)]
        case _:
            return [_sample(member) for member in _members(ResponseStreamEvent)]


def _members(union: Any) -> tuple[Any, ...]:
    union = get_args(union)[0] if get_origin(union) is Annotated else union
    return get_args(union)


def _sample(kind: Any, depth: int = 0) -> Any:
    """A value of this type, with every field that it has."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _sample(arguments[0], depth)
    if origin is Literal:
        return arguments[0]
    if origin in {Union, types.UnionType}:
        return _sample(next(each for each in arguments if each is not type(None)), depth)
    if origin in {list, Iterable, Sequence}:
        return [] if depth > 3 else [_sample(arguments[0], depth + 1)]
    if origin is dict or kind is dict:
        return {}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return {
            field.alias or name: _sample(field.annotation, depth + 1)
            for name, field in fields
            if depth < 4 or field.is_required()
        }
    return _PLAIN.get(kind, "sample")


_PLAIN: dict[Any, Any] = {int: 1, float: 1.5, bool: True, type(None): None, datetime: "2026-01-01T00:00:00Z"}
