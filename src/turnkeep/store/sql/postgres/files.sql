-- The rows of the file bags.

-- name: add_file
SELECT {f.file_columns} FROM turnkeep.add_file($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) f

-- name: complete_file
SELECT {f.file_columns} FROM turnkeep.complete_file($1, $2, $3, $4, $5, $6) f

-- name: delete_file
SELECT turnkeep.delete_file($1, $2, $3, $4)

-- name: my_file
SELECT {f.file_columns} FROM turnkeep.my_file($1, $2, $3, $4) f

-- name: my_files
SELECT {f.file_columns} FROM turnkeep.my_files($1, $2, $3, $4) f

-- name: files_of_conversation
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.deleted_at IS NULL ORDER BY f.created_at, f.id
