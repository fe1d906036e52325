"""How SQLite is reached: connections, threads with group commit, checkpoints, migrations, and the privacy boundary.

The subjects beside this package (turns, conversations …) hand jobs to `StoreThreads`: functions of a `Session` that
run in the writer's thread or in a reader's. Knows nothing of turns or conversations. Read `executors.py` first, then
`session.py`.
"""
