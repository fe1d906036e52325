"""`turnkeep serve --workers 2` itself, as an operator runs it: workers die and are replaced, readers go on."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil

from tests.faults.processes import PATIENCE_SECONDS, clean_environment
from tests.faults.sites import SERVICE_KEY, Site
from tests.faults.stream_reader import Reading, read_whole
from turnkeep.ids import TurnId


class Serving:
    """The command, running."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.port = port
        self._process = process

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, the oldest first."""
        children = psutil.Process(self._process.pid).children()
        return sorted((each for each in children if _is_serving(each)), key=lambda each: each.create_time())

    async def two_workers(self, *, without: set[int]) -> None:
        """Wait until there are two, none of them one of those."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len({each.pid for each in self.workers()} - without) < 2:  # noqa: ASYNC110 - processes tell nobody
                await asyncio.sleep(0.05)

    async def kill_supervisor(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    async def ask(self, text: str) -> TurnId:
        headers = {"authorization": f"Bearer {SERVICE_KEY}"}
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            response = await client.post(
                f"http://127.0.0.1:{self.port}/v1/turns", json={"message": text, "background": True}, headers=headers
            )
        assert response.status_code == 202, response.text
        return TurnId(response.json()["turn_id"])


def _is_serving(process: psutil.Process) -> bool:
    """A worker, and alive: one that was killed stays in the table until its supervisor has seen it."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@asynccontextmanager
async def serving(url: str, directory: Path) -> AsyncIterator[Serving]:
    settings = {
        "TURNKEEP_DATABASE_URL": url,
        "TURNKEEP_DATA_DIR": str(directory / "server"),
        "TURNKEEP_PORT": "0",
        "TURNKEEP_BOOTSTRAP_KEY": SERVICE_KEY,
        "TURNKEEP_LEASE_SECONDS": "1",
        "TURNKEEP_DRAIN_SECONDS": "5",
        "TURNKEEP_SANDBOX_URL": "off",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("turnkeep")), "serve", "--workers", "2"),
        cwd=directory,
        env=clean_environment() | settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await process.stdout.readline()
        found = re.search(rb"running at http://[^:]+:(\d+)", line)
        assert found is not None, line
        yield Serving(process, int(found[1]))
    finally:
        if process.returncode is None:
            children: list[psutil.Process] = []
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children()
            with suppress(ProcessLookupError):
                process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        await process.wait()


class TestServeWithTwoWorkers:
    async def test_goes_on_when_its_workers_are_killed(self, postgres_site: Site, tmp_path: Path) -> None:
        async with serving(postgres_site.url, tmp_path) as server:
            await server.two_workers(without=set())
            turn_id = await server.ask("Say 300 words, please.")
            postgres_site.acknowledged.append(turn_id)
            reading = Reading(turn_id)
            gone = {each.pid for each in server.workers()}
            for worker in server.workers():
                await reading.connect(server.port, cut_after=1_500)
                assert not reading.is_over
                worker.kill()
            await server.two_workers(without=gone)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not reading.is_over:
                    await reading.connect(server.port)
            assert reading.events[-1].event == "result"
            again = await read_whole(server.port, turn_id)
            assert [each.data for each in again.events] == [each.data for each in reading.events]
            assert await server.stop() == 0
        assert (await postgres_site.examine()).violations == ()

    async def test_leaves_no_worker_behind_when_it_is_killed_itself(self, postgres_site: Site, tmp_path: Path) -> None:
        async with serving(postgres_site.url, tmp_path) as server:
            await server.two_workers(without=set())
            workers = server.workers()
            await server.kill_supervisor()
            _, alive = await asyncio.to_thread(psutil.wait_procs, workers, timeout=PATIENCE_SECONDS)
            for each in alive:
                each.kill()
            assert alive == []
