"""How PostgreSQL is reached: connections, retries, group commit, migrations, roles and named statements.

The subjects beside this package (turns, conversations …) call `Database`: named statements on the engine's or the
client's login, repeated on another connection when one breaks. Writes of several conversations share a commit. Knows
nothing of turns or conversations. Read `database.py` first, then `pool.py`.
"""
