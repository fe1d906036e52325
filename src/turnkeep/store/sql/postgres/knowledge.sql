-- Pages, the text of files, and tables with their rows. What a search finds is read through the client path. Rows that are
-- being imported are not visible.

-- name: insert_page
-- With its passages. The same id again changes nothing. No row if there is no such workspace.
WITH made AS (
    INSERT INTO turnkeep.pages AS p (id, org_id, workspace_id, title, content, created_at, updated_at, user_id)
    SELECT $3, w.org_id, w.id, $8, $9, n.now, n.now, $10
      FROM turnkeep.workspaces w, (SELECT turnkeep.now_ms() AS now) n WHERE w.org_id = $1 AND w.id = $2
    ON CONFLICT (id) DO UPDATE SET title = excluded.title
    RETURNING p.id, p.org_id, p.workspace_id
), found AS (
    INSERT INTO turnkeep.passages (org_id, workspace_id, owner, n, start, stop, place, tokens)
    SELECT m.org_id, m.workspace_id, m.id, e.n, e.start, e.stop, e.place, e.tokens::tsvector
      FROM made m, unnest($4::integer[], $5::integer[], $6::text[], $7::text[])
                   WITH ORDINALITY AS e (start, stop, place, tokens, n)
    ON CONFLICT (owner, org_id, n) DO NOTHING
)
SELECT m.id FROM made m

-- name: page_for_write
SELECT p.title, p.content FROM turnkeep.pages p WHERE p.org_id = $1 AND p.workspace_id = $2 AND p.id = $3 FOR UPDATE

-- name: update_page
UPDATE turnkeep.pages p SET title = $2, content = $3, updated_at = turnkeep.now_ms() WHERE p.id = $1

-- name: drop_passages
-- slow
DELETE FROM turnkeep.passages p WHERE p.owner = $2 AND p.org_id = $1

-- name: add_passages
-- slow
-- Passages of a page name its workspace. The text of a file belongs to everyone who has a file of these bytes.
INSERT INTO turnkeep.passages (org_id, workspace_id, owner, n, start, stop, place, tokens)
SELECT $1, $2, $3, e.n, e.start, e.stop, e.place, e.tokens::tsvector
  FROM unnest($4::integer[], $5::integer[], $6::text[], $7::text[])
       WITH ORDINALITY AS e (start, stop, place, tokens, n)

-- name: delete_page
-- slow
-- With its passages.
WITH gone AS (
    DELETE FROM turnkeep.pages p WHERE p.id = $3 AND p.org_id = $1 AND p.workspace_id = $2 RETURNING p.id, p.org_id
), dropped AS (
    DELETE FROM turnkeep.passages x USING gone g WHERE x.owner = g.id AND x.org_id = g.org_id
)
SELECT g.id FROM gone g

-- name: my_page
SELECT p.id, p.workspace_id, p.title, length(p.content), p.created_at, p.updated_at, p.content
  FROM turnkeep.my_page($1, $2, $3, $4) p

-- name: my_pages
SELECT id, workspace_id, title, size, created_at, updated_at FROM turnkeep.my_pages($1, $2, $3, $4, $5)

-- name: my_page_texts
SELECT id, title, content FROM turnkeep.my_page_texts($1, $2, $3, $4)

-- name: search_pages
-- slow
-- $3 names the workspace and the words; $4 is the words alone, by which matches are ranked.
SELECT f.owner, f.start, f.stop, f.place
  FROM (SELECT p.owner, p.start, p.stop, p.place, p.tokens
          FROM turnkeep.passages p
         WHERE p.tokens @@ $3::text::tsquery AND p.org_id = $1 AND p.workspace_id = $2
         LIMIT $5) f
 ORDER BY ts_rank('{0.1, 0.2, 0.4, 1.0}', f.tokens, $4::text::tsquery, 1) DESC, f.owner DESC, f.start LIMIT $6

-- name: search_file_texts
-- slow
SELECT f.owner, f.start, f.stop, f.place
  FROM (SELECT p.owner, p.start, p.stop, p.place, p.tokens
          FROM turnkeep.passages p
         WHERE p.tokens @@ $3::text::tsquery AND p.org_id = $1 AND p.owner = ANY ($2::text[])
         LIMIT $5) f
 ORDER BY ts_rank('{0.1, 0.2, 0.4, 1.0}', f.tokens, $4::text::tsquery, 1) DESC, f.owner DESC, f.start LIMIT $6

-- name: file_texts
SELECT t.sha256, t.text, t.problem FROM turnkeep.file_texts t WHERE t.org_id = $1 AND t.sha256 = ANY ($2::text[])

-- name: save_file_text
INSERT INTO turnkeep.file_texts (org_id, sha256, text, problem, created_at)
VALUES ($1, $2, $3, $4, turnkeep.now_ms())
ON CONFLICT (org_id, sha256) DO UPDATE SET text = excluded.text, problem = excluded.problem

