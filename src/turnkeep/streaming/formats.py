"""Formats: encoders of the same frames into the native, OpenAI and Anthropic dialects of server-sent events.

Each sends the cursor as the `id` of a frame, so each stream can be resumed. A format knows frames and bytes, nothing
of hubs, stores or connections. To add one, write an `Encoder` and name it in `FormatName`. Read `NativeEncoder` first.
"""

from typing import Any, Literal, Protocol, assert_never

import msgspec
from msgspec import Struct, field

from turnkeep.errors import InvalidRequest
from turnkeep.ids import TurnId
from turnkeep.streaming.frames import START, WHOLE, Cursor, DeltaFrame, EventFrame, Frame, Kind, format_cursor
from turnkeep_client.wire import sse
from turnkeep_client.wire.blocks import ReasoningPart, TextPart, Usage
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Files,
    Recorded,
    Reset,
    Result,
    Sources,
    Steered,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

FormatName = Literal["native", "openai", "anthropic"]

_json = msgspec.json.Encoder().encode

_TEXT = b'event: delta\nid: %d.%d\ndata: {"iteration":%d,"kind":"text","text":%b}\n\n'
_REASONING = b'event: delta\nid: %d.%d\ndata: {"iteration":%d,"kind":"reasoning","text":%b}\n\n'

DONE = b"[DONE]"

_EMPTY: dict[Kind, dict[str, str]] = {
    "text": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}
_OPEN: tuple[Kind | None, ...] = (None, "text", "reasoning")
"""The open block is written in a cursor as its index here."""
_STOPPED = {"stop_reason": "end_turn", "stop_sequence": None}
_CUT_OFF = {"stop_reason": "max_tokens", "stop_sequence": None}

_Name = Literal[
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
]


class Encoder(Protocol):
    """One reader's encoder. Frames must come in order, beginning after the cursor that it was created with."""

    def encode(self, frame: Frame) -> bytes:
        """The frame as server-sent events; empty if this format does not show it."""


def encoder_for(
    name: FormatName, *, turn_id: TurnId, model: str | None, created_at: int, cursor: Cursor = START
) -> Encoder:
    """An encoder that continues after `cursor`. Raises InvalidRequest for the cursor of another format.

    `created_at` is the turn's, in Unix milliseconds, so that a resumed stream repeats the same value.
    """
    match name:
        case "native":
            return NativeEncoder()
        case "openai":
            return OpenAIEncoder(turn_id=turn_id, model=model or "", created=created_at // 1000, cursor=cursor)
        case "anthropic":
            return AnthropicEncoder(turn_id=turn_id, model=model or "", cursor=cursor)
        case _:
            assert_never(name)


class NativeEncoder:
    """The native format: every event as it was stored, and previews between them. It has no state.

    Each frame is encoded once; all readers of the process share the bytes.
    """

    def encode(self, frame: Frame) -> bytes:
        native = frame.native
        if native is None:
            native = encode_delta(frame) if isinstance(frame, DeltaFrame) else encode_event(frame.recorded)
            frame.native = native
        return native


def encode_event(recorded: Recorded) -> bytes:
    name = name_of(recorded.event).encode()
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name, recorded.seq, _json(recorded.event))


def encode_delta(frame: DeltaFrame) -> bytes:
    template = _TEXT if frame.kind == "text" else _REASONING
    return template % (frame.seq, frame.offset, frame.iteration, _json(frame.text))


def name_of(event: TurnEvent) -> str:
    """The event's name on the wire, which is its tag in the store."""
    return str(event.__struct_config__.tag)


