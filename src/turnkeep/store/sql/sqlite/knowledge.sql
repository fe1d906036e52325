-- Pages, the text of files, and the passages by which both are found; and tables with their rows. What a search finds is
-- read through the client path. A row's rowid is `serial << 32 | number`; rows that are being imported are not visible.

-- name: insert_page
INSERT INTO pages (id, org_id, workspace_id, title, content, created_at, updated_at, user_id)
VALUES (:id, :org, :workspace, :title, :content, :now, :now, :user);

-- name: page_for_write
SELECT title, content FROM pages WHERE id = :page AND org_id = :org AND workspace_id = :workspace;

-- name: update_page
UPDATE pages SET title = :title, content = :content, updated_at = :now WHERE id = :page;

-- name: delete_page
DELETE FROM pages WHERE id = :page;

-- name: my_page
SELECT id, workspace_id, title, length(content), created_at, updated_at, content FROM my_pages WHERE id = :page;

-- name: my_pages_page
SELECT id, workspace_id, title, length(content), created_at, updated_at
  FROM my_pages
 WHERE (:before IS NULL OR id < :before)
 ORDER BY id DESC
 LIMIT :limit;

-- name: my_page_texts
SELECT id, title, content FROM my_pages WHERE id IN (SELECT value FROM json_each(:ids));

-- name: add_passage
INSERT INTO passages (org_id, workspace_id, owner, start, stop, place)
VALUES (:org, :workspace, :owner, :start, :stop, :place)
RETURNING n;

-- name: add_passage_tokens
INSERT INTO passage_tokens (rowid, title, body) VALUES (:n, :title, :body);

-- name: drop_passage_tokens
DELETE FROM passage_tokens WHERE rowid IN (SELECT n FROM passages WHERE owner = :owner AND org_id = :org);

-- name: drop_passages
DELETE FROM passages WHERE owner = :owner AND org_id = :org;

-- name: search_pages
-- The newest matches of this workspace, best first (a smaller rank is a better one).
SELECT owner, start, stop, place
  FROM (SELECT p.owner, p.start, p.stop, p.place, bm25(passage_tokens, :title_weight, 1.0) AS rank
          FROM passage_tokens s CROSS JOIN passages p ON p.n = s.rowid
         WHERE s.passage_tokens MATCH :query AND p.org_id = :org AND p.workspace_id = :workspace
         ORDER BY s.rowid DESC LIMIT :candidates)
 ORDER BY rank
 LIMIT :limit;

-- name: search_file_texts
SELECT owner, start, stop, place
  FROM (SELECT p.owner, p.start, p.stop, p.place, bm25(passage_tokens, :title_weight, 1.0) AS rank
          FROM passage_tokens s CROSS JOIN passages p ON p.n = s.rowid
         WHERE s.passage_tokens MATCH :query AND p.org_id = :org AND p.owner IN (SELECT value FROM json_each(:owners))
         ORDER BY s.rowid DESC LIMIT :candidates)
 ORDER BY rank
 LIMIT :limit;

-- name: file_texts
SELECT sha256, text, problem FROM file_texts
 WHERE org_id = :org AND sha256 IN (SELECT value FROM json_each(:owners));

-- name: save_file_text
INSERT INTO file_texts (org_id, sha256, text, problem, created_at) VALUES (:org, :sha256, :text, :problem, :now)
ON CONFLICT (org_id, sha256) DO UPDATE SET text = excluded.text, problem = excluded.problem;

-- name: file_of_text
SELECT 1 FROM files WHERE org_id = :org AND sha256 = substr(:owner, 1, 64) LIMIT 1;

-- name: freed_bytes
-- Bytes of which a file was erased.
SELECT org_id, sha256 FROM freed_bytes LIMIT :limit;

-- name: texts_without_file
-- Texts of these bytes, if no file has them any more. The column `sha256` holds the hash, a dot and the kind by which the
-- bytes were read; `/` is the character after the dot. Texts of earlier releases have the hash alone, and are erased.
SELECT t.sha256 FROM file_texts t
 WHERE t.org_id = :org AND t.sha256 >= :sha256 AND t.sha256 < :sha256 || '/'
   AND (length(t.sha256) = 64 OR NOT EXISTS (SELECT 1 FROM files f WHERE f.org_id = :org AND f.sha256 = :sha256));

-- name: forget_freed_bytes
DELETE FROM freed_bytes WHERE org_id = :org AND sha256 = :sha256;

-- name: drop_file_text
DELETE FROM file_texts WHERE org_id = :org AND sha256 = :owner;

-- name: insert_table
INSERT INTO tables (id, org_id, workspace_id, name, name_key, description, columns, created_at, updated_at, user_id)
VALUES (:id, :org, :workspace, :name, :name_key, :description, :columns, :now, :now, :user)
RETURNING {table_columns}, serial;

