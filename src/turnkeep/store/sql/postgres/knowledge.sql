-- Pages and the text of files. What a search finds is read through the client path.

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

-- name: erase_texts
SELECT turnkeep.erase_texts($1)
