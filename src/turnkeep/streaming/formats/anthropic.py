"""Anthropic style: `message_start`, content blocks and their deltas, `message_stop`; and `event: tool_calls`.

Text and reasoning become `text` and `thinking` blocks, numbered 0, 1, 2 … through the whole turn; an iteration's last
block is closed by the event that completes it. Steps, sources and files are left out. As in the OpenAI style only the
last frame of an event has its id, and those before it resume at the rest of the event. A `content_block_start` has no
id: a reader that gets it twice opens the same empty block again.
"""

from typing import Any, Literal, assert_never

import msgspec

from turnkeep.ids import TurnId
from turnkeep.streaming.formats.sent_counts import SentCounts, state_numbers
from turnkeep.streaming.frames import START, WHOLE, Cursor, DeltaFrame, EventFrame, Frame, Kind, format_cursor
from turnkeep_client.wire import sse
from turnkeep_client.wire.events import Failure, Files, Reset, Result, Sources, Step, ToolCalls, TurnBegan
from turnkeep_client.wire.usage import Usage

_json = msgspec.json.Encoder().encode

_EMPTY: dict[Kind, dict[str, str]] = {
    "text": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}
_OPEN: tuple[Kind | None, ...] = (None, "text", "reasoning")
"""The open block is written in a cursor as its index here."""


class AnthropicEncoder:
    """Remembers the open block and what was sent of the current iteration, also in its ids for a resumed stream."""

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
            case Result():
                said = [*self._rest(event, seq), *self._close(seq - 1, WHOLE)]
                changed = _data("message_delta", delta=_STOPPED, usage=_usage(event.usage))
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
            "usage": _usage(Usage()),
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


_STOPPED = {"stop_reason": "end_turn", "stop_sequence": None}

_Name = Literal[
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
]


def _data(name: _Name, *, id_: str | None = None, **fields: Any) -> bytes:
    return sse.frame(_json({"type": name, **fields}), event=name, id=id_)


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }
