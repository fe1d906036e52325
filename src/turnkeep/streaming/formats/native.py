"""The native format: every event as it was stored, and previews between them. It has no state."""

import msgspec

from turnkeep.streaming.frames import DeltaFrame, Frame
from turnkeep_client.wire.events import Recorded, TurnEvent

_json = msgspec.json.Encoder().encode

_TEXT = b'event: delta\nid: %d.%d\ndata: {"iteration":%d,"kind":"text","text":%b}\n\n'
_REASONING = b'event: delta\nid: %d.%d\ndata: {"iteration":%d,"kind":"reasoning","text":%b}\n\n'


class NativeEncoder:
    """Each frame is encoded once; all readers of the process share the bytes."""

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
