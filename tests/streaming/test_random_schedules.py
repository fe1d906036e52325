"""However the messages of the hub and the reader's connection are disturbed, the reader ends with the same content."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from tests.property_tests import examples
from tests.streaming.turns import AnthropicReader, ListSource, NativeReader, OpenAIReader, Worker, polled
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import START, parse_cursor
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.events import Recorded, Result, ToolCalls
from turnkeep_client.wire.sse import SseParser

POLL_SECONDS = 0.004

Act = Literal["say", "think", "call", "close", "step", "cite", "take_over", "again", "late", "forget"]
Fate = Literal["now", "lost", "twice", "held"]
Message = PreviewPiece | Recorded


class Move(Struct, frozen=True):
    """Something the worker does, what becomes of the message about it, and how long the readers get afterwards."""

    act: Act
    fate: Fate
    pause: int
    text: str


class Connection(Struct, frozen=True):
    """The reader is cut after so many bytes; which hub it talks to."""

    bytes: int
    hub: int


words = st.text(alphabet='abc \n"\\é世😀\r\0', min_size=1, max_size=6)
acts: st.SearchStrategy[Act] = st.sampled_from(
    ["say"] * 6 + ["think"] * 2 + ["call", "close", "step", "cite", "take_over", "again", "late", "forget"]
)
fates: st.SearchStrategy[Fate] = st.sampled_from(["now"] * 4 + ["lost", "twice", "held"])
moves = st.lists(st.builds(Move, acts, fates, st.integers(0, 3), words), max_size=30)
connections = st.lists(st.builds(Connection, st.integers(0, 700), st.integers(0, 2)), max_size=12)

thoroughly = settings(
    max_examples=examples(100, at_night=1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)


class Stage:
    """A worker, two hubs that hear of it (one as its own, one from elsewhere) and one that hears nothing."""

    def __init__(self) -> None:
        self.source = ListSource()
        self.hubs = [LocalHub(), LocalHub(), LocalHub()]
        self.worker = Worker(self.source)
        self._held: list[Message] = []
        self._lost: tuple[int, int] | None = None
        self.tell(self.worker.begin(), "now")

    async def play(self, moves: Sequence[Move], *, is_answered: bool) -> None:
        for move in moves:
            for message in self._do(move):
                self.tell(message, move.fate)
            for _ in range(move.pause):
                await asyncio.sleep(0)
        self.tell(self.worker.answer() if is_answered else self.worker.fail(), "lost")
        self._release()

    def tell(self, message: Message, fate: Fate) -> None:
        if fate == "held":
            self._held.append(message)
        for _ in range({"now": 1, "twice": 2, "lost": 0, "held": 0}[fate]):
            self._deliver(message)
        if len(self._held) > 3:
            self._release()

    def _release(self) -> None:
        """What was held up arrives now, last things first."""
        while self._held:
            self._deliver(self._held.pop())

    def _deliver(self, message: Message) -> None:
        home, away, _ = self.hubs
        if isinstance(message, Recorded):
            home.publish(self.worker.turn_id, [message])
            away.note_event(self.worker.turn_id, message.seq)
        else:
            home.preview(message)
            away.add_remote_preview(message)

    def _do(self, move: Move) -> list[Message]:
        worker = self.worker
        match move.act:
            case "say":
                return [worker.say(move.text)]
            case "think":
                return [worker.say(move.text, "reasoning")]
            case "call":
                return [worker.call_tool(), worker.step()]
            case "close":
                # A sandbox spoke before a step.
                return [worker.call_tool(calls=0), worker.step()]
            case "step" | "cite":
                done = [worker.call_tool(calls=0), worker.step()] if worker.is_speaking else []
                return [*done, worker.step() if move.act == "step" else worker.cite()]
            case "again":
                return [worker.start_again()]
            case "take_over":
                self._lost = (worker.seq, worker.attempt)
                return [worker.take_over()]
            case "late":
                return [worker.say_late(*self._lost, move.text)] if self._lost else []
            case "forget":
                self.hubs[0].forget(worker.turn_id)
                return []


async def read(stage: Stage, reader: Any, format: FormatName, plan: Sequence[Connection]) -> None:
    """Read to the end: first over connections that break, then over one that does not."""
    unbroken = Connection(10**9, plan[-1].hub if plan else 0)
    for connection in (*plan, unbroken):
        if reader.is_over:
            return
        await read_until_cut(stage, reader, format, connection)


async def read_until_cut(stage: Stage, reader: Any, format: FormatName, connection: Connection) -> None:
    worker, hub = stage.worker, stage.hubs[connection.hub]
    cursor = parse_cursor(reader.cursor) if reader.cursor else START
    encoder = encoder_for(format, turn_id=worker.turn_id, model="demo", created_at=0, cursor=cursor)
    parser = SseParser(reader.cursor)
    left = connection.bytes
    async with aclosing(polled(stage.source, hub, worker.turn_id, cursor, seconds=POLL_SECONDS)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            sent = b"".join(encoder.encode(frame) for frame in batch)[:left]
            for frame in parser.feed(sent):
                reader.take(frame)
            left -= len(sent)
            if left == 0:
                return


def run(stage: Stage, playing: Coroutine[Any, Any, None], reading: Coroutine[Any, Any, None]) -> None:
    async def both() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(reading, playing)
            for hub in stage.hubs:
                await hub.close()

    asyncio.run(both())


@thoroughly
@given(moves, connections, st.booleans())
def test_a_native_reader_has_every_event_once_and_only_words_that_were_said(
    moves: list[Move], plan: list[Connection], is_answered: bool
) -> None:
    stage = Stage()
    reader = NativeReader(stage.worker.spoken)
    run(stage, stage.play(moves, is_answered=is_answered), read(stage, reader, "native", plan))
    assert reader.has_all_of(stage.worker.recorded)


@pytest.mark.parametrize("format", ["openai", "anthropic"])
@thoroughly
@given(moves, connections, st.booleans())
def test_a_reader_of_deltas_has_every_word_once(
    format: FormatName, moves: list[Move], plan: list[Connection], is_answered: bool
) -> None:
    stage = Stage()
    reader: OpenAIReader | AnthropicReader = OpenAIReader() if format == "openai" else AnthropicReader()
    run(stage, stage.play(moves, is_answered=is_answered), read(stage, reader, format, plan))
    events = [recorded.event for recorded in stage.worker.recorded]
    assert reader.is_over
    assert reader.calls == [call.id for event in events if isinstance(event, ToolCalls) for call in event.calls]
    if is_answered:
        assert isinstance(events[-1], Result)
        assert reader.text == stage.worker.finished["text"]
        assert reader.reasoning == stage.worker.finished["reasoning"]
    else:
        assert reader.text.startswith(stage.worker.finished["text"])
        assert reader.error == "cancelled"
