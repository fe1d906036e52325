"""The formats: exact bytes, and that every one of them can be resumed at every id it gives."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.openai_events import OpenResponses
from tests.streaming import golden
from tests.streaming.turns import AnthropicReader, ListSource, NativeReader, OpenAIReader, Worker
from turnkeep.errors import InvalidRequest
from turnkeep.ids import TurnId
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import Cursor, DeltaFrame, EventFrame, Frame, parse_cursor
from turnkeep.streaming.hub import TurnLog, frames_of
from turnkeep_client.wire.events import Recorded, Result, ToolCalls, TurnBegan
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

EVERY = [(name, format) for name in golden.names() for format in golden.FORMATS]


def parsed(stream: bytes, last_id: str = "") -> list[ServerSentEvent]:
    return SseParser(last_id).feed(stream)


class TestGoldenTurns:
    def test_there_are_some_and_they_cover_every_kind_of_event(self) -> None:
        kinds = {type(recorded.event) for name in golden.names() for recorded in golden.events_of(name)}
        assert len(kinds) == 12

    @pytest.mark.parametrize("name, format", EVERY)
    def test_the_bytes_are_exactly_these(self, name: str, format: FormatName) -> None:
        for file, content in golden.bytes_of(name, format).items():
            assert (golden.FOLDER / file).read_bytes() == content, file

    def test_responses_are_the_same_bytes_and_valid(self) -> None:
        check: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
        for file, content in golden.response_bytes().items():
            assert (golden.FOLDER / file).read_bytes() == content, file
            events = [json.loads(frame.data) for frame in parsed(content) if frame.data != "[DONE]"]
            numbers = [event["sequence_number"] for event in events]
            assert numbers == sorted(set(numbers))
            for event in events:
                check.validate_python(event)
                OpenResponses.check_event(event)

    @pytest.mark.parametrize("wire", golden.WIRES)
    def test_so_are_those_of_other_wires(self, wire: str) -> None:
        for file, content in golden.wire_bytes(wire).items():
            assert (golden.FOLDER / file).read_bytes() == content, file

    def test_no_file_is_left_over(self) -> None:
        expected = {f"{name}.ndjson" for name in golden.names()}
        for name, format in EVERY:
            expected |= set(golden.bytes_of(name, format))
        for wire in golden.WIRES:
            expected |= set(golden.wire_bytes(wire))
        expected |= set(golden.response_bytes())
        assert {path.name for path in golden.FOLDER.iterdir()} == expected

    @pytest.mark.parametrize("name", golden.names())
    def test_native_data_is_the_event_as_stored_and_ids_have_no_gap(self, name: str) -> None:
        frames = [
            frame for frame in parsed((golden.FOLDER / f"{name}.native.sse").read_bytes()) if frame.event != "delta"
        ]
        assert [frame.id for frame in frames] == [str(number + 1) for number in range(len(frames))]
        for frame, line in zip(frames, golden.events_of(name), strict=True):
            assert json.loads(frame.data)["type"] == frame.event
            assert frame.event == str(line.event.__struct_config__.tag)
        assert [frame.event in {"result", "error"} for frame in frames] == [False] * (len(frames) - 1) + [True]

    @pytest.mark.parametrize("name", golden.names())
    @pytest.mark.parametrize("format", ["openai", "anthropic"])
    def test_a_replay_has_the_same_content_as_the_live_stream(self, name: str, format: FormatName) -> None:
        live, replay = (
            _read(parsed((golden.FOLDER / f"{name}.{format}{kind}.sse").read_bytes()), format)
            for kind in ("", ".replay")
        )
        assert (live.calls, live.error) == (replay.calls, replay.error)
        if live.error is None:
            assert (live.text, live.reasoning) == (replay.text, replay.reasoning)
        assert live.is_over
        assert replay.is_over
        assert replay.text == _words(golden.events_of(name))


class TestResumingAtEveryId:
    @pytest.mark.parametrize("name, format", EVERY)
    def test_the_store_alone_completes_what_was_read_up_to_any_frame(self, name: str, format: FormatName) -> None:
        for reader, cursor in _cut_readers(name, format):
            _go_on(reader, cursor, name, format, frames_of(golden.events_of(name)[cursor.seq :]))

    @pytest.mark.parametrize("name, format", EVERY)
    def test_so_does_a_hub_that_still_has_the_preview(self, name: str, format: FormatName) -> None:
        """It may not have heard of an event of which the reader was told a part."""
        for reader, cursor in _cut_readers(name, format):
            log = TurnLog()
            for line in golden.lines_of(name):
                if line.said is not None and line.said.base_seq == cursor.seq:
                    assert log.add_preview(line.said)
            frames = [*log.frames(cursor.seq, cursor.offset), *frames_of(golden.events_of(name)[cursor.seq :])]
            _go_on(reader, cursor, name, format, frames)


def _cut_readers(name: str, format: FormatName) -> Iterator[tuple[Any, Cursor]]:
    """Readers who heard all of each preview, its first piece or nothing of it, cut after each of their frames."""
    live = list(golden.live_frames(name))
    hasty = [frame for frame in live if isinstance(frame, EventFrame) or frame.start == 0]
    for frames in (live, hasty, frames_of(golden.events_of(name))):
        whole = parsed(golden.encoded(frames, format, _turn_id(golden.events_of(name))))
        for count in range(len(whole)):
            reader = _read(whole[:count], format, name)
            yield reader, parse_cursor(reader.cursor) if reader.cursor else Cursor()


def _go_on(reader: Any, cursor: Cursor, name: str, format: FormatName, frames: Sequence[Frame]) -> None:
    events = golden.events_of(name)
    encoder = encoder_for(format, turn_id=_turn_id(events), model=golden.MODEL, created_at=0, cursor=cursor)
    for frame in parsed(b"".join(encoder.encode(frame) for frame in frames), reader.cursor):
        reader.take(frame)
    assert reader.is_over
    whole = _read(parsed((golden.FOLDER / f"{name}.{format}.sse").read_bytes()), format, name)
    if reader.error is None:
        assert _has(reader) == _has(whole)
    else:
        # Words that no event made true may be missing.
        assert whole.text.startswith(reader.text)
        assert (reader.calls, reader.error) == (whole.calls, whole.error)


class TestOpenAI:
    def test_every_unnamed_frame_is_a_chunk_with_one_choice(self) -> None:
        frames = parsed((golden.FOLDER / "tools.openai.sse").read_bytes())
        assert frames[-1].data == "[DONE]"
        chunks = [json.loads(frame.data) for frame in frames[:-1] if frame.event == "message"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["created"] for chunk in chunks} == {golden.CREATED_AT // 1000}
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["usage"]["total_tokens"] == 154

    def test_named_frames_show_nothing_to_a_parser_that_ignores_names(self) -> None:
        frames = [*_named("tools.openai.sse"), *_named("takeover.openai.sse")]
        assert [frame.event for frame in frames] == ["tool_calls", "reset"]
        assert all(json.loads(frame.data)["choices"] == [] for frame in frames)

    def test_a_cancelled_turn_is_an_error_with_its_code_and_then_the_end(self) -> None:
        *_, error, done = parsed((golden.FOLDER / "stopped.openai.sse").read_bytes())
        assert json.loads(error.data)["error"]["code"] == "cancelled"
        assert done.data == "[DONE]"


class TestAnthropic:
    def test_blocks_are_numbered_through_the_turn_and_each_is_opened_and_closed_once(self) -> None:
        frames = parsed((golden.FOLDER / "tools.anthropic.sse").read_bytes())
        marks = [(frame.event, json.loads(frame.data).get("index")) for frame in frames]
        for index in range(3):
            opened, closed = marks.index(("content_block_start", index)), marks.index(("content_block_stop", index))
            inside = marks[opened + 1 : closed]
            assert inside
            assert set(inside) == {("content_block_delta", index)}
        assert frames[0].event == "message_start"
        assert [frame.event for frame in frames[-2:]] == ["message_delta", "message_stop"]

    def test_every_frame_is_named_as_its_data(self) -> None:
        frames = parsed((golden.FOLDER / "stopped.anthropic.sse").read_bytes())
        assert [json.loads(frame.data)["type"] for frame in frames] == [frame.event for frame in frames]


class TestChoosing:
    @pytest.mark.parametrize("format", ["openai", "anthropic"])
    @pytest.mark.parametrize("state", ["1", "1.2.3", "a.b", "1.2.3.4.5", "1.2.3.x", ".", "1.1234567890"])
    def test_a_state_that_it_did_not_write_is_refused(self, format: FormatName, state: str) -> None:
        with pytest.raises(InvalidRequest):
            encoder_for(format, turn_id=TurnId("t"), model=None, created_at=0, cursor=Cursor(1, 1, state))

    def test_a_client_may_change_to_another_format_at_a_plain_cursor(self) -> None:
        worker = Worker(ListSource())
        worker.begin()
        worker.say("Hello world")
        worker.answer()
        encoder = encoder_for("openai", turn_id=worker.turn_id, model=None, created_at=0, cursor=parse_cursor("1.6"))
        reader = OpenAIReader()
        for frame in parsed(encoder.encode(frames_of(worker.recorded)[1])):
            reader.take(frame)
        assert (reader.text, reader.finish) == ("world", "stop")

    def test_the_native_format_needs_no_state_and_ignores_one(self) -> None:
        encoder = encoder_for("native", turn_id=TurnId("t"), model=None, created_at=0, cursor=Cursor(1, 1, "9.9"))
        frame = DeltaFrame(seq=1, offset=3, iteration=1, kind="text", text="é\n")
        expected = 'event: delta\nid: 1.3\ndata: {"iteration":1,"kind":"text","text":"é\\n"}\n\n'
        assert encoder.encode(frame) == expected.encode()


def _named(file: str) -> list[ServerSentEvent]:
    return [frame for frame in parsed((golden.FOLDER / file).read_bytes()) if frame.event != "message"]


def _turn_id(events: Sequence[Recorded]) -> TurnId:
    assert isinstance(events[0].event, TurnBegan)
    return events[0].event.turn_id


def _words(events: Sequence[Recorded]) -> str:
    words = ""
    for recorded in events:
        match recorded.event:
            case ToolCalls(text=text) | Result(message=text):
                words += text
            case _:
                pass
    return words


def _read(frames: Sequence[ServerSentEvent], format: FormatName, name: str = "") -> Any:
    spoken: dict[int, str] = {}
    for line in golden.lines_of(name) if name else ():
        if line.said is not None:
            spoken[line.said.base_seq] = spoken.get(line.said.base_seq, "") + line.said.text
    readers: dict[str, Any] = {"native": NativeReader(spoken), "openai": OpenAIReader(), "anthropic": AnthropicReader()}
    reader = readers[format]
    for frame in frames:
        reader.take(frame)
    return reader


def _has(reader: Any) -> object:
    if isinstance(reader, NativeReader):
        return reader.events
    return reader.text, reader.reasoning, reader.calls, reader.error
