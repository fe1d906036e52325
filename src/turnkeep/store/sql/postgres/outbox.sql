-- The outbox: what the outside must hear of.

-- name: take_entries
-- Lease entries that are due, the oldest first. Those that another worker is taking are passed over.
WITH due AS (
    SELECT o.id FROM turnkeep.outbox o
     WHERE o.not_before <= (SELECT turnkeep.now_ms()) AND o.type <> 'title.wanted'
     ORDER BY o.id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE turnkeep.outbox o SET not_before = turnkeep.now_ms() + $2, attempts = o.attempts + 1
  FROM due WHERE o.id = due.id
RETURNING {o.outbox_columns}, (SELECT t.snapshot::json ->> 'request_id' FROM turnkeep.turns t WHERE t.id = o.subject_id)

-- name: want_titles
-- Conversations that these turns have begun, and whose title a model may write, if their workspace wants it. The id follows from the turn, so an entry
-- that is delivered twice asks once.
INSERT INTO turnkeep.outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
SELECT 'title_' || substr(t.id, 6), t.org_id, t.workspace_id, t.user_id, 'title.wanted', c.id, t.id, turnkeep.now_ms(),
       turnkeep.now_ms()
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id
  JOIN turnkeep.workspaces w ON w.id = t.workspace_id
 WHERE t.id = ANY ($1::text[]) AND coalesce(w.title_model <> 'off', $2::boolean) AND t.status = 'succeeded' AND t.ordinal <= 3
   AND c.titled_by IS NULL AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed
ON CONFLICT DO NOTHING
RETURNING id

-- name: take_titles
-- Lease titles that are to be written, as `take_entries` does.
WITH due AS (
    SELECT o.id FROM turnkeep.outbox o
     WHERE o.not_before <= (SELECT turnkeep.now_ms()) AND o.type = 'title.wanted'
     ORDER BY o.id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE turnkeep.outbox o SET not_before = turnkeep.now_ms() + $2, attempts = o.attempts + 1
  FROM due WHERE o.id = due.id
RETURNING {o.outbox_columns}, NULL::text

-- name: end_title
-- The title ($2; NULL: the one that there is stays), unless a user has given one meanwhile. Whoever erases the entry counts
-- what the call has used ($4 to $8: input, output, cache read, cache write, cost) for the turn's user, key and workspace.
WITH ended AS (
    DELETE FROM turnkeep.outbox o WHERE o.id = $1 AND o.type = 'title.wanted' RETURNING o.conversation_id, o.subject_id
), titled AS (
    UPDATE turnkeep.conversations c
       SET title = coalesce($2, c.title), titled_by = CASE WHEN $2::text IS NULL THEN 'question' ELSE 'model' END
      FROM ended e WHERE c.id = e.conversation_id AND c.titled_by IS NULL AND c.deleted_at IS NULL
    RETURNING c.id, c.workspace_id, c.user_id
), indexed AS (
    INSERT INTO turnkeep.search_entries AS s (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
    SELECT c.id, c.id, -1, c.workspace_id, c.user_id, array_to_tsvector($3::text[]) FROM titled c WHERE $2 IS NOT NULL
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
), spent AS (
    SELECT t.org_id, t.workspace_id, t.user_id, t.key_id, t.agent_id, t.source,
           to_char(to_timestamp(turnkeep.now_ms() / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day
      FROM turnkeep.turns t JOIN ended e ON t.id = e.subject_id WHERE $4::bigint + $5::bigint > 0
), counted AS (
    INSERT INTO turnkeep.usage_slots AS u (org_id, scope, scope_id, month, slot, input_tokens, output_tokens, cost)
    SELECT x.org_id, s.scope, s.scope_id, left(x.day, 7), turnkeep.own_slot(), $4, $5, coalesce($8::double precision, 0)
      FROM spent x
     CROSS JOIN LATERAL (VALUES ('key', x.key_id), ('user', x.user_id), ('workspace', x.workspace_id)) AS s (scope, scope_id)
     WHERE s.scope_id IS NOT NULL ORDER BY s.scope
    ON CONFLICT (org_id, scope, scope_id, month, slot) DO UPDATE
       SET input_tokens = u.input_tokens + excluded.input_tokens, output_tokens = u.output_tokens + excluded.output_tokens,
           cost = u.cost + excluded.cost
), counted_day AS (
    INSERT INTO turnkeep.usage_day_slots AS d
           (org_id, workspace_id, day, user_id, agent_id, model, source, slot, messages, input_tokens, output_tokens,
            cache_read_tokens, cache_write_tokens, cost, unpriced)
    SELECT x.org_id, x.workspace_id, x.day, coalesce(x.user_id, ''), coalesce(x.agent_id, ''), $9, x.source,
           turnkeep.own_slot(), 0, $4, $5, $6, $7, coalesce($8, 0), ($8 IS NULL)::integer
      FROM spent x
    ON CONFLICT (org_id, workspace_id, day, user_id, agent_id, model, source, slot) DO UPDATE
       SET input_tokens = d.input_tokens + excluded.input_tokens, output_tokens = d.output_tokens + excluded.output_tokens,
           cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = d.cache_write_tokens + excluded.cache_write_tokens, cost = d.cost + excluded.cost,
           unpriced = d.unpriced + excluded.unpriced
)
SELECT EXISTS (SELECT 1 FROM titled WHERE $2 IS NOT NULL)

-- name: delete_entries
DELETE FROM turnkeep.outbox o WHERE o.id = ANY ($1::text[])

-- name: postpone_entry
UPDATE turnkeep.outbox o SET not_before = turnkeep.now_ms() + $2 WHERE o.id = $1
