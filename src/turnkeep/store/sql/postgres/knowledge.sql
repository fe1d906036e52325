-- Pages and the text of files. What a search finds is read through the client path.

-- name: insert_page
-- With its passages. The same id again changes nothing. No row if there is no such workspace.
WITH made AS (
    INSERT INTO turnkeep.pages AS p (id, org_id, workspace_id, title, content, created_at, updated_at)
    SELECT $3, w.org_id, w.id, $8, $9, n.now, n.now
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
DELETE FROM turnkeep.passages p WHERE p.owner = $2 AND p.org_id = $1

-- name: add_passages
-- Passages of a page name its workspace. The text of a file belongs to everyone who has a file of these bytes.
INSERT INTO turnkeep.passages (org_id, workspace_id, owner, n, start, stop, place, tokens)
SELECT $1, $2, $3, e.n, e.start, e.stop, e.place, e.tokens::tsvector
  FROM unnest($4::integer[], $5::integer[], $6::text[], $7::text[])
       WITH ORDINALITY AS e (start, stop, place, tokens, n)

-- name: delete_page
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
INSERT INTO turnkeep.file_texts (org_id, sha256, text, problem, created_at)
VALUES ($1, $2, $3, $4, turnkeep.now_ms())
ON CONFLICT (org_id, sha256) DO UPDATE SET text = excluded.text, problem = excluded.problem

-- name: drop_lost_texts
-- Erase texts whose last file is gone, with their passages; say which.
WITH lost AS (
    SELECT t.org_id, t.sha256 FROM turnkeep.file_texts t
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.files f WHERE f.org_id = t.org_id AND f.sha256 = t.sha256)
     LIMIT $1
), dropped AS (
    DELETE FROM turnkeep.passages p USING lost l WHERE p.owner = l.sha256 AND p.org_id = l.org_id
)
DELETE FROM turnkeep.file_texts t USING lost l WHERE t.sha256 = l.sha256 AND t.org_id = l.org_id
RETURNING t.sha256
