"""The lines of a sandbox: strict, bounded, and with exactly one ending for any bytes."""

import random

import msgspec
import pytest

from turnkeep.streaming.ndjson import LINE_BYTES, PROTOCOL_ERROR, LineParser, checked_line
from turnkeep_client.wire.events import Step
from turnkeep_client.wire.sandbox import (
    DeltaLine,
    Ending,
    ErrorLine,
    OpenLine,
    ResultLine,
    SandboxLog,
    SourcesLine,
    StepLine,
    encode_line,
)

RESULT = b'{"type":"result","message":"Done."}\n'
STEP = (
    b'{"type":"step","id":"step_8f3","name":"recipes/add-node.sh","status":"succeeded",'
    b'"args":{"nodeType":"inference"},"result":{"nodeId":null},"durationMs":412,"ts":1700000000535}'
)


def read(*chunks: bytes) -> tuple[list[OpenLine], Ending, LineParser]:
    parser = LineParser()
    lines = [line for chunk in chunks for line in parser.feed(chunk)]
    return lines, parser.close(), parser


class TestLines:
    def test_every_kind_is_read(self) -> None:
        lines, ending, parser = read(
            b'{"type":"log","level":"info","message":"Loaded 3 skills","ts":1700000000000}\n',
            b'{"type":"delta","text":"Hel"}\n',
            STEP + b"\n",
            b'{"type":"sources","sources":[{"title":"Atlas","snippet":"Up north.","number":1}]}\n',
            RESULT,
        )
        assert [type(line) for line in lines] == [SandboxLog, DeltaLine, StepLine, SourcesLine]
        assert (ending, parser.ignored_lines) == (ResultLine(message="Done."), 0)

    def test_a_step_becomes_the_event_whose_json_is_the_line(self) -> None:
        line, _ = checked_line(STEP)
        assert isinstance(line, StepLine)
        assert isinstance(line.event(), Step)
        assert msgspec.json.decode(msgspec.json.encode(line.event())) == msgspec.json.decode(STEP)

    @pytest.mark.parametrize(
        "said, known", [("warn", "warn"), ("WARNING", "warn"), ("critical", "error"), ("odd", "info"), ("", "info")]
    )
    def test_a_level_may_be_called_anything(self, said: str, known: str) -> None:
        line, _ = checked_line(msgspec.json.encode({"type": "log", "level": said, "message": "x"}))
        assert isinstance(line, SandboxLog)
        assert (line.level, line.known_level) == (said, known)

    def test_what_is_written_is_read_again(self) -> None:
        lines: list[OpenLine] = [
            SandboxLog(level="warn", message="a\nb", ts=1),
            StepLine(id="s", name="n", status="failed", error="no", result=None),
        ]
        found, ending, _ = read(*map(encode_line, lines), encode_line(ErrorLine(code="c", message="m")))
        assert (found, ending) == (lines, ErrorLine(code="c", message="m"))

    def test_any_cut_of_the_bytes_gives_the_same_lines(self) -> None:
        body = b'{"type":"delta","text":"\xc3\xa9\xe2\x82\xac"}\r\n\n' + STEP + b"\n" + RESULT
        whole = read(body)[:2]
        for size in (1, 2, 3, 7, 50):
            assert read(*(body[at : at + size] for at in range(0, len(body), size)))[:2] == whole

    def test_a_last_line_without_a_line_feed_counts(self) -> None:
        assert read(RESULT.rstrip())[1] == ResultLine(message="Done.")

    def test_unknown_fields_are_ignored_and_noted_once(self) -> None:
        lines, ending, parser = read(
            b'{"type":"delta","text":"a","id":1,"type2":{}}\n' * 3,
            b'{"text":"b","id":[],"type":"delta"}\n',
            b'{"type":"result","message":"Done.","id":"r"}\n',
        )
        assert lines == [DeltaLine(text="a")] * 3 + [DeltaLine(text="b")]
        assert ending == ResultLine(message="Done.")
        assert parser.take_notes() == [
            "The field 'id' of a `delta` line was passed over.",
            "The field 'type2' of a `delta` line was passed over.",
            "The field 'id' of a `result` line was passed over.",
        ]
        assert parser.take_notes() == []

    def test_many_unknown_fields_make_few_notes(self) -> None:
        fields = {f"{number}" * 200: 1 for number in range(10, 99)}
        line = msgspec.json.encode({"type": "result", "message": "x", **fields})
        notes = read(line)[2].take_notes()
        assert len(notes) == 20
        assert max(map(len, notes)) < 150

    @pytest.mark.parametrize("ts", [0, -1, 1_700_000_000.25, 1e20, 10**30])
    def test_a_time_is_any_number(self, ts: float) -> None:
        for fields in (
            {"type": "log", "level": "info", "message": "m"},
            {"type": "step", "id": "s", "name": "n", "status": "running"},
            {"type": "result", "message": "m"},
        ):
            line, unknown = checked_line(msgspec.json.encode({**fields, "ts": ts}))
            assert (line.ts, unknown) == (ts, [])
            assert msgspec.json.decode(encode_line(line)) == {**fields, "ts": ts}

    def test_blank_lines_mean_nothing(self) -> None:
        lines, ending, parser = read(b"\n \n\r\n", RESULT, b"\n\n")
        assert (lines, ending, parser.ignored_lines) == ([], ResultLine(message="Done."), 0)


