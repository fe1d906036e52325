"""Limits of memory and processes of a box: cgroups where they can be written, and a watchdog everywhere.

Cgroups (version 2) are hard limits. Where this process may not make some, as for a normal user without delegation, only
the watchdog and the process limit apply. Under systemd, `Delegate=yes` with `DelegateSubgroup=runner` makes them
writable. The watchdog checks the limits in /proc, and works without cgroups.
"""

import contextlib
import os
import resource
import secrets
from pathlib import Path

from msgspec import Struct

from turnkeep.sandbox.boxes.ports import BoxLimits, StopReason

PAGE_BYTES = resource.getpagesize()
TABLE_SHARE = 512
"""Pages that are mapped by one page of a page table."""
SOCKET_BYTES = 212_992
"""The kernel's default for what waits in a socket."""
PREFIX = "turnkeep-box-"
_CONTROLLERS = {"memory", "pids"}


class Cgroup:
    """The group of one box. A process joins by writing to `joining`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def joining(self) -> Path:
        return self._folder / "cgroup.procs"

    def remove(self) -> None:
        """Kill what is left in the group, and remove it. A group that is still busy is removed at the next start."""
        with contextlib.suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1", "ascii")
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Cgroups:
    """Creates groups below `base`."""

    def __init__(self, base: Path) -> None:
        self._base = base

    @classmethod
    def find(cls, *, proc: Path = Path("/proc/self")) -> "Cgroups | None":
        """Groups below the group of this process, if its children can have limits; else None."""
        base = _own_group(proc)
        if base is None or not _can_limit(base):
            return None
        try:
            probe = base / f"{PREFIX}{secrets.token_hex(6)}"
            probe.mkdir()
            probe.rmdir()
        except OSError:
            return None
        return cls(base)

    def make(self, limits: BoxLimits) -> Cgroup:
        """A group with these limits. Raises OSError."""
        folder = self._base / f"{PREFIX}{secrets.token_hex(6)}"
        folder.mkdir()
        # The files of the workspace are in memory too, and are charged to the process that writes them.
        (folder / "memory.max").write_text(str(limits.memory_bytes + limits.disk_bytes), "ascii")
        with contextlib.suppress(OSError):  # there is none without swap
            (folder / "memory.swap.max").write_text("0", "ascii")
        (folder / "pids.max").write_text(str(limits.processes), "ascii")
        return Cgroup(folder)

    def remove_leftovers(self) -> None:
        """Remove the groups of a runner that was killed. Those in use cannot be removed, and stay."""
        for folder in self._base.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _own_group(proc: Path) -> Path | None:
    """Where the group of this process is mounted, in a pure version 2 hierarchy."""
    try:
        groups = (proc / "cgroup").read_text("utf-8").splitlines()
        mounts = (proc / "mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    paths = [line[3:] for line in groups if line.startswith("0::/")]
    for mount in mounts:
        fields, _, rest = mount.partition(" - ")
        if paths and rest.startswith("cgroup2 "):
            return Path(fields.split()[4]) / paths[0].lstrip("/")
    return None


def _can_limit(base: Path) -> bool:
    control = base / "cgroup.subtree_control"
    try:
        if not set(control.read_text("ascii").split()) >= _CONTROLLERS:
            control.write_text("+memory +pids", "ascii")
        return set(control.read_text("ascii").split()) >= _CONTROLLERS
    except OSError:
        return False


class Watchdog:
    """Checks the commands of one box, which share its limits.

    No process in a box can leave the process tree of its command: an orphan is adopted by the first process of its own
    PID namespace.
    """

    def __init__(self, limits: BoxLimits) -> None:
        self._limits = limits
        self._seen: dict[int, _Seen] = {}

    def look(self, pid: int) -> StopReason | None:
        """The limit that the box has passed, if any, and if this command uses the most of it.

        A process that ends meanwhile counts as nothing.
        """
        family = family_of(pid, at_most=2 * self._limits.processes)
        threads, size = sum(map(_threads, family)), sum(map(_rough_bytes, family))
        self._seen[pid] = _Seen(family=family, threads=threads, rough_bytes=size + _socket_bytes(family[-1]))
        if _is_to_blame(pid, {each: seen.threads for each, seen in self._seen.items()}, self._limits.processes):
            return "processes"
        # The rough sum counts shared pages more than once. The exact one is slower, so it is read only if this is too
        # much.
        if sum(seen.rough_bytes for seen in self._seen.values()) > self._limits.memory_bytes:
            exact = {each: _family_bytes(seen.family) for each, seen in self._seen.items()}
            if _is_to_blame(pid, exact, self._limits.memory_bytes):
                return "memory"
        return None

    def forget(self, pid: int) -> None:
        """The command has ended."""
        self._seen.pop(pid, None)


class _Seen(Struct, frozen=True, kw_only=True):
    """What one command used at the last check."""

    family: list[int]
    threads: int
    rough_bytes: int


def _is_to_blame(pid: int, used: dict[int, int], limit: int) -> bool:
    return sum(used.values()) > limit and used[pid] == max(used.values())


def _family_bytes(family: list[int]) -> int:
    return _socket_bytes(family[-1]) + sum(map(_exact_bytes, family))


def family_of(pid: int, *, at_most: int = 10_000) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for each in found:  # it grows while it is walked
        for thread in _names(f"/proc/{each}/task"):
            found.extend(map(int, _read(f"/proc/{each}/task/{thread}/children").split()))
        if len(found) > at_most:
            break
    return found


def _threads(pid: int) -> int:
    return len(_names(f"/proc/{pid}/task"))


def _rough_bytes(pid: int) -> int:
    """All its pages, and the most that its page tables can take: never too little, and cheap to read."""
    size, resident, *_ = map(int, _read(f"/proc/{pid}/statm").split()[:2] or (0, 0))
    return PAGE_BYTES * (resident + size // TABLE_SHARE)


def _exact_bytes(pid: int) -> int:
    """Its share of its pages, and the page tables that the kernel keeps for them."""
    status = _fields(f"/proc/{pid}/status")
    share = _fields(f"/proc/{pid}/smaps_rollup").get(b"Pss:")
    if share is None:  # not readable: count all of it
        share = status.get(b"RssAnon:", 0) + status.get(b"RssShmem:", 0)
    return 1024 * (share + status.get(b"VmPTE:", 0))


def _socket_bytes(pid: int) -> int:
    """The most that the sockets of its network namespace can hold. The memory of no process shows it.

    A command that has not entered its box yet is in our network namespace, whose sockets must not be counted.
    """
    if _network(pid) == _network(os.getpid()):
        return 0
    words = _read(f"/proc/{pid}/net/sockstat").split(None, 3)
    return SOCKET_BYTES * int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0


def _network(pid: int) -> int | None:
    """The id of its network namespace; None if it may not be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def _fields(path: str) -> dict[bytes, int]:
    """The lines of a file like `RssAnon:  1234 kB`."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 3 and words[2] == b"kB"}


def _read(path: str) -> bytes:
    """The content of a file of /proc; empty if the process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall() or b""
    except OSError:
        return b""


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
