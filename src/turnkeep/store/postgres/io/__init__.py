"""How PostgreSQL is reached: connections, retries, group commit, migrations, roles and named statements.

Knows nothing of turns or conversations. Read `database.py` first, then `pool.py`.
"""
