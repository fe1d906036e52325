-- Erasures: their jobs, and the statements of their steps. Each may be repeated. The user is NULL for the erasure of one
-- conversation.

-- name: lock_erasures
-- Of requests at once for the same erasure, the first makes it.
SELECT 1 FROM turnkeep.workspaces w WHERE w.id = $1 FOR NO KEY UPDATE

-- name: open_erasure
-- The erasure of this user or conversation that is under way.
SELECT {e.erasure_columns} FROM turnkeep.erasures e
 WHERE e.done_at IS NULL AND e.org_id = $1 AND e.workspace_id = $2 AND (e.user_id = $3::text OR e.conversation_id = $4::text)

-- name: insert_erasure
INSERT INTO turnkeep.erasures AS e (id, org_id, workspace_id, user_id, conversation_id, counts, created_at, not_before)
SELECT $1, $2, $3, $4, $5, $6, n.now, n.now + $7::bigint FROM (SELECT turnkeep.now_ms() AS now) n
ON CONFLICT (id) DO UPDATE SET not_before = excluded.not_before
RETURNING {e.erasure_columns}

-- name: erasure
SELECT {e.erasure_columns} FROM turnkeep.erasures e WHERE e.id = $1 AND e.org_id = $2 AND e.workspace_id = $3

-- name: take_erasures
UPDATE turnkeep.erasures e SET not_before = n.now + $1::bigint
  FROM (SELECT turnkeep.now_ms() AS now) n
 WHERE e.id IN (SELECT x.id FROM turnkeep.erasures x WHERE x.done_at IS NULL AND x.not_before <= turnkeep.now_ms()
                 ORDER BY x.not_before LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING {e.erasure_columns}

-- name: postpone_erasure
UPDATE turnkeep.erasures e
   SET not_before = turnkeep.now_ms() + $2::bigint, problem = $3::text, failures = e.failures + ($3::text IS NOT NULL)::integer
 WHERE e.id = $1 AND e.done_at IS NULL

-- name: erased_counts
-- The job stays locked.
SELECT e.counts FROM turnkeep.erasures e WHERE e.id = $1 FOR UPDATE

-- name: count_erased
-- More was erased; the worker goes on with it.
UPDATE turnkeep.erasures e SET counts = $2, not_before = greatest(e.not_before, turnkeep.now_ms() + $3::bigint) WHERE e.id = $1

-- name: disable_user
UPDATE turnkeep.members m SET is_disabled = true WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.id = $3
RETURNING m.id

-- name: conversations_to_erase
-- slow
SELECT c.id FROM turnkeep.conversations c WHERE c.org_id = $1 AND c.workspace_id = $2 AND c.user_id = $3 LIMIT $4

-- name: conversation_to_erase
SELECT c.id FROM turnkeep.conversations c WHERE c.org_id = $1 AND c.workspace_id = $2 AND c.id = $3

-- name: hide_conversations
-- slow
-- Soft, with their files; turns that run are asked to stop. Says which.
WITH locked AS MATERIALIZED (
    SELECT c.id FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[]) ORDER BY c.id FOR UPDATE
), hidden AS (
    UPDATE turnkeep.conversations c SET deleted_at = coalesce(c.deleted_at, $2) FROM locked l WHERE c.id = l.id
), files AS (
    UPDATE turnkeep.files f SET deleted_at = $2, deleted_with = f.conversation_id FROM locked l
     WHERE f.conversation_id = l.id AND f.deleted_at IS NULL
)
UPDATE turnkeep.turns t SET cancel_requested_at = coalesce(t.cancel_requested_at, $2)
  FROM locked l WHERE t.conversation_id = l.id AND t.status = 'running'
RETURNING t.id

-- name: waiting_turns_of
-- slow
-- With the number of their last event.
SELECT t.id, t.last_seq FROM turnkeep.turns t
 WHERE t.conversation_id = ANY ($1::text[]) AND t.status = 'queued' ORDER BY t.id

