"""Turns for the tests of streams: their events in a store, the previews of a worker, and the text of a reader."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from turnkeep.errors import Unavailable
from turnkeep.ids import CallId, ConversationId, MessageId, TurnId, new_turn_id
from turnkeep.streaming.follow import follow, poll
from turnkeep.streaming.frames import START, Cursor, Frame, Kind, parse_cursor
from turnkeep.streaming.ports import EventSource, Hub, PreviewPiece
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import (
    Failure,
    Recorded,
    Reset,
    Result,
    Source,
    Sources,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)
from turnkeep_client.wire.sse import ServerSentEvent


class ListSource:
    """The store, as far as readers know it: lists of events. It can be away, and it counts its reads and polls."""

    def __init__(self) -> None:
        self.turns: dict[TurnId, list[Recorded]] = {}
        self.is_away = False
        self.reads = 0
        self.polls = 0

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        self.reads += 1
        if self.is_away:
            raise Unavailable("The database is away.")
        return self.turns.get(turn_id, [])[after : after + limit]

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        self.polls += 1
        if self.is_away:
            raise Unavailable("The database is away.")
        return {turn_id: len(self.turns[turn_id]) for turn_id in turn_ids if turn_id in self.turns}


async def polled(
    source: EventSource, hub: Hub, turn_id: TurnId, cursor: Cursor = START, *, seconds: float
) -> AsyncIterator[Sequence[Frame]]:
    """`follow`, with a poll beside it."""
    polling = asyncio.create_task(poll(source, hub, seconds=seconds))
    try:
        async with aclosing(follow(source, hub, turn_id, cursor)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                yield batch
    finally:
        polling.cancel()


class Worker:
    """Runs a turn by the rules: durable first, then said; offsets count from the last event.

    It writes to the source and returns what the hub should be told, so that a test may lose or shuffle it.
    """

    def __init__(self, source: ListSource, turn_id: TurnId | None = None) -> None:
        self.turn_id = turn_id or new_turn_id()
        self.attempt = 1
        self.spoken: dict[int, str] = {}
        """All words on top of each event: what a preview must be a part of."""
        self.source = source
        self._events: list[TurnEvent] = []
        self._iteration = 1
        self._said: dict[Kind, str] = {"text": "", "reasoning": ""}
        self.finished: dict[Kind, str] = {"text": "", "reasoning": ""}
        """All words of complete iterations."""
        source.turns[self.turn_id] = []

    @property
    def seq(self) -> int:
        return len(self._events)

    @property
    def recorded(self) -> list[Recorded]:
        return self.source.turns[self.turn_id]

    @property
    def is_speaking(self) -> bool:
        """Words were said that no event has made true yet. Only one that does so, or drops them, may follow."""
        return any(self._said.values())

    def begin(self, status: Any = "running") -> Recorded:
        return self.record(
            TurnBegan(
                turn_id=self.turn_id,
                conversation_id=ConversationId("conv_1"),
                user_message_id=MessageId("msg_1"),
                status=status,
                attempt=self.attempt,
            )
        )

    def record(self, event: TurnEvent) -> Recorded:
        assert not self.is_speaking or isinstance(event, Failure), "an event in the middle of an iteration"
        self._events.append(event)
        recorded = Recorded(seq=self.seq, event=event)
        self.recorded.append(recorded)
        return recorded

    def say(self, text: str, kind: Kind = "text") -> PreviewPiece:
        self._said[kind] += text
        return self._speak(self.seq, self.attempt, text, kind)

    def say_late(self, base: int, attempt: int, text: str) -> PreviewPiece:
        """What a worker that has lost the turn goes on saying."""
        return self._speak(base, attempt, text, "text")

    def _speak(self, base: int, attempt: int, text: str, kind: Kind) -> PreviewPiece:
        before = self.spoken.get(base, "")
        self.spoken[base] = before + text
        return PreviewPiece(
            turn_id=self.turn_id,
            attempt=attempt,
            base_seq=base,
            offset=len(before),
            iteration=self._iteration,
            kind=kind,
            text=text,
        )

    def call_tool(self, calls: int = 1) -> Recorded:
        """The iteration is complete: its words, and what it asks for."""
        event = ToolCalls(
            iteration=self._iteration,
            text=self._said["text"],
            calls=tuple(
                ToolCall(id=CallId(f"call_{self.seq}_{n}"), name="weather", args={"n": n}) for n in range(calls)
            ),
            reasoning=self._said["reasoning"] or None,
        )
        self._iteration += 1
        self._finish()
        return self.record(event)

    def step(self, status: Any = "running", id: str | None = None) -> Recorded:
        return self.record(Step(id=id or f"step_{self.seq}", name="weather", status=status))

    def cite(self) -> Recorded:
        return self.record(Sources(sources=(Source(title="A page", snippet="…"),)))

    def take_over(self) -> Recorded:
        self.attempt += 1
        return self.start_again()

    def start_again(self) -> Recorded:
        self._said = {"text": "", "reasoning": ""}
        return self.record(Reset(attempt=self.attempt, reason="takeover"))

    def answer(self) -> Recorded:
        display = fold(self._events).then_said(text=self._said["text"], reasoning=self._said["reasoning"])
        result = Result(
            message_id=MessageId("msg_2"),
            message=self._said["text"],
            content=display.content,
            usage=Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3),
        )
        self._finish()
        return self.record(result)

    def _finish(self) -> None:
        for kind, words in self._said.items():
            self.finished[kind] += words
        self._said = {"text": "", "reasoning": ""}

    def fail(self, code: str = "cancelled") -> Recorded:
        return self.record(Failure(code=code, message="Stopped."))


class NativeReader:
    """A client of the native format. It checks on the way what the contract promises."""

    def __init__(self, spoken: dict[int, str]) -> None:
        self.cursor = ""
        self.events: list[dict[str, Any]] = []
        self.preview = ""
        self.error: str | None = None
        self.is_over = False
        self._spoken = spoken

    def take(self, frame: ServerSentEvent) -> None:
        assert not self.is_over, "something came after the terminal event"
        cursor, data = parse_cursor(frame.id), json.loads(frame.data)
        if frame.event == "delta":
            assert cursor.seq == len(self.events), "a preview of another event"
            assert cursor.offset == len(self.preview) + len(data["text"]), "a preview with a gap"
            self.preview += data["text"]
            assert self._spoken[cursor.seq].startswith(self.preview), "words that nobody said"
        else:
            assert (cursor.seq, cursor.offset) == (len(self.events) + 1, 0), "an event out of order"
            assert data["type"] == frame.event
            self.events.append(data)
            self.preview = ""
            self.is_over = frame.event in {"result", "error"}
        self.cursor = frame.id

    def has_all_of(self, recorded: Sequence[Recorded]) -> bool:
        return self.is_over and self.events == as_json(recorded)


WAITS = {"approval", "client_calls", "decided", "steered"}
"""Named frames that add no words."""


class OpenAIReader:
    """A page that joins the deltas of OpenAI chunks."""

    def __init__(self) -> None:
        self.cursor = ""
        self.text = ""
        self.reasoning = ""
        self.calls: list[str] = []
        self.finish: str | None = None
        self.error: str | None = None
        self.is_over = False

    def take(self, frame: ServerSentEvent) -> None:
        assert not self.is_over
        self.cursor = frame.id
        if frame.data == "[DONE]":
            self.is_over = True
            return
        data = json.loads(frame.data)
        assert (self.finish, self.error) == (None, None), "more after the end"
        if "error" in data:
            self.error = data["error"]["code"]
        elif frame.event == "tool_calls":
            self.calls += [call["id"] for call in data["calls"]]
        elif frame.event == "reset":
            self.text = self.text[: len(self.text) - data["drop"]["text"]]
            self.reasoning = self.reasoning[: len(self.reasoning) - data["drop"]["reasoning"]]
        elif frame.event in WAITS:
            assert data["choices"] == []
        else:
            (choice,) = data["choices"]
            self.text += choice["delta"].get("content", "")
            self.reasoning += choice["delta"].get("reasoning_content", "")
            self.finish = choice["finish_reason"]


class AnthropicReader:
    """A page that fills content blocks by their index."""

    def __init__(self) -> None:
        self.cursor = ""
        self.blocks: list[dict[str, str]] = []
        self.calls: list[str] = []
        self.stop: str | None = None
        self.error: str | None = None
        self.is_over = False

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.blocks)

    @property
    def reasoning(self) -> str:
        return "".join(block.get("thinking", "") for block in self.blocks)

    def take(self, frame: ServerSentEvent) -> None:
        assert not self.is_over
        self.cursor = frame.id
        data = json.loads(frame.data)
        match frame.event:
            case "content_block_start":
                assert data["index"] <= len(self.blocks), "a block out of order"
                self.blocks[data["index"] :] = [{**data["content_block"], "open": "yes"}]
            case "content_block_delta":
                block, delta = self.blocks[data["index"]], data["delta"]
                assert block["open"], "a delta for a closed block"
                field = "text" if delta["type"] == "text_delta" else "thinking"
                block[field] += delta[field]
            case "content_block_stop":
                self.blocks[data["index"]]["open"] = ""
            case "tool_calls":
                self.calls += [call["id"] for call in data["calls"]]
            case "reset":
                self._drop("text", data["drop"]["text"])
                self._drop("thinking", data["drop"]["reasoning"])
            case "message_delta":
                self.stop = data["delta"]["stop_reason"]
            case "message_stop":
                self.is_over = True
            case name if name in WAITS:
                pass
            case "error":
                self.error = data["error"]["code"]
                self.is_over = True
            case _:
                assert frame.event == "message_start"

    def _drop(self, field: str, count: int) -> None:
        for block in reversed(self.blocks):
            text = block.get(field, "")
            taken = min(count, len(text))
            if taken:
                block[field] = text[: len(text) - taken]
                count -= taken
        assert count == 0, "asked to drop what was never said"


def as_json(recorded: Sequence[Recorded]) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(one.event)) for one in recorded]
