"""How the tests run commands in a box, and inspect the processes of this machine from outside."""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.files.disks import SMALL_DISK
from turnkeep.sandbox.boxes.ports import Box, BoxCommand, Ended


async def shell(box: Box, script: str, *, seconds: float = 20.0, **options: Any) -> Ended:
    return await box.run(BoxCommand(argv=["/bin/bash", "-c", script], seconds=seconds, **options))


async def python(box: Box, code: str, *, seconds: float = 20.0) -> Ended:
    return await box.run(BoxCommand(argv=["python3", "-I", "-c", code], seconds=seconds))


async def says(box: Box, script: str) -> str:
    """What a script prints that ends well."""
    ended = await shell(box, script)
    assert ended.exit_code == 0, ended.output.decode("utf-8", "replace")
    return ended.output.decode().strip()


async def fails(box: Box, script: str) -> str:
    """What a script prints that runs and must not end well."""
    ended = await shell(box, f"( {script} ); code=$?; echo -n /ran; exit $code")
    said = ended.output.decode("utf-8", "replace")
    assert said.endswith("/ran"), said  # a box that did not even start proves nothing
    assert ended.exit_code != 0, said
    return said.removesuffix("/ran")


async def raises(box: Box, code: str) -> str:
    """The error with which a Python program ends."""
    ended = await python(box, code)
    said = ended.output.decode("utf-8", "replace")
    assert said.startswith("Traceback"), said
    return said.strip().splitlines()[-1]


def processes_called(mark: str) -> list[int]:
    """The processes of this machine that have this text in their command line, this one aside."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in {os.getpid(), os.getppid()}:
            try:
                words = (folder / "cmdline").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in words and state != "Z":
                found.append(int(folder.name))
    return found


def mounts() -> list[str]:
    """What is mounted, less the small disks that tests of files mount meanwhile in another process of this session."""
    found = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in found if SMALL_DISK not in line]


async def eventually(happened: Callable[[], bool] | Callable[[], Awaitable[bool]], *, seconds: float = 60.0) -> float:
    """Wait for something that can only be seen by looking; return how long it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            answer = happened()
            if (await answer) if inspect.isawaitable(answer) else answer:
                return time.monotonic() - began
            await asyncio.sleep(0.02)