class OpenAIEncoder:
    """OpenAI style: `chat.completion.chunk` objects, `event: tool_calls`, `data: [DONE]`.

    Steps, sources and files are left out, as the format has no place for them; a client that wants them reads the
    native format. Named events (`tool_calls`, `reset`, and those of a turn that waits) carry an empty `choices`, so
    that a parser which ignores names shows nothing.

    One event may become several frames. Only the last of them has the event's id. The ids before it say that a part of
    the event was sent, so a reader that is cut between them gets the rest of the event and no more of the preview. They
    carry the counts of what was sent of the current iteration to the encoder of a resumed stream, and a third number
    once only `[DONE]` is left.
    """

    def __init__(self, *, turn_id: TurnId, model: str, created: int, cursor: Cursor = START) -> None:
        numbers = state_numbers(cursor, 2, 3) or [cursor.offset, 0]
        self._sent = SentCounts(*numbers[:2])
        self._is_over = numbers[2:] == [1]
        if numbers[2:] and not self._is_over:
            raise _of_another_format()
        self._frame = {"id": turn_id, "object": "chat.completion.chunk", "created": created, "model": model}

    def encode(self, frame: Frame) -> bytes:
        if isinstance(frame, DeltaFrame):
            return self._delta(frame)
        return b"".join(self._event(frame))

    def _event(self, frame: EventFrame) -> list[bytes]:
        event, seq = frame.recorded.event, frame.seq
        match event:
            case TurnBegan():
                return [self._chunk({"role": "assistant", "content": ""}, id_=str(seq))] if seq == 1 else []
            case Step() | Sources() | Files():
                return []
            case ToolCalls():
                said = self._rest(event, seq)
                self._sent = SentCounts()
                return [*said, self._named("tool_calls", msgspec.to_builtins(event), seq)]
            case Reset():
                dropped, self._sent = self._sent, SentCounts()
                return [self._named("reset", {**msgspec.to_builtins(event), "drop": dropped}, seq)]
            case Approval() | ClientCalls() | Decided() | Steered():
                return [self._named(name_of(event), msgspec.to_builtins(event), seq)]
            case Result() | Failure() if self._is_over:
                return [sse.frame(DONE, id=str(seq))]
            case Result():
                said = self._rest(event, seq)
                ended = self._chunk(
                    {},
                    finish_reason="length" if event.finish == "length" else "stop",
                    usage=_openai_usage(event.usage),
                    id_=self._last_id(seq),
                )
                return [*said, ended, sse.frame(DONE, id=str(seq))]
            case Failure():
                error = {"message": event.message, "type": "server_error", "param": None, "code": event.code}
                return [sse.frame(_json({"error": error}), id=self._last_id(seq)), sse.frame(DONE, id=str(seq))]
            case _:
                assert_never(event)

    def _rest(self, event: ToolCalls | Result, seq: int) -> list[bytes]:
        return [self._delta(frame) for frame in self._sent.rest(event, seq=seq)]

    def _delta(self, frame: DeltaFrame) -> bytes:
        self._sent.add(frame.kind, len(frame.text))
        field = "content" if frame.kind == "text" else "reasoning_content"
        return self._chunk({field: frame.text}, id_=self._id(frame.seq, frame.offset))

    def _id(self, seq: int, offset: int) -> str:
        sent = self._sent
        is_plain = sent.text == offset and not sent.reasoning
        return format_cursor(seq, offset, "" if is_plain else f"{sent.text}.{sent.reasoning}")

    def _last_id(self, seq: int) -> str:
        """The id before `[DONE]`, which has the id of the event `seq`."""
        return format_cursor(seq - 1, WHOLE, f"{self._sent.text}.{self._sent.reasoning}.1")

    def _chunk(
        self,
        delta: dict[str, str],
        *,
        id_: str,
        finish_reason: str | None = None,
        usage: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**self._frame, "choices": [choice]}
        return sse.frame(_json(chunk if usage is None else {**chunk, "usage": usage}), id=id_)

    def _named(self, name: str, event: dict[str, Any], seq: int) -> bytes:
        return sse.frame(_json({**event, "choices": []}), event=name, id=str(seq))


def _openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }


