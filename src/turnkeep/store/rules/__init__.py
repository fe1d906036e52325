"""The rules of the store, as pure functions from facts to decisions: once for both databases.

Both databases work the same way: they load facts under a lock, call a rule, and write what it decided. A rule raises
the refusal itself, so the words of every refusal are here and nowhere else. Each subject has one module: `turns`
(branches, queue, leases, fence), `conversations`, `directory`, `files`, `knowledge`. Two more are `claims`, which
makes a turn (claim, attachments, quota, append), and `outbox`, which reports its end.

Nothing here knows a database, SQL, a connection or a clock: the moment (`now`) is one of the facts. Facts and decisions
are frozen structs. A database may deliver the facts as one JSON document, whose keys are the names of the fields.

Read `claims.py` first: it calls the other rules in the order that `ports.TurnStore.claim` promises.

Decision: docs/decisions/0102
"""
