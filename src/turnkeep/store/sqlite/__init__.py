"""The store on SQLite: one file, one writing thread, and readers beside it.

Each verb is a job: the writer's thread runs it in a transaction, loads facts, lets `store/rules` decide and writes.
This package makes no rules of its own about turns. Read `turns.py` first, then `io/executors.py`.
"""

from turnkeep.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
