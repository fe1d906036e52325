"""The holder: the process that is a box for as long as it lives.

It is the first process of a PID namespace, in a user and a mount namespace of its own, in which it has mounted a small
file system in memory. Every command of the box joins these namespaces. When the holder ends, the kernel kills every
process that ever joined, and drops the file system. It ends when its standard input does, so it cannot outlive the
runner, however that dies.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from turnkeep.runner.boxes import inner
from turnkeep.runner.boxes.handles import Handle, kill_outright
from turnkeep.runner.boxes.ports import BoxUnavailable, Limits

START_SECONDS = 10.0

HELPER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HELPER_ENVIRONMENT = {"PATH": HELPER_PATH, "LC_ALL": "C"}
"""For the programs that build a box. What is meant for the inside must not reach them: a library to preload, say."""

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
_HOLD = f"""
mount -t tmpfs -o size="$1",nr_inodes="$2",mode=755,nosuid,nodev box {inner.OUTER_ROOT} || exit 1
cd {inner.OUTER_ROOT} && mkdir -p workspace/assets tmp shm || exit 1
echo ready
read nothing
"""


class Holder:
    """A holder that is ready. `end` it."""

    def __init__(self, process: asyncio.subprocess.Process, init: Handle) -> None:
        self._process = process
        self._init = init

    @classmethod
    async def start(cls, limits: Limits, *, uid: int | None) -> "Holder":
        """Raises BoxUnavailable, in words that help, where namespaces cannot be had."""
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
            return cls(process, Handle(_only_child(process.pid)))
        except BaseException:
            await _reap(process)
            raise

    @property
    def pid(self) -> int:
        """Of the process inside, whose namespaces are the box."""
        return self._init.pid

    async def end(self) -> None:
        """Kill everything that is in the box. Returns when all of it is dead."""
        self._init.kill()
        await self._init.gone()
        self._init.close()
        await _reap(self._process)


def as_user(uid: int | None) -> Sequence[str]:
    """What to put before a command so that it runs as that user; nothing for the present one."""
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
    """Why a box cannot be made, and what to do about it."""
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
