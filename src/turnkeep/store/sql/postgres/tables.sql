-- Tables and their rows. Rows that are being imported are not visible.

-- name: create_table
SELECT {t.table_columns} FROM turnkeep.create_table($1, $2, $3, $4, $5, $6, $7) t

-- name: table_for_write
SELECT {t.table_columns}, t.import_id FROM turnkeep.tables t
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL FOR UPDATE

-- name: update_table
SELECT {t.table_columns} FROM turnkeep.update_table($1, $2, $3, $4, $5) t

-- name: table_by_id
SELECT {t.table_columns} FROM turnkeep.tables t WHERE t.id = $1 AND t.deleted_at IS NULL

-- name: delete_table
UPDATE turnkeep.tables t SET deleted_at = turnkeep.now_ms(), import_id = NULL, import_at = NULL
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL
RETURNING t.id

-- name: my_table
SELECT {t.table_columns} FROM turnkeep.my_table($1, $2, $3, $4) t

-- name: my_tables
SELECT {t.table_columns} FROM turnkeep.my_tables($1, $2, $3, $4, $5) t

-- name: add_rows
SELECT b.first, b.count, b.digest FROM turnkeep.add_rows($1, $2, $3, $4, $5, $6, $7) b

-- name: batch_of_rows
SELECT b.first, b.count, b.digest FROM turnkeep.row_batches b JOIN turnkeep.tables t ON t.id = b.table_id
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL AND b.batch = $4

-- name: my_table_rows
SELECT number, cells, created_at, updated_at FROM turnkeep.my_table_rows($1, $2, $3, $4, $5, $6)

-- name: my_found_rows
SELECT table_id, number, cells, created_at, updated_at FROM turnkeep.my_found_rows($1, $2, $3, $4, $5)

-- name: change_row
SELECT number, cells, created_at, updated_at FROM turnkeep.change_row($1, $2, $3, $4, $5, $6)

-- name: delete_row
SELECT turnkeep.delete_row($1, $2, $3, $4)

-- name: begin_import
SELECT turnkeep.begin_import($1, $2, $3, $4, $5)

-- name: import_rows
SELECT turnkeep.import_rows($1, $2, $3, $4, $5)

-- name: finish_import
SELECT {t.table_columns} FROM turnkeep.finish_import($1, $2, $3, $4) t

-- name: doom_import
-- From here on it cannot write or finish; its rows stay hidden until they are erased.
UPDATE turnkeep.tables t SET import_id = 'abandoned', import_at = 0 WHERE t.id = $1 AND t.import_id = $2

-- name: erase_rows
SELECT turnkeep.erase_rows($1, $2)

-- name: erase_old_batches
DELETE FROM turnkeep.row_batches b WHERE b.created_at < $1
