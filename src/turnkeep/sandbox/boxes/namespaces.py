"""The namespaces of a bubblewrap box: the process that holds them, and what a command sees inside.

The holder is the first process of a PID namespace, in a user and a mount namespace of its own, in which it has mounted
a small file system in memory. Every command of the box joins these namespaces. When the holder ends, the kernel kills
every process that ever joined, and drops the file system. The holder ends when its standard input does, so it cannot
outlive the runner, however the runner dies.

Inside, a command sees only what programs need to run: `/usr` and what points into it, and a few files of `/etc`. No
home, no data directory, no socket, no device but the harmless ones.
"""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from turnkeep.sandbox.boxes.ports import BoxUnavailable, Limits
from turnkeep.sandbox.boxes.processes import ProcessHandle, kill_outright

START_SECONDS = 10.0

HELPER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HELPER_ENVIRONMENT = {"PATH": HELPER_PATH, "LC_ALL": "C"}
"""For the programs that build a box. Variables for the inside, such as a library to preload, must not reach them."""

BOX_PATH = "/usr/local/bin:/usr/bin:/bin"
OUTER_ROOT = "/tmp"
"""Where the holder mounts the box's own file system, visible in its namespace alone."""
USER_ID = 1000
PASSWD = f"box:x:{USER_ID}:{USER_ID}::/tmp:/bin/sh\nroot:x:0:0::/root:/bin/sh\n".encode()
GROUP = f"box:x:{USER_ID}:\nroot:x:0:\n".encode()

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "fonts", "ImageMagick-6", "ImageMagick-7", "ld.so.cache", "localtime", "mime.types")
_HIDDEN_IN_PROC = ("config.gz", "kallsyms", "kcore", "key-users", "keys", "kmsg", "sched_debug", "timer_list")

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
_HOLD = f"""
mount -t tmpfs -o size="$1",nr_inodes="$2",mode=755,nosuid,nodev box {OUTER_ROOT} || exit 1
cd {OUTER_ROOT} && mkdir -p workspace/assets tmp shm || exit 1
echo ready
read nothing
"""


class Holder:
    """A holder that is ready. End it with `end`."""

    def __init__(self, process: asyncio.subprocess.Process, init: ProcessHandle) -> None:
        self._process = process
        self._init = init

    @classmethod
    async def start(cls, limits: Limits, *, uid: int | None) -> "Holder":
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
    words = " ".join(said.split())[:400] or "it ended without a word"
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


def view_arguments(python: Path, *, passwd_fd: int, group_fd: int, root: Path = Path("/")) -> list[str]:
    """The file system, as arguments for bwrap. The last ones make everything read-only that is not the box's own."""
    arguments = ["--ro-bind", "/usr", "/usr", *_top_folders(root), *_etc(root)]
    if not python.is_relative_to("/usr"):
        prefix = str(python.parent.parent)
        arguments += ["--ro-bind", prefix, prefix]
    arguments += ["--ro-bind-data", str(passwd_fd), "/etc/passwd", "--ro-bind-data", str(group_fd), "/etc/group"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
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
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def setenv_arguments(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield from ("--setenv", name, value)


def packed(arguments: Iterable[str]) -> bytes:
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
