-- The rows of the file bags.

-- name: add_file
SELECT {f.file_columns} FROM turnkeep.add_file($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) f

-- name: complete_file
SELECT {f.file_columns} FROM turnkeep.complete_file($1, $2, $3, $4, $5, $6, $7, $8, $9) f

-- name: delete_file
SELECT turnkeep.delete_file($1, $2, $3, $4, $5)

-- name: my_file
SELECT {f.file_columns} FROM turnkeep.my_file($1, $2, $3, $4) f

-- name: my_files
SELECT {f.file_columns} FROM turnkeep.my_files($1, $2, $3, $4) f

-- name: files_of_conversation
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: my_saved_files
SELECT {f.file_columns} FROM turnkeep.my_saved_files($1, $2, $3, $4, $5) f

-- name: begin_write_back
SELECT w.turn_id, w.org_id, w.workspace_id, w.conversation_id, w.user_id FROM turnkeep.begin_write_back($1, $2) w

-- name: files_by_id
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.id = ANY ($1::text[]) AND f.status = 'ready' AND f.deleted_at IS NULL ORDER BY f.id

-- name: files_of_turn
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.turn_id = $1 AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: bag_of_running_turn
SELECT t.org_id, t.workspace_id, t.conversation_id
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id
 WHERE t.id = $1 AND t.attempt = $2 AND t.status = 'running' AND c.deleted_at IS NULL

-- name: ready_files_of_conversation
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.status = 'ready' AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: all_files
-- Deleted ones too, as long as they can be restored.
SELECT {f.file_columns} FROM turnkeep.files f WHERE f.id > $1 COLLATE "C" ORDER BY f.id LIMIT $2

-- name: drop_unfinished_files
SELECT d.id, d.storage_key FROM turnkeep.drop_unfinished($1, $2) d

-- name: known_storage_keys
SELECT f.storage_key FROM turnkeep.files f WHERE f.storage_key = ANY ($1::text[])

-- name: pending_file_ids
SELECT f.id FROM turnkeep.files f WHERE f.status = 'pending' AND f.id = ANY ($1::text[])
