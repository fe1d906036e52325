"""However a turn is stopped, its box is gone within a second, and nothing is written back."""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from tests.sandbox_runner.box_processes import eventually, mounts, processes_called
from tests.sandbox_runner.fake_server import FakeServer, FakeTurn, zip_of
from tests.sandbox_runner.harness import SMALL, ending, site
from tests.server_process import TURNKEEP
from turnkeep.providers.scripted import Call, Until
from turnkeep.sandbox.boxes.limits import family_of

GRACE_SECONDS = 15.0
"""One second is the promise, on a machine that has nothing else to do. What is not killed sleeps for years."""


def sleeper(mark: str) -> FakeTurn:
    """A turn that leaves a file, and sleeps in many processes that want to live on."""
    script = f"echo x > assets/x; trap '' TERM; for i in 1 2 3; do (setsid sleep {mark} &); done; sleep {mark}"
    return FakeTurn([[Call("shell", {"command": script})], ["Never said."]])


async def until_asleep(mark: str) -> None:
    await eventually(lambda: len(processes_called(mark)) >= 4)


async def until_dead(mark: str) -> float:
    return await eventually(lambda: not processes_called(mark))


class TestClientDisconnect:
    async def test_the_box_is_killed_at_once_and_nothing_is_written_back(self, mark: str) -> None:
        turn = sleeper(mark)
        async with site() as here:
            async with here.session.post(f"{here.url}/stream", json=here.server.add(turn)) as response:
                await until_asleep(mark)
                response.close()
            assert await until_dead(mark) < GRACE_SECONDS
            await here.idle()
        assert turn.uploads == 0
        assert set(turn.tokens) == {"upload"}, "the others were spent, and stay spent"

    async def test_while_the_model_streams(self) -> None:
        speaking = asyncio.Event()

        async def speak() -> None:
            speaking.set()
            await asyncio.sleep(60)

        turn = FakeTurn([["So ", Until(speak)]])
        async with site() as here:
            async with here.session.post(f"{here.url}/stream", json=here.server.add(turn)) as response:
                await asyncio.wait_for(speaking.wait(), 20)
                response.close()
            await here.idle()

    async def test_while_files_are_written_back(self) -> None:
        uploading, gate = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            uploading.set()
            await gate.wait()

        turn = FakeTurn([[Call("shell", {"command": "echo x > assets/x"})], ["There."]])
        turn.on_upload = slowly
        async with site() as here:
            async with here.session.post(f"{here.url}/stream", json=here.server.add(turn)) as response:
                await asyncio.wait_for(uploading.wait(), 20)
                response.close()
            await here.idle()
            assert "hand back" not in {task.get_name() for task in asyncio.all_tasks()}
            gate.set()

    async def test_while_the_turn_waits_in_the_queue(self) -> None:
        gate = asyncio.Event()
        first, second = FakeTurn([[Until(gate.wait), "First."]]), FakeTurn([["Second."]])
        async with site(structs.replace(SMALL, turns=1)) as here:
            running = asyncio.create_task(here.run(first))
            await eventually(lambda: bool(first.asked))
            async with here.session.post(f"{here.url}/stream", json=here.server.add(second)) as response:
                await response.content.readline()
                response.close()
            await here.until_waiting(0)
            gate.set()
            assert ending(await running)["message"] == "First."
        assert second.asked == []


class TestTimeLimits:
    async def test_the_turn_ends_with_an_error_and_its_box_is_gone(self, mark: str) -> None:
        turn = sleeper(mark)
        async with site(structs.replace(SMALL, turn_seconds=2.0)) as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "turn_timeout"
        assert not processes_called(mark)
        assert turn.uploads == 0

    async def test_the_server_may_set_a_shorter_limit(self, mark: str) -> None:
        turn = sleeper(mark)
        turn.config["limits"] = {"turn_seconds": 1.0}
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["code"] == "turn_timeout"

    async def test_the_server_may_set_a_shorter_limit_for_a_step(self) -> None:
        turn = FakeTurn([[Call("shell", {"command": "sleep 60"})], ["Too slow."]], limits={"step_seconds": 0.3})
        async with site() as here:
            lines = await here.run(turn)
        assert ending(lines)["message"] == "Too slow."


class TestTheRunnerShutsDown:
    async def test_every_box_is_killed_and_every_stream_ends_without_a_last_line(self, mark: str) -> None:
        marks = (mark, f"{mark}1")
        turns = [sleeper(each) for each in marks]
        async with site() as here:
            readers = [
                asyncio.create_task(_read_to_the_end(here.session, f"{here.url}/stream", here.server.add(turn)))
                for turn in turns
            ]
            for each in marks:
                await until_asleep(each)
            began = time.monotonic()
            here.runner.stop()
            bodies = await asyncio.gather(*readers)
            assert time.monotonic() - began < 2 * GRACE_SECONDS
            assert not processes_called(mark)
        for is_whole, body in bodies:
            assert not is_whole
            assert b'"type":"step"' in body
            assert b'"type":"result"' not in body
            assert b'"type":"error"' not in body
        assert [turn.uploads for turn in turns] == [0, 0]


