"""A program that keeps many streams open and counts what comes: one of the clients of `test_idle_streams`.

    python -m tests.faults.idle_reader NAME PORT...

Each line of its standard input is the number of streams that shall be open. It prints a `Report` every second, and ends
with its input. It asks a question for each stream; but every tenth stream follows the turn of another one, at another
server than the one that runs the turn.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import httptools
import msgspec
from msgspec import Struct

from tests.faults.script import question
from tests.faults.sites import SERVICE_KEY
from turnkeep_client.stream import TURN_HEADER
from turnkeep_client.wire import sse

AT_ONCE = 25
"""Streams that are being opened at the same time."""
FOLLOWER_EVERY = 10


class Report(Struct, frozen=True, kw_only=True):
    """What one program has. Counts by port are by that of the server that runs the turn."""

    open: int
    lost: tuple[str, ...]
    """Why streams ended without a result, or did not begin."""
    heartbeats: int
    """The fewest that any stream got."""
    streams: dict[int, int]
    answers: dict[int, int]
    """Streams that ended with the result of their turn."""


class IdleStream(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, request: bytes, *, holder: int) -> None:
        self.holder = holder
        self.heartbeats = 0
        self.has_answer = False
        self.trouble = ""
        self.turn_id = ""
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._frames = sse.SseParser()

    @property
    def is_open(self) -> bool:
        return self.began.done() and not self.has_answer and not self.trouble

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.has_answer:
            self.trouble = self.trouble or f"The connection ended: {exc!r}."
        self._note_beginning()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.decode().lower() == TURN_HEADER:
            self.turn_id = value.decode()

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self.trouble += body.decode(errors="replace")
        elif body == sse.HEARTBEAT:
            self.heartbeats += 1
        elif any(frame.event == "result" for frame in self._frames.feed(body)):
            self.has_answer = True
        self._note_beginning()

    def _note_beginning(self) -> None:
        if not self.began.done():
            self.began.set_result(None)


class IdleReader:
    """All streams of this program."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        self._name = name
        self._ports = ports
        self._streams: dict[int, IdleStream] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def open(self, count: int) -> None:
        async with asyncio.TaskGroup() as opening:
            for number in range(len(self._streams), count):
                await self._places.acquire()
                task = opening.create_task(self._open_one(number))
                task.add_done_callback(lambda _: self._places.release())

    def report(self) -> Report:
        found = self._streams.values()
        return Report(
            open=sum(each.is_open for each in found),
            lost=tuple(each.trouble for each in found if each.trouble)[:5],
            heartbeats=min((each.heartbeats for each in found if each.is_open), default=0),
            streams=Counter(each.holder for each in found),
            answers=Counter(each.holder for each in found if each.has_answer),
        )

    async def _open_one(self, number: int) -> None:
        at = number % len(self._ports)
        port = holder = self._ports[at]
        followed = self._streams.get(number - AT_ONCE - 1) if number % FOLLOWER_EVERY == 0 else None
        if followed is not None and followed.turn_id:
            holder = followed.holder
            port = next(each for each in self._ports if each != holder)
            request = _request("GET", f"/v1/turns/{followed.turn_id}/events")
        else:
            body = msgspec.json.encode({"message": question(f"{self._name}-{number}")})
            request = _request("POST", "/v1/turns", body)
        stream = IdleStream(request, holder=holder)
        self._streams[number] = stream
        try:
            await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
        except OSError as exc:
            stream.trouble = f"There was no connection: {exc!r}."
        else:
            await stream.began


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {SERVICE_KEY}",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def _report_for_ever(reader: IdleReader) -> None:
    while True:
        await asyncio.sleep(1)
        sys.stdout.buffer.write(msgspec.json.encode(reader.report()) + b"\n")
        sys.stdout.buffer.flush()


async def main(name: str, ports: Sequence[int]) -> None:
    reader = IdleReader(name, ports)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    reporting = asyncio.create_task(_report_for_ever(reader))
    async for count in commands:
        await reader.open(int(count))
    reporting.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
