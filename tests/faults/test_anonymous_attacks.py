"""Attacks by clients without a key, against a server in a process of its own. Meanwhile it answers others, and does not
grow."""

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import psutil
import pytest

from tests.server_process import environment, serving

ATTACK_SECONDS = 4.0
DEADLINE_SECONDS = 10.0
"""For one answer, on a machine that is busy with the attack too."""
USUAL_SECONDS = 1.0
"""For 19 of 20 answers."""
GROWTH_BYTES = 200 << 20
ATTACKER = "127.0.0.66"
"""Another address of this machine than that of the other clients."""

OTHER_CLIENT = """
import http.client, json, sys, time
took, until = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
    took.append(time.monotonic() - began)
    time.sleep(0.02)
print(json.dumps(took))
"""
"""It is a process of its own, so that it does not wait for the attacker."""

GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s\r\n"
CHUNKED = POST % (b"/v1/turns", b"Transfer-Encoding: chunked\r\n")


class Target:
    """The server under attack."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0
        self._process = psutil.Process(pid)

    @property
    def memory_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ATTACKER, 0))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, data: bytes, *, times: int = 1) -> None:
        """Write on one connection for as long as the server takes it, and wait for its answer."""
        with suppress(OSError, asyncio.IncompleteReadError):
            async with self.connection() as (reader, writer):
                for _ in range(times):
                    writer.write(data)
                    await writer.drain()
                await reader.readuntil(b"\r\n\r\n")

    async def drip(self, data: bytes, *, begin: bytes = b"", seconds: float = 0.2) -> None:
        """One byte now and then."""
        with suppress(OSError):
            async with self.connection() as (_, writer):
                writer.write(begin)
                for byte in data:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(seconds)

    async def hold(self, data: bytes = b"") -> None:
        """Keep a connection, and read nothing of what comes."""
        with suppress(OSError):
            async with self.connection() as (_, writer):
                writer.write(data)
                await asyncio.sleep(ATTACK_SECONDS)

    async def touch(self) -> None:
        """Open a connection, and close it."""
        with suppress(OSError):
            async with self.connection():
                pass


Attack = Callable[[Target], Awaitable[object]]


async def again(what: Callable[[], Awaitable[object]], *, at_once: int) -> None:
    """The same again and again, on several connections at once."""

    async def one() -> None:
        while True:
            await what()
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(at_once)))


COOKIE = b"Cookie: a=" + b'"' + b"\\" * 30_000 + b"\r\n"
MANY_COOKIES = b"Cookie: " + b"; ".join(b'a="\\"' for _ in range(4_000)) + b"\r\n"
TOKEN = b"Authorization: Bearer " + b"e" * 30_000 + b"\r\n"

ATTACKS: dict[str, Attack] = {
    "a cookie of backslashes": lambda to: again(lambda: to.send(GET % (b"/v1/me", COOKIE)), at_once=4),
    "a cookie over the limit": lambda to: again(lambda: to.send(GET % (b"/", COOKIE * 2)), at_once=4),
    "thousands of cookies": lambda to: again(lambda: to.send(GET % (b"/v1/me", MANY_COOKIES)), at_once=4),
    "headers without an end": lambda to: again(lambda: to.send(b"X: " + b"y" * 65_000, times=200), at_once=8),
    "a head of many fields": lambda to: again(lambda: to.send(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9_000), at_once=8),
    "one header without an end": lambda to: again(
        lambda: to.send(b"GET / HTTP/1.1\r\nA: " + b"y" * 1_000_000, times=20), at_once=8
    ),
    "pipelined requests that are not read": lambda to: again(
        lambda: to.send((GET % (b"/healthz", b"")) * 2_000, times=50), at_once=4
    ),
    "pipelined requests for a large answer": lambda to: asyncio.gather(
        *(to.hold((GET % (b"/openapi.json", b"")) * 200) for _ in range(50))
    ),
    "answers that are not read": lambda to: asyncio.gather(
        *(to.hold(GET % (b"/openapi.json", b"")) for _ in range(300))
    ),
    "slow heads": lambda to: asyncio.gather(*(to.drip(GET % (b"/", b"")) for _ in range(300))),
    "slow bodies": lambda to: asyncio.gather(
        *(to.drip(b"x" * 1_000, begin=POST % (b"/v1/turns", b"Content-Length: 1000\r\n")) for _ in range(300))
    ),
    "connections that say nothing": lambda to: asyncio.gather(*(to.hold() for _ in range(1_500))),
    "connections that come and go": lambda to: again(to.touch, at_once=16),
    "a body without an end": lambda to: again(
        lambda: to.send(CHUNKED + b"10000\r\n" + b"x" * 65_536, times=50),
        at_once=8,
    ),
    "a body that is too large": lambda to: again(
        lambda: to.send(POST % (b"/v1/turns", b"Content-Length: 99999999\r\n") + b"x" * 1_000_000, times=50), at_once=8
    ),
    "chunks of one byte": lambda to: again(lambda: to.send(CHUNKED + b"1\r\nx\r\n" * 100_000), at_once=4),
    "chunk extensions": lambda to: again(lambda: to.send(CHUNKED + b"1;" + b"a" * 200_000), at_once=4),
    "trailers": lambda to: again(
        lambda: to.send(CHUNKED + b"0\r\n" + b"a: b\r\n" * 50_000),
        at_once=4,
    ),
    "long paths": lambda to: again(lambda: to.send(GET % (b"/" + b"a" * 30_000, b"")), at_once=4),
    "paths of slashes": lambda to: again(lambda: to.send(GET % (b"/" * 30_000, b"")), at_once=4),
    "long queries": lambda to: again(lambda: to.send(GET % (b"/v1/conversations?" + b"a=b&" * 7_000, b"")), at_once=4),
    "long tokens": lambda to: again(lambda: to.send(GET % (b"/v1/me", TOKEN)), at_once=4),
    "false links": lambda to: again(lambda: to.send(GET % (b"/signin?token=" + b"a" * 20_000, b"")), at_once=4),
    "the metrics": lambda to: again(lambda: to.send(GET % (b"/metrics", b"")), at_once=8),
    "the document": lambda to: again(lambda: to.send(GET % (b"/openapi.json", b"")), at_once=8),
    "what is not HTTP": lambda to: again(lambda: to.send(bytes(range(256)) * 4_000), at_once=8),
    "requests for another protocol": lambda to: again(
        lambda: to.send(GET % (b"/", b"Connection: Upgrade\r\nUpgrade: websocket\r\n")), at_once=8
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacked")
    settings = {"TURNKEEP_SANDBOX_URL": "off", "TURNKEEP_MAX_CONNECTIONS": "2000", "TURNKEEP_LOG_LEVEL": "error"}
    with serving(folder, environment(folder, **settings)) as server:
        yield Target(server.url, server.process.pid)


FOUND = {
    "a cookie of backslashes",
    "headers without an end",
    "pipelined requests that are not read",
    "answers that are not read",
    "slow heads",
    "slow bodies",
    "connections that say nothing",
    "chunks of one byte",
}
"""The attacks that once took the server down."""
BY_DAY = FOUND | {"a body without an end", "long queries", "long tokens", "the document", "what is not HTTP"}
"""These, and one of each other kind. The rest is tried at night."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace(" ", "-"), marks=() if name in BY_DAY else pytest.mark.nightly)
        for name in ATTACKS
    ],
)
async def test_the_server_answers_others_and_does_not_grow(target: Target, name: str) -> None:
    before = largest = target.memory_bytes
    attack = asyncio.create_task(run(ATTACKS[name](target)))
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", OTHER_CLIENT, str(target.port), str(ATTACK_SECONDS)),
        stdout=asyncio.subprocess.PIPE,
    )
    told = asyncio.create_task(asking.communicate())
    async with asyncio.timeout(60):
        while not told.done():
            largest = max(largest, target.memory_bytes)
            await asyncio.wait({told}, timeout=0.1)
    attack.cancel()
    await asyncio.wait({attack})
    if not attack.cancelled() and (failure := attack.exception()):
        raise failure
    took = json.loads((await told)[0])
    assert statistics.quantiles(took, n=20)[-1] < USUAL_SECONDS
    assert max(took) < DEADLINE_SECONDS
    assert largest - before < GROWTH_BYTES


async def run(attack: Awaitable[object]) -> None:
    await attack