BAD = {
    "an unknown type": b'{"type":"thought","text":"hm"}',
    "no type": b'{"message":"x"}',
    "a type that is no text": b'{"type":["result"],"message":"x"}',
    "bad JSON": b'{"type":"result",',
    "two values": RESULT.strip() * 2,
    "a list": b"[]",
    "a wrong field": b'{"type":"log","level":"info","message":1}',
    "a wrong field beside an unknown one": b'{"type":"result","message":1,"extra":1}',
    "a missing field beside an unknown one": b'{"type":"step","id":"1","name":"n","state":"running"}',
    "a time that is no number": b'{"type":"result","message":"x","ts":"now"}',
    "a missing field": b'{"type":"step","id":"1","name":"n"}',
    "a source without a title": b'{"type":"sources","sources":[{"snippet":"x"}]}',
    "an unknown status": b'{"type":"step","id":"1","name":"n","status":"odd"}',
    "no UTF-8": b'{"type":"result","message":"\xff"}',
    "half a surrogate pair": b'{"type":"result","message":"\\ud800"}',
    "not a number": b'{"type":"step","id":"1","name":"n","status":"running","args":NaN}',
    "nesting without end": b'{"type":"step","id":"1","name":"n","status":"running","args":' + b"[" * 100_000,
    "a line over 1 MiB": b'{"type":"result","message":"' + b"x" * LINE_BYTES + b'"}',
}


class TestBreakingTheProtocol:
    @pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
    def test_a_bad_line_ends_the_turn_and_keeps_what_came_before(self, line: bytes) -> None:
        lines, ending, parser = read(b'{"type":"delta","text":"Hi"}\n' + line + b"\n" + RESULT)
        assert lines == [DeltaLine(text="Hi")]
        assert isinstance(ending, ErrorLine)
        assert ending.code == PROTOCOL_ERROR
        assert parser.is_broken
        assert parser.ignored_lines == 1

    def test_a_stream_without_an_ending_is_a_fault(self) -> None:
        ending = read(b'{"type":"delta","text":"Hi"}\n')[1]
        assert ending == ErrorLine(code=PROTOCOL_ERROR, message="The stream ended without a result or an error.")
        assert read()[1] == ending

    def test_a_line_that_is_too_long_fails_before_it_ends(self) -> None:
        parser = LineParser()
        for _ in range(20):
            parser.feed(b"x" * 100_000)
        assert parser.is_broken
        assert parser.close().message == "A line is longer than 1,048,576 bytes."

    def test_a_line_of_just_1_mib_is_read(self) -> None:
        line = encode_line(ResultLine(message=""))
        line = encode_line(ResultLine(message="x" * (LINE_BYTES - len(line) + 1)))
        assert len(line) == LINE_BYTES + 1
        assert isinstance(read(line)[1], ResultLine)

    def test_what_follows_the_ending_is_ignored_and_counted(self) -> None:
        error = b'{"type":"error","code":"x","message":"y"}\n'
        lines, ending, parser = read(RESULT + error, STEP + b"\n", b"garbage")
        assert (lines, ending, parser.ignored_lines) == ([], ResultLine(message="Done."), 3)


class TestFuzz:
    """200,000 lines that were really looked at, in streams that end well or badly: no crash, no hang, one ending."""

    @pytest.mark.parametrize("seed", range(4))
    def test_any_bytes_come_to_one_ending(self, seed: int) -> None:
        chance = random.Random(seed)
        read_lines = 0
        while read_lines < 50_000:
            body, count = _stream(chance)
            parser = LineParser()
            found: list[OpenLine] = []
            for chunk in _cut(chance, body):
                found += parser.feed(chunk)
                assert len(found) <= count + 1
            ending = parser.close()
            read_lines += len(found) + 1
            assert isinstance(ending, ResultLine | ErrorLine)
            assert parser.close() is ending
            assert not parser.feed(STEP + b"\n"), "nothing comes after the ending"


GOOD = (STEP, b'{"type":"delta","text":"x"}', b'{"type":"log","level":"debug","message":"m"}', b"")


def _stream(chance: random.Random) -> tuple[bytes, int]:
    lines = [chance.choice(GOOD) for _ in range(chance.choice((1, 3, 10, 200)))]
    for _ in range(chance.choice((0, 0, 1, 3))):
        lines.insert(chance.randrange(len(lines)), _damaged(chance))
    if chance.random() < 0.8:
        lines.insert(chance.randrange(len(lines) // 2, len(lines) + 1), RESULT.strip())
    return b"\n".join(lines) + b"\n" * chance.randrange(3), len(lines)


def _damaged(chance: random.Random) -> bytes:
    line = bytearray(chance.choice((*GOOD[:3], RESULT)))
    for _ in range(chance.choice((1, 3, 10))):
        at = chance.randrange(len(line))
        match chance.randrange(4):
            case 0:
                line[at] = chance.randrange(256)
            case 1:
                del line[at:]
                line += b" "
            case 2:
                line[at:at] = bytes(chance.randrange(256) for _ in range(5))
            case _:
                line[at:at] = chance.choice((b"[", b"{", b'"', b"\\ud8", b"null", b"1e999", b"\0"))
    return bytes(line)


def _cut(chance: random.Random, body: bytes) -> list[bytes]:
    size = chance.choice((1_000, 10_000, 1_000_000))
    return [body[at : at + size] for at in range(0, len(body), size)]
