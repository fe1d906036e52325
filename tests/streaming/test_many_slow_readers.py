"""A busy server: models that speak quicker than readers read. Readers get fewer and larger deltas, never wrong ones."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from turnkeep.testing import ModelRequest, Pause, Script, Think, TurnkeepServer, Until
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

TURNS = 12
THOUGHTS = 300
WORDS = 1_500
PATIENCE_SECONDS = 120


class Speech:
    """What the models say, once all readers are there: first reasoning, then text, a few pieces at a time.

    They end when all readers are connected for the last time: who comes later gets the result alone.
    """

    def __init__(self) -> None:
        self.may_begin = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, request: ModelRequest) -> Script:
        chance = random.Random(str(request.messages[-1]))
        lines: list[Any] = [Until(lambda: _happened(self.may_begin))]
        for number in range(THOUGHTS + WORDS):
            piece = f"{number} " + chance.choice(("word", "wörd", "\U0001f600", '"\\', "\n")) * chance.randint(1, 12)
            lines.append(Think(piece) if number < THOUGHTS else piece)
            if not chance.randrange(4):
                lines.append(Pause(0))
            if number == THOUGHTS + WORDS // 2:
                lines.append(Until(lambda: _happened(self.may_end)))
        return lines


async def _happened(event: threading.Event) -> None:
    while not event.is_set():  # noqa: ASYNC110 - it belongs to another thread
        await asyncio.sleep(0.01)


@pytest.fixture
def speech() -> Speech:
    return Speech()


@pytest.fixture
def server(tmp_path: Path, speech: Speech) -> Iterator[TurnkeepServer]:
    with TurnkeepServer(tmp_path / "turnkeep") as server:
        server.answer_with(speech)
        yield server


class Reader:
    """One client of one turn. It joins the deltas, and may read slowly or lose its connection again and again."""

    def __init__(
        self, server: TurnkeepServer, turn_id: str, *, format: str = "native", slow: bool = False, cuts: int = 0
    ) -> None:
        self.joined = {"text": "", "reasoning": ""}
        self.result: dict[str, Any] | None = None
        self.deltas = 0
        self.has_begun = asyncio.Event()
        self.stays = asyncio.Event()
        """It was cut for the last time, and is connected again."""
        self._url = f"{server.url}/v1/turns/{turn_id}/events?format={format}"
        self._headers = {"authorization": f"Bearer {server.key}", "accept": "text/event-stream"}
        self._slow = slow
        self._cuts = cuts
        self._chance = random.Random(turn_id)
        self._cursor = ""
        self._is_over = False

    async def read(self, session: aiohttp.ClientSession) -> None:
        while not self._is_over:
            limit = self._chance.randint(500, 3_000) if self._cuts else 10**9
            headers = self._headers | ({"last-event-id": self._cursor} if self._cursor else {})
            async with session.get(self._url, headers=headers, read_bufsize=1_024) as response:
                assert response.status == 200, await response.text()
                if not self._cuts:
                    self.stays.set()
                with suppress(TimeoutError):
                    async for frame in self._frames(response, limit):
                        self._take(frame)
            self._cuts = max(0, self._cuts - 1)

    async def _frames(self, response: aiohttp.ClientResponse, limit: int) -> AsyncIterator[ServerSentEvent]:
        """Frames until the end or the next cut. A reader that will be cut does not wait long for more."""
        parser = SseParser(self._cursor)
        while limit > 0:
            async with asyncio.timeout(0.5 if self._cuts else None):
                chunk = await response.content.readany()
            limit = limit - len(chunk) if chunk else 0
            for frame in parser.feed(chunk):
                yield frame
            if self._slow:
                await asyncio.sleep(0.005)

    def _take(self, frame: ServerSentEvent) -> None:
        self.has_begun.set()
        self._cursor = frame.id
        if frame.data == "[DONE]":
            self._is_over = True
            return
        data = json.loads(frame.data)
        if frame.event == "delta":
            self._add(data["kind"], data["text"])
        elif frame.event == "result":
            self.result = data
            self._is_over = True
        elif "choices" in data:
            delta = data["choices"][0]["delta"]
            self._add("text", delta.get("content", ""))
            self._add("reasoning", delta.get("reasoning_content", ""))

    def _add(self, kind: str, text: str) -> None:
        self.joined[kind] += text
        self.deltas += bool(text)


async def begin_turn(server: TurnkeepServer, session: aiohttp.ClientSession, number: int) -> str:
    body = {"message": f"Question {number}", "background": True}
    headers = {"authorization": f"Bearer {server.key}"}
    async with session.post(f"{server.url}/v1/turns", json=body, headers=headers) as response:
        assert response.status == 202, await response.text()
        return str((await response.json())["turn_id"])


async def test_the_joined_deltas_of_every_reader_are_the_answer(server: TurnkeepServer, speech: Speech) -> None:
    """Fast, slow and resuming readers of many turns, in both ways in which a reader can count what it has."""
    readers: list[Reader] = []
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as group,
    ):
        for turn_id in [await begin_turn(server, session, number) for number in range(TURNS)]:
            readers += (
                Reader(server, turn_id),
                Reader(server, turn_id),
                Reader(server, turn_id, slow=True),
                Reader(server, turn_id, cuts=8),
                Reader(server, turn_id, format="openai", cuts=4),
            )
        for reader in readers:
            group.create_task(reader.read(session))
        for reader in readers:
            await reader.has_begun.wait()
        speech.may_begin.set()
        for reader in readers:
            await reader.stays.wait()
        speech.may_end.set()
    for first in range(0, len(readers), 5):
        result = readers[first].result
        assert result is not None
        reasoning = [part["text"] for part in result["content"] if part["type"] == "reasoning"]
        assert len(result["message"]) > WORDS
        for reader in readers[first : first + 5]:
            assert reader.result in (result, None)
            assert reader.joined["text"] == result["message"]
            assert reader.joined["reasoning"] == "".join(reasoning)
            assert reader.deltas < THOUGHTS + WORDS, "what was waiting came together"
