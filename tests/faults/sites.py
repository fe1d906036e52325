"""A site: one database, the worker processes on it, and what a test asks of both."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType

import msgspec

from tests.faults.engines import LEASE_SECONDS
from tests.faults.invariants import Examined, examine
from tests.faults.journal import Journal
from tests.faults.processes import PATIENCE_SECONDS, ROOT, WorkerProcess, clean_environment
from tests.faults.stores import open_store
from tests.faults.worker_protocol import ORDERS, Acknowledged, Fault, Orders
from tests.store.factories import Tenant, a_tenant
from turnkeep.ids import TurnId
from turnkeep.store.ports import Store

SERVICE_KEY = "the-service-key-of-the-fault-tests"


class Site:
    """A database with a tenant in it, a journal beside it, and workers that come and go."""

    def __init__(self, url: str, directory: Path, tenant: Tenant, *, is_prepared: bool = True) -> None:
        """`is_prepared` says whether the statements of workers stay prepared."""
        self.url = url
        self._is_prepared = is_prepared
        self.tenant = tenant
        self.journal = Journal(directory / "journal")
        self.acknowledged: list[TurnId] = []
        self._directory = directory
        self._workers: list[WorkerProcess] = []
        self._numbers = count(1)

    @classmethod
    async def open(cls, url: str, directory: Path, *, is_prepared: bool = True) -> "Site":
        store = await open_store(url, is_prepared=is_prepared)
        try:
            return cls(url, directory, await a_tenant(store), is_prepared=is_prepared)
        finally:
            await store.close()

    async def start(
        self,
        *,
        fault: Fault | None = None,
        is_gated: bool = False,
        pace: float = 0.0,
        lease_seconds: float = LEASE_SECONDS,
    ) -> WorkerProcess:
        """A worker that is ready."""
        worker = await self._spawn("worker", fault=fault, is_gated=is_gated, pace=pace, lease_seconds=lease_seconds)
        await worker.ready()
        return worker

    async def serve(
        self,
        *,
        fault: Fault | None = None,
        is_gated: bool = False,
        pace: float = 0.0,
        drain_seconds: float = 5.0,
        redis_url: str = "",
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> WorkerProcess:
        """A worker with the HTTP API in front of it, that is ready. `more` are further settings."""
        settings = {
            "TURNKEEP_DATABASE_URL": self.url,
            "TURNKEEP_DATA_DIR": str(self._directory / "server"),
            "TURNKEEP_PORT": "0",
            "TURNKEEP_BOOTSTRAP_KEY": SERVICE_KEY,
            "TURNKEEP_SECRET_KEYS": "a-secret-that-all-servers-of-a-site-share",
            "TURNKEEP_REDIS_URL": redis_url,
            "TURNKEEP_MODEL": "scripted",
            "TURNKEEP_LEASE_SECONDS": "1",
            "TURNKEEP_DRAIN_SECONDS": f"{drain_seconds:g}",
            "TURNKEEP_ALLOW_PRIVATE_ADDRESSES": "1",
            "TURNKEEP_DATABASE_PREPARED_STATEMENTS": "1" if self._is_prepared else "0",
            **more,
        }
        server = await self._spawn("server", fault=fault, is_gated=is_gated, pace=pace, settings=settings)
        await server.serving()
        return server

    async def run_boxes(self, *, fault: Fault | None = None) -> WorkerProcess:
        """A runner that is ready. Servers need its address in `more`."""
        runner = await self._spawn("runner", fault=fault)
        await runner.serving()
        return runner

    async def _spawn(
        self,
        program: str,
        *,
        fault: Fault | None,
        is_gated: bool = False,
        pace: float = 0.0,
        lease_seconds: float = LEASE_SECONDS,
        settings: dict[str, str] | None = None,
    ) -> WorkerProcess:
        name = f"{program}-{next(self._numbers)}"
        orders = Orders(
            name=name,
            url=self.url,
            journal=str(self.journal.path),
            principal=self.tenant.ann,
            fault=fault,
            is_gated=is_gated,
            pace=pace,
            lease_seconds=lease_seconds,
            is_prepared=self._is_prepared,
        )
        environ = clean_environment() | (settings or {}) | {ORDERS: msgspec.json.encode(orders).decode()}
        errors = self._directory / f"{name}.err"
        with errors.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"tests.faults.{program}"),
                cwd=ROOT,
                env=environ,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        worker = WorkerProcess(process, errors)
        self._workers.append(worker)
        return worker

    async def ask(self, worker: WorkerProcess, text: str, *, behind: Acknowledged | None = None) -> Acknowledged:
        """Ask, and remember that the claim was acknowledged."""
        if behind is None:
            answer = await worker.ask(text)
        else:
            answer = await worker.ask(text, conversation_id=behind.conversation_id, if_busy="enqueue")
        assert isinstance(answer, Acknowledged), answer
        self.acknowledged.append(answer.turn_id)
        return answer

    @asynccontextmanager
    async def store(self, *, retry_seconds: float = 10.0) -> AsyncIterator[Store]:
        """The database itself; with SQLite only while no worker runs."""
        store = await open_store(self.url, retry_seconds=retry_seconds, is_prepared=self._is_prepared)
        try:
            yield store
        finally:
            await store.close()

    async def examine(self, *, at_rest: bool = True) -> Examined:
        """Look at everything that is stored. `at_rest`: nothing may be left to do."""
        async with self.store() as store:
            return await examine(
                store, self.tenant.service, acknowledged=self.acknowledged, journal=self.journal, at_rest=at_rest
            )

    async def until_settled(self) -> None:
        """Wait until every acknowledged turn has ended. Not for SQLite, whose file the workers have."""
        left = set(self.acknowledged)
        async with self.store() as store, asyncio.timeout(PATIENCE_SECONDS):
            while left:
                turns = [await store.turn(self.tenant.ann, turn_id) for turn_id in left]
                left = {turn.id for turn in turns if not turn.is_settled}
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        """End every worker that is left."""
        for worker in self._workers:
            await worker.end()
