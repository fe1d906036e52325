"""The watchdog: what the processes of a box use, read from /proc. It works where cgroups cannot be written."""

import os
import resource

from msgspec import Struct

from turnkeep.sandbox.boxes.ports import Limits, StopReason

PAGE_BYTES = resource.getpagesize()
TABLE_SHARE = 512
"""A table of one page serves so many pages."""
SOCKET_BYTES = 212_992
"""The kernel's default for what waits in a socket."""


class Watchdog:
    """Looks at the commands of one box, which share its limits.

    Nothing in a box can leave the family of its command: an orphan is adopted by the first process of its own PID
    namespace.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen: dict[int, _Seen] = {}

    def look(self, pid: int) -> StopReason | None:
        """The limit that the box has passed, if any, and if it is this command that uses most of it.

        What vanishes meanwhile counts as nothing.
        """
        family = family_of(pid, at_most=2 * self._limits.processes)
        threads, size = sum(map(_threads, family)), sum(map(_rough_bytes, family))
        self._seen[pid] = _Seen(family=family, threads=threads, rough_bytes=size + _socket_bytes(family[-1]))
        if _is_to_blame(pid, {each: seen.threads for each, seen in self._seen.items()}, self._limits.processes):
            return "processes"
        # The rough sum counts shared pages more than once; only if it is too much is it worth a closer look.
        if sum(seen.rough_bytes for seen in self._seen.values()) > self._limits.memory_bytes:
            exact = {each: _family_bytes(seen.family) for each, seen in self._seen.items()}
            if _is_to_blame(pid, exact, self._limits.memory_bytes):
                return "memory"
        return None

    def forget(self, pid: int) -> None:
        """The command has ended."""
        self._seen.pop(pid, None)


class _Seen(Struct, frozen=True, kw_only=True):
    """What was last seen of one command."""

    family: list[int]
    threads: int
    rough_bytes: int


def _is_to_blame(pid: int, used: dict[int, int], limit: int) -> bool:
    return sum(used.values()) > limit and used[pid] == max(used.values())


def _family_bytes(family: list[int]) -> int:
    return _socket_bytes(family[-1]) + sum(map(_exact_bytes, family))


def family_of(pid: int, *, at_most: int = 10_000) -> list[int]:
    """The process and its living offspring."""
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
    """All its pages, and as much as the tables for its address space could take: never too little, and cheap."""
    size, resident, *_ = map(int, _read(f"/proc/{pid}/statm").split()[:2] or (0, 0))
    return PAGE_BYTES * (resident + size // TABLE_SHARE)


def _exact_bytes(pid: int) -> int:
    """Its share of the pages it has, and the tables that the kernel keeps for them."""
    status = _fields(f"/proc/{pid}/status")
    share = _fields(f"/proc/{pid}/smaps_rollup").get(b"Pss:")
    if share is None:  # may not be read: then all of it
        share = status.get(b"RssAnon:", 0) + status.get(b"RssShmem:", 0)
    return 1024 * (share + status.get(b"VmPTE:", 0))


def _socket_bytes(pid: int) -> int:
    """What the sockets of its network namespace could hold. No process shows it, nor where it is in flight.

    A command that is still on its way into its box shares our network, whose sockets are none of its business.
    """
    if _network(pid) == _network(os.getpid()):
        return 0
    words = _read(f"/proc/{pid}/net/sockstat").split(None, 3)
    return SOCKET_BYTES * int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0


def _network(pid: int) -> int | None:
    """Which network it is in; None where that may not be asked."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def _fields(path: str) -> dict[bytes, int]:
    """The lines of a file like `RssAnon:  1234 kB`."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 3 and words[2] == b"kB"}


def _read(path: str) -> bytes:
    """Nothing where the process has ended."""
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
