"""A client of a stream whose connection is cut all the time, and which checks every frame that reaches it."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httptools
import msgspec

from tests.faults.processes import PATIENCE_SECONDS
from tests.faults.sites import SERVICE_KEY
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

TERMINAL = frozenset({"result", "error"})


class Reading:
    """What a client has of one turn, over any number of connections.

    Each frame is checked as it comes: events are numbered without a gap, words follow the words before them, and the
    event that ends an iteration begins with what was previewed of it.
    """

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.events: list[ServerSentEvent] = []
        self.preview = ""
        self.previewed = 0
        """Characters that came as previews, in all."""
        self.resets = 0
        self.connections = 0

    @property
    def cursor(self) -> str:
        """Where to go on."""
        return f"{len(self.events)}.{len(self.preview)}" if self.preview else str(len(self.events))

    @property
    def is_over(self) -> bool:
        return bool(self.events) and self.events[-1].event in TERMINAL

    def take(self, frame: ServerSentEvent) -> None:
        assert not self.is_over, f"{frame} came after the end"
        data = msgspec.json.decode(frame.data)
        if frame.event == "delta":
            self.preview += data["text"]
            self.previewed += len(data["text"])
        else:
            self._check_replaced(frame.event, data)
            self.events.append(frame)
            self.preview = ""
        assert frame.id == self.cursor, f"the stream says {frame.id}, but this is {self.cursor}"

    def _check_replaced(self, event: str, data: Any) -> None:
        match event:
            case "tool_calls":
                assert data["text"].startswith(self.preview), (data["text"], self.preview)
            case "result":
                assert data["message"].startswith(self.preview), (data["message"], self.preview)
            case "reset":
                self.resets += 1
            case _:
                assert self.preview in {"", data.get("text", "")}, f"{event} came in the middle of a sentence"

    async def connect(self, port: int, *, cut_after: int | None = None) -> bool:
        """Read on from where it is, over one connection: to its end, or cut after so many bytes.

        Returns False if the server could not be reached or refused for now.
        """
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        self.connections += 1
        response = _Response(self.cursor)
        try:
            writer.write(self._request())
            while not response.is_complete and (cut_after is None or cut_after > 0):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    data = await reader.read(65_536 if cut_after is None else cut_after)
                if not data:
                    break
                cut_after = None if cut_after is None else cut_after - len(data)
                for frame in response.feed(data):
                    self.take(frame)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        assert response.status in {0, 200, 204, 503}, response.status
        return response.status in {0, 200}

    def _request(self) -> bytes:
        lines = [
            f"GET /v1/turns/{self.turn_id}/events HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {SERVICE_KEY}",
            "Accept: text/event-stream",
        ]
        if self.events:
            lines.append(f"Last-Event-ID: {self.cursor}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Response:
    """One HTTP response, fed in any pieces. `status` is 0 until the head is complete."""

    def __init__(self, cursor: str) -> None:
        self.status = 0
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._frames = SseParser(cursor)
        self._found: list[ServerSentEvent] = []

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        self._found = []
        self._parser.feed_data(data)
        return self._found

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.is_complete = True

    def on_body(self, body: bytes) -> None:
        if self.status == 200:
            self._found += self._frames.feed(body)


async def read_whole(port: int, turn_id: str) -> Reading:
    """Over one connection, if nothing breaks it."""
    reading = Reading(turn_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reading.is_over:
            if not await reading.connect(port):
                await asyncio.sleep(0.05)
    return reading


async def read_in_pieces(ports: Sequence[int], turn_id: str, chance: random.Random) -> Reading:
    """Cut at random bytes and resumed at the last cursor, each time on any of the servers."""
    reading = Reading(turn_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reading.is_over:
            if not await reading.connect(chance.choice(ports), cut_after=_some_bytes(chance)):
                await asyncio.sleep(0.02)
    return reading


def _some_bytes(chance: random.Random) -> int:
    """Mostly a few frames or less; now and then enough for the longest, without which there would be no end."""
    return chance.randint(1, 20_000 if chance.random() < 0.15 else 800)
