"""Boxes made by bubblewrap: namespaces, a system call filter and limits, without a daemon.

A box is a *holder* (`namespaces.py`). Every command runs in a bwrap of its own that joins the holder's namespaces and
sees its file system as the workspace; the PID namespace that it makes for the command dies with the command, whole.

If the runner is root, each box has a user id of its own that nothing else uses. Else the boxes run as its user.

Decision: docs/decisions/0901
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnkeep.sandbox.boxes import namespaces
from turnkeep.sandbox.boxes.cgroups import Cgroup, Cgroups
from turnkeep.sandbox.boxes.namespaces import Holder, as_user, explain
from turnkeep.sandbox.boxes.ports import BoxUnavailable, Command, Ended, Limits
from turnkeep.sandbox.boxes.processes import ChildReport, kill_outright, supervise
from turnkeep.sandbox.boxes.seccomp import filter_program
from turnkeep.sandbox.boxes.watchdog import Watchdog

FIRST_UID = 1_900_000_000
UIDS = 16_000_000
"""User ids that no account, container or subuid range has by default. Each box of root takes one at random."""

CHECK_SECONDS = 10.0
DEAD_SECONDS = 5.0
"""How long the tasks of commands may take to notice that their processes are dead."""
NICE = 10
"""Boxes get less CPU than the runner, so that it can stop even a fork bomb."""

_PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux", "prlimit": "util-linux"}
_JOIN = 'echo 0 > "$0" && exec "$@"'


class Bubblewrap:
    """Starts boxes. Call `check` before the first one."""

    name = "bubblewrap"

    def __init__(self, *, cgroups: Cgroups | None = None) -> None:
        self._cgroups = cgroups
        self._python = namespaces.find_python()

    @property
    def python(self) -> Sequence[str]:
        return (str(self._python), "-I", "-S", "-B")

    async def check(self) -> None:
        if sys.platform != "linux":
            raise BoxUnavailable("The bubblewrap driver needs Linux. Use the docker driver here.")
        filter_program()
        for program, package in _PROGRAMS.items():
            if shutil.which(program, path=namespaces.HELPER_PATH) is None:
                raise BoxUnavailable(
                    f"The sandbox needs the program {program}, which is not installed. Install the package {package} "
                    f"(Debian, Ubuntu: apt install {package}), or use the docker driver."
                )
        if self._cgroups is not None:
            self._cgroups.remove_leftovers()
        box = await self.start(Limits())
        try:
            script = shlex.join([*self.python, "-c", "print(6 * 7)"])
            ended = await box.run(Command(argv=["/bin/bash", "-c", script], seconds=CHECK_SECONDS))
        finally:
            await box.close()
        if ended.exit_code != 0 or ended.output.strip() != b"42":
            raise BoxUnavailable(explain(ended.output.decode("utf-8", "replace")))

    async def start(self, limits: Limits) -> "BubblewrapBox":
        uid = FIRST_UID + secrets.randbelow(UIDS) if os.geteuid() == 0 else None
        held = await Holder.start(limits, uid=uid)
        cgroup = None
        if self._cgroups is not None:
            with contextlib.suppress(OSError):  # removed meanwhile; the watchdog still limits the box
                cgroup = self._cgroups.make(limits)
        return BubblewrapBox(held, uid=uid, limits=limits, cgroup=cgroup, python=self._python)


class BubblewrapBox:
    """One box: its holder, and the commands that run in it."""

    def __init__(self, holder: Holder, *, uid: int | None, limits: Limits, cgroup: Cgroup | None, python: Path) -> None:
        self._holder = holder
        self._uid = uid
        self._limits = limits
        self._cgroup = cgroup
        self._python = python
        self._watchdog = Watchdog(limits)
        self._running: set[asyncio.Task[Ended]] = set()
        self._is_closed = False

    async def run(self, command: Command) -> Ended:
        if self._is_closed:
            raise BoxUnavailable("This box is closed.")
        is_made = asyncio.Event()
        task = asyncio.create_task(self._run(command, is_made))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await _stop(task, is_made)
            raise

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._holder.end()
        if self._running:
            await asyncio.wait(self._running, timeout=DEAD_SECONDS)
        if self._cgroup is not None:
            self._cgroup.remove()

    async def _run(self, command: Command, is_made: asyncio.Event) -> Ended:
        report = ChildReport(init=self._holder.pid)
        try:
            process = await self._launch(command, report)
            is_made.set()
            with contextlib.suppress(OSError):  # early enough for all that the command will start
                os.setpriority(os.PRIO_PROCESS, process.pid, NICE)

            async def kill() -> None:
                first = await report.first_process(process.pid)
                if first is not None:
                    first.kill()
                    await first.gone()
                    first.close()
                kill_outright(process)

            try:
                return await supervise(
                    process, command, self._limits, kill=kill, watch=lambda: self._watchdog.look(process.pid)
                )
            finally:
                self._watchdog.forget(process.pid)
        finally:
            is_made.set()
            report.close()

    async def _launch(self, command: Command, report: ChildReport) -> asyncio.subprocess.Process:
        with contextlib.ExitStack() as files:
            files.callback(report.listen)
            arguments, descriptors = self._arguments(command, files, report.writing)
            return await asyncio.create_subprocess_exec(
                *arguments,
                *("--", *command.argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if command.with_errors else asyncio.subprocess.PIPE,
                env=namespaces.HELPER_ENVIRONMENT,
                cwd="/",
                pass_fds=descriptors,
                start_new_session=True,
            )

    def _arguments(self, command: Command, files: contextlib.ExitStack, reporting: int) -> tuple[list[str], list[int]]:
        """The whole command line up to the command, and the descriptors that it names."""
        passwd, group, seccomp = (
            _file(data, files) for data in (namespaces.PASSWD, namespaces.GROUP, filter_program())
        )
        environment = namespaces.box_environment(self._python, command.environment)
        settings = [
            *("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
            *(
                "--uid",
                str(namespaces.USER_ID),
                "--gid",
                str(namespaces.USER_ID),
                "--hostname",
                "box",
                "--cap-drop",
                "ALL",
            ),
            *namespaces.view_arguments(self._python, passwd_fd=passwd, group_fd=group),
            *namespaces.setenv_arguments(environment),
            *("--chdir", command.directory, "--seccomp", str(seccomp), "--info-fd", str(reporting)),
        ]
        packed = _file(namespaces.packed(settings), files)
        join = [] if self._cgroup is None else ["sh", "-c", _JOIN, str(self._cgroup.joining)]
        outer = [
            *join,
            *as_user(self._uid),
            *("prlimit", *_rlimits(self._limits), "--"),
            *("nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--pid"),
            *("--preserve-credentials", "--", "bwrap", "--args", str(packed)),
        ]
        return outer, [passwd, group, seccomp, packed, reporting]


async def _stop(task: "asyncio.Task[Ended]", is_made: asyncio.Event) -> None:
    """Cancel a command and wait for its end, even if this task is cancelled meanwhile.

    Not while its process is being created: asyncio would kill that process, and leave the child that it just started.
    """

    async def stop() -> None:
        await is_made.wait()
        task.cancel()
        await asyncio.wait({task})

    stopping = asyncio.create_task(stop())
    while not stopping.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)


def _rlimits(limits: Limits) -> Iterator[str]:
    """Limits of each process by the kernel.

    They are set before anything of the box runs, and cannot be raised again.
    """
    yield f"--nproc={limits.processes}"
    # A limit of the address space would also count memory that is only reserved; Node and Go reserve gigabytes.
    yield f"--data={2 * limits.memory_bytes}"
    yield f"--fsize={limits.file_bytes}"
    yield f"--nofile={limits.open_files}"
    yield f"--cpu={limits.cpu_seconds}"
    yield "--core=0"
    yield "--memlock=65536"
    yield "--msgqueue=0"


def _file(data: bytes, files: contextlib.ExitStack) -> int:
    """A file in memory with these bytes, for a child process to read."""
    descriptor = os.memfd_create("box")
    files.callback(os.close, descriptor)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
