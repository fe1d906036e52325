"""Workers connected by a real Redis, which is killed, paused and flushed. Losing it only slows readers down."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from tests.redis_server import RedisServer
from tests.silent_proxy import SilentProxy
from tests.streaming.turns import ListSource, NativeReader, Worker, polled
from turnkeep.ids import TurnId
from turnkeep.streaming import redis_hub
from turnkeep.streaming.formats import NativeEncoder
from turnkeep.streaming.frames import START, Cursor, parse_cursor
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.redis_hub import Outbox, PreviewPosition, RedisHub
from turnkeep_client.wire.events import Result
from turnkeep_client.wire.sse import SseParser

PATIENCE_SECONDS = 30.0
"""For what takes a moment, unless it hangs or the machine is very busy."""


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code with shorter times."""
    monkeypatch.setattr(redis_hub, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(redis_hub, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(redis_hub, "ASK_SECONDS", 0.3)


@pytest.fixture
async def here(server: RedisServer) -> AsyncIterator[RedisHub]:
    """The hub of the worker that speaks."""
    hub = await listening(server)
    yield hub
    await hub.close()


@pytest.fixture
async def there(server: RedisServer) -> AsyncIterator[RedisHub]:
    """The hub of another worker, which has the readers."""
    hub = await listening(server)
    yield hub
    await hub.close()


async def listening(server: RedisServer) -> RedisHub:
    """A hub that already handles requests: a request that no worker receives is repeated only much later."""
    hub = await RedisHub.open(server.url)
    own = f"turnkeep:hub:{hub.name}"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(server.ask, "PUBSUB", "CHANNELS", own):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.01)
    return hub


class Reading:
    """A native reader on one hub; `poll` is long where the hub alone must do."""

    def __init__(self, hub: RedisHub | LocalHub, worker: Worker, cursor: Cursor = START, poll: float = 60) -> None:
        self.reader = NativeReader(worker.spoken)
        self.deltas = ""
        self._batches = polled(worker.source, hub, worker.turn_id, cursor, seconds=poll)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        encoder, parser = NativeEncoder(), SseParser()
        async with aclosing(self._batches) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for frame in parser.feed(b"".join(encoder.encode(one) for one in batch)):
                    self.reader.take(frame)
                    self.deltas += json.loads(frame.data)["text"] if frame.event == "delta" else ""

    async def until(self, claim: Callable[[NativeReader], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not claim(self.reader):
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def speak_until_heard(hub: RedisHub, worker: Worker, reading: Reading) -> None:
    """Say a word now and then, until the reader has it all."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while reading.reader.preview != worker.spoken.get(worker.seq, "-"):
            hub.preview(worker.say("word "))
            await asyncio.sleep(0.02)


class TestAWorkerThatStarts:
    async def test_learns_at_once_what_the_others_listen_to(
        self, server: RedisServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_hub, "ASK_SECONDS", 600.0)
        there, before = await listening(server), await listening(server)
        reading = Reading(there, worker)
        await speak_until_heard(before, worker, reading)
        await before.close()
        started = await listening(server)
        started.publish(worker.turn_id, [worker.take_over()])
        try:
            await speak_until_heard(started, worker, reading)
        finally:
            await reading.stop()
            await started.close()
            await there.close()


class TestTwoWorkers:
    async def test_a_reader_on_another_worker_gets_events_and_previews_at_once(
        self, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker)
        await reading.until(lambda reader: len(reader.events) == 1)
        await speak_until_heard(here, worker, reading)
        here.publish(worker.turn_id, [worker.call_tool()])
        await reading.until(lambda reader: len(reader.events) == 2)
        await speak_until_heard(here, worker, reading)
        here.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_the_joined_deltas_are_the_answer_however_soon_the_end_comes(
        self, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker)
        await speak_until_heard(here, worker, reading)
        for number in range(500):
            here.preview(worker.say(f"{number} "))
            if not number % 50:
                await asyncio.sleep(0.001)
        answer = worker.answer()
        here.publish(worker.turn_id, [answer])
        here.forget(worker.turn_id)
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert isinstance(answer.event, Result)
        assert reading.deltas == answer.event.message

    async def test_the_text_of_many_turns_is_one_message(
        self, server: RedisServer, here: RedisHub, there: RedisHub, source: ListSource
    ) -> None:
        workers = [Worker(source) for _ in range(20)]
        for worker in workers:
            worker.begin()
        readings = [Reading(there, worker) for worker in workers]
        for worker, reading in zip(workers, readings, strict=True):
            await speak_until_heard(here, worker, reading)
        client = redis.asyncio.Redis.from_url(server.url)
        async with client.pubsub() as listener:
            await listener.subscribe(f"turnkeep:hub:{there.name}")
            await listener.get_message(timeout=PATIENCE_SECONDS)
            for worker in workers:
                here.preview(worker.say("together "))
            message = await listener.get_message(timeout=PATIENCE_SECONDS)
            assert message is not None
            notices = redis_hub.decode(message["data"])
            assert isinstance(notices, redis_hub.PreviewNotices)
            assert {piece.turn_id for piece in notices.pieces} == {worker.turn_id for worker in workers}
        await client.aclose()
        for reading in readings:
            await reading.until(lambda reader: reader.preview.endswith("together "))
            await reading.stop()

    async def test_a_worker_of_an_earlier_release_gets_text_on_the_channel_of_the_turn(
        self, server: RedisServer, here: RedisHub, worker: Worker
    ) -> None:
        client = redis.asyncio.Redis.from_url(server.url)
        async with client.pubsub() as listener:
            await listener.subscribe(f"turnkeep:turn:{worker.turn_id}")
            await listener.get_message(timeout=PATIENCE_SECONDS)
            here.preview(worker.say("Hello"))
            asked = msgspec.msgpack.encode(["Asked", "an older hub", [[worker.turn_id, 1, 0]]])
            await client.publish("turnkeep:ask", asked)
            found: object = None
            while not isinstance(found, redis_hub.PreviewNotice):
                message = await listener.get_message(timeout=PATIENCE_SECONDS)
                assert message is not None
                found = redis_hub.decode(message["data"])
            assert found.piece.text == "Hello"
        await client.aclose()

    async def test_a_reader_that_comes_in_the_middle_gets_the_preview_so_far(
        self, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        for text in ("Hello ", "dear ", "world"):
            here.preview(worker.say(text))
        reading = Reading(there, worker)
        await reading.until(lambda reader: reader.preview == "Hello dear world")
        resumed = Reading(there, worker, parse_cursor("1.7"))
        resumed.reader.events, resumed.reader.preview = [{}], "Hello d"
        await resumed.until(lambda reader: reader.preview == "Hello dear world")
        await reading.stop()
        await resumed.stop()

    async def test_a_takeover_by_the_other_worker_drops_the_preview(
        self, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(here, worker)
        here.preview(worker.say("Hello"))
        await reading.until(lambda reader: reader.preview == "Hello")
        there.publish(worker.turn_id, [worker.take_over()])
        await reading.until(lambda reader: len(reader.events) == 2)
        here.preview(worker.say_late(1, 1, " from the past"))
        here.forget(worker.turn_id)
        await speak_until_heard(there, worker, reading)
        there.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_only_turns_with_readers_are_subscribed_to(
        self, server: RedisServer, there: RedisHub, worker: Worker
    ) -> None:
        async def channels(count: int) -> None:
            expected = [f"turnkeep:turn:{worker.turn_id}".encode()] * count
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await asyncio.to_thread(server.ask, "PUBSUB", "CHANNELS", "turnkeep:turn:*") != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await channels(0)
        async with there.subscribe(worker.turn_id), there.subscribe(worker.turn_id):
            await channels(1)
        await channels(0)

    async def test_a_turn_that_runs_here_is_subscribed_to_when_it_goes_elsewhere(
        self, server: RedisServer, here: RedisHub, worker: Worker
    ) -> None:
        async def channels(*turn_ids: TurnId) -> None:
            expected = [f"turnkeep:turn:{turn_id}".encode() for turn_id in turn_ids]
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await asyncio.to_thread(server.ask, "PUBSUB", "CHANNELS", "turnkeep:turn:*") != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        here.publish(worker.turn_id, worker.recorded)
        reading = Reading(here, worker)
        here.preview(worker.say("Hello"))
        await reading.until(lambda reader: reader.preview == "Hello")
        other = TurnId("turn_" + "5" * 32)
        async with here.subscribe(other):
            await channels(other)
        here.forget(worker.turn_id)
        await channels(worker.turn_id)
        await reading.stop()

    async def test_a_preview_without_a_request_is_not_sent(
        self, server: RedisServer, here: RedisHub, worker: Worker
    ) -> None:
        """A reader on the same worker has them without Redis."""
        client = redis.asyncio.Redis.from_url(server.url)
        async with client.pubsub() as everything, here.subscribe(worker.turn_id):
            await everything.psubscribe("*")
            await asyncio.sleep(0.5)
            for _ in range(50):
                here.preview(worker.say("word "))
                await asyncio.sleep(0)
            here.publish(worker.turn_id, [worker.call_tool()])
            heard: list[object] = []
            woke = redis_hub.EventNotice(here.name, worker.turn_id, 2)
            while woke not in heard:
                message = await everything.get_message(timeout=PATIENCE_SECONDS)
                assert message is not None
                heard += [redis_hub.decode(message["data"])] if message["type"] == "pmessage" else []
            texts = redis_hub.PreviewNotice | redis_hub.PreviewNotices
            assert not [message for message in heard if isinstance(message, texts)]
        await client.aclose()

    async def test_a_later_reader_is_announced_at_once(
        self, server: RedisServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_hub, "SILENCE_SECONDS", 60)
        here, there = await listening(server), await listening(server)
        here.preview(worker.say("Hello"))
        reading = Reading(there, worker)
        await reading.until(lambda reader: reader.preview == "Hello")
        await reading.stop()
        await here.close()
        await there.close()

    async def test_a_gap_is_requested_and_filled(
        self, here: RedisHub, there: RedisHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_hub, "ASK_SECONDS", 60)
        reading = Reading(there, worker)
        await speak_until_heard(here, worker, reading)
        await asyncio.sleep(0.4)
        here.preview(worker.say("never sent "))
        here._outbox.take()
        await speak_until_heard(here, worker, reading)
        await reading.stop()

    async def test_what_could_not_be_sent_is_sent_later(
        self, server: RedisServer, here: RedisHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = redis.asyncio.Redis.from_url(server.url)
        async with here._servers.connected() as own:
            pipeline, failures = own.pipeline, [redis.ConnectionError("gone"), OSError("gone")]

        def failing(**options: Any) -> Any:
            if failures:
                raise failures.pop()
            return pipeline(**options)

        monkeypatch.setattr(own, "pipeline", failing)
        async with client.pubsub() as listener:
            await listener.subscribe(f"turnkeep:turn:{worker.turn_id}")
            await listener.get_message(timeout=PATIENCE_SECONDS)
            here.publish(worker.turn_id, [worker.call_tool()])
            message = await listener.get_message(timeout=PATIENCE_SECONDS)
            assert message is not None
            assert redis_hub.decode(message["data"]) == redis_hub.EventNotice(here.name, worker.turn_id, 2)
        assert failures == []
        await client.aclose()

    async def test_garbage_on_a_channel_is_ignored(
        self, server: RedisServer, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker)
        await speak_until_heard(here, worker, reading)
        for data in ("", "null", "{", '["Woke", 7]'):
            await asyncio.to_thread(server.ask, "PUBLISH", f"turnkeep:turn:{worker.turn_id}", data)
        await speak_until_heard(here, worker, reading)
        await reading.stop()


class TestLosingRedis:
    async def test_killed_readers_poll_the_store_and_previews_return_with_redis(
        self, server: RedisServer, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker, poll=0.1)
        await speak_until_heard(here, worker, reading)
        await server.kill()
        here.preview(worker.say("unheard "))
        here.publish(worker.turn_id, [worker.call_tool()])
        await reading.until(lambda reader: len(reader.events) == 2)
        here.preview(worker.say("said while it was away "))
        await server.start()
        await speak_until_heard(here, worker, reading)
        here.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_paused_the_engine_does_not_wait_and_readers_go_on(
        self,
        server: RedisServer,
        here: RedisHub,
        there: RedisHub,
        worker: Worker,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        reading = Reading(there, worker, poll=0.1)
        await speak_until_heard(here, worker, reading)
        server.pause()
        began = time.perf_counter()
        for _ in range(2_000):
            here.preview(worker.say("word "))
        here.publish(worker.turn_id, [worker.call_tool()])
        assert time.perf_counter() - began < 10, "one answer of Redis for each word would take minutes"
        await reading.until(lambda reader: len(reader.events) == 2)
        await reading.until(lambda _: "no sign of life" in caplog.text)
        server.resume()
        await speak_until_heard(here, worker, reading)
        here.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_silent_it_is_left_and_found_again(self, server: RedisServer, worker: Worker) -> None:
        async with SilentProxy(Path(server.url.removeprefix("unix://"))) as network:
            url = f"redis://127.0.0.1:{network.port}"
            here, there = await RedisHub.open(url), await RedisHub.open(url)
            reading = Reading(there, worker)
            await speak_until_heard(here, worker, reading)
            before = network.accepted
            network.fall_silent()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while network.accepted < before + 3:
                    here.preview(worker.say("word "))
                    await asyncio.sleep(0.1)
            network.speak_again()
            await speak_until_heard(here, worker, reading)
            await reading.stop()
            await here.close()
            await there.close()

    async def test_over_tcp_the_kernel_notices_a_silent_server_too(self, server: RedisServer) -> None:
        async with SilentProxy(Path(server.url.removeprefix("unix://"))) as network:
            hub = await RedisHub.open(f"redis://127.0.0.1:{network.port}")
            async with hub._servers.connected() as own:
                pool: Any = own.connection_pool
            connection = await pool.get_connection()
            found = connection._writer.get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
            await pool.release(connection)
            await hub.close()

    async def test_flushed_nothing_is_missing(
        self, server: RedisServer, here: RedisHub, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker, poll=0.1)
        await speak_until_heard(here, worker, reading)
        await asyncio.to_thread(server.ask, "FLUSHALL")
        await asyncio.to_thread(server.ask, "CLIENT", "KILL", "TYPE", "pubsub")
        await speak_until_heard(here, worker, reading)
        here.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_a_reconnected_worker_reads_what_it_missed(
        self, server: RedisServer, there: RedisHub, worker: Worker
    ) -> None:
        reading = Reading(there, worker, poll=60)
        await reading.until(lambda reader: len(reader.events) == 1)
        await asyncio.sleep(0.3)
        await server.kill()
        worker.answer()
        await server.start()
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.reader.has_all_of(worker.recorded)

    async def test_absent_from_the_start_a_worker_runs_alone(self, server: RedisServer, worker: Worker) -> None:
        await server.kill()
        hub = await RedisHub.open(server.url)
        reading = Reading(hub, worker)
        await reading.until(lambda reader: len(reader.events) == 1)
        hub.preview(worker.say("Hello"))
        await reading.until(lambda reader: reader.preview == "Hello")
        hub.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        await hub.close()
        await server.start()


class TestClosing:
    async def test_it_ends_also_when_redis_disconnects_at_that_moment(
        self, server: RedisServer, worker: Worker
    ) -> None:
        for number in range(20):
            hub = await RedisHub.open(server.url)
            async with hub.subscribe(worker.turn_id):
                await asyncio.sleep(0.01)
                killing = asyncio.to_thread(server.ask, "CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.gather(killing, asyncio.sleep(0.0005 * number))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await hub.close()
            assert hub.turn_count == 0


class TestTheOutbox:
    """What waits for Redis is marks, so it cannot grow."""

    def said(self, outbox: Outbox) -> list[tuple[int, str]]:
        return [(said.piece.offset, said.piece.text) for said in outbox.take().previews]

    def test_text_that_could_not_be_sent_is_sent_together_later(self, worker: Worker) -> None:
        local = LocalHub()
        outbox = Outbox("me", local)
        for text in ("Hello ", "dear ", "world"):
            local.preview(worker.say(text))
            outbox.mark_preview(worker.turn_id)
        assert self.said(outbox) == [(0, "Hello dear world")]
        assert self.said(outbox) == []
        local.preview(worker.say("!"))
        outbox.mark_preview(worker.turn_id)
        assert self.said(outbox) == [(16, "!")]

    def test_what_was_put_back_is_taken_again_with_what_came_since(self, worker: Worker) -> None:
        local = LocalHub()
        outbox = Outbox("me", local)
        local.preview(worker.say("Hello "))
        outbox.mark_preview(worker.turn_id)
        outbox.mark_event(worker.turn_id, 1)
        outbox.ask(PreviewPosition(worker.turn_id, 1, 3))
        batch = outbox.take()
        outbox.put_back(batch)
        local.preview(worker.say("world"))
        outbox.mark_event(worker.turn_id, 2)
        again = outbox.take()
        assert [(said.piece.offset, said.piece.text) for said in again.previews] == [(0, "Hello world")]
        assert again.events == {worker.turn_id: 2}
        assert again.positions == (PreviewPosition(worker.turn_id, 1, 3),)

    def test_a_worker_that_lacks_text_gets_it_again_from_its_position(self, worker: Worker) -> None:
        local = LocalHub()
        outbox = Outbox("me", local)
        local.preview(worker.say("Hello world"))
        outbox.mark_preview(worker.turn_id)
        outbox.take()
        outbox.repeat(PreviewPosition(worker.turn_id, 1, 6))
        assert self.said(outbox) == [(6, "world")]
        outbox.repeat(PreviewPosition(worker.turn_id, 0, 0))
        assert self.said(outbox) == [(0, "Hello world")]

    def test_event_notices_are_one_for_each_turn_and_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_hub, "MAX_EVENT_NOTICES", 3)
        outbox = Outbox("me", LocalHub())
        for number in range(5):
            for seq in (2, 7, 3):
                outbox.mark_event(TurnId(f"turn_{number}"), seq)
        assert outbox.take().events == {TurnId(f"turn_{number}"): 7 for number in (2, 3, 4)}
