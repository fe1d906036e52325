-- Turns: what loads facts for the rules, what writes, and the engine's reads.

-- name: claim_facts
-- What each of these claims depends on, and the time.
SELECT turnkeep.now_ms() AS now, turnkeep.claim_facts(a.asked::json) AS facts
  FROM unnest($1::text[]) WITH ORDINALITY AS a (asked, n) ORDER BY a.n

-- name: write_claims
-- Write these claims as they were decided; the conversations of those that were decided on other facts are returned, and
-- nothing is written for them.
SELECT turnkeep.write_claims($1, $2, $3, $4, $5, $6) AS left_out

-- name: write_claim
-- The same for one claim that changes more than it adds; false, with nothing written, if it was decided on other facts.
SELECT turnkeep.write_claim($1, $2, $3, $4, $5, $6, $7, $8) AS is_written

-- name: append
SELECT turnkeep.append($1, $2) AS ordinals

-- name: record
SELECT r.turn_id, r.outcome, r.last_seq, r.cancel_requested, r.files_written, r.steers
  FROM turnkeep.record($1, $2, $3, $4) r

-- name: settle
SELECT s.turn_id, s.outcome, s.last_seq, {(s.turn).turn_columns} FROM turnkeep.settle($1, $2, $3, $4, $5) s

-- name: lock_conversation
SELECT turnkeep.now_ms() AS now FROM turnkeep.conversations c WHERE c.id = $1 FOR UPDATE

-- name: steers_of
-- The queued turns whose words steer this turn, with their questions.
SELECT {m.message_columns}
  FROM turnkeep.turns q JOIN turnkeep.messages m ON m.turn_id = q.id AND m.turn_sequence = 0
 WHERE q.conversation_id = $1 AND q.status = 'queued' AND q.steers_turn_id = $2
 ORDER BY q.ordinal

-- name: count_taken
-- Words that steered a turn are messages of its conversation.
UPDATE turnkeep.conversations c SET message_count = c.message_count + $2 WHERE c.id = $1

-- name: wait
-- The turn waits: no worker holds it, and it needs no reader. The attempt rises, so that its last holder writes no more.
WITH waiting AS (
    UPDATE turnkeep.turns t
       SET attempt = t.attempt + 1, worker = NULL, lease_until = NULL, watched_until = NULL, background = true,
           waiting = $2, waiting_until = $3
     WHERE t.id = $1
    RETURNING t.id, t.org_id, t.workspace_id, t.user_id, t.conversation_id
)
INSERT INTO turnkeep.outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
SELECT $4, w.org_id, w.workspace_id, w.user_id, $5, w.conversation_id, w.id, n.now, n.now
  FROM waiting w, (SELECT turnkeep.now_ms() AS now) n

-- name: hold_wait
-- The turn waits, and its worker holds it meanwhile. Nobody has to watch it.
WITH waiting AS (
    UPDATE turnkeep.turns t SET waiting = $2, watched_until = NULL, background = true
     WHERE t.id = $1
    RETURNING t.id, t.org_id, t.workspace_id, t.user_id, t.conversation_id
)
INSERT INTO turnkeep.outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
SELECT $3, w.org_id, w.workspace_id, w.user_id, $4, w.conversation_id, w.id, n.now, n.now
  FROM waiting w, (SELECT turnkeep.now_ms() AS now) n

-- name: change_held_wait
-- Another answer came, for a turn that its worker holds.
UPDATE turnkeep.turns t SET waiting = $2 WHERE t.id = $1

-- name: change_wait
-- Another answer came. Without $3 the turn goes on: any worker may adopt it.
UPDATE turnkeep.turns t
   SET waiting = $2, waiting_until = $3::bigint, lease_until = CASE WHEN $3::bigint IS NULL THEN -1 ELSE t.lease_until END
 WHERE t.id = $1

