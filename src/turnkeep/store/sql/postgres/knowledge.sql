-- Pages, tables and the text of files. What a search finds is read through the client path.

-- name: create_page
SELECT turnkeep.create_page($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: page_for_write
SELECT p.title, p.content FROM turnkeep.pages p WHERE p.org_id = $1 AND p.workspace_id = $2 AND p.id = $3 FOR UPDATE

-- name: update_page
UPDATE turnkeep.pages p SET title = $2, content = $3, updated_at = turnkeep.now_ms() WHERE p.id = $1

-- name: index_passages
SELECT turnkeep.index_passages($1, $2, $3, $4, $5, $6, $7)

-- name: delete_page
SELECT turnkeep.delete_page($1, $2, $3)

-- name: my_page
SELECT p.id, p.workspace_id, p.title, length(p.content), p.created_at, p.updated_at, p.content
  FROM turnkeep.my_page($1, $2, $3, $4) p

-- name: my_pages
SELECT id, workspace_id, title, size, created_at, updated_at FROM turnkeep.my_pages($1, $2, $3, $4, $5)

-- name: my_page_texts
SELECT id, title, content FROM turnkeep.my_page_texts($1, $2, $3, $4)

-- name: search_pages
-- $3 names the workspace and the words; $4 is the words alone, by which matches are ranked.
SELECT f.owner, f.start, f.stop, f.place
  FROM (SELECT p.owner, p.start, p.stop, p.place, p.tokens
          FROM turnkeep.passages p
         WHERE p.tokens @@ $3::text::tsquery AND p.org_id = $1 AND p.workspace_id = $2
         LIMIT $5) f
 ORDER BY ts_rank('{0.1, 0.2, 0.4, 1.0}', f.tokens, $4::text::tsquery, 1) DESC, f.owner DESC, f.start LIMIT $6

-- name: search_file_texts
SELECT f.owner, f.start, f.stop, f.place
  FROM (SELECT p.owner, p.start, p.stop, p.place, p.tokens
          FROM turnkeep.passages p
         WHERE p.tokens @@ $3::text::tsquery AND p.org_id = $1 AND p.owner = ANY ($2::text[])
         LIMIT $5) f
 ORDER BY ts_rank('{0.1, 0.2, 0.4, 1.0}', f.tokens, $4::text::tsquery, 1) DESC, f.owner DESC, f.start LIMIT $6

-- name: file_texts
SELECT t.sha256, t.text, t.problem FROM turnkeep.file_texts t WHERE t.org_id = $1 AND t.sha256 = ANY ($2::text[])

-- name: save_file_text
SELECT turnkeep.save_file_text($1, $2, $3, $4, $5, $6, $7, $8)

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

-- name: erase_texts
SELECT turnkeep.erase_texts($1)

-- name: erase_old_batches
DELETE FROM turnkeep.row_batches b WHERE b.created_at < $1