-- name: table_name_taken
SELECT 1 FROM tables WHERE workspace_id = :workspace AND name_key = :key AND deleted_at IS NULL AND id <> :id;

-- name: table_for_write
SELECT {table_columns}, serial, last_row, import_id, import_first, import_last
  FROM tables
 WHERE id = :table AND org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL;

-- name: update_table
UPDATE tables
   SET name = :name, name_key = :name_key, description = :description, columns = :columns, updated_at = :now
 WHERE id = :table
RETURNING {table_columns}, serial;

-- name: delete_table
UPDATE tables SET deleted_at = :now, import_id = NULL, import_at = NULL WHERE id = :table;

-- name: my_table
SELECT {table_columns}, serial FROM my_tables WHERE id = :table;

-- name: my_tables_page
SELECT {table_columns}, serial FROM my_tables WHERE (:before IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit;

-- name: batch_of_rows
SELECT first, count, digest FROM row_batches WHERE table_serial = :serial AND batch = :batch;

-- name: add_batch_of_rows
INSERT INTO row_batches (table_serial, batch, digest, first, count, created_at, user_id)
VALUES (:serial, :batch, :digest, :first, :count, :now, :user);

-- name: count_rows
UPDATE tables SET row_count = row_count + :count, last_row = max(last_row, :last), updated_at = :now WHERE serial = :serial;

-- name: insert_row
INSERT INTO table_rows (n, org_id, cells, created_at, updated_at, user_id) VALUES (:n, :org, :cells, :now, :now, :user)
ON CONFLICT (n) DO NOTHING;

-- name: add_row_tokens
INSERT OR REPLACE INTO row_tokens (rowid, tokens) VALUES (:n, :tokens);

-- name: my_rows_after
SELECT n & 4294967295, cells, created_at, updated_at FROM my_table_rows
 WHERE n > :after AND n <= :last ORDER BY n LIMIT :limit;

-- name: my_rows_by_n
SELECT n, cells, created_at, updated_at FROM my_table_rows WHERE n IN (SELECT value FROM json_each(:ns));

-- name: row_for_write
SELECT 1 FROM table_rows WHERE n = :n;

-- name: update_row
UPDATE table_rows SET cells = :cells, updated_at = :now WHERE n = :n
RETURNING n & 4294967295, cells, created_at, updated_at;

-- name: delete_row
DELETE FROM table_rows WHERE n = :n;

-- name: drop_row_tokens
DELETE FROM row_tokens WHERE rowid = :n;

-- name: tables_to_search
SELECT id, serial FROM tables WHERE org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL ORDER BY id DESC LIMIT :limit;

-- name: begin_import
UPDATE tables
   SET import_id = :import, import_first = last_row + 1, import_last = last_row + :count, last_row = last_row + :count,
       import_at = :now, import_user_id = :user
 WHERE serial = :serial
RETURNING import_first;

-- name: import_under_way
-- The table and the range of an import that may still write.
SELECT serial, org_id, import_user_id, import_id, import_first, import_last FROM tables
 WHERE id = :table AND import_id = :import AND deleted_at IS NULL;

-- name: touch_import
UPDATE tables SET import_at = :now WHERE serial = :serial;

-- name: finish_import
UPDATE tables
   SET row_count = row_count + (import_last - import_first + 1), import_id = NULL, import_first = NULL,
       import_last = NULL, import_at = NULL, updated_at = :now
 WHERE id = :table AND import_id = :import AND deleted_at IS NULL
RETURNING {table_columns}, serial;

-- name: table_by_id
SELECT {table_columns}, serial FROM tables WHERE id = :table AND deleted_at IS NULL;

-- name: abandon_import
-- From here on it cannot write or finish; its rows stay hidden until they are erased.
UPDATE tables SET import_id = 'abandoned', import_at = 0 WHERE id = :table AND import_id = :import;

-- name: abandon_imports
-- One process has this file, so the imports of an earlier process have ended.
UPDATE tables SET import_id = 'abandoned', import_at = 0 WHERE import_id IS NOT NULL;

-- name: silent_imports
SELECT serial, import_first, import_last FROM tables
 WHERE import_at IS NOT NULL AND import_at < :before AND deleted_at IS NULL LIMIT 20;

-- name: end_import
UPDATE tables SET import_id = NULL, import_first = NULL, import_last = NULL, import_at = NULL WHERE serial = :serial;

-- name: deleted_tables
SELECT serial FROM tables WHERE deleted_at IS NOT NULL LIMIT 20;

-- name: rows_to_erase
SELECT n FROM table_rows WHERE n BETWEEN :first AND :last LIMIT :limit;

-- name: erase_table
DELETE FROM tables WHERE serial = :serial;

-- name: erase_batches_of_table
DELETE FROM row_batches WHERE table_serial = :serial;

-- name: erase_old_batches
DELETE FROM row_batches WHERE created_at < :before;