-- name: lock_file_of_text
-- A file with these bytes, which is not erased before the transaction ends.
SELECT 1 FROM turnkeep.files f WHERE f.org_id = $1 AND f.sha256 = substr($2, 1, 64) LIMIT 1 FOR KEY SHARE

-- name: drop_lost_texts
-- slow
-- Look at bytes of which a file was erased, and erase their texts, with the passages, if that was the last file. The answer
-- has a row for each. The column `sha256` of texts holds the hash, a dot and the kind by which the bytes were read; `/` is
-- the character after the dot. Texts of earlier releases have the hash alone, and are erased.
WITH freed AS (
    DELETE FROM turnkeep.freed_bytes b
     USING (SELECT x.org_id, x.sha256 FROM turnkeep.freed_bytes x LIMIT $1 FOR UPDATE SKIP LOCKED) x
     WHERE b.org_id = x.org_id AND b.sha256 = x.sha256
    RETURNING b.org_id, b.sha256
), lost AS (
    SELECT l.org_id, l.sha256
      FROM freed b
     CROSS JOIN LATERAL (
           SELECT t.org_id, t.sha256 FROM turnkeep.file_texts t
            WHERE t.org_id = b.org_id AND t.sha256 >= b.sha256 AND t.sha256 < b.sha256 || '/'
              AND (length(t.sha256) = 64 OR NOT EXISTS (
                   SELECT 1 FROM turnkeep.files f
                    WHERE f.org_id = b.org_id AND f.sha256 = b.sha256 COLLATE "default" OFFSET 0)) OFFSET 0) l
), dropped AS (
    DELETE FROM turnkeep.passages p USING lost l WHERE p.owner = l.sha256 AND p.org_id = l.org_id
), erased AS (
    DELETE FROM turnkeep.file_texts t USING lost l WHERE t.sha256 = l.sha256 AND t.org_id = l.org_id
)
SELECT b.sha256 FROM freed b

-- name: insert_table
-- The same id again changes nothing. No row if there is no such workspace.
INSERT INTO turnkeep.tables AS t
       (id, org_id, workspace_id, name, name_key, description, columns, created_at, updated_at, user_id)
SELECT $3, w.org_id, w.id, $4, $5, $6, $7, n.now, n.now, $8
  FROM turnkeep.workspaces w, (SELECT turnkeep.now_ms() AS now) n WHERE w.org_id = $1 AND w.id = $2
ON CONFLICT (id) DO UPDATE SET name = excluded.name
RETURNING {t.table_columns}

-- name: table_for_write
-- It stays locked. Tables have no serial here.
SELECT {t.table_columns}, 0 AS serial, t.last_row, t.import_id, t.import_first, t.import_last FROM turnkeep.tables t
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL FOR UPDATE

-- name: table_exists
SELECT 1 FROM turnkeep.tables t
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL

-- name: update_table
UPDATE turnkeep.tables t
   SET name = $2, name_key = $3, description = $4, columns = $5, updated_at = turnkeep.now_ms()
 WHERE t.id = $1
RETURNING {t.table_columns}

-- name: table_by_id
SELECT {t.table_columns} FROM turnkeep.tables t WHERE t.id = $1 AND t.deleted_at IS NULL

-- name: delete_table
-- slow
UPDATE turnkeep.tables t SET deleted_at = turnkeep.now_ms(), import_id = NULL, import_at = NULL
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL
RETURNING t.id

-- name: my_table
SELECT {t.table_columns} FROM turnkeep.my_table($1, $2, $3, $4) t

-- name: my_tables
SELECT {t.table_columns} FROM turnkeep.my_tables($1, $2, $3, $4, $5) t

-- name: add_rows
-- slow
-- Rows under the next numbers of a table that is locked, and their batch.
WITH kept AS (
    INSERT INTO turnkeep.row_batches (table_id, batch, digest, first, count, created_at, user_id)
    VALUES ($2, $3, $4, $5, $6, turnkeep.now_ms(), $9)
), added AS (
    INSERT INTO turnkeep.table_rows (table_id, number, org_id, cells, tokens, created_at, updated_at, user_id)
    SELECT $2, $5 + e.n::integer - 1, $1, e.cells::json, e.tokens::tsvector, x.now, x.now, $9
      FROM unnest($7::text[], $8::text[]) WITH ORDINALITY AS e (cells, tokens, n),
           (SELECT turnkeep.now_ms() AS now) x
)
UPDATE turnkeep.tables t
   SET row_count = t.row_count + $6::integer, last_row = t.last_row + $6::integer, updated_at = turnkeep.now_ms()
 WHERE t.id = $2

-- name: batch_of_rows
SELECT b.first, b.count, b.digest FROM turnkeep.row_batches b WHERE b.table_id = $1 AND b.batch = $2

-- name: add_batch_of_rows
INSERT INTO turnkeep.row_batches (table_id, batch, digest, first, count, created_at, user_id)
SELECT t.id, $2, $3, $4, $5, turnkeep.now_ms(), t.import_user_id FROM turnkeep.tables t WHERE t.id = $1

-- name: my_table_rows
-- slow
SELECT number, cells, created_at, updated_at FROM turnkeep.my_table_rows($1, $2, $3, $4, $5, $6)

