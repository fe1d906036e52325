-- Pages, the text of files, and the passages by which both are found. What a search finds is read through the client path.

-- name: insert_page
INSERT INTO pages (id, org_id, workspace_id, title, content, created_at, updated_at)
VALUES (:id, :org, :workspace, :title, :content, :now, :now);

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

-- name: texts_without_file
SELECT t.org_id, t.sha256 FROM file_texts t
 WHERE NOT EXISTS (SELECT 1 FROM files f WHERE f.org_id = t.org_id AND f.sha256 = t.sha256)
 LIMIT :limit;

-- name: drop_file_text
DELETE FROM file_texts WHERE org_id = :org AND sha256 = :owner;
