"""A real disk that is full: a small file system where this user may mount one, else a limit of the system."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMALL_DISK = "turnkeep-small-disk"
"""How a mounted one is called in the table of mounts."""


class SmallDisk:
    """A folder with little room."""

    def __init__(self, folder: Path, *, size: int, is_mounted: bool) -> None:
        self.folder = folder
        self._size = size
        self._is_mounted = is_mounted

    @contextmanager
    def full(self) -> Iterator[None]:
        """Inside, a file that is larger than the disk finds no room.

        A mounted disk is small all the time. Elsewhere no file of this process may grow beyond its size: the system
        refuses the write in the same way (Python ignores the signal that comes with it).
        """
        if self._is_mounted:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(folder: Path, *, size: int) -> Iterator[SmallDisk]:
    folder.mkdir()
    mounted = os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", f"size={size}", SMALL_DISK, str(folder))
    try:
        yield SmallDisk(folder, size=size, is_mounted=mounted)
    finally:
        if mounted and not _run("umount", str(folder)):
            _run("umount", "-l", str(folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
