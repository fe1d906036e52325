"""Ten thousand streams on three servers, with PostgreSQL and Redis, while nothing is said. It prints what they cost."""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import psutil
import pytest
from msgspec import Struct

from tests.faults.idle_reader import Report
from tests.faults.processes import ROOT, WorkerProcess, clean_environment
from tests.faults.sites import Site
from tests.redis_server import RedisServer
from tests.servers import PostgresServer

STREAMS = 10_000
FEWER = 1_000
SERVERS = 3
CLIENTS = 4
HEARTBEATS = 2
OPEN_SECONDS = 400.0
"""How long the streams may take to open, or to get their answers. The machine may be busy with other tests."""

_SETTINGS = {
    "TURNKEEP_LEASE_SECONDS": "10",
    "TURNKEEP_PROVIDER_TIMEOUT_SECONDS": "3600",
    # All streams come from one address, and many of them may come to one server.
    "TURNKEEP_MAX_CONNECTIONS": str(STREAMS),
    "TURNKEEP_MAX_CONNECTIONS_PER_ADDRESS": str(STREAMS),
    "TURNKEEP_SANDBOX_URL": "off",
}

_log = logging.getLogger(__name__)


class Cost(Struct, frozen=True, kw_only=True):
    """What the servers and the database did in a second, and the memory of all servers."""

    transactions: float
    server_cpu: float
    database_cpu: float
    server_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.transactions:.1f} transactions/s, CPU of the servers {100 * self.server_cpu:.1f} %, "
            f"of the database {100 * self.database_cpu:.1f} %, memory of the servers {self.server_bytes / 1e6:.0f} MB"
        )


class Meter:
    """Measures over the time of a block of code."""

    def __init__(self, database: PostgresServer, servers: Sequence[WorkerProcess]) -> None:
        self._uri = database.uri()
        self._servers = [psutil.Process(server.pid) for server in servers]
        self._database = psutil.Process(database.pid)

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[list[Cost]]:
        """The list has the cost after the block."""
        found: list[Cost] = []
        began, transactions = time.monotonic(), await self._transactions()
        server_cpu, database_cpu = self._cpu(self._servers), self._database_cpu()
        yield found
        seconds = time.monotonic() - began
        found.append(
            Cost(
                transactions=(await self._transactions() - transactions) / seconds,
                server_cpu=(self._cpu(self._servers) - server_cpu) / seconds,
                database_cpu=(self._database_cpu() - database_cpu) / seconds,
                server_bytes=sum(process.memory_info().rss for process in self._servers),
            )
        )

    async def _transactions(self) -> int:
        """Nearly all statements of an idle server are a transaction each."""
        connection = await asyncpg.connect(self._uri)
        try:
            count: int = await connection.fetchval(
                "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database WHERE datname = 'postgres'"
            )
            return count
        finally:
            await connection.close()

    def _database_cpu(self) -> float:
        ended = self._database.cpu_times()
        return ended.children_user + ended.children_system + self._cpu([self._database, *self._database.children()])

    @staticmethod
    def _cpu(processes: Iterable[psutil.Process]) -> float:
        times = [process.cpu_times() for process in processes if process.is_running()]
        return sum(each.user + each.system for each in times)


class ReaderProcess:
    """One `idle_reader`, and its last report."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.report = Report(open=0, lost=(), heartbeats=0, streams={}, answers={})
        self._process = process
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, name: str, ports: Sequence[int]) -> "ReaderProcess":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.idle_reader", name, *map(str, ports)),
            cwd=ROOT,
            env=clean_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    def hold(self, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n".encode())

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            self.report = msgspec.json.decode(text, type=Report)


class Readers:
    """All client processes."""

    def __init__(self, processes: Sequence[ReaderProcess]) -> None:
        self._processes = processes

    @property
    def reports(self) -> list[Report]:
        return [process.report for process in self._processes]

    @property
    def open(self) -> int:
        return sum(report.open for report in self.reports)

    @property
    def heartbeats(self) -> int:
        """The fewest that any stream got."""
        return min(report.heartbeats for report in self.reports)

    async def hold(self, count: int) -> None:
        for process in self._processes:
            process.hold(count // len(self._processes))
        await self.until(lambda: self.open == count, OPEN_SECONDS)

    async def hear(self, heartbeats: int) -> None:
        """Wait until every stream has got so many more."""
        before = self.heartbeats
        await self.until(lambda: self.heartbeats >= before + heartbeats, 60.0 + 30.0 * heartbeats)

    async def until(self, is_so: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    self.check()
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"{seconds:g} s were not enough: {self.reports}")

    def check(self) -> None:
        """No stream was lost."""
        assert [report.lost for report in self.reports if report.lost] == []

    def streams(self, holder: int) -> int:
        return sum((Counter(report.streams) for report in self.reports), Counter())[holder]

    def answers(self) -> Counter[int]:
        return sum((Counter(report.answers) for report in self.reports), Counter())


@pytest.mark.nightly
@pytest.mark.alone
class TestTenThousandIdleStreams:
    async def test_stay_open_at_the_price_of_their_heartbeats_and_leases(
        self, tmp_path: Path, record_property: Callable[[str, object], None]
    ) -> None:
        async with AsyncExitStack() as stack:
            database = stack.enter_context(PostgresServer())
            redis = await stack.enter_async_context(RedisServer())
            site = await Site.open(database.start().uri(), tmp_path)
            stack.push_async_callback(site.close)
            servers = await asyncio.gather(
                *(site.serve(is_gated=True, redis_url=redis.url, more=_SETTINGS) for _ in range(SERVERS))
            )
            ports = [server.port for server in servers]
            processes = [await ReaderProcess.start(f"client{n}", ports) for n in range(CLIENTS)]
            for process in processes:
                stack.push_async_callback(process.end)
            readers, meter = Readers(processes), Meter(database, servers)
            costs: dict[int, Cost] = {}
            for count in (FEWER, STREAMS):
                await readers.hold(count)
                async with meter.measured() as found:
                    await readers.hear(HEARTBEATS)
                readers.check()
                assert readers.open == count
                costs[count] = found[0]
                record_property(f"{count} idle streams", str(found[0]))
                _log.warning("%d idle streams: %s", count, found[0])
            few, many = costs[FEWER], costs[STREAMS]
            _log.warning("bytes per stream: %d", (many.server_bytes - few.server_bytes) / (STREAMS - FEWER))
            assert many.transactions < 1.5 * few.transactions + 2, "silent streams cost statements"

            speaking, held = servers[0], readers.streams(ports[0])
            speaking.go()
            await readers.until(lambda: readers.answers() == Counter({ports[0]: held}), OPEN_SECONDS)
            assert readers.open == STREAMS - held, "the others wait on"
            await self._check_turns(database)

    async def _check_turns(self, database: PostgresServer) -> None:
        """None failed, none was run twice."""
        connection = await asyncpg.connect(database.uri())
        try:
            rows = await connection.fetch("SELECT status, attempt, count(*) FROM turnkeep.turns GROUP BY 1, 2")
        finally:
            await connection.close()
        assert {(status, attempt) for status, attempt, _ in rows} == {("succeeded", 1), ("running", 1)}
