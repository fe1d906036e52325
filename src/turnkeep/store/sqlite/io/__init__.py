"""How SQLite is reached: connections, threads with group commit, checkpoints, migrations, and the privacy boundary.

Knows nothing of turns or conversations. Read `executors.py` first, then `session.py`.
"""
