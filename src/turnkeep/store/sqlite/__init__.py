"""The store on SQLite: one file, one writing thread, and readers beside it."""

from turnkeep.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
