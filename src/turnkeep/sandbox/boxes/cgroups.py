"""Cgroups (version 2), where this process may make some: hard limits of memory and processes for each box.

Where it may not, as for a normal user without delegation, only the watchdog and the process limit apply. Under
systemd, `Delegate=yes` with `DelegateSubgroup=runner` makes them writable.
"""

import contextlib
import secrets
from pathlib import Path

from turnkeep.sandbox.boxes.ports import Limits

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

    def make(self, limits: Limits) -> Cgroup:
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