-- name: files_to_erase
-- slow
SELECT f.id, f.storage_key FROM turnkeep.files f
 WHERE f.conversation_id = ANY ($1::text[]) OR f.user_id = $2::text LIMIT $3

-- name: lock_copies
-- slow
-- The bytes of these files. Every file of the same bytes is locked: of two workers that erase the last two, the second
-- sees that the first is gone.
SELECT f.sha256 FROM turnkeep.files f
 WHERE f.org_id = $1 AND f.sha256 IN (SELECT x.sha256 FROM turnkeep.files x WHERE x.id = ANY ($2::text[]))
 ORDER BY f.id FOR UPDATE

-- name: erase_files
-- slow
DELETE FROM turnkeep.files f WHERE f.id = ANY ($1::text[]) RETURNING f.storage_key, f.size

-- name: erase_texts
-- slow
-- Texts of these bytes, with their passages, unless a file has them. Their key is the hash, a dot and the kind by which
-- the bytes were read, or in earlier releases the hash alone; `/` is the character after the dot.
WITH lost AS (
    SELECT t.org_id, t.sha256
      FROM unnest($2::text[]) AS bytes (sha256)
      JOIN turnkeep.file_texts t ON t.org_id = $1 AND t.sha256 >= bytes.sha256 AND t.sha256 < bytes.sha256 || '/'
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.files f WHERE f.org_id = $1 AND f.sha256 = bytes.sha256)
), dropped AS (
    DELETE FROM turnkeep.passages p USING lost l WHERE p.owner = l.sha256 AND p.org_id = l.org_id
)
DELETE FROM turnkeep.file_texts t USING lost l WHERE t.sha256 = l.sha256 AND t.org_id = l.org_id

-- name: erase_lost_texts
-- slow
-- Some texts of an org whose last file is gone, with their passages. Says which.
WITH lost AS (
    SELECT t.org_id, t.sha256 FROM turnkeep.file_texts t
     WHERE t.org_id = $1 AND NOT EXISTS (
           SELECT 1 FROM turnkeep.files f WHERE f.org_id = t.org_id AND f.sha256 = substr(t.sha256, 1, 64))
     LIMIT $2
), dropped AS (
    DELETE FROM turnkeep.passages p USING lost l WHERE p.owner = l.sha256 AND p.org_id = l.org_id
)
DELETE FROM turnkeep.file_texts t USING lost l WHERE t.sha256 = l.sha256 AND t.org_id = l.org_id
RETURNING t.sha256

-- name: conversation_sizes
-- slow
-- How many turns these conversations have, at most.
SELECT c.id, c.next_ordinal FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[]) ORDER BY c.id

-- name: lock_erasable
-- slow
-- Those of these conversations in which nothing runs. They stay locked.
SELECT c.id FROM turnkeep.conversations c
 WHERE c.id = ANY ($1::text[])
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.id FOR UPDATE

-- name: size_of_conversations
-- slow
-- Their turns, messages, files and their bytes.
SELECT (SELECT count(*) FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[])),
       (SELECT count(*) FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
         WHERE t.conversation_id = ANY ($1::text[]) AND NOT m.internal),
       (SELECT count(*) FROM turnkeep.files f WHERE f.conversation_id = ANY ($1::text[])),
       (SELECT coalesce(sum(f.size), 0)::bigint FROM turnkeep.files f WHERE f.conversation_id = ANY ($1::text[]))

-- name: erase_pages
-- slow
-- Some pages of this user, with their passages.
WITH gone AS (
    DELETE FROM turnkeep.pages p
     WHERE p.id IN (SELECT x.id FROM turnkeep.pages x WHERE x.org_id = $1 AND x.workspace_id = $2 AND x.user_id = $3 LIMIT $4)
    RETURNING p.id, p.org_id
), dropped AS (
    DELETE FROM turnkeep.passages x USING gone g WHERE x.owner = g.id AND x.org_id = g.org_id
)
SELECT g.id FROM gone g