-- name: end_overdue_waits
-- What was not answered in time goes on without an answer, from now on: it may have ended while no server ran. The text is
-- extended as it is, since a parser might write its numbers in another way.
UPDATE turnkeep.turns t
   SET waiting_until = NULL, lease_until = -1,
       waiting = '{"resumed_at":' || turnkeep.now_ms() || ',' || substr(t.waiting, 2)
 WHERE t.id = ANY (ARRAY(SELECT o.id FROM turnkeep.turns o
                          WHERE o.waiting_until IS NOT NULL AND o.waiting_until <= (SELECT turnkeep.now_ms())
                          ORDER BY o.waiting_until LIMIT 1000 FOR UPDATE SKIP LOCKED))
RETURNING t.id

-- name: trusted_tools
SELECT c.trusted_tools FROM turnkeep.conversations c WHERE c.id = $1

-- name: trust_tools
UPDATE turnkeep.conversations c SET trusted_tools = $2 WHERE c.id = $1

-- name: has_events
-- Whether these events of the turn, those behind $2, are stored already.
SELECT turnkeep.has_events($1, $2, $3)

-- name: promotion_facts
-- Lock the conversation, and load what decides which of its waiting turns runs next.
SELECT turnkeep.now_ms() AS now, turnkeep.promotion_facts($1) AS facts

-- name: start_waiting
SELECT turnkeep.start_waiting($1, $2, $3, $4, $5)

-- name: cancel_turns
SELECT turnkeep.cancel_turns($1, $2, $3, $4, $5)

-- name: renew
SELECT r.turn_id, r.attempt, r.cancel_requested, r.files_written FROM turnkeep.renew($1, $2, $3, $4, $5) r

-- name: hand_over
SELECT turnkeep.hand_over($1, $2)

-- name: release
SELECT turnkeep.release($1)

-- name: expired_turns
-- Turns whose lease has ended, locked, the longest silent first. Those that another worker is taking are passed over.
-- With $2, only those that were handed over, which have no lease.
SELECT n.now, t.id, t.conversation_id, t.org_id,
       (SELECT m.id FROM turnkeep.messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0) AS user_message_id,
       t.attempt, t.failures, t.last_seq, t.seq_at_adoption, t.lease_until, t.lease_until = -1
  FROM (SELECT turnkeep.now_ms() AS now OFFSET 0) n JOIN turnkeep.turns t
    ON t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < n.now
 WHERE NOT $2 OR t.lease_until <= 0
 ORDER BY t.lease_until, t.id LIMIT $1 FOR UPDATE OF t SKIP LOCKED

-- name: expired_turn
-- The same for one turn. This waits: its holder may be writing just now.
SELECT n.now, t.id, t.conversation_id, t.org_id,
       (SELECT m.id FROM turnkeep.messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0) AS user_message_id,
       t.attempt, t.failures, t.last_seq, t.seq_at_adoption, t.lease_until, t.lease_until = -1
  FROM (SELECT turnkeep.now_ms() AS now OFFSET 0) n JOIN turnkeep.turns t ON t.status = 'running' AND t.lease_until < n.now
 WHERE t.id = $1
   FOR UPDATE OF t

-- name: adopt_turns
-- The next attempt of each, and the event that tells its readers. The readers of the worker that went silent were cut off,
-- and have not left: they are forgotten.
WITH adopted AS (
    UPDATE turnkeep.turns t
       SET attempt = a.attempt, worker = $2, lease_until = $3, last_seq = a.last_seq, seq_at_adoption = a.last_seq,
           failures = a.failures, watched_until = CASE WHEN a.is_first_start THEN t.watched_until END
      FROM json_to_recordset($1) AS a (id text, attempt integer, failures integer, last_seq integer,
                                       is_first_start boolean, type text, payload text)
     WHERE t.id = a.id
    RETURNING t.*, a.type, a.payload
), told AS (
    INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
    SELECT t.id, t.last_seq, t.org_id, t.type, t.payload FROM adopted t
)
SELECT {t.turn_columns} FROM adopted t

-- name: limits_of
-- The limits of a turn that comes out of the queue, and what was used of them (`rules.claims.ScopeLimits`).
SELECT turnkeep.limits_of($1, $2, $3, $4) AS limits

-- name: due_work
-- What a sweep finds to do (`DueWork`).
SELECT d.* FROM turnkeep.due_work($1) d

