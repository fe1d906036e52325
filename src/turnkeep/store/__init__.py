"""What must survive: turns with their rows and events, and everything that belongs to them.

The store answers for durability, for the order of writes, for the rules of turns, and for the privacy boundary between
tenants and users. It knows nothing of HTTP, models, tools or the turn loop: the engine asks it through `ports/`.

- `ports/` has the verbs by subject, with their promises. Read it first.
- `rules/` decides: claim, queue, quota, branches, fence, leases, outbox, as pure functions from facts to decisions, and
  every refusal with its words.
- `checks.py` refuses bad input, in front of either database. `commands.py` has the values that verbs take and return,
  `rows.py` the columns.
- `sqlite/` and `postgres/` load facts, call the rules and write what was decided; the same file names in both. `io/` of
  each knows connections, group commit, migrations and the boundary.
- `sql/` holds the named queries, the functions of PostgreSQL and the migrations.
"""
