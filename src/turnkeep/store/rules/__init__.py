"""The rules of turns: claim, queue, quota, branches, fence and leases, as pure functions from facts to decisions.

Both databases work the same way: they load facts under the conversation's lock, call a rule, and write what it decided.
A rule raises the refusal itself, so the words of every refusal are here and nowhere else (`refusals.py`).

Nothing here knows a database, SQL, a connection or a clock: the moment (`now`) is one of the facts. Facts and decisions
are frozen structs. A database may deliver the facts as one JSON document, whose keys are the names of the fields.

Read `claims.py` first: it calls the other rules in the order that `ports.TurnStore.claim` promises.
"""
