"""OpenAI style: `chat.completion.chunk` objects, `event: tool_calls`, `data: [DONE]`.

Steps, sources and files have no place in it and are left out; a page that wants them reads the native format. Named
events (`tool_calls`, `reset`) carry an empty `choices`, so that a parser which ignores names finds nothing to show.

One event may become several frames. Only the last of them has the event's id, so a reader that is cut between them
gets the rest, or all of them, again; the words among them carry ids of their own and are never said twice.
"""

from typing import Any, assert_never

import msgspec

from turnkeep.ids import TurnId
from turnkeep.model.events import Failure, Files, Reset, Result, Sources, Step, ToolCalls, TurnBegan
from turnkeep.model.usage import Usage
from turnkeep.streaming import sse
from turnkeep.streaming.cursor import START, Cursor, written
from turnkeep.streaming.formats.spoken import Spoken, numbers_of
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame

_json = msgspec.json.Encoder().encode

DONE = b"[DONE]"


class OpenAIEncoder:
    """Remembers what it has said of the present iteration; its ids tell the same to its successor."""

    def __init__(self, *, turn_id: TurnId, model: str, created: int, cursor: Cursor = START) -> None:
        numbers = numbers_of(cursor, 2)
        self._spoken = Spoken(*numbers) if numbers else Spoken(text=cursor.offset)
        self._frame = {"id": turn_id, "object": "chat.completion.chunk", "created": created, "model": model}

    def encode(self, frame: Frame) -> bytes:
        if isinstance(frame, DeltaFrame):
            return self._delta(frame)
        return b"".join(self._event(frame))

    def _event(self, frame: EventFrame) -> list[bytes]:
        event, id_ = frame.recorded.event, str(frame.seq)
        match event:
            case TurnBegan():
                first = frame.seq == 1
                return [self._chunk({"role": "assistant", "content": ""}, id_=id_)] if first else []
            case Step() | Sources() | Files():
                return []
            case ToolCalls():
                named = [self._named("tool_calls", msgspec.to_builtins(event), id_)] if event.calls else []
                return [*self._rest(event, frame.seq), *named]
            case Reset():
                dropped, self._spoken = self._spoken, Spoken()
                return [self._named("reset", {**msgspec.to_builtins(event), "drop": dropped}, id_)]
            case Result():
                ended = self._chunk({}, finish_reason="stop", usage=_usage(event.usage))
                return [*self._rest(event, frame.seq), ended, sse.frame(DONE, id=id_)]
            case Failure():
                error = {"message": event.message, "type": "server_error", "param": None, "code": event.code}
                return [sse.frame(_json({"error": error})), sse.frame(DONE, id=id_)]
            case _:
                assert_never(event)

    def _rest(self, event: ToolCalls | Result, seq: int) -> list[bytes]:
        frames = [self._delta(frame) for frame in self._spoken.rest(event, seq=seq)]
        self._spoken = Spoken()
        return frames

    def _delta(self, frame: DeltaFrame) -> bytes:
        self._spoken.add(frame.kind, len(frame.text))
        field = "content" if frame.kind == "text" else "reasoning_content"
        spoken = self._spoken
        is_plain = spoken.text == frame.offset and not spoken.reasoning
        state = "" if is_plain else f"{spoken.text}.{spoken.reasoning}"
        return self._chunk({field: frame.text}, id_=written(frame.seq, frame.offset, state))

    def _chunk(
        self,
        delta: dict[str, str],
        *,
        finish_reason: str | None = None,
        usage: dict[str, Any] | None = None,
        id_: str | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**self._frame, "choices": [choice]}
        return sse.frame(_json(chunk if usage is None else {**chunk, "usage": usage}), id=id_)

    def _named(self, name: str, event: dict[str, Any], id_: str) -> bytes:
        return sse.frame(_json({**event, "choices": []}), event=name, id=id_)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
