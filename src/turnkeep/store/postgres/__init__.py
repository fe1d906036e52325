"""The store on PostgreSQL: two logins, writes in groups, and a boundary that the database itself keeps.

A claim loads facts, lets `store/rules` decide, and writes; record, settle and append are grouped into one statement and
one commit. Functions of the database return codes and facts; the words are in `store/rules`. Read `turns.py` first,
then `io/database.py`.
"""

from turnkeep.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