class AnthropicEncoder:
    """Anthropic style: `message_start`, content blocks and their deltas, `message_stop`; and `event: tool_calls`.

    Text and reasoning become `text` and `thinking` blocks, numbered 0, 1, 2 … through the whole turn; an iteration's
    last block is closed by the event that completes it. Steps, sources and files are left out. As in the OpenAI style
    only the last frame of an event has its id, and those before it resume at the rest of the event. A
    `content_block_start` has no id: a reader that gets it twice opens the same empty block again.

    The open block and what was sent of the current iteration are also in the ids, for a resumed stream.
    """

    def __init__(self, *, turn_id: TurnId, model: str, cursor: Cursor = START) -> None:
        text, reasoning, index, opened = state_numbers(cursor, 4) or (cursor.offset, 0, 0, 0)
        self._turn_id = turn_id
        self._model = model
        self._sent = SentCounts(text, reasoning)
        self._index = index
        self._open: Kind | None = _OPEN[opened] if opened < len(_OPEN) else None

    def encode(self, frame: Frame) -> bytes:
        if isinstance(frame, DeltaFrame):
            return self._delta(frame)
        return b"".join(self._event(frame))

    def _event(self, frame: EventFrame) -> list[bytes]:
        event, seq = frame.recorded.event, frame.seq
        match event:
            case TurnBegan():
                return [self._began(seq)] if seq == 1 else []
            case Step() | Sources() | Files():
                return []
            case ToolCalls():
                return self._complete(event, seq)
            case Reset():
                closed = self._close(seq - 1, WHOLE)
                dropped, self._sent = self._sent, SentCounts()
                data = _json({**msgspec.to_builtins(event), "drop": dropped})
                return [*closed, sse.frame(data, event="reset", id=self._id(seq))]
            case Approval() | ClientCalls() | Decided() | Steered():
                return [sse.frame(_json(event), event=name_of(event), id=self._id(seq))]
            case Result():
                said = [*self._rest(event, seq), *self._close(seq - 1, WHOLE)]
                stopped = _CUT_OFF if event.finish == "length" else _STOPPED
                changed = _data("message_delta", delta=stopped, usage=_anthropic_usage(event.usage))
                self._sent = SentCounts()
                return [*said, changed, _data("message_stop", id_=self._id(seq))]
            case Failure():
                error = {"type": "api_error", "message": event.message, "code": event.code}
                closed = self._close(seq - 1, WHOLE)
                self._sent = SentCounts()
                return [*closed, _data("error", error=error, id_=self._id(seq))]
            case _:
                assert_never(event)

    def _began(self, seq: int) -> bytes:
        message: dict[str, Any] = {
            "id": self._turn_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _anthropic_usage(Usage()),
        }
        return _data("message_start", message=message, id_=self._id(seq))

    def _complete(self, event: ToolCalls, seq: int) -> list[bytes]:
        said = [*self._rest(event, seq), *self._close(seq - 1, WHOLE)]
        self._sent = SentCounts()
        return [*said, sse.frame(_json(event), event="tool_calls", id=self._id(seq))]

    def _rest(self, event: ToolCalls | Result, seq: int) -> list[bytes]:
        return [self._delta(frame) for frame in self._sent.rest(event, seq=seq)]

    def _delta(self, frame: DeltaFrame) -> bytes:
        turned = b""
        if self._open != frame.kind:
            # Text that completes an iteration has no offset in the preview; it begins and ends at its end.
            start = WHOLE if frame.offset == WHOLE else frame.start
            turned = b"".join((*self._close(frame.seq, start), self._begin(frame.kind)))
        self._sent.add(frame.kind, len(frame.text))
        if frame.kind == "text":
            delta = {"type": "text_delta", "text": frame.text}
        else:
            delta = {"type": "thinking_delta", "thinking": frame.text}
        id_ = self._id(frame.seq, frame.offset)
        return turned + _data("content_block_delta", index=self._index, delta=delta, id_=id_)

    def _begin(self, kind: Kind) -> bytes:
        self._open = kind
        return _data("content_block_start", index=self._index, content_block=_EMPTY[kind])

    def _close(self, seq: int, offset: int) -> list[bytes]:
        """End the open block, if there is one. The reader is then at that position."""
        if self._open is None:
            return []
        index, self._open = self._index, None
        self._index += 1
        return [_data("content_block_stop", index=index, id_=self._id(seq, offset))]

    def _id(self, seq: int, offset: int = 0) -> str:
        sent, opened = self._sent, _OPEN.index(self._open)
        state = (sent.text, sent.reasoning, self._index, opened)
        is_plain = state == (offset, 0, 0, 0)
        return format_cursor(seq, offset, "" if is_plain else ".".join(map(str, state)))