-- name: hold_sweep
-- Take the sweep lease for this worker, or keep it. No row while another worker has it; nothing is written then.
INSERT INTO turnkeep.sweep_lease AS l (n, worker, lease_until)
SELECT 1, $1, x.now + $2::bigint FROM (SELECT turnkeep.now_ms() AS now) x
 WHERE NOT EXISTS (SELECT 1 FROM turnkeep.sweep_lease o WHERE o.worker <> $1 AND o.lease_until > x.now)
ON CONFLICT (n) DO UPDATE SET worker = excluded.worker, lease_until = excluded.lease_until
 WHERE l.worker = excluded.worker OR l.lease_until <= turnkeep.now_ms()
RETURNING l.worker

-- name: leave_sweep
DELETE FROM turnkeep.sweep_lease l WHERE l.worker = $1

-- name: backlog
-- How many turns do not run, and how long the oldest have waited (`Backlog`). A lease of 1 or less was handed over: since when
-- is not known, and not for long.
SELECT q.turns, q.ms, u.turns, u.ms, w.turns
  FROM (SELECT turnkeep.now_ms() AS now) x
 CROSS JOIN LATERAL (SELECT count(*) AS turns, greatest(0, coalesce(x.now - min(t.created_at), 0)) AS ms
                       FROM turnkeep.turns t WHERE t.status = 'queued') q
 CROSS JOIN LATERAL (SELECT count(*) AS turns, greatest(0, coalesce(x.now - min(t.lease_until) FILTER (WHERE t.lease_until > 1), 0)) AS ms
                       FROM turnkeep.turns t
                      WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < x.now) u
 CROSS JOIN LATERAL (SELECT count(*) AS turns FROM turnkeep.turns t WHERE t.waiting_until IS NOT NULL) w

-- name: conversations_waiting
-- Conversations in which turns wait and none runs.
SELECT DISTINCT q.conversation_id FROM turnkeep.turns q
 WHERE q.status = 'queued'
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns r WHERE r.conversation_id = q.conversation_id AND r.status = 'running')
 ORDER BY q.conversation_id

-- name: lock_own_turn
-- Lock the conversation of a turn, if it is the owner's and not deleted.
SELECT turnkeep.now_ms() AS now FROM turnkeep.conversations c
 WHERE c.id = (SELECT t.conversation_id FROM turnkeep.turns t WHERE t.id = $4)
   AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3) AND c.deleted_at IS NULL
   FOR UPDATE

-- name: lock_turn
SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.id = $1 FOR UPDATE

-- name: mark_cancelled
UPDATE turnkeep.turns t SET cancel_requested_at = $2 WHERE t.id = $1 AND t.cancel_requested_at IS NULL

-- name: change_turn_metadata
UPDATE turnkeep.turns t SET metadata = $2 WHERE t.id = $1

-- name: unwatch
SELECT turnkeep.unwatch($1, $2)

-- name: cancel_unwatched
SELECT c FROM turnkeep.cancel_unwatched() c ORDER BY c COLLATE "C"

-- name: my_turn
SELECT t.* FROM turnkeep.my_turn($1, $2, $3, $4) t

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
    INSERT INTO turnkeep.one_time_tokens AS o (token_hash, org_id, turn_id, attempt, purpose, expires_at, used_at)
    SELECT $7, r.org_id, r.id, $2, 'run', 0, turnkeep.now_ms() FROM running r
    ON CONFLICT (token_hash) DO UPDATE SET used_at = excluded.used_at WHERE o.used_at IS NULL
    RETURNING o.turn_id
), counted AS (
    UPDATE turnkeep.turns t
       SET input_tokens = t.input_tokens + $3, output_tokens = t.output_tokens + $4,
           cache_read_tokens = t.cache_read_tokens + $5, cache_write_tokens = t.cache_write_tokens + $6
      FROM once o
     WHERE t.id = o.turn_id
)
SELECT r.id FROM running r

