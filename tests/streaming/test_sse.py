"""Server-sent events: the bytes, and a parser that may be fed any cut of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep_client.wire import sse
from turnkeep_client.wire.sse import ServerSentEvent, SseParser


def parsed(*chunks: bytes) -> list[ServerSentEvent]:
    parser = SseParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def one(data: str, event: str = "message", id: str = "") -> ServerSentEvent:
    return ServerSentEvent(event=event, data=data, id=id)


class TestWriting:
    def test_a_frame_has_event_id_and_data_in_this_order(self) -> None:
        assert sse.frame(b"{}", event="turn", id="1") == b"event: turn\nid: 1\ndata: {}\n\n"

    def test_what_is_absent_is_not_written(self) -> None:
        assert sse.frame(b"[DONE]") == b"data: [DONE]\n\n"

    def test_a_heartbeat_is_no_frame_and_a_retry_is_read(self) -> None:
        parser = SseParser()
        assert parser.feed(sse.HEARTBEAT + sse.retry(1_500)) == []
        assert parser.retry_milliseconds == 1_500


class TestReading:
    @pytest.mark.parametrize(
        "stream, frames",
        [
            (b"data: a\n\n", [one("a")]),
            (b"data:a\n\n", [one("a")]),
            (b"data:  a\n\n", [one(" a")]),
            (b"data: a\r\rdata: b\r\n\r\n", [one("a"), one("b")]),
            (b"data: a\ndata: b\n\n", [one("a\nb")]),
            (b"data\n\n", [one("")]),
            (b"\xef\xbb\xbfdata: a\n\n", [one("a")]),
            (b"event: x\ndata: a\n\ndata: b\n\n", [one("a", "x"), one("b")]),
            (b"id: 1\ndata: a\n\ndata: b\n\n", [one("a", id="1"), one("b", id="1")]),
            (b"id: 1\n\ndata: a\n\n", [one("a", id="1")]),
            (b"id: 1\0\ndata: a\n\n", [one("a")]),
            (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [one("a", id="1"), one("b")]),
            (b": note\nunknown: x\ndata: a\n\n", [one("a")]),
            (b"event: x\n\ndata: a\n\n", [one("a")]),
            (b"retry: soon\ndata: a\n\n", [one("a")]),
            (b"data: \xff\n\n", [one("\ufffd")]),
            (b"data: unfinished\n", []),
        ],
    )
    def test_the_specification_decides(self, stream: bytes, frames: list[ServerSentEvent]) -> None:
        assert parsed(stream) == frames

    def test_the_id_of_an_unfinished_frame_is_not_a_cursor(self) -> None:
        parser = SseParser()
        parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
        assert parser.last_id == "1"
        parser.feed(b"\n")
        assert parser.last_id == "2"

    @given(st.data())
    def test_any_cut_of_the_bytes_gives_the_same_frames(self, data: st.DataObject) -> None:
        line = st.sampled_from(
            [b"data: \xe4\xb8\x96", b"data", b"event: x", b"id: 7", b": c", b"", b"\xef\xbb\xbfdata: q"]
        )
        ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
        stream = b"".join(data.draw(st.lists(st.builds(bytes.__add__, line, ends), max_size=12)))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert parsed(*chunks) == parsed(stream)
