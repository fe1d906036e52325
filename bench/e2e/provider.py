"""A fake OpenAI-compatible provider: Chat Completions as a stream, at a pace that the question names.

`[bench 20 0]` in the newest message asks for 20 tokens as fast as possible, `[bench 300 30]` for 300 tokens at 30 per
second. Everything is prepared bytes on a bare `asyncio.Protocol`, so that the provider takes little of the processor
time that it shares with the server under test. `python -m bench.e2e.provider PORT` runs it.
"""

import asyncio
import re
import sys
import time
from functools import cache
from typing import cast

import uvloop

GROUP = 10
"""Tokens in one write where there is no pace. Each one is an event and an HTTP chunk of its own all the same."""

_DIRECTIVE = b"[bench "
_ASKED = re.compile(rb"\[bench (\d+) ([\d.]+)\]")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_BEFORE = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"'
)
_AFTER = b'"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1700000000,"owned_by":"bench"}]}'


def question(tokens: int, per_second: float) -> str:
    """The words that make the provider answer so. A pace of 0 means as fast as it can."""
    return f"Tell me something. [bench {tokens} {per_second:g}]"


def word(index: int) -> str:
    """A token of an answer without a pace."""
    return f" w{index:03d}"


def answer(tokens: int) -> str:
    """A whole answer without a pace."""
    return "".join(map(word, range(tokens)))


def stamp(index: int) -> str:
    """A token of a paced answer: its number, and the moment at which it is sent, in microseconds."""
    return f" {index:05d}.{time.monotonic_ns() // 1000:014d}"


STAMP_CHARS = len(stamp(0))


def read_stamps(text: str) -> list[float]:
    """The moments in a paced answer, in seconds. Raises ValueError if a token is lost, doubled or changed."""
    moments = []
    for index, start in enumerate(range(0, len(text), STAMP_CHARS)):
        number, moment = text[start : start + STAMP_CHARS].split(".")
        if int(number) != index or len(moment) != 14:
            raise ValueError(f"token {index} reads {text[start : start + STAMP_CHARS]!r}")
        moments.append(int(moment) / 1e6)
    return moments


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _token(text: str) -> bytes:
    return _chunk(_BEFORE + text.encode() + _AFTER)


@cache
def _last(tokens: int) -> bytes:
    common = b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    finish = common + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
    counts = b'"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}\n\n' % (tokens, tokens + 10)
    return _chunk(finish) + _chunk(common + b'"choices":[],' + counts) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@cache
def _writes(tokens: int) -> tuple[bytes, ...]:
    """An answer without a pace, as it is written."""
    words = [_token(word(index)) for index in range(tokens)]
    writes = [b"".join(words[start : start + GROUP]) for start in range(0, tokens, GROUP)]
    return (_HEAD + writes[0], *writes[1:-1], (writes[-1] if len(writes) > 1 else b"") + _last(tokens))


class _Connection(asyncio.Protocol):
    """One request after the other, as clients with a pool of connections send them."""

    received = 0
    """Bytes of all requests, which `GET /received` answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class derives from nothing

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._received, 0, end)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= whole:
            request = bytes(self._received[:whole])
            del self._received[:whole]
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET "):
            self._json(b"200 OK", b'{"received":%d}' % _Connection.received if b"/received " in request else _MODELS)
            return
        _Connection.received += len(request)
        at = request.rfind(_DIRECTIVE)
        asked = _ASKED.match(request, at) if at >= 0 else None
        if asked is None:
            self._json(b"400 Bad Request", b'{"error":{"message":"the newest message has no [bench N R]"}}')
            return
        tokens, per_second = int(asked[1]), float(asked[2])
        if per_second == 0:
            self._write_all(list(_writes(tokens)))
        else:
            self._transport.write(_HEAD)
            self._write_next(0, tokens, 1 / per_second, self._loop.time())

    def _json(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)

    def _write_all(self, writes: list[bytes]) -> None:
        """Each write in an iteration of the loop of its own, so that they are not sent as one."""
        if self._transport.is_closing():
            return
        self._transport.write(writes.pop(0))
        if writes:
            self._loop.call_soon(self._write_all, writes)

    def _write_next(self, index: int, tokens: int, pause: float, due: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_token(stamp(index)))
        if index + 1 < tokens:
            self._loop.call_at(due + pause, self._write_next, index + 1, tokens, pause, due + pause)
        else:
            self._transport.write(_last(tokens))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
