"""Limits of memory and processes of a box: a cgroup where one can be made, and a watchdog everywhere.

A memory cgroup is a hard limit, and counts what no process shows. It is made below the group of this process: in
version 2 where that group is delegated (`Delegate=yes` of systemd, which `systemd-run --scope` gives too), in version 1
where its folder can be written. Where there is none, the watchdog reads the memory in /proc, and the system call filter
refuses the calls that hold memory which /proc does not show.

Decision: docs/decisions/0903
"""

import contextlib
import os
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from turnkeep.sandbox.boxes.ports import MIB, BoxLimits, StopReason

PAGE_BYTES = resource.getpagesize()
TABLE_SHARE = 512
"""Pages that are mapped by one page of a page table."""
DESCRIPTOR_BYTES = 4_096
"""Most that the kernel holds behind an open descriptor, sockets aside. A pipe has two, and 8 KiB once its user has
many."""
AREA_BYTES = 256
"""What the kernel keeps about one mapped area of a process."""
SOCKET_BYTES = 212_992
"""The kernel's default for what waits in a socket."""
FLOOR_SHARE, FLOOR_BYTES = 20, 512 * MIB
"""A machine with less free memory than this share of all of it, or than these bytes, is short of memory."""
PREFIX = "turnkeep-box-"
LEAF = "runner"
"""In version 2 a group whose children have limits may hold no process itself. So the runner lives in this child."""
SCOPE_SECONDS = 5.0
_CONTROLLERS = {"memory", "pids"}

CgroupVersion = Literal[1, 2]


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

    def __init__(self, base: Path, *, version: CgroupVersion = 2) -> None:
        self._base = base
        self._version = version

    @classmethod
    def find(cls, *, proc: Path = Path("/proc/self")) -> "Cgroups | None":
        """Groups below the group of this process, if the memory of its children can be limited; else None."""
        for version, base in _own_groups(proc):
            found = cls(base, version=version)
            with contextlib.suppress(OSError):
                found.make(BoxLimits()).remove()
                return found
        return None

    def make(self, limits: BoxLimits) -> Cgroup:
        """A group with these limits. Raises OSError."""
        folder = self._base / f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        folder.mkdir()
        # The files of the workspace are in memory too, and are charged to the process that writes them.
        memory = str(limits.memory_bytes + limits.disk_bytes)
        try:
            if self._version == 1:
                (folder / "memory.limit_in_bytes").write_text(memory, "ascii")
                with contextlib.suppress(OSError):  # there is none if swap is not counted
                    (folder / "memory.memsw.limit_in_bytes").write_text(memory, "ascii")
            else:
                (folder / "memory.max").write_text(memory, "ascii")
                with contextlib.suppress(OSError):  # there is none without swap
                    (folder / "memory.swap.max").write_text("0", "ascii")
                (folder / "pids.max").write_text(str(limits.processes), "ascii")
        except OSError:
            Cgroup(folder).remove()
            raise
        return Cgroup(folder)

    def remove_leftovers(self) -> None:
        """Remove the groups of runners that were killed. A box between two commands has no process, so the groups of a
        runner that lives stay."""
        for folder in self._base.glob(f"{PREFIX}*"):
            pid = folder.name.removeprefix(PREFIX).partition("-")[0]
            if not (pid.isdigit() and Path("/proc", pid).exists()):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _own_groups(proc: Path) -> Iterator[tuple[CgroupVersion, Path]]:
    """Where the groups of this process are mounted that can limit memory, version 2 first."""
    try:
        lines = (proc / "cgroup").read_text("utf-8").splitlines()
        mounts = (proc / "mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    joint = next((names for names in groups if "memory" in names.split(",")), None)
    for mount in mounts:
        fields, _, rest = mount.partition(" - ")
        root, point = fields.split()[3:5]
        kind, _, options = rest.partition(" ")
        if kind == "cgroup2" and "" in groups:
            base = _limited_base(_below(point, root, groups[""]))
            if base is not None:
                yield 2, base
        elif kind == "cgroup" and joint is not None and "memory" in options.split()[-1].split(","):
            yield 1, _below(point, root, groups[joint])


def _below(point: str, root: str, path: str) -> Path:
    """The folder of a group. A container sees only a part of the tree, which is mounted from `root` on."""
    inner = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    return Path(point) / inner.lstrip("/")


def _limited_base(own: Path) -> Path | None:
    """The group below which boxes can have limits, in version 2: this process's own one, or the one above a leaf."""
    base = own.parent if own.name == LEAF else own
    control = base / "cgroup.subtree_control"
    try:
        if not _is_enabled(control):
            _leave(base)
            control.write_text("+memory +pids", "ascii")
        return base if _is_enabled(control) else None
    except OSError:
        return None


def _is_enabled(control: Path) -> bool:
    return set(control.read_text("ascii").split()) >= _CONTROLLERS


def _leave(base: Path) -> None:
    """Move this process into the leaf below `base`, if no other process is in `base`."""
    if (base / "cgroup.procs").read_text("ascii").split() == [str(os.getpid())]:
        leaf = base / LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()), "ascii")