-- name: hide_tables
-- slow
UPDATE turnkeep.tables t SET deleted_at = turnkeep.now_ms(), import_id = NULL, import_at = NULL
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.user_id = $3 AND t.deleted_at IS NULL
RETURNING t.row_count

-- name: hidden_table_of
-- slow
-- A deleted table of this user. It stays locked.
SELECT t.id FROM turnkeep.tables t
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.user_id = $3 AND t.deleted_at IS NOT NULL
 ORDER BY t.id LIMIT 1 FOR UPDATE

-- name: abandon_imports_of
-- slow
-- Imports of this user into tables of others.
UPDATE turnkeep.tables t SET import_id = 'abandoned', import_at = 0, import_user_id = NULL
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.import_user_id = $3 AND t.import_id IS NOT NULL

-- name: forget_importer
-- slow
UPDATE turnkeep.tables t SET import_user_id = NULL WHERE t.import_user_id = $1

-- name: erase_batches_of_user
-- slow
DELETE FROM turnkeep.row_batches b WHERE b.user_id = $1

-- name: erase_rows_of_user
-- slow
-- Some rows that this user added to a table of others; how many. The table is locked first, as every other write does. A
-- row of an import that has not ended is not counted yet. The range and the order are those of the index table_rows_of_user:
-- without them the planner may read all rows there are, if it believes that many are this user's.
WITH found AS MATERIALIZED (
    SELECT t.id, t.import_first, t.import_last FROM turnkeep.tables t
     WHERE t.id = (SELECT r.table_id FROM turnkeep.table_rows r
                    WHERE r.org_id = $1 AND r.user_id BETWEEN $2 AND $2
                    ORDER BY r.user_id, r.table_id, r.number LIMIT 1)
       FOR UPDATE
), chosen AS MATERIALIZED (
    SELECT r.table_id, r.number FROM turnkeep.table_rows r JOIN found f ON r.table_id = f.id
     WHERE r.user_id = $2 ORDER BY r.number LIMIT $3
), gone AS (
    DELETE FROM turnkeep.table_rows r USING chosen c WHERE r.table_id = c.table_id AND r.number = c.number
    RETURNING r.table_id, r.number
), shown AS (
    SELECT f.id, count(*) FILTER (WHERE f.import_first IS NULL OR g.number NOT BETWEEN f.import_first AND f.import_last) AS rows
      FROM gone g JOIN found f ON f.id = g.table_id GROUP BY f.id
), counted AS (
    UPDATE turnkeep.tables t SET row_count = t.row_count - s.rows FROM shown s WHERE t.id = s.id
)
SELECT count(*) FROM gone

-- name: lock_counters_of_user
-- A claim of this user that is under way ends before this returns. One that comes later finds that the user is disabled.
-- Claims hold the lock of the user. Those of the release before lock the counter instead.
WITH waited AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended($2, 1)))
INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month)
SELECT $1, 'user', $2, to_char(to_timestamp(turnkeep.now_ms() / 1000.0) AT TIME ZONE 'UTC' + d * interval '1 day', 'YYYY-MM')
  FROM waited, unnest(ARRAY[-1, 0, 1]) AS d
 GROUP BY 4 ORDER BY 4
ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE SET cost = u.cost

-- name: turns_decided_by
-- slow
-- Some turns of others, not held by a worker, about whose calls this user has decided. They stay locked.
SELECT t.id, t.waiting FROM turnkeep.turns t
 WHERE t.workspace_id = $1 AND t.id > $3 AND t.waiting IS NOT NULL
   AND strpos(t.waiting, concat('"by_id":"', $2::text, '"')) > 0
   AND (t.status <> 'running' OR t.waiting_until IS NOT NULL)
 ORDER BY t.id LIMIT $4 FOR UPDATE

-- name: replace_in_messages
UPDATE turnkeep.messages m SET blocks = replace(m.blocks, $2, $3), display = replace(m.display, $2, $3)
 WHERE m.turn_id = ANY ($1::text[]) AND (strpos(m.blocks, $2) > 0 OR strpos(m.display, $2) > 0)

