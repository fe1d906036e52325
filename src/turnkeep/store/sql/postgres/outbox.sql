-- The outbox: what the outside must hear of.

-- name: take_entries
-- Lease entries that are due, the oldest first. Those that another worker is taking are passed over.
WITH due AS (
    SELECT o.id FROM turnkeep.outbox o
     WHERE o.not_before <= (SELECT turnkeep.now_ms()) ORDER BY o.id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE turnkeep.outbox o SET not_before = turnkeep.now_ms() + $2, attempts = o.attempts + 1
  FROM due WHERE o.id = due.id
RETURNING {o.outbox_columns}, (SELECT t.snapshot::json ->> 'request_id' FROM turnkeep.turns t WHERE t.id = o.subject_id)

-- name: delete_entries
DELETE FROM turnkeep.outbox o WHERE o.id = ANY ($1::text[])

-- name: postpone_entry
UPDATE turnkeep.outbox o SET not_before = turnkeep.now_ms() + $2 WHERE o.id = $1
