-- The outbox: what the outside must hear of.

-- name: insert_entry
INSERT INTO outbox (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8);

-- name: has_due_entries
SELECT 1 FROM outbox WHERE not_before <= :now LIMIT 1;

-- name: take_entries
-- The oldest entries that are due, in any order.
UPDATE outbox SET not_before = :until, attempts = attempts + 1
 WHERE id IN (SELECT id FROM outbox WHERE not_before <= :now ORDER BY id LIMIT :limit)
RETURNING {outbox_columns}, (SELECT t.snapshot ->> '$.request_id' FROM turns t WHERE t.id = outbox.subject_id);

-- name: delete_entry
DELETE FROM outbox WHERE id = :id;

-- name: postpone_entry
UPDATE outbox SET not_before = :until WHERE id = :id;
