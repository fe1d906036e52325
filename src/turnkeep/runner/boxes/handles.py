"""Handles: processes held by a pidfd, so that no other process is ever meant, and their end can be waited for.

They are first processes of PID namespaces. The kernel kills and reaps everything else in a namespace before its first
process is gone: to see that one end is to see all of it end.
"""

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

from turnkeep.runner.boxes.supervise import first_of
from turnkeep.runner.boxes.watchdog import family_of

REPORT_SECONDS = 10.0
"""bwrap reports within milliseconds, or fails. Killing it before would leave what it has just started to itself."""
END_SECONDS = 5.0


class Handle:
    """One process. `close` it."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is none."""
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until it has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await first_of(ended.wait(), seconds=END_SECONDS)
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        os.close(self._pidfd)


def kill_outright(process: asyncio.subprocess.Process) -> None:
    """Kill a child. Its own `kill` would first look whether it has ended, and so take its exit code from asyncio."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            handle = Handle(process.pid)
            handle.kill()
            handle.close()


class Report:
    """What bwrap tells about the first process that it makes: its number, as JSON on a pipe."""

    def __init__(self, *, init: int) -> None:
        """`init` is the first process of the namespace in which that number counts."""
        self._reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._init = init
        self._text = b""
        self._is_in = asyncio.Event()

    def listen(self) -> None:
        """From now on; our own end for writing is closed, so that the pipe ends when bwrap fails."""
        os.close(self.writing)
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    async def first_process(self, launcher: int) -> Handle | None:
        """The first process of the command that `launcher` launched; None where it has ended or never was."""
        await first_of(self._is_in.wait(), seconds=REPORT_SECONDS)
        found = re.search(rb'"child-pid": *(\d+)\D', self._text)
        if found is None:
            return None
        for pid in (*family_of(launcher), *family_of(self._init)):
            if _inner_numbers(pid)[-2:] == [int(found[1]), 1]:
                with contextlib.suppress(ProcessLookupError):
                    return Handle(pid)
        return None

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)

    def _read(self) -> None:
        piece = os.read(self._reading, 4096)
        self._text += piece
        if b"}" in piece or not piece:
            asyncio.get_running_loop().remove_reader(self._reading)
            self._is_in.set()


def _inner_numbers(pid: int) -> list[int]:
    """The numbers of a process in all the PID namespaces that it is in, from ours inwards."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    except OSError:
        return []
    return [int(number) for number in status.partition("\nNSpid:")[2].partition("\n")[0].split()]