def scope_command(environ: Mapping[str, str], *, booted: Path = Path("/run/systemd/system")) -> list[str] | None:
    """The beginning of a command that runs the rest in a delegated scope of systemd; None if systemd makes none."""
    program = shutil.which("systemd-run", path=environ.get("PATH"))
    if program is None or not booted.exists():
        return None
    user = [] if os.geteuid() == 0 else ["--user"]
    command = [program, *user, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--"]
    try:
        tried = subprocess.run([*command, "true"], env=environ, capture_output=True, timeout=SCOPE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return command if tried.returncode == 0 else None


class Watchdog:
    """Checks the commands of one box, which share its limits.

    No process in a box can leave the process tree of its command: an orphan is adopted by the first process of its own
    PID namespace.
    """

    def __init__(self, limits: BoxLimits) -> None:
        self._limits = limits
        self._seen: dict[int, _Seen] = {}
        self._free_bytes = free_bytes()

    def look(self, pid: int) -> StopReason | None:
        """The limit that the box has passed, if any, and if this command uses the most of it.

        A process that ends meanwhile counts as nothing.
        """
        family = family_of(pid, at_most=2 * self._limits.processes)
        states = [_status(each) for each in family]
        self._seen[pid] = _Seen(
            family=family,
            threads=sum(state.get(b"Threads:", 0) for state in states),
            rough_bytes=_socket_bytes(family[-1]) + sum(map(_rough_bytes, states)),
        )
        if _is_to_blame(pid, {each: seen.threads for each, seen in self._seen.items()}, self._limits.processes):
            return "processes"
        # The rough sum counts shared pages more than once. The exact one is slower, so it is read only if this is too
        # much.
        if sum(seen.rough_bytes for seen in self._seen.values()) > self._limits.memory_bytes:
            exact = {each: _family_bytes(seen.family) for each, seen in self._seen.items()}
            if _is_to_blame(pid, exact, self._limits.memory_bytes):
                return "memory"
        return "memory" if self._has_emptied_the_machine() else None

    def forget(self, pid: int) -> None:
        """The command has ended."""
        self._seen.pop(pid, None)

    def _has_emptied_the_machine(self) -> bool:
        """The machine is short of memory, and since the box began it lost more than the box may use: the kernel may
        hold memory for the box that no file of /proc shows. Without the box the server would be killed."""
        left = free_bytes()
        used = self._free_bytes - left
        return left < floor_bytes() and used > self._limits.memory_bytes + self._limits.disk_bytes


class _Seen(Struct, frozen=True, kw_only=True):
    """What one command used at the last check."""

    family: list[int]
    threads: int
    rough_bytes: int


def _is_to_blame(pid: int, used: dict[int, int], limit: int) -> bool:
    return sum(used.values()) > limit and used[pid] == max(used.values())


def free_bytes() -> int:
    """Memory of this machine that programs can still have."""
    return 1024 * _fields("/proc/meminfo").get(b"MemAvailable:", 0)


@cache
def floor_bytes() -> int:
    return min(FLOOR_BYTES, 1024 * _fields("/proc/meminfo").get(b"MemTotal:", 0) // FLOOR_SHARE)


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


def _status(pid: int) -> dict[bytes, int]:
    return _fields(f"/proc/{pid}/status")


def _rough_bytes(status: dict[bytes, int]) -> int:
    """All its pages, and the most that its page tables, areas and descriptors can take: never too little, and cheap to
    read."""
    size = 1024 * status.get(b"VmSize:", 0)
    areas = min(size // PAGE_BYTES, most_areas())
    pages = 1024 * status.get(b"VmRSS:", 0) + size // TABLE_SHARE
    return pages + AREA_BYTES * areas + DESCRIPTOR_BYTES * status.get(b"FDSize:", 0)


@cache
def most_areas() -> int:
    """Areas that the kernel allows one process."""
    return int(_read("/proc/sys/vm/max_map_count") or 1 << 20)


def _exact_bytes(pid: int) -> int:
    """Its share of its pages, the page tables and areas that the kernel keeps for them, and its descriptors."""
    status = _status(pid)
    share = _fields(f"/proc/{pid}/smaps_rollup").get(b"Pss:")
    if share is None:  # not readable: count all of it
        share = status.get(b"RssAnon:", 0) + status.get(b"RssShmem:", 0)
    areas = _read(f"/proc/{pid}/maps").count(b"\n")
    pages = 1024 * (share + status.get(b"VmPTE:", 0))
    return pages + AREA_BYTES * areas + DESCRIPTOR_BYTES * status.get(b"FDSize:", 0)


def _socket_bytes(pid: int) -> int:
    """The most that the sockets of its network namespace can hold: their limit, and one message above it. The memory
    of no process shows it, and no cgroup counts it.

    A command that has not entered its box yet is in our network namespace, whose sockets must not be counted.
    """
    if _network(pid) == _network(os.getpid()):
        return 0
    words = _read(f"/proc/{pid}/net/sockstat").split(None, 3)
    return 2 * SOCKET_BYTES * int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0


def _network(pid: int) -> int | None:
    """The id of its network namespace; None if it may not be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def _fields(path: str) -> dict[bytes, int]:
    """The lines of a file like `RssAnon:  1234 kB` or `Threads:  4`."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) in (2, 3) and words[1].isdigit()}


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
