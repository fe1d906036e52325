-- The outbox: what the outside must hear of.

-- name: insert_entry
INSERT INTO outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8);

-- name: has_due_entries
SELECT 1 FROM outbox WHERE not_before <= :now AND (type = 'title.wanted') = :titles LIMIT 1;

-- name: take_entries
-- The oldest entries that are due, in any order.
UPDATE outbox SET not_before = :until, attempts = attempts + 1
 WHERE id IN (SELECT id FROM outbox WHERE not_before <= :now AND (type = 'title.wanted') = :titles ORDER BY id LIMIT :limit)
RETURNING {outbox_columns}, (SELECT t.snapshot ->> '$.request_id' FROM turns t WHERE t.id = outbox.subject_id);

-- name: delete_entry
DELETE FROM outbox WHERE id = :id;

-- name: postpone_entry
UPDATE outbox SET not_before = :until WHERE id = :id;

-- name: want_titles
-- Conversations that these turns have begun, and whose title a model may write, if their workspace wants it. The id follows from the turn, so an entry
-- that is delivered twice asks once.
INSERT OR IGNORE INTO outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
SELECT 'title_' || substr(t.id, 6), t.org_id, t.workspace_id, t.user_id, 'title.wanted', c.id, t.id, :now, :now
  FROM turns t JOIN conversations c ON c.id = t.conversation_id JOIN workspaces w ON w.id = t.workspace_id
 WHERE t.id IN (SELECT value FROM json_each(:turns)) AND coalesce(w.title_model <> 'off', :by_default) AND t.status = 'succeeded' AND t.ordinal <= 3
   AND c.titled_by IS NULL AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed;

-- name: ended_title
-- The turn after which the title was wanted, for what is counted with it.
DELETE FROM outbox WHERE id = :id AND type = 'title.wanted' RETURNING conversation_id, subject_id;

-- name: titled_turn
SELECT org_id, workspace_id, user_id, key_id, agent_id, source FROM turns WHERE id = :turn;

-- name: write_title
-- Unless a user has given one meanwhile. Without a title, the one that there is stays.
UPDATE conversations
   SET title = coalesce(:title, title), titled_by = CASE WHEN :title IS NULL THEN 'question' ELSE 'model' END
 WHERE id = :conversation AND titled_by IS NULL AND deleted_at IS NULL;

-- name: count_title
INSERT INTO usage_days (org_id, workspace_id, day, user_id, agent_id, model, source, messages, input_tokens, output_tokens,
                        cache_read_tokens, cache_write_tokens, cost, unpriced)
VALUES (:org_id, :workspace_id, strftime('%Y-%m-%d', :now / 1000, 'unixepoch'), coalesce(:user_id, ''),
        coalesce(:agent_id, ''), :model, :source, 0, :input, :output, :cache_read, :cache_write, coalesce(:cost, 0),
        :cost IS NULL)
ON CONFLICT DO UPDATE
   SET input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens,
       cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
       cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens, cost = cost + excluded.cost,
       unpriced = unpriced + excluded.unpriced;
