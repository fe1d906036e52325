"""OpenAI style: `chat.completion.chunk` objects, `event: tool_calls`, `data: [DONE]`.

Steps, sources and files are left out, as the format has no place for them; a client that wants them reads the native
format. Named events (`tool_calls`, `reset`) carry an empty `choices`, so that a parser which ignores names shows
nothing.

One event may become several frames. Only the last of them has the event's id. The ids before it say that a part of the
event was sent, so a reader that is cut between them gets the rest of the event and no more of the preview.
"""

from typing import Any, assert_never

import msgspec

from turnkeep.ids import TurnId
from turnkeep.streaming.formats.sent_counts import SentCounts, state_numbers
from turnkeep.streaming.frames import START, WHOLE, Cursor, DeltaFrame, EventFrame, Frame, format_cursor
from turnkeep_client.wire import sse
from turnkeep_client.wire.events import Failure, Files, Reset, Result, Sources, Step, ToolCalls, TurnBegan
from turnkeep_client.wire.usage import Usage

_json = msgspec.json.Encoder().encode

DONE = b"[DONE]"


class OpenAIEncoder:
    """Counts what it has sent of the current iteration; its ids carry the counts to the encoder of a resumed stream."""

    def __init__(self, *, turn_id: TurnId, model: str, created: int, cursor: Cursor = START) -> None:
        numbers = state_numbers(cursor, 2)
        self._sent = SentCounts(*numbers) if numbers else SentCounts(text=cursor.offset)
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
            case Result():
                said = self._rest(event, seq)
                ended = self._chunk({}, finish_reason="stop", usage=_usage(event.usage), id_=self._id(seq - 1, WHOLE))
                return [*said, ended, sse.frame(DONE, id=str(seq))]
            case Failure():
                error = {"message": event.message, "type": "server_error", "param": None, "code": event.code}
                return [sse.frame(_json({"error": error}), id=self._id(seq - 1, WHOLE)), sse.frame(DONE, id=str(seq))]
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


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
