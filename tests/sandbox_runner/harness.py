"""A runner behind a real socket, and a client that reads its lines."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.sandbox_runner.box_processes import eventually
from tests.sandbox_runner.fake_server import FakeServer, FakeTurn
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap, Bwrap, wheel_files
from turnkeep.sandbox.boxes.docker import Docker
from turnkeep.sandbox.boxes.limits import Cgroups
from turnkeep.sandbox.boxes.ports import Driver
from turnkeep.sandbox.server import RunnerServer, bind, open_runner
from turnkeep.sandbox.settings import RunnerSettings

SMALL = RunnerSettings(port=0, memory_mib=128, disk_mib=32, files=2_000, processes=64, step_seconds=20.0)
IMAGE = "python:3.13-slim"

Line = dict[str, Any]


def docker_answers() -> bool:
    """Whether there is an engine with the image; only then the docker driver can be tried for real."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False, timeout=20)
    return asked.returncode == 0


CGROUP = "bubblewrap with a cgroup"
WHEEL = "bubblewrap of the wheel"


def drivers() -> list[str]:
    """Every driver that this machine has; bubblewrap with and without a cgroup, where one can be made."""
    in_cgroup = [CGROUP] if Cgroups.find() is not None else []
    return ["bubblewrap", *in_cgroup, *(["docker"] if docker_answers() else [])]


def make(name: str) -> Driver:
    match name:
        case "docker":
            return Docker(image=IMAGE)
        case "bubblewrap with a cgroup":
            return Bubblewrap(cgroups=Cgroups.find())
        case "bubblewrap of the wheel":
            files = wheel_files()
            assert files, "scripts/setup dev installs the wheel"
            driver = Bubblewrap()
            driver._bwrap = Bwrap(*files)
            return driver
    return Bubblewrap()


class Site:
    """A fake server and a real runner, and how a turn goes between them."""

    def __init__(self, server: FakeServer, url: str, runner: RunnerServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = url
        self.runner = runner
        self.session = session

    async def run(self, turn: FakeTurn, **changes: Any) -> list[Line]:
        """All lines of a turn."""
        return [line async for line in self.stream(turn, **changes)]

    async def stream(self, turn: FakeTurn, **changes: Any) -> AsyncIterator[Line]:
        body = self.server.add(turn) | changes
        async with self.session.post(f"{self.url}/stream", json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "application/x-ndjson"
            async for raw in response.content:
                if raw.strip():
                    yield json.loads(raw)

    async def health(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/healthz") as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def idle(self) -> None:
        """Wait until no turn runs any more."""

        async def is_idle() -> bool:
            return bool((await self.health())["turns"] == 0)

        await eventually(is_idle)

    async def until_waiting(self, count: int) -> None:
        """Wait until exactly so many turns wait for a place."""

        async def do_wait() -> bool:
            return bool((await self.health())["waiting"] == count)

        await eventually(do_wait)


@asynccontextmanager
async def site(settings: RunnerSettings = SMALL, driver: Driver | None = None) -> AsyncIterator[Site]:
    listener = bind(settings)
    async with (
        FakeServer.open() as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as session,
        open_runner(driver or Bubblewrap(), settings) as app,
    ):
        runner = RunnerServer(app)
        serving = asyncio.create_task(runner.serve([listener]))
        try:
            yield Site(server, f"http://127.0.0.1:{listener.getsockname()[1]}", runner, session)
        finally:
            await session.close()
            runner.stop()
            await serving
            listener.close()


def ending(lines: list[Line]) -> Line:
    """The last line, which must be the only terminal one."""
    assert [line["type"] for line in lines if line["type"] in {"result", "error"}] == [lines[-1]["type"]]
    return lines[-1]


def steps(lines: list[Line]) -> list[tuple[str, str]]:
    """Names and states of the steps, in order."""
    return [(line["name"], line["status"]) for line in lines if line["type"] == "step"]


def step_ends(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["type"] == "step" and line["status"] != "running"]


def logs(lines: list[Line]) -> list[str]:
    return [line["message"] for line in lines if line["type"] == "log"]