-- name: open_call
-- A model call that is not counted yet, as a token that is not spent. It has expired from the beginning.
INSERT INTO turnkeep.one_time_tokens (token_hash, org_id, turn_id, attempt, purpose, expires_at)
SELECT $3, t.org_id, t.id, t.attempt, 'run', 0 FROM turnkeep.turns t
 WHERE t.id = $1 AND t.attempt = $2 AND t.status = 'running'
ON CONFLICT (token_hash) DO NOTHING

-- name: has_open_calls
SELECT EXISTS (SELECT 1 FROM turnkeep.one_time_tokens o
                WHERE o.turn_id = $1 AND o.attempt = $2 AND o.expires_at = 0 AND o.used_at IS NULL)

-- name: last_seqs
-- How far these turns have come, for all readers of a worker at once.
SELECT t.id, t.last_seq FROM turnkeep.turns t WHERE t.id = ANY ($1::text[])

-- name: events_after
-- The content of the last event is the display of the turn's final row. concat() is a function that the planner does not
-- compute. So it makes one plan for all turns, and the partitions are chosen when that begins. With $1 alone the plan of one
-- partition would look so much cheaper that every statement would be planned anew.
SELECT e.seq, e.payload,
       CASE WHEN e.type IN ('result', 'error') THEN
           (SELECT m.display FROM turnkeep.messages m
             WHERE m.turn_id = concat($1::text) AND NOT m.internal AND m.display IS NOT NULL
             ORDER BY m.turn_sequence DESC LIMIT 1) END
  FROM turnkeep.turn_events e
 WHERE e.turn_id = concat($1::text) AND e.seq > $2
 ORDER BY e.seq LIMIT $3

-- name: compacted_up_to
SELECT coalesce((SELECT k.up_to FROM turnkeep.compaction k), '')

-- name: turns_to_compact
-- Ids are sorted by time.
SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.id > $1 COLLATE "C" ORDER BY t.id LIMIT $2

-- name: events_of_turns
SELECT e.turn_id, e.payload FROM turnkeep.turn_events e WHERE e.turn_id = ANY ($1::text[]) ORDER BY e.turn_id, e.seq

-- name: rows_of_turns
SELECT {m.message_columns} FROM turnkeep.messages m WHERE m.turn_id = ANY ($1::text[]) ORDER BY m.turn_id, m.turn_sequence

-- name: compact_turns
-- Drop the events of these turns ($2), and the display of these rows ($3, $4). Turns up to $1 are done. The conditions that
-- say the ids again choose the partitions.
WITH compacted AS (
    UPDATE turnkeep.turns t SET last_seq = 0 WHERE t.id = ANY ($2::text[]) AND t.settled_at IS NOT NULL RETURNING t.id
), dropped AS (
    DELETE FROM turnkeep.turn_events e USING compacted c WHERE e.turn_id = c.id AND e.turn_id = ANY ($2::text[])
), shortened AS (
    UPDATE turnkeep.messages m SET display = NULL
      FROM unnest($3::text[], $4::integer[]) AS w (turn_id, turn_sequence)
     WHERE m.turn_id = w.turn_id AND m.turn_sequence = w.turn_sequence AND m.turn_id = ANY ($3::text[])
)
INSERT INTO turnkeep.compaction (n, up_to) VALUES (1, $1)
ON CONFLICT (n) DO UPDATE SET up_to = excluded.up_to

-- name: partitions
-- The partitions of tables that this user owns, each with its range of turn ids: from the first, before the second.
SELECT t.relname::text, p.relname::text, substring(b.range FROM 'FROM \(''(.+?)''\)'), substring(b.range FROM 'TO \(''(.+?)''\)')
  FROM pg_class t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class p ON p.oid = i.inhrelid
 CROSS JOIN LATERAL (SELECT pg_get_expr(p.relpartbound, p.oid) AS range) b
 WHERE t.relnamespace = 'turnkeep'::regnamespace AND t.relkind = 'p' AND pg_has_role(t.relowner, 'USAGE')
 ORDER BY 1, 2

-- name: make_partition
-- slow
SELECT turnkeep.make_partition($1, $2, $3, $4)

