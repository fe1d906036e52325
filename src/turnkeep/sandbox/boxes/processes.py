"""Processes of a box: a command under supervision, and handles by which its processes are killed.

`supervise` feeds a command, reads its output and stops it at its limits. It knows nothing of what a box is made of.

A handle is a pidfd, so that it never means another process, and its end can be waited for. Handles are used for the
first process of a PID namespace: the kernel kills and reaps everything else in the namespace before that process is
gone. So when its end is seen, all of the namespace has ended.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from turnkeep.sandbox.boxes.limits import family_of
from turnkeep.sandbox.boxes.ports import BoxCommand, BoxLimits, Ended, Feed, StopReason

KEPT_ERROR_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
WATCH_SECONDS = 0.05
DRAIN_SECONDS = 1.0
"""How long to wait for output that is still in the pipes after every process is dead."""


REPORT_SECONDS = 10.0
"""bwrap reports within milliseconds, or fails.

If it were killed before, the process that it just started would live on.
"""
END_SECONDS = 5.0

Kill = Callable[[], Coroutine[Any, Any, None]]
Watch = Callable[[], StopReason | None]


async def supervise(
    process: asyncio.subprocess.Process,
    command: BoxCommand,
    limits: BoxLimits,
    *,
    kill: Kill,
    watch: Watch | None = None,
) -> Ended:
    """Run the process to its end or to a limit. `kill` must end it with all its descendants, and is always called.

    `watch` is called many times a second, in a thread, and returns the limit that was passed, if any.
    """
    began = time.monotonic()
    stop: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
    output = _OutputReader(command.output_bytes or limits.output_bytes, stop, command.on_output)
    errors = _OutputReader(KEPT_ERROR_BYTES)
    assert process.stdin is not None
    assert process.stdout is not None
    listening = [asyncio.create_task(output.listen(process.stdout))]
    if process.stderr is not None:
        listening.append(asyncio.create_task(errors.listen(process.stderr)))
    helping = [asyncio.create_task(_feed(process.stdin, command.feed))]
    if watch is not None:
        helping.append(asyncio.create_task(_watch(watch, stop)))
    exited = asyncio.create_task(process.wait())
    ends: set[asyncio.Future[Any]] = {exited, stop}
    try:
        await asyncio.wait(ends, timeout=command.seconds, return_when="FIRST_COMPLETED")
        if not exited.done() and not stop.done():
            stop.set_result("time")
    finally:
        await run_to_end(_kill_and_wait(kill(), exited))
        for task in helping:
            task.cancel()
        await asyncio.wait(listening, timeout=DRAIN_SECONDS)
        await _cancel_all([*helping, *listening])
    code = exited.result()
    return Ended(
        exit_code=code if code >= 0 else 128 - code,
        output=b"".join(output.kept),
        errors=b"".join(errors.kept),
        seconds=time.monotonic() - began,
        stopped_by=stop.result() if stop.done() else None,
    )


class _OutputReader:
    """Reads one stream. After its limit it reads on, so that no process blocks on a full pipe, but keeps no more."""

    def __init__(
        self, limit: int, stop: asyncio.Future[StopReason] | None = None, tell: Callable[[bytes], None] | None = None
    ) -> None:
        self.kept: list[bytes] = []
        self._left = limit
        self._stop = stop
        self._tell = tell

    async def listen(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(PIECE_BYTES):
            fitting = piece[: self._left]
            self._left -= len(fitting)
            if fitting and self._tell is not None:
                self._tell(fitting)
            elif fitting:
                self.kept.append(fitting)
            if len(fitting) < len(piece) and self._stop is not None and not self._stop.done():
                self._stop.set_result("output")


async def _feed(stream: asyncio.StreamWriter, feed: Feed) -> None:
    # A process that closes its input or dies is no error here; its end is reported elsewhere.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if isinstance(feed, bytes):
            if feed:
                stream.write(feed)
                await stream.drain()
        else:
            async for piece in feed:
                stream.write(piece)
                await stream.drain()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.close()
        await stream.wait_closed()


async def _watch(watch: Watch, stop: asyncio.Future[StopReason]) -> None:
    pause = WATCH_SECONDS
    while not stop.done():
        await asyncio.sleep(pause)
        began = time.monotonic()
        # The more processes and mapped areas a box has, the longer this takes.
        reason = await asyncio.to_thread(watch)
        pause = max(WATCH_SECONDS, time.monotonic() - began)
        if reason is not None and not stop.done():
            stop.set_result(reason)


async def _kill_and_wait(killing: Coroutine[Any, Any, None], exited: "asyncio.Task[int]") -> None:
    await killing
    await exited


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, even if the caller is cancelled meanwhile. Then the cancellation is raised."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def _cancel_all(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def within(awaitable: Awaitable[object], *, seconds: float) -> bool:
    """Whether it finished within that time."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True


class ProcessHandle:
    """One process. Close it after use."""

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
            await within(ended.wait(), seconds=END_SECONDS)
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        os.close(self._pidfd)


def kill_outright(process: asyncio.subprocess.Process) -> None:
    """Kill a child. `Process.kill` first polls whether it has ended, and so takes its exit code from asyncio."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            handle = ProcessHandle(process.pid)
            handle.kill()
            handle.close()


class ChildReport:
    """bwrap's report about the first process that it starts: its pid, as JSON on a pipe."""

    def __init__(self, *, init: int) -> None:
        """`init` is the first process of the namespace in which that pid is valid."""
        self._reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._init = init
        self._text = b""
        self._is_in = asyncio.Event()

    def listen(self) -> None:
        """Start to read. Our own writing end is closed, so that the pipe ends when bwrap fails."""
        os.close(self.writing)
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    async def first_process(self, launcher: int) -> ProcessHandle | None:
        """The first process of the command that `launcher` started; None if it has ended or never existed."""
        await within(self._is_in.wait(), seconds=REPORT_SECONDS)
        found = re.search(rb'"child-pid": *(\d+)\D', self._text)
        if found is None:
            return None
        for pid in (*family_of(launcher), *family_of(self._init)):
            if _inner_numbers(pid)[-2:] == [int(found[1]), 1]:
                with contextlib.suppress(ProcessLookupError):
                    return ProcessHandle(pid)
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
    """The pids of a process in all its PID namespaces, from ours inwards."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    except OSError:
        return []
    return [int(number) for number in status.partition("\nNSpid:")[2].partition("\n")[0].split()]
