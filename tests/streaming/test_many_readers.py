"""Two thousand idle readers: what each costs, and that all of them get the end."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.streaming.http_server import Client
from turnkeep.ids import new_turn_id
from turnkeep_client.wire.sse import SseParser

READERS = 2_000
KIB_EACH = 48


class Server:
    """`idle_server` in a process of its own, so that its memory is its own."""

    def __init__(self) -> None:
        self.turn_id = new_turn_id()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.streaming.idle_server", self.turn_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._answer())

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


async def begin(server: Server) -> Client:
    client = await Client.get(server.port, server.turn_id)
    assert b"event: turn" in await client.body()
    return client


async def test_an_idle_reader_costs_little_and_every_one_gets_the_end(server: Server) -> None:
    for client in [await begin(server) for _ in range(20)]:
        client.close()
    before = int(server.ask("memory"))
    clients: list[Client] = []
    while len(clients) < READERS:
        clients += await asyncio.gather(*(begin(server) for _ in range(100)))
    each = (int(server.ask("memory")) - before) / READERS / 1_024
    assert 1 < each <= KIB_EACH
    server.ask("end")
    for client in clients:
        (last,) = SseParser().feed((await client.whole()).replace(b":\n\n", b""))
        assert (last.event, last.id) == ("result", "2")
        client.close()
