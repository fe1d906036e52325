"""The store on PostgreSQL: two logins, writes in groups, and a boundary that the database itself keeps."""

from turnkeep.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