async def _read_to_the_end(session: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> tuple[bool, bytes]:
    """Whether the body was whole, and what there was of it."""
    body = b""
    try:
        async with session.post(url, json=request) as response:
            async for piece in response.content.iter_any():
                body += piece
    except aiohttp.ClientError:
        return False, body
    return True, body


class Running:
    """`turnkeep sandbox` as a process of its own."""

    def __init__(self, process: "asyncio.subprocess.Process", url: str) -> None:
        self.process = process
        self.url = url


@asynccontextmanager
async def a_process(server: str, *arguments: str, **options: Any) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(*TURNKEEP, "sandbox", "--port", "0", "--server", server, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **options,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            printed = await process.stdout.readuntil(b"Ctrl-C.\n")
        found = re.search(rb"runner at (http://\S+)", printed)
        assert found is not None
        yield Running(process, found[1].decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


class TestTheProcess:
    async def test_a_runner_that_is_killed_leaves_nothing_behind(self, mark: str) -> None:
        before = mounts()
        async with (
            FakeServer.open() as server,
            a_process(server.url) as runner,
            aiohttp.ClientSession() as session,
            session.post(f"{runner.url}/stream", json=server.add(sleeper(mark))),
        ):
            await until_asleep(mark)
            family = Family()
            family.add(runner.process.pid)
            assert len(family) > 5
            runner.process.send_signal(signal.SIGKILL)
            assert await until_dead(mark) < GRACE_SECONDS
            await family.gone()
        assert mounts() == before

    @pytest.mark.nightly
    @pytest.mark.parametrize("moment", range(20))
    async def test_a_runner_killed_at_any_moment_leaves_nothing_behind(self, mark: str, moment: int) -> None:
        """While boxes start, are filled, run quick steps, or sleep: from a moment after the request to two seconds."""
        quick = [[Call("shell", {"command": f": {mark}"}), Call("list_files", {})] for _ in range(60)]
        busy = FakeTurn([*quick, ["Never said."]], setup_script="sleep 0.1", bag=zip_of({"a.txt": b"x"}))
        async with (
            FakeServer.open() as server,
            a_process(server.url) as runner,
            aiohttp.ClientSession() as session,
        ):
            asked = [server.add(turn) for turn in (sleeper(mark), busy, sleeper(mark))]
            streams = [asyncio.create_task(session.post(f"{runner.url}/stream", json=body)) for body in asked]
            family = Family()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1 * moment):
                    while True:
                        family.add(runner.process.pid)
                        await asyncio.sleep(0.01)
            runner.process.send_signal(signal.SIGKILL)
            await family.gone()
            assert await until_dead(mark) < GRACE_SECONDS
            for stream in await asyncio.gather(*streams, return_exceptions=True):
                if isinstance(stream, aiohttp.ClientResponse):
                    stream.close()

    async def test_a_signal_shuts_it_down(self, mark: str) -> None:
        async with (
            FakeServer.open() as server,
            a_process(server.url) as runner,
            aiohttp.ClientSession() as session,
            session.post(f"{runner.url}/stream", json=server.add(sleeper(mark))),
        ):
            await until_asleep(mark)
            runner.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(runner.process.wait(), 20) == 0
            assert not processes_called(mark)

    async def test_with_until_eof_it_ends_with_its_parent(self) -> None:
        async with a_process("http://127.0.0.1:1", "--until-eof", stdin=subprocess.PIPE) as runner:
            assert runner.process.stdin is not None
            runner.process.stdin.close()
            assert await asyncio.wait_for(runner.process.wait(), 20) == 0

    async def test_an_unprivileged_user_can_start_boxes(self) -> None:
        """If the tests run as root, a child process changes its user once everything is loaded."""
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", AS_A_NORMAL_USER], capture_output=True, text=True, check=False
        )
        assert ended.stdout.splitlines() == ["hello", "time 137", "refused", "gone"], ended.stderr


AS_A_NORMAL_USER = """
import asyncio, encodings.ascii, os
from tests.sandbox_runner.box_processes import eventually, processes_called
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap
from turnkeep.sandbox.boxes.ports import BoxCommand, BoxLimits

if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65_534, 65_534, 65_534)
    os.setresuid(65_534, 65_534, 65_534)

FORKS = "import os, time; [os.fork() or time.sleep(9) for _ in range(40)]"

async def main():
    driver = Bubblewrap()
    await driver.check()
    box = await driver.start(BoxLimits(processes=20))
    async def shell(script, seconds=20.0):
        return await box.run(BoxCommand(argv=["/bin/bash", "-c", script], seconds=seconds))
    print((await shell("echo hello > note; cat note")).output.decode().strip())
    slept = await shell("(setsid sleep 1123581 &); sleep 1123581", seconds=0.3)
    print(slept.stopped_by, slept.exit_code)
    many = await box.run(BoxCommand(argv=["python3", "-c", FORKS]))
    print("refused" if b"BlockingIOError" in many.output else many.output)
    await box.close()
    print("gone" if not processes_called("1123581") else "left")

asyncio.run(main())
"""


class Family:
    """A process and its offspring, known by number and hour of birth: a number alone may be given to another."""

    def __init__(self) -> None:
        self._born: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._born)

    def add(self, pid: int) -> None:
        """Those who live now."""
        self._born |= {each: born for each in family_of(pid) if (born := _born(each))}

    def living(self) -> list[str]:
        return [_called(pid) for pid, born in self._born.items() if _born(pid) == born]

    async def gone(self) -> None:
        """Wait until none of them lives; the failure names who does."""
        try:
            await eventually(lambda: not self.living(), seconds=GRACE_SECONDS)
        except TimeoutError:
            pytest.fail(f"Still there after {GRACE_SECONDS:g} s: {self.living()}")


def _born(pid: int) -> str:
    """When the process began, in ticks; nothing for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _called(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:120]
        return f"{pid}: {words.decode(errors='replace')}"
    return f"{pid}: just gone"
