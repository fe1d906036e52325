"""Formats: encoders of the same frames into the native, OpenAI and Anthropic dialects of server-sent events.

Each sends the cursor as the `id` of a frame, so each stream can be resumed. A format knows frames and bytes, nothing
of hubs, stores or connections. To add one, write an `Encoder` and name it in `FormatName`. Read `native.py` first.
"""

from typing import Literal, Protocol, assert_never

from turnkeep.ids import TurnId
from turnkeep.streaming.formats.anthropic import AnthropicEncoder
from turnkeep.streaming.formats.native import NativeEncoder
from turnkeep.streaming.formats.openai import OpenAIEncoder
from turnkeep.streaming.frames import START, Cursor, Frame

__all__ = ["Encoder", "FormatName", "encoder_for"]

FormatName = Literal["native", "openai", "anthropic"]


class Encoder(Protocol):
    """One reader's encoder. Frames must come in order, beginning after the cursor that it was created with."""

    def encode(self, frame: Frame) -> bytes:
        """The frame as server-sent events; empty if this format does not show it."""


def encoder_for(
    name: FormatName, *, turn_id: TurnId, model: str | None, created_at: int, cursor: Cursor = START
) -> Encoder:
    """An encoder that continues after `cursor`. Raises InvalidRequest for the cursor of another format.

    `created_at` is the turn's, in Unix milliseconds, so that a resumed stream repeats the same value.
    """
    match name:
        case "native":
            return NativeEncoder()
        case "openai":
            return OpenAIEncoder(turn_id=turn_id, model=model or "", created=created_at // 1000, cursor=cursor)
        case "anthropic":
            return AnthropicEncoder(turn_id=turn_id, model=model or "", cursor=cursor)
        case _:
            assert_never(name)
