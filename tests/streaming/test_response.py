"""The event stream over real HTTP: its headers, its heartbeats, its endings, and what a cut reader finally has."""

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.streaming.http_server import Client, Site, served
from tests.streaming.turns import AnthropicReader, ListSource, NativeReader, OpenAIReader, Worker
from turnkeep.http_server.uvicorn_server import BoundedProtocol
from turnkeep.streaming.connection import EventStream, OpenStreams
from turnkeep.streaming.follow import follow
from turnkeep.streaming.formats import FormatName, NativeEncoder
from turnkeep.streaming.hub import LocalHub
from turnkeep_client.wire.sse import SseParser


async def eventually(claim: Any) -> None:
    async with asyncio.timeout(30):
        while not claim():  # noqa: ASYNC110 - anything may be claimed
            await asyncio.sleep(0.005)


class TestTheStream:
    async def test_it_is_an_event_stream_that_proxies_must_not_buffer(self, source: ListSource, worker: Worker) -> None:
        worker.answer()
        async with served(Site(source=source)) as site:
            client = await Client.get(site.port, worker.turn_id)
            headers = await client.headers()
            assert headers["content-type"] == "text/event-stream"
            assert headers["cache-control"] == "no-cache, no-transform"
            assert headers["x-accel-buffering"] == "no"
            reader = NativeReader(worker.spoken)
            for frame in SseParser().feed(await client.whole()):
                reader.take(frame)
            assert reader.has_all_of(worker.recorded)
            assert client.is_complete
            client.close()

    async def test_headers_come_before_anything_happens(self, source: ListSource, worker: Worker) -> None:
        async with served(Site(source=source)) as site:
            client = await Client.get(site.port, worker.turn_id)
            assert (await asyncio.wait_for(client.headers(), 30))["content-type"] == "text/event-stream"
            assert b"event: turn" in await client.body()
            client.close()

    async def test_waiting_text_is_sent_in_one_frame_and_one_write(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        async with served(Site(source=source, hub=hub)) as site:
            client = await Client.get(site.port, worker.turn_id)
            await client.body()
            for number in range(20):
                hub.preview(worker.say(f"{number} "))
            first, rest = await client.body(), await client.body()
            frames = SseParser().feed(first + rest)
            assert [json.loads(frame.data)["text"] for frame in frames] == ["0 ", worker.spoken[1][2:]]
            client.close()

    async def test_the_head_comes_with_the_first_event_and_the_end_with_the_last(
        self, source: ListSource, worker: Worker
    ) -> None:
        writes: list[bytes] = []

        class Recorded(BoundedProtocol):
            def connection_made(self, transport: Any) -> None:
                write = transport.write

                def record(data: bytes) -> None:
                    writes.append(bytes(data))
                    write(data)

                transport.write = record
                super().connection_made(transport)

        hub = LocalHub()
        hub.publish(worker.turn_id, worker.recorded)
        async with served(Site(source=source, hub=hub), http=Recorded) as site:
            client = await Client.get(site.port, worker.turn_id)
            await client.body()
            hub.publish(worker.turn_id, [worker.answer()])
            await client.whole()
            assert client.is_complete
            client.close()
        first, last = writes
        assert first.startswith(b"HTTP/1.1 200")
        assert b"event: turn" in first
        assert b"event: result" in last
        assert last.endswith(b"\r\n0\r\n\r\n")

    @pytest.mark.parametrize("http", [BoundedProtocol, "httptools"])
    async def test_a_comment_is_sent_while_nothing_happens(self, source: ListSource, worker: Worker, http: Any) -> None:
        async with served(Site(source=source, streams=OpenStreams(heartbeat_seconds=0.4)), http=http) as site:
            client = await Client.get(site.port, worker.turn_id)
            await client.body()
            loop = asyncio.get_running_loop()
            began = loop.time()
            beats = [await client.body() for _ in range(3)]
            assert beats == [b":\n\n"] * 3
            assert loop.time() - began >= 0.4, "one for each look would take less"
            client.close()

    async def test_no_comment_is_sent_while_something_happens(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        async with served(Site(source=source, hub=hub, streams=OpenStreams(heartbeat_seconds=10))) as site:
            client = await Client.get(site.port, worker.turn_id)
            await client.body()
            for stream in site.streams:
                for second in range(1, 100):
                    hub.preview(worker.say("word "))
                    await asyncio.sleep(0)
                    stream.look(float(second), next_look=second + 1.0)
            hub.publish(worker.turn_id, [worker.answer()])
            assert b":\n\n" not in (await client.whole()).split(b"\n\n")
            client.close()

    async def test_the_default_is_a_comment_every_fifteen_seconds(self) -> None:
        assert OpenStreams().heartbeat_seconds == 15.0

    async def test_a_large_event_is_sent_in_pieces_and_arrives_whole(self, source: ListSource, worker: Worker) -> None:
        worker.say("ü" * 1_000_000)
        worker.answer()
        async with served(Site(source=source)) as site:
            client = await Client.get(site.port, worker.turn_id)
            (_, result) = SseParser().feed(await client.whole())
            assert "ü" * 1_000_000 in result.data
            client.close()

    async def test_a_stream_that_fails_is_ended_with_a_retry_hint_and_logged(
        self, source: ListSource, worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a bug")

        async with served(Site(source=source, poll_seconds=0.02)) as site:
            client = await Client.get(site.port, worker.turn_id)
            await client.body()
            monkeypatch.setattr(source, "events", broken)
            worker.step()
            with caplog.at_level(logging.ERROR):
                rest = await client.whole()
            assert rest == b"retry: 1000\n\n"
            assert client.is_complete
            assert "a bug" in caplog.text
            client.close()


class TestAttachment:
    async def test_the_turn_is_watched_while_the_stream_is_open(self, source: ListSource, worker: Worker) -> None:
        watching: list[int] = [0]

        @contextmanager
        def attach() -> Iterator[None]:
            watching[0] += 1
            yield
            watching[0] -= 1

        streams, hub = OpenStreams(), LocalHub()
        async with served(Site(source=source, streams=streams, hub=hub, attach=attach)) as site:
            first, second = [await Client.get(site.port, worker.turn_id) for _ in "ab"]
            await first.body()
            await second.body()
            assert (watching[0], len(streams)) == (2, 2)
            first.close()
            await eventually(lambda: watching[0] == 1)
            hub.publish(worker.turn_id, [worker.answer()])
            await second.whole()
            await eventually(lambda: watching[0] == 0)
            assert (len(streams), hub.turn_count) == (0, 0)
            second.close()


class TestDraining:
    async def test_readers_get_a_retry_hint_and_a_clean_end(self, source: ListSource, worker: Worker) -> None:
        streams = OpenStreams(draining=asyncio.Event(), retry_milliseconds=700)
        async with served(Site(source=source, streams=streams)) as site:
            clients = [await Client.get(site.port, worker.turn_id) for _ in range(5)]
            for client in clients:
                await client.body()
            streams.draining.set()
            for client in clients:
                assert await asyncio.wait_for(client.whole(), 30) == b"retry: 700\n\n"
                assert client.is_complete
                client.close()
            late = await Client.get(site.port, worker.turn_id)
            assert (await asyncio.wait_for(late.whole(), 30)).endswith(b"retry: 700\n\n")
            late.close()

    async def test_a_reader_that_comes_during_a_drain_is_ended_too(self, source: ListSource, worker: Worker) -> None:
        class Leaving:
            def runs_here(self) -> bool:
                return False

            def look(self, now: float, *, next_look: float) -> None:
                """Nothing is sent here."""

            def end(self, ending: str) -> None:
                assert ending == "draining"

        async def never() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))

        bodies: list[bytes] = []
        streams, leaving = OpenStreams(draining=asyncio.Event()), Leaving()
        streams.add(cast(EventStream, leaving))
        streams.draining.set()
        await asyncio.sleep(0.05)
        response = streams.respond(lambda take: follow(source, LocalHub(), worker.turn_id), NativeEncoder())
        await asyncio.wait_for(response({}, never, send), 30)
        assert bodies[-1] == b"retry: 1000\n\n"
        streams.discard(cast(EventStream, leaving))

    async def test_a_drained_reader_continues_at_its_cursor(self, source: ListSource, worker: Worker) -> None:
        hub, reader = LocalHub(), NativeReader(worker.spoken)
        streams = OpenStreams(draining=asyncio.Event())
        async with served(Site(source=source, streams=streams, hub=hub)) as site:
            client = await Client.get(site.port, worker.turn_id)
            parser = SseParser()
            hub.preview(worker.say("Hello "))
            while reader.preview != "Hello ":
                for frame in parser.feed(await client.body()):
                    reader.take(frame)
            streams.draining.set()
            await client.whole()
            client.close()
        hub.preview(worker.say("world"))
        async with served(Site(source=source, hub=hub)) as site:
            client = await Client.get(site.port, worker.turn_id, cursor=reader.cursor)
            hub.publish(worker.turn_id, [worker.answer()])
            for frame in SseParser().feed(await client.whole()):
                reader.take(frame)
            client.close()
        assert reader.has_all_of(worker.recorded)


class TestCutReaders:
    """The client is cut after a random number of raw bytes, again and again, while the turn is spoken."""

    @pytest.mark.parametrize("format, cuts", [("native", 300), ("openai", 100), ("anthropic", 100)])
    async def test_a_reader_that_is_cut_anywhere_ends_with_the_same_content(
        self, format: FormatName, cuts: int
    ) -> None:
        dice = random.Random(format)
        source, hubs = ListSource(), [LocalHub(), LocalHub()]
        async with (
            served(Site(source=source, hub=hubs[0], poll_seconds=0.05)) as home,
            served(Site(source=source, hub=hubs[1], poll_seconds=0.05)) as away,
        ):
            done = 0
            while done < cuts:
                worker = Worker(source)
                reader = _reader(format, worker)
                talking = asyncio.create_task(_talk(worker, hubs, dice))
                done += await _read_with_cuts(reader, format, worker, [home.port, away.port], dice)
                await talking
                _check(reader, worker)


def _reader(format: FormatName, worker: Worker) -> Any:
    return {"native": NativeReader(worker.spoken), "openai": OpenAIReader(), "anthropic": AnthropicReader()}[format]


def _check(reader: Any, worker: Worker) -> None:
    if isinstance(reader, NativeReader):
        assert reader.has_all_of(worker.recorded)
    else:
        assert (reader.text, reader.reasoning) == (worker.finished["text"], worker.finished["reasoning"])


async def _talk(worker: Worker, hubs: list[LocalHub], dice: random.Random) -> None:
    """A turn with thoughts, tools, a takeover and an answer; one hub hears of it from another worker."""

    def publish(recorded: Any) -> None:
        hubs[0].publish(worker.turn_id, [recorded])
        hubs[1].note_event(worker.turn_id, recorded.seq)

    publish(worker.begin())
    for part in range(4):
        for _ in range(30):
            piece = worker.say(dice.choice(["word ", "ünï ", "世界", "😀"]), dice.choice(["text", "text", "reasoning"]))
            hubs[0].preview(piece)
            hubs[1].add_remote_preview(piece)
            await asyncio.sleep(0.0005)
        publish(worker.take_over() if part == 1 else worker.call_tool())
        publish(worker.step())
    publish(worker.answer())


async def _read_with_cuts(
    reader: Any, format: FormatName, worker: Worker, ports: list[int], dice: random.Random
) -> int:
    cuts = 0
    await asyncio.sleep(0)
    while not reader.is_over:
        client = await Client.get(dice.choice(ports), f"{worker.turn_id}?{format}", cursor=reader.cursor)
        parser, left = SseParser(reader.cursor), dice.randrange(0, 1_500)
        await client.headers()
        while left > 0 and (body := await client.body(most=left)):
            left -= len(body)
            for frame in parser.feed(body):
                reader.take(frame)
        if not reader.is_over:
            for frame in parser.feed(client.cut_chunk()):
                reader.take(frame)
        client.close()
        cuts += not client.is_complete
    return cuts
