"""Bringing a SQLite file up to this release, one transaction per migration."""

from pathlib import Path

import apsw

from turnkeep.errors import SchemaMismatch
from turnkeep.store.migrations import AppliedMigration, Migration, load_migrations, names_of, pending

_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at integer NOT NULL
) STRICT
"""


def migrate(connection: apsw.Connection, *, now: int) -> tuple[Migration, ...]:
    """Apply what is missing and return it. Raises SchemaMismatch, with nothing touched, for a foreign schema."""
    todo = pending(load_migrations("sqlite"), applied(connection))
    for migration in todo:
        with connection:
            connection.execute(_RECORD)
            connection.execute(migration.sql).fetchall()
            connection.execute(
                "INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                (migration.version, migration.name, migration.checksum, now),
            )
    return todo


def check_schema(path: Path) -> None:
    """Raise SchemaMismatch unless the file is exactly at this release. Nothing is touched."""
    if not path.exists():
        raise SchemaMismatch(f"There is no database at {path}. Run `turnkeep migrate`.")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        todo = pending(load_migrations("sqlite"), applied(connection))
    finally:
        connection.close()
    if todo:
        raise SchemaMismatch(f"The database lacks the migrations {names_of(todo)}. Run `turnkeep migrate`.")


def applied(connection: apsw.Connection) -> tuple[AppliedMigration, ...]:
    """The migrations that were applied to this file, in order."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'").fetchall():
        return ()
    found = connection.execute("SELECT version, name, checksum FROM schema_migrations ORDER BY version")
    return tuple(AppliedMigration(version=version, name=name, checksum=checksum) for version, name, checksum in found)
