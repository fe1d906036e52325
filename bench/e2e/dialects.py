"""How each server is asked for a turn, and how its stream is read. Pure functions: bytes in, bytes or text out."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

KEY = "bench-service-key-0123456789abcdef"
"""The service key of the Turnkeep servers."""


class Failed(Exception):
    """The server ended a turn with an error. The text is what it said."""


@dataclass(frozen=True)
class Piece:
    """What one frame says: text of the answer, or (`is_whole`) the whole answer once more at the end."""

    text: str
    is_whole: bool = False


@dataclass(frozen=True)
class Dialect:
    """A request for a turn, and the meaning of a frame of the response. `None` is a frame without text."""

    request: Callable[[str | None, str], bytes]
    read: Callable[[bytes], Piece | None]
    resume: Callable[[str], bytes] | None = None
    """The request for the stream of a turn that runs, where there is one."""


def post(path: str, body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """A request as bytes."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Accept: text/event-stream",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _encoded(**fields: Any) -> bytes:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def _data(frame: bytes) -> bytes:
    """What follows `data: ` in a frame with one such line."""
    return frame[frame.index(b"data: ") + 6 :]


class _Delta(msgspec.Struct):
    text: str


class _Result(msgspec.Struct):
    message: str


_turnkeep_delta = msgspec.json.Decoder(_Delta)
_turnkeep_result = msgspec.json.Decoder(_Result)
_AUTHORIZATION = f"Authorization: Bearer {KEY}"


def _ask_turnkeep(conversation: str | None, message: str) -> bytes:
    return post("/v1/turns", _encoded(conversation_id=conversation, message=message), _AUTHORIZATION)


def _follow_turnkeep(turn: str) -> bytes:
    lines = (f"GET /v1/turns/{turn}/events HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream", _AUTHORIZATION)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _read_turnkeep(frame: bytes) -> Piece | None:
    if frame.startswith(b"event: delta\n"):
        return Piece(_turnkeep_delta.decode(_data(frame)).text)
    if frame.startswith(b"event: result\n"):
        return Piece(_turnkeep_result.decode(_data(frame)).message, is_whole=True)
    if frame.startswith(b"event: error\n"):
        raise Failed(frame.decode())
    return None


class _Content(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Content


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


_chunk = msgspec.json.Decoder(_Chunk)


def _ask_floor(conversation: str | None, message: str) -> bytes:
    return post("/turns", _encoded(conversation=conversation or uuid.uuid4().hex, message=message))


def _read_chunk(frame: bytes) -> Piece | None:
    if frame == b"data: [DONE]":
        return None
    choices = _chunk.decode(_data(frame)).choices
    return Piece(choices[0].delta.content) if choices and choices[0].delta.content else None


DIALECTS = {
    "turnkeep": Dialect(_ask_turnkeep, _read_turnkeep, _follow_turnkeep),
    "floor": Dialect(_ask_floor, _read_chunk),
}
