"""Checkpoints: what the log holds is moved into the database file, beside the writes and not inside them.

Whenever the log has grown by a thousand pages, a thread with a connection of its own moves them. Writes go on
meanwhile, so a few pages are left over; the writer moves those between two commits, and the log begins anew. That
keeps it short, and commits that overwrite it are quicker than commits that make it longer.
"""

import threading
from contextlib import suppress

import apsw

from turnkeep.store.sqlite.io.session import BUSY_SECONDS

BESIDE_PAGES = 1_000
"""Four megabytes: SQLite's own habit."""
LOG_BYTES = 64 * 1024 * 1024
"""A log that once was longer is cut to this when it begins anew."""


class Checkpoints:
    """Watches the log of one writing connection. Without a path there is no second connection, only the writer."""

    def __init__(self, connection: apsw.Connection, path: str | None) -> None:
        self._connection = connection
        self._path = path
        self._pages = 0
        self._next = BESIDE_PAGES
        self._is_closed = False
        self._wanted = threading.Event()
        self._moved = threading.Event()
        self._thread: threading.Thread | None = None
        connection.pragma("journal_size_limit", LOG_BYTES)
        connection.set_wal_hook(self._committed)

    def after_commit(self) -> None:
        """Called by the writer's thread when its callers have been answered."""
        if self._moved.is_set():
            self._moved.clear()
            _move(self._connection)
        elif self._pages >= self._next:
            self._next = self._pages + BESIDE_PAGES
            if self._path is None:
                _move(self._connection)
                return
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="turnkeep-checkpoint", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread. SQLite moves the rest when the last connection closes."""
        self._is_closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:  # the log began anew
            self._next = BESIDE_PAGES
        self._pages = pages
        return apsw.SQLITE_OK

    def _work(self) -> None:
        assert self._path is not None
        connection = apsw.Connection(self._path)
        connection.set_busy_timeout(BUSY_SECONDS * 1000)
        connection.pragma("synchronous", "FULL")
        try:
            while self._wanted.wait() and not self._is_closed:
                self._wanted.clear()
                _move(connection)
                self._moved.set()
        finally:
            connection.close()


def _move(connection: apsw.Connection) -> None:
    """Move what can be moved without waiting for anybody. What could not be moved now is moved the next time."""
    with suppress(apsw.Error):
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
