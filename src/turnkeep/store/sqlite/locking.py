"""One server per database file: a lock file beside it, which the kernel releases however its holder ends."""

import fcntl
import os
from pathlib import Path

from turnkeep.errors import Conflict


class FileLock:
    """Held from its making until `release`. The file stays; only the lock on it counts."""

    def __init__(self, database: Path) -> None:
        """Raises Conflict, naming the process that holds it."""
        self._path = database.with_name(database.name + ".lock")
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise Conflict(
                f"The database {database.name} is in use by {holder}. One server owns a SQLite file: stop that one, "
                "or use PostgreSQL for several servers."
            ) from exc
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go. Once more does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
