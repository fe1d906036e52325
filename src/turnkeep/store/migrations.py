"""Migrations: numbered files, applied once and in order, each in one transaction with its record.

A migration of PostgreSQL may have steps: a line `-- commit` ends the transaction of one and begins that of the next, so
that no lock is held while a large table is read. The record comes with the last step. A step that was done may be done
again.

What is applied to a database must be a beginning of what this release has; else the database was made by another
release (SchemaMismatch), and nothing is touched. A database of PostgreSQL may also be that of a newer release, if the
newer release says that it works with this one.
"""

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from msgspec import Struct

from turnkeep.errors import Defect, SchemaMismatch
from turnkeep.store.queries import Dialect

OLDEST_SERVED = 16
"""The last migration of the release before this one. Servers of that release go on while they are replaced one by one;
servers of older releases do not."""

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_FUNCTION = re.compile(r"^CREATE (?:OR REPLACE )?FUNCTION turnkeep\.(\w+)", re.MULTILINE)
_COMMIT = re.compile(r"^-- commit$", re.MULTILINE)
_CONCURRENT = re.compile(r"^CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)[^;]*;", re.MULTILINE)


class Migration(Struct, frozen=True, kw_only=True):
    """One numbered file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def steps(self) -> list[str]:
        """What is done in transactions, one after the other."""
        return _COMMIT.split(_CONCURRENT.sub("", self.sql))

    @property
    def functions(self) -> list[str]:
        """The names of the functions that it makes, such as those of triggers. Releases share them."""
        return _FUNCTION.findall(self.sql)

    @property
    def concurrent_indexes(self) -> dict[str, str]:
        """The statements that make indexes without a lock, by the names of these. They take no transaction."""
        return {found[1]: found[0] for found in _CONCURRENT.finditer(self.sql)}


class AppliedMigration(Struct, frozen=True, kw_only=True):
    """The record of an applied migration."""

    version: int
    name: str
    checksum: str


def load_migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations of this release: 1, 2, 3 … without gaps."""
    folder = files("turnkeep.store") / "sql" / dialect / "migrations"
    found = [
        Migration(version=int(match[1]), name=match[2], sql=file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise Defect(f"The migrations of {dialect} are not numbered 1, 2, 3 … without gaps.")
    return tuple(found)


def names_of(migrations: Sequence[Migration]) -> str:
    """Their names for a message. Of many, only the first and the last."""
    names = [f"{migration.version:04}_{migration.name}" for migration in migrations]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)} of them)"


def pending(
    known: Sequence[Migration], applied: Sequence[AppliedMigration], *, oldest: int | None = None
) -> tuple[Migration, ...]:
    """What is still to be applied. Raises SchemaMismatch if the database does not descend from `known`.

    A database that is ahead is accepted from the last migration of the `oldest` release on that works with it.
    """
    if len(applied) > len(known) and (oldest is None or len(known) < oldest):
        raise SchemaMismatch(
            f"The database is at version {len(applied)}, this release knows {len(known)}: "
            "it was migrated by a newer release. Upgrade Turnkeep."
        )
    for mine, theirs in zip(known, applied, strict=False):
        if (mine.version, mine.checksum) != (theirs.version, theirs.checksum):
            raise SchemaMismatch(
                f"Migration {theirs.version:04} ({theirs.name}) of the database is not the one of this release. "
                "It belongs to another build; restore a backup or use the release that made it."
            )
    return tuple(known[len(applied) :])
