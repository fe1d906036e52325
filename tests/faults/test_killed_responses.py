"""`kill -9` of a server that streams responses: OpenAI's SDK goes on where it was, with `starting_after`."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.server_process import Serving, environment, serving

KEY = "the-key-of-this-test"
AT_ONCE = 20
QUESTION = "write 120 words"


class Reader:
    """One response, read by the SDK in several connections."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @property
    def response_id(self) -> str:
        response_id: str = self.events[0].response.id
        return response_id

    async def read(self, stream: Any, *, most: int | None = None, heard: Callable[[], None] = lambda: None) -> None:
        """Read to the end, or until so many events have come."""
        async with stream:
            async for event in stream:
                self.events.append(event)
                heard()
                if most is not None and len(self.events) >= most:
                    return

    def check(self, stored: Any) -> None:
        """Numbers rise, each item is added and done once, and the text of each is that of its deltas."""
        numbers = [event.sequence_number for event in self.events]
        assert numbers == sorted(set(numbers))
        added = [event.item.id for event in self.events if event.type == "response.output_item.added"]
        done = {event.item.id: event.item for event in self.events if event.type == "response.output_item.done"}
        assert sorted(added) == sorted(done)
        assert len(added) == len(set(added))
        final = self.events[-1].response
        assert final.status == "completed"
        for item in final.output:
            words = [
                event.delta
                for event in self.events
                if event.type == "response.output_text.delta" and event.item_id == item.id
            ]
            assert "".join(words) == item.content[0].text
        assert final.output_text == stored.output_text
        assert len(final.output_text.split()) == 120


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/openai/v1", api_key=KEY, max_retries=0, timeout=120, _strict_response_validation=True
    )


async def begin(serving: Serving, count: int, chance: random.Random) -> list[Reader]:
    """Start responses in the background and read them. Some readers leave by themselves. Somewhere in the middle the
    server is killed, and cuts off the others."""
    readers = [Reader() for _ in range(count)]
    enough = count * chance.randint(5, 40)
    async with client_of(serving.url) as sdk:

        async def one(reader: Reader, most: int) -> None:
            with suppress(openai.APIError, httpx2.TransportError):
                stream = await sdk.responses.create(model="demo", input=QUESTION, stream=True, background=True)
                await reader.read(stream, most=most, heard=kill_at_last)

        def kill_at_last() -> None:
            if all(each.events for each in readers) and sum(len(each.events) for each in readers) >= enough:
                serving.process.kill()

        await asyncio.gather(*(one(reader, chance.randint(5, 120)) for reader in readers))
    serving.process.kill()
    return readers


async def finish(url: str, readers: Sequence[Reader]) -> None:
    """Go on after the last event of each, and check the whole."""
    async with client_of(url) as sdk:
        for reader in readers:
            after = reader.events[-1].sequence_number
            await reader.read(await sdk.responses.retrieve(reader.response_id, stream=True, starting_after=after))
            reader.check(await sdk.responses.retrieve(reader.response_id))


def kill_and_resume(folder: Path, seed: int) -> None:
    env = environment(folder, TURNKEEP_BOOTSTRAP_KEY=KEY, TURNKEEP_LEASE_SECONDS="1")
    with serving(folder, env, "--sandbox-url", "off") as first:
        readers = asyncio.run(begin(first, AT_ONCE, random.Random(seed)))
    with serving(folder, env, "--sandbox-url", "off") as second:
        asyncio.run(finish(second.url, readers))


class TestKilledResponses:
    def test_the_sdk_goes_on_after_the_last_event_that_it_has(self, tmp_path: Path) -> None:
        kill_and_resume(tmp_path, seed=1)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", range(2, 12))
    def test_so_do_two_hundred(self, tmp_path: Path, seed: int) -> None:
        kill_and_resume(tmp_path, seed)