def _data(name: _Name, *, id_: str | None = None, **fields: Any) -> bytes:
    return sse.frame(_json({"type": name, **fields}), event=name, id=id_)


def _anthropic_usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


class SentCounts(Struct):
    """Code points of the current iteration that the reader has, counted separately for text and reasoning.

    Formats that know only deltas cannot replace a preview by the event that contains it. They send the part that the
    preview left out. A reader may reconnect to another worker long after the preview is gone, so the counts travel in
    the cursor.

    Decision: docs/decisions/0401
    """

    text: int = 0
    reasoning: int = 0

    def add(self, kind: Kind, count: int) -> None:
        if kind == "text":
            self.text += count
        else:
            self.reasoning += count

    def rest(self, event: ToolCalls | Result, *, seq: int) -> list[DeltaFrame]:
        """What the reader lacks of a complete iteration, as deltas just before event `seq`.

        Their order may differ from that of the preview. So a reader that is cut between them must not get more of the
        preview, which a hub that is behind may still have: their offset is one that no preview continues.
        """
        reasoning, text = texts_of(event)
        iteration = event.iteration if isinstance(event, ToolCalls) else 0
        missing: list[tuple[Kind, str]] = [("reasoning", reasoning[self.reasoning :]), ("text", text[self.text :])]
        return [
            DeltaFrame(seq=seq - 1, offset=WHOLE, iteration=iteration, kind=kind, text=words)
            for kind, words in missing
            if words
        ]


class SentWords(Struct):
    """The words of the current iteration that a reader has, by kind, in the order in which the kinds began.

    For formats that can take words back. Where the preview was not the beginning of what was recorded, they send the
    whole iteration again.
    """

    said: dict[Kind, str] = field(default_factory=dict)

    def add(self, kind: Kind, text: str) -> None:
        self.said[kind] = self.said.get(kind, "") + text

    def rest(self, event: ToolCalls | Result) -> list[tuple[Kind, str]] | None:
        """What the reader lacks of a complete iteration. None if the reader has other words, or has them in another
        order: reasoning comes first in what is recorded."""
        whole = whole_of(event)
        if any(not whole.get(kind, "").startswith(words) for kind, words in self.said.items()):
            return None
        if "reasoning" in whole and next(iter(self.said), None) == "text":
            return None
        missing = {kind: words[len(self.said.get(kind, "")) :] for kind, words in whole.items()}
        return [(kind, words) for kind, words in missing.items() if words]


def whole_of(event: ToolCalls | Result) -> dict[Kind, str]:
    """The words of the iteration that this event completes, in their order; kinds without any are left out."""
    reasoning, text = texts_of(event)
    kinds: dict[Kind, str] = {"reasoning": reasoning, "text": text}
    return {kind: words for kind, words in kinds.items() if words}


def texts_of(event: ToolCalls | Result) -> tuple[str, str]:
    """Reasoning and text of the iteration that this event completes.

    A result has its reasoning only in its content, before the final text, as every iteration before the last one is
    followed by a step.
    """
    if isinstance(event, ToolCalls):
        return event.reasoning or "", event.text
    before = [part for part in event.content[-2:] if not isinstance(part, TextPart)]
    last = before[-1] if before else None
    return last.text if isinstance(last, ReasoningPart) else "", event.message


def state_numbers(cursor: Cursor, *counts: int) -> list[int] | None:
    """The numbers in a cursor's state, or None if it has none. InvalidRequest if there are not as many as one of
    `counts`."""
    if not cursor.state:
        return None
    fields = cursor.state.split(".")
    if len(fields) not in counts or not all(field.isdecimal() and len(field) <= 9 for field in fields):
        raise _of_another_format()
    return [int(field) for field in fields]


def _of_another_format() -> InvalidRequest:
    return InvalidRequest("This cursor comes from a stream of another format. Resume in the format that gave it.")