-- name: replace_in_events
UPDATE turnkeep.turn_events e SET payload = replace(e.payload, $2, $3)
 WHERE e.turn_id = ANY ($1::text[]) AND strpos(e.payload, $2) > 0

-- name: replace_in_old_events
UPDATE turnkeep.old_events o SET events = replace(o.events, $2, $3) WHERE o.turn_id = ANY ($1::text[])

-- name: replace_in_wait
UPDATE turnkeep.turns t SET waiting = replace(t.waiting, $2, $3) WHERE t.id = ANY ($1::text[])

-- name: left_to_erase
-- slow
-- Whether anything of the user is left.
SELECT EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.org_id = $1 AND c.workspace_id = $2 AND c.user_id = $3)
       OR EXISTS (SELECT 1 FROM turnkeep.files f WHERE f.user_id = $3)
       OR EXISTS (SELECT 1 FROM turnkeep.pages p WHERE p.org_id = $1 AND p.workspace_id = $2 AND p.user_id = $3)
       OR EXISTS (SELECT 1 FROM turnkeep.tables t WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.user_id = $3)
       OR EXISTS (SELECT 1 FROM turnkeep.table_rows r WHERE r.org_id = $1 AND r.user_id = $3)
       OR EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.workspace_id = $2 AND t.waiting IS NOT NULL
                     AND strpos(t.waiting, concat('"by_id":"', $3::text, '"')) > 0)

-- name: anonymous_usage
-- slow
-- Months in which nothing was used were made by the lock alone.
WITH empty AS (
    DELETE FROM turnkeep.usage u
     WHERE u.org_id = $1 AND u.scope = 'user' AND u.scope_id = $2
       AND (u.ui_messages, u.api_messages, u.input_tokens, u.output_tokens) = (0, 0, 0, 0)
), slots AS (
    UPDATE turnkeep.usage_slots s SET scope_id = $3 WHERE s.org_id = $1 AND s.scope = 'user' AND s.scope_id = $2
)
UPDATE turnkeep.usage u SET scope_id = $3
 WHERE u.org_id = $1 AND u.scope = 'user' AND u.scope_id = $2
   AND (u.ui_messages, u.api_messages, u.input_tokens, u.output_tokens) <> (0, 0, 0, 0)

-- name: anonymous_days
-- slow
WITH slots AS (
    UPDATE turnkeep.usage_day_slots s SET user_id = $4 WHERE s.org_id = $1 AND s.workspace_id = $2 AND s.user_id = $3
)
UPDATE turnkeep.usage_days u SET user_id = $4 WHERE u.org_id = $1 AND u.workspace_id = $2 AND u.user_id = $3

-- name: erase_outbox_of_user
-- slow
DELETE FROM turnkeep.outbox o WHERE o.org_id = $1 AND o.user_id = $2

-- name: erase_user
DELETE FROM turnkeep.members m WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.id = $3

-- name: close_erasure
UPDATE turnkeep.erasures e SET erased_at = turnkeep.now_ms() WHERE e.id = $1 AND e.erased_at IS NULL

-- name: finish_erasures
UPDATE turnkeep.erasures e SET done_at = coalesce(e.done_at, turnkeep.now_ms()), user_id = NULL, conversation_id = NULL,
       problem = NULL
 WHERE e.id = ANY ($1::text[])

-- name: drop_old_erasures
DELETE FROM turnkeep.erasures e WHERE e.done_at < turnkeep.now_ms() - $1::bigint

-- name: late_erasures
-- How many erasures have been open for longer than this, for how long the first of them, and why.
SELECT count(*) OVER (), turnkeep.now_ms() - e.created_at, e.problem FROM turnkeep.erasures e
 WHERE e.done_at IS NULL AND e.created_at < turnkeep.now_ms() - $1::bigint ORDER BY e.created_at LIMIT 1