-- name: my_found_rows
-- slow
SELECT table_id, number, cells, created_at, updated_at FROM turnkeep.my_found_rows($1, $2, $3, $4, $5)

-- name: change_row
UPDATE turnkeep.table_rows r SET cells = $5::text::json, tokens = $6::text::tsvector, updated_at = turnkeep.now_ms()
  FROM turnkeep.tables t
 WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL
   AND r.table_id = t.id AND r.number = $4
RETURNING r.number, r.cells, r.created_at, r.updated_at

-- name: delete_row
-- The table is locked first, as every other write does.
WITH found AS (
    SELECT t.id FROM turnkeep.tables t
     WHERE t.org_id = $1 AND t.workspace_id = $2 AND t.id = $3 AND t.deleted_at IS NULL FOR UPDATE
), gone AS (
    DELETE FROM turnkeep.table_rows r USING found f WHERE r.table_id = f.id AND r.number = $4 RETURNING r.table_id
)
UPDATE turnkeep.tables t SET row_count = t.row_count - 1, updated_at = turnkeep.now_ms()
  FROM gone g WHERE t.id = g.table_id
RETURNING t.id

-- name: begin_import
UPDATE turnkeep.tables t
   SET import_id = $2, import_first = t.last_row + 1, import_last = t.last_row + $3::integer,
       last_row = t.last_row + $3::integer, import_at = turnkeep.now_ms(), import_user_id = $4
 WHERE t.id = $1

-- name: import_rows
-- slow
-- No row: the import was given up, the table was deleted, or the numbers were not reserved.
WITH found AS (
    UPDATE turnkeep.tables t SET import_at = turnkeep.now_ms()
     WHERE t.id = $1 AND t.import_id = $2 AND t.deleted_at IS NULL
       AND $3::integer >= t.import_first AND $3::integer + cardinality($4::text[]) - 1 <= t.import_last
    RETURNING t.id, t.org_id, t.import_user_id
), added AS (
    INSERT INTO turnkeep.table_rows (table_id, number, org_id, cells, tokens, created_at, updated_at, user_id)
    SELECT f.id, $3::integer + e.n::integer - 1, f.org_id, e.cells::json, e.tokens::tsvector, x.now, x.now, f.import_user_id
      FROM found f, unnest($4::text[], $5::text[]) WITH ORDINALITY AS e (cells, tokens, n),
           (SELECT turnkeep.now_ms() AS now) x
    ON CONFLICT (table_id, number) DO NOTHING
)
SELECT f.id FROM found f

-- name: import_under_way
-- The range of an import that may still write, and whether there is a batch of this name. The table stays locked.
SELECT t.import_id, t.import_first, t.import_last,
       EXISTS (SELECT 1 FROM turnkeep.row_batches b WHERE b.table_id = t.id AND b.batch = $3)
  FROM turnkeep.tables t
 WHERE t.id = $1 AND t.import_id = $2 AND t.deleted_at IS NULL FOR UPDATE

-- name: finish_import
-- slow
UPDATE turnkeep.tables t
   SET row_count = t.row_count + (t.import_last - t.import_first + 1), import_id = NULL, import_first = NULL,
       import_last = NULL, import_at = NULL, updated_at = turnkeep.now_ms()
 WHERE t.id = $1
RETURNING {t.table_columns}

-- name: abandon_import
-- slow
-- From here on it cannot write or finish; its rows stay hidden until they are erased.
UPDATE turnkeep.tables t SET import_id = 'abandoned', import_at = 0 WHERE t.id = $1 AND t.import_id = $2

-- name: tables_to_erase
-- slow
-- Deleted tables, and those with an import that was silent since then. They stay locked.
SELECT t.id, t.deleted_at IS NOT NULL, t.import_first, t.import_last FROM turnkeep.tables t
 WHERE t.id IN (SELECT d.id FROM turnkeep.tables d WHERE d.deleted_at IS NOT NULL
                 UNION ALL SELECT i.id FROM turnkeep.tables i WHERE i.import_at < $1)
 ORDER BY t.id LIMIT 20 FOR UPDATE SKIP LOCKED

-- name: erase_rows
-- slow
DELETE FROM turnkeep.table_rows r
 WHERE r.table_id = $1 AND r.number IN (SELECT x.number FROM turnkeep.table_rows x
                                         WHERE x.table_id = $1 AND x.number BETWEEN $2 AND $3
                                         ORDER BY x.number LIMIT $4)
RETURNING r.number

-- name: end_import
-- slow
UPDATE turnkeep.tables t SET import_id = NULL, import_first = NULL, import_last = NULL, import_at = NULL
 WHERE t.id = $1

-- name: erase_table
-- slow
-- With the names of its batches.
WITH batches AS (DELETE FROM turnkeep.row_batches b WHERE b.table_id = $1)
DELETE FROM turnkeep.tables t WHERE t.id = $1

-- name: erase_old_batches
-- slow
DELETE FROM turnkeep.row_batches b WHERE b.created_at < $1
