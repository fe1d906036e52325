"""Readers that do not read: bounded in memory, disconnected by the policy, without effect on others. Real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.streaming.http_server import Client, Site, served
from tests.streaming.turns import ListSource, NativeReader, Worker
from turnkeep.streaming.connection import OpenStreams, SlowReaderPolicy, WriteProgress
from turnkeep.streaming.hub import LocalHub
from turnkeep_client.wire.sse import SseParser

WORDS = "x" * 20_000
PIECES = 500
"""More than the kernel buffers for a socket."""


class Sloth:
    """A client with a small receive buffer that reads only when told to."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"GET /{path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        self.socket.setblocking(False)

    async def read(self, count: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, count)

    async def was_cut(self) -> bool:
        """Read what there is; True once the connection is gone."""
        async with asyncio.timeout(30):
            try:
                while await self.read(65_536):
                    pass
            except ConnectionError:
                return True
            return True

    def close(self) -> None:
        self.socket.close()


def buffered(site: Site) -> list[int]:
    """Bytes that the server holds for each connection."""
    assert site.server is not None
    connections: Any = site.server.server_state.connections
    return sorted(connection.transport.get_write_buffer_size() for connection in connections)


@asynccontextmanager
async def a_site(source: ListSource, hub: LocalHub, *, stall_seconds: float) -> AsyncIterator[Site]:
    streams = OpenStreams(slow_readers=SlowReaderPolicy(stall_seconds=stall_seconds))
    async with served(Site(source=source, hub=hub, streams=streams)) as site:
        yield site


async def talk(hub: LocalHub, worker: Worker, pieces: int) -> None:
    for _ in range(pieces):
        hub.preview(worker.say(WORDS))
        await asyncio.sleep(0)


class TestAReaderThatNeverReads:
    async def test_it_is_disconnected_and_others_are_not_affected(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        async with a_site(source, hub, stall_seconds=1.5) as site:
            sloth = Sloth(site.port, worker.turn_id)
            client = await Client.get(site.port, worker.turn_id)
            reader, parser = NativeReader(worker.spoken), SseParser()
            speaking = asyncio.create_task(talk(hub, worker, PIECES))
            largest = 0
            while len(reader.preview) < PIECES * len(WORDS):
                for frame in parser.feed(await asyncio.wait_for(client.body(), 30)):
                    reader.take(frame)
                largest = max(largest, *buffered(site))
            await speaking
            async with asyncio.timeout(30):
                while site.connections > 1:  # noqa: ASYNC110 - uvicorn has only a set
                    await asyncio.sleep(0.01)
            assert largest <= 3 * 65_536
            hub.publish(worker.turn_id, [worker.answer()])
            for frame in parser.feed(await client.whole()):
                reader.take(frame)
            assert reader.has_all_of(worker.recorded)
            assert await sloth.was_cut()
            sloth.close()
            client.close()

    async def test_it_may_reconnect_at_its_cursor(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        async with a_site(source, hub, stall_seconds=0.2) as site:
            client = await Client.get(site.port, worker.turn_id)
            reader, parser = NativeReader(worker.spoken), SseParser()
            for frame in parser.feed(await client.body()):
                reader.take(frame)
            await talk(hub, worker, PIECES)
            async with asyncio.timeout(30):
                while site.connections:  # noqa: ASYNC110 - uvicorn has only a set
                    await asyncio.sleep(0.01)
            client.close()
            again = await Client.get(site.port, worker.turn_id, cursor=reader.cursor)
            hub.publish(worker.turn_id, [worker.answer()])
            for frame in SseParser(reader.cursor).feed(await again.whole()):
                reader.take(frame)
            assert reader.has_all_of(worker.recorded)
            again.close()

    async def test_an_idle_reader_is_not_disconnected(self, source: ListSource, worker: Worker) -> None:
        async with a_site(source, LocalHub(), stall_seconds=0.1) as site:
            sloth = Sloth(site.port, worker.turn_id)
            await sloth.read(1)
            await asyncio.sleep(0.5)
            assert site.connections == 1
            sloth.close()

    async def test_without_access_to_the_socket_its_stream_is_ended_too(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        streams = OpenStreams(slow_readers=SlowReaderPolicy(stall_seconds=0.2))
        async with served(Site(source=source, hub=hub, streams=streams), http="httptools") as site:
            sloth = Sloth(site.port, worker.turn_id)
            while not len(streams):  # noqa: ASYNC110 - there is only a count
                await asyncio.sleep(0.01)
            await talk(hub, worker, PIECES)
            async with asyncio.timeout(30):
                while len(streams):  # noqa: ASYNC110 - there is only a count
                    await asyncio.sleep(0.01)
            sloth.close()


class TestDrainingASlowReader:
    async def test_half_a_frame_is_never_completed_by_something_else(self, source: ListSource, worker: Worker) -> None:
        worker.say("x" * 20_000_000)
        worker.answer()
        streams = OpenStreams(draining=asyncio.Event())
        async with served(Site(source=source, streams=streams)) as site:
            client = await Client.get(site.port, worker.turn_id)
            parser = SseParser()
            frames = parser.feed(await client.body(most=1_000))
            async with asyncio.timeout(30):
                while max(buffered(site), default=0) < 65_536:  # noqa: ASYNC110 - until the server has to wait
                    await asyncio.sleep(0.01)
            streams.draining.set()
            frames += parser.feed(await client.whole() + client.cut_chunk())
            assert [frame.event for frame in frames] == ["turn"]
            assert parser.last_id == "1"
            assert not client.is_complete
            client.close()


class TestAReaderOfOneByteASecond:
    async def test_it_is_served_as_long_as_it_accepts_anything(self, source: ListSource, worker: Worker) -> None:
        """Here a byte every 20 ms, with time running fifty times as fast as in life."""
        hub = LocalHub()
        async with a_site(source, hub, stall_seconds=30 / 50) as site:
            sloth = Sloth(site.port, worker.turn_id)
            speaking = asyncio.create_task(talk(hub, worker, 2))
            taken = b""
            for _ in range(100):
                taken += await sloth.read(1)
                await asyncio.sleep(0.02)
            await speaking
            assert (len(taken), site.connections) == (100, 1)
            sloth.close()


class Transport:
    """What a socket has not accepted yet."""

    unsent = 0

    def can_write(self) -> bool:
        return True

    def write(self, body: bytes) -> None:
        raise AssertionError

    def unsent_bytes(self) -> int:
        return self.unsent

    def when_gone(self, tell: object) -> bool:
        raise AssertionError

    def abort(self) -> None:
        raise AssertionError


class TestWriteProgress:
    def test_a_socket_that_accepts_something_is_not_stalled_even_if_more_is_waiting_than_before(self) -> None:
        transport = Transport()
        progress = WriteProgress(SlowReaderPolicy(stall_seconds=10), transport)
        for second in range(100):
            progress.sent += 1_000
            transport.unsent += 900
            assert not progress.is_stalled(float(second))

    def test_a_socket_that_accepts_nothing_is_stalled_after_the_time_and_not_before(self) -> None:
        transport = Transport()
        progress = WriteProgress(SlowReaderPolicy(stall_seconds=10), transport)
        progress.sent = transport.unsent = 1_000
        assert next(second for second in range(100, 120) if progress.is_stalled(float(second))) == 110
        transport.unsent = 999
        assert not progress.is_stalled(120.0)

    def test_an_idle_stream_is_never_stalled(self) -> None:
        progress = WriteProgress(SlowReaderPolicy(stall_seconds=10), Transport())
        assert not any(progress.is_stalled(float(second)) for second in range(100))

    def test_without_a_socket_a_write_that_does_not_return_is_what_counts(self) -> None:
        progress = WriteProgress(SlowReaderPolicy(stall_seconds=10), None)
        assert not any(progress.is_stalled(float(second)) for second in range(100))
        progress.is_blocked = True
        assert not progress.is_stalled(100.0)
        assert progress.is_stalled(110.0)