-- name: drop_partition
-- slow
SELECT turnkeep.drop_partition($1, $2)

-- name: turns_to_pack
-- slow
-- Some settled turns from $1 on, before $2, that have events.
SELECT DISTINCT e.turn_id FROM turnkeep.turn_events e
 WHERE e.turn_id >= $1 AND e.turn_id < $2
   AND EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.id = e.turn_id AND t.settled_at IS NOT NULL AND t.last_seq > 0
               OFFSET 0)
 ORDER BY e.turn_id LIMIT $3

-- name: pack_events
-- slow
-- Put the events of each of these turns into one row. A turn that another worker has packed meanwhile has no last event.
WITH packed AS (
    UPDATE turnkeep.turns t SET last_seq = 0
     WHERE t.id = ANY ($1::text[]) AND t.settled_at IS NOT NULL AND t.last_seq > 0
    RETURNING t.id, t.org_id
), kept AS (
    INSERT INTO turnkeep.old_events (turn_id, org_id, events)
    SELECT p.id, p.org_id, concat('[', string_agg(e.payload, ',' ORDER BY e.seq), ']')
      FROM packed p JOIN turnkeep.turn_events e ON e.turn_id = p.id
     WHERE e.turn_id = ANY ($1::text[])
     GROUP BY p.id, p.org_id
)
DELETE FROM turnkeep.turn_events e USING packed p WHERE e.turn_id = p.id AND e.turn_id = ANY ($1::text[])

-- name: old_events
-- The events of a packed turn, and the content of the last one: the display of the turn's final row.
SELECT o.events, (SELECT m.display FROM turnkeep.messages m
                   WHERE m.turn_id = o.turn_id AND NOT m.internal AND m.display IS NOT NULL
                   ORDER BY m.turn_sequence DESC LIMIT 1)
  FROM turnkeep.old_events o WHERE o.turn_id = $1

-- name: turn_rows
-- concat() as in `events_after`.
SELECT {m.message_columns} FROM turnkeep.messages m WHERE m.turn_id = concat($1::text) ORDER BY m.turn_sequence

-- name: turn_logs
SELECT l.after_seq, l.level, l.message, l.ts FROM turnkeep.turn_logs l WHERE l.turn_id = $1 ORDER BY l.n

-- name: chain_forward
-- Turns of the visible chain beyond an ordinal, the oldest first.
SELECT {t.turn_columns} FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND t.active AND t.ordinal > $2
 ORDER BY t.ordinal LIMIT $3

-- name: chain_backward
SELECT {t.turn_columns} FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND t.active AND t.ordinal < $2
 ORDER BY t.ordinal DESC LIMIT $3

-- name: window
-- The newest turns of the visible chain before an ordinal, newest first, with all their rows: one range of an index for the turns, one for
-- each turn's rows, so it is flat in the conversation's length. The rows of a turn come in any order, and those of the
-- turn at the limit come all: sorting them here would copy every row once more. A plain statement, as a function would
-- copy them too. What most rows lack comes as one column, as each costs.
SELECT m.turn_id, m.turn_sequence, m.id, m.role, m.internal, m.iteration, m.blocks, m.usage, m.provider, m.created_at,
       CASE WHEN num_nonnulls(m.attachments, m.sources, m.metadata, m.legacy, m.removed) > 0 THEN
           concat('[', coalesce(m.attachments, 'null'), ',', coalesce(m.sources, 'null'), ',',
                  coalesce(m.metadata, 'null'), ',', coalesce(m.legacy, 'null'), ',',
                  coalesce(m.removed, 'null'), ']') END,
       newest.ordinal, r.report
  FROM (SELECT t.id, t.ordinal FROM turnkeep.turns t
         WHERE t.conversation_id = $1 AND t.active AND t.ordinal < $4
         ORDER BY t.ordinal DESC LIMIT $2) newest
  LEFT JOIN turnkeep.turn_reports r ON r.turn_id = newest.id
  JOIN turnkeep.messages m ON m.turn_id = newest.id
 ORDER BY newest.ordinal DESC FETCH FIRST ($3) ROWS WITH TIES
