"""The golden turns: `tests/golden/*.ndjson` and, beside each, its exact bytes in every format.

A line is an event with its number, or a piece of preview. `{name}.{format}.sse` is what a reader sees who was there
from the first moment; `{name}.{format}.replay.sse` what one sees who comes when all is over.

    python -m tests.streaming.golden       writes the bytes anew; look at the difference before you keep it
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep.streaming.formats import FormatName, encoder_for
from turnkeep.streaming.frames import Frame
from turnkeep.streaming.hub import TurnLog, frames_of
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.events import Recorded

FOLDER = Path(__file__).parent.parent / "golden"
FORMATS: tuple[FormatName, ...] = ("native", "openai", "anthropic")
CREATED_AT = 1_750_000_000_000
MODEL = "demo/golden"


class Line(Struct, frozen=True, omit_defaults=True):
    """What happened next."""

    recorded: Recorded | None = None
    said: PreviewPiece | None = None


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ndjson"))


def lines_of(name: str) -> list[Line]:
    text = (FOLDER / f"{name}.ndjson").read_bytes()
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


def events_of(name: str) -> list[Recorded]:
    return [line.recorded for line in lines_of(name) if line.recorded is not None]


def live_frames(name: str) -> Iterator[Frame]:
    """The frames of a reader who keeps up."""
    log = TurnLog()
    seq = offset = 0
    for line in lines_of(name):
        if line.recorded is not None:
            log.add(frames_of([line.recorded]))
        if line.said is not None:
            assert log.add_preview(line.said)
        for frame in log.frames(seq, offset):
            seq, offset = frame.seq, frame.offset
            yield frame


def encoded(frames: Iterator[Frame] | Sequence[Frame], format: FormatName, turn_id: TurnId) -> bytes:
    encoder = encoder_for(format, turn_id=turn_id, model=MODEL, created_at=CREATED_AT)
    return b"".join(encoder.encode(frame) for frame in frames)


def bytes_of(name: str, format: FormatName) -> dict[str, bytes]:
    """The two files beside a turn, by name."""
    events = events_of(name)
    turn_id = getattr(events[0].event, "turn_id", TurnId(""))
    return {
        f"{name}.{format}.sse": encoded(live_frames(name), format, turn_id),
        f"{name}.{format}.replay.sse": encoded(frames_of(events), format, turn_id),
    }


if __name__ == "__main__":
    for each in names():
        for format_name in FORMATS:
            for file, content in bytes_of(each, format_name).items():
                (FOLDER / file).write_bytes(content)
