-- Turns: the calls of the functions that write them, and the engine's reads.

-- name: claim_facts
-- What the claim depends on, and the time.
SELECT turnkeep.now_ms() AS now, turnkeep.claim_facts($1) AS facts

-- name: write_claim
-- Write the claim as it was decided; false, with nothing written, if it was decided on other facts.
SELECT turnkeep.write_claim($1, $2, $3, $4, $5) AS is_written

-- name: append
SELECT turnkeep.append($1, $2)

-- name: append_one
SELECT turnkeep.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)

-- name: record
SELECT r.outcome, r.last_seq, r.cancel_requested, r.files_written
  FROM turnkeep.record($1, $2, $3, $4, $5, $6, $7) r

-- name: settle
SELECT s.job, s.outcome, s.promoted, {(s.turn).turn_columns}
  FROM turnkeep.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) s

-- name: renew
SELECT r.turn_id, r.attempt, r.cancel_requested, r.files_written FROM turnkeep.renew($1, $2, $3) r

-- name: hand_over
SELECT turnkeep.hand_over($1, $2)

-- name: release
SELECT turnkeep.release($1)

-- name: adopt
SELECT a.is_first_start, {(a.turn).turn_columns} FROM turnkeep.adopt($1, $2, $3, $4) a

-- name: promote_waiting
SELECT p FROM turnkeep.promote_waiting() p ORDER BY p COLLATE "C"

-- name: request_cancel
SELECT {t.turn_columns} FROM turnkeep.request_cancel($1, $2, $3, $4) t

-- name: watch
SELECT turnkeep.watch($1, $2)

-- name: cancel_unwatched
SELECT c FROM turnkeep.cancel_unwatched() c ORDER BY c COLLATE "C"

-- name: my_turn
SELECT {t.turn_columns} FROM turnkeep.my_turn($1, $2, $3, $4) t

-- name: own_turn
-- A turn of the owner's conversations, on the engine's path: for what reads internal rows next.
SELECT {t.turn_columns}
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id
 WHERE t.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL

-- name: turn_by_id
SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.id = $1

-- name: running_turn
SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.id = $1 AND t.attempt = $2 AND t.status = 'running'

-- name: count_usage
-- Tokens of a model call that the holder did not make itself. Its settlement replaces the sum with one that has them.
-- A call that was counted is remembered as a token that is spent, so asking again (its answer was lost) adds nothing.
WITH running AS MATERIALIZED (
    SELECT t.id, t.org_id FROM turnkeep.turns t
     WHERE t.id = $1 AND t.attempt = $2 AND t.status = 'running'
       FOR UPDATE
), once AS (
    INSERT INTO turnkeep.one_time_tokens (token_hash, org_id, turn_id, attempt, purpose, expires_at, used_at)
    SELECT $7, r.org_id, r.id, $2, 'run', turnkeep.now_ms(), turnkeep.now_ms() FROM running r
    ON CONFLICT (token_hash) DO NOTHING
    RETURNING turn_id
), counted AS (
    UPDATE turnkeep.turns t
       SET input_tokens = t.input_tokens + $3, output_tokens = t.output_tokens + $4,
           cache_read_tokens = t.cache_read_tokens + $5, cache_write_tokens = t.cache_write_tokens + $6
      FROM once o
     WHERE t.id = o.turn_id
)
SELECT r.id FROM running r

-- name: events_after
-- The content of a result is the display of the turn's final row.
SELECT e.seq, e.payload,
       CASE WHEN e.type = 'result' THEN
           (SELECT m.display FROM turnkeep.messages m
             WHERE m.turn_id = e.turn_id AND NOT m.internal AND m.display IS NOT NULL
             ORDER BY m.turn_sequence DESC LIMIT 1) END
  FROM turnkeep.turn_events e
 WHERE e.turn_id = $1 AND e.seq > $2
 ORDER BY e.seq LIMIT $3

-- name: turn_rows
SELECT {m.message_columns} FROM turnkeep.messages m WHERE m.turn_id = $1 ORDER BY m.turn_sequence

-- name: turn_logs
SELECT l.after_seq, l.level, l.message, l.ts FROM turnkeep.turn_logs l WHERE l.turn_id = $1 ORDER BY l.n

-- name: window
-- The newest turns of the visible chain, newest first, with all their rows: one range of an index for the turns, one for
-- each turn's rows, so it is flat in the conversation's length. The rows of a turn come in any order, and those of the
-- turn at the limit come all: sorting them here would copy every row once more. A plain statement, as a function would
-- copy them too. What most rows lack comes as one column, as each costs.
SELECT m.turn_id, m.turn_sequence, m.id, m.role, m.internal, m.iteration, m.blocks, m.usage, m.provider, m.created_at,
       CASE WHEN num_nonnulls(m.attachments, m.sources, m.metadata, m.legacy) > 0 THEN
           concat('[', coalesce(m.attachments, 'null'), ',', coalesce(m.sources, 'null'), ',',
                  coalesce(m.metadata, 'null'), ',', coalesce(m.legacy, 'null'), ']') END,
       newest.ordinal
  FROM (SELECT t.id, t.ordinal FROM turnkeep.turns t
         WHERE t.conversation_id = $1 AND t.active
         ORDER BY t.ordinal DESC LIMIT $2) newest
  JOIN turnkeep.messages m ON m.turn_id = newest.id
 ORDER BY newest.ordinal DESC FETCH FIRST ($3) ROWS WITH TIES
