-- Erasures: their jobs, and the statements of their steps. Each may be repeated. `user` is NULL for the erasure of one
-- conversation.

-- name: open_erasure
-- The erasure of this user or conversation that is under way.
SELECT {erasure_columns} FROM erasures
 WHERE done_at IS NULL AND org_id = :org AND workspace_id = :workspace
   AND (user_id = :user OR conversation_id = :conversation);

-- name: insert_erasure
INSERT INTO erasures (id, org_id, workspace_id, user_id, conversation_id, counts, created_at, not_before)
VALUES (:id, :org, :workspace, :user, :conversation, :counts, :now, :until)
RETURNING {erasure_columns};

-- name: erasure
SELECT {erasure_columns} FROM erasures WHERE id = :id AND org_id = :org AND workspace_id = :workspace;

-- name: due_erasures
SELECT id FROM erasures WHERE done_at IS NULL AND not_before <= :now ORDER BY not_before LIMIT :limit;

-- name: take_erasure
UPDATE erasures SET not_before = :until WHERE id = :id RETURNING {erasure_columns};

-- name: postpone_erasure
UPDATE erasures SET not_before = :until, problem = :problem, failures = failures + (:problem IS NOT NULL)
 WHERE id = :id AND done_at IS NULL;

-- name: abandon_erasures
-- One process has this file, so the worker that held them has ended.
UPDATE erasures SET not_before = 0 WHERE done_at IS NULL;

-- name: count_erased
-- More was erased; the worker goes on with it.
UPDATE erasures SET counts = :counts, not_before = max(not_before, :until) WHERE id = :id;

-- name: erased_counts
SELECT counts FROM erasures WHERE id = :id;

-- name: disable_user
UPDATE members SET is_disabled = 1 WHERE org_id = :org AND workspace_id = :workspace AND id = :user;

-- name: erasable_conversation
-- The principal's conversation, whether it is deleted or not.
SELECT 1 FROM conversations c
 WHERE c.id = :conversation AND c.org_id = :org AND c.workspace_id = :workspace AND (:user IS NULL OR c.user_id = :user);

-- name: conversations_to_erase
SELECT id FROM conversations WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user LIMIT :limit;

-- name: conversation_to_erase
SELECT id FROM conversations WHERE org_id = :org AND workspace_id = :workspace AND id = :conversation;

-- name: running_turn_of
SELECT id FROM turns WHERE conversation_id = :conversation AND status = 'running';

-- name: hidden_conversation
UPDATE conversations SET deleted_at = coalesce(deleted_at, :now) WHERE id = :conversation;

-- name: files_to_erase
SELECT id, storage_key FROM files WHERE conversation_id IN (SELECT value FROM json_each(:conversations))
 UNION
SELECT id, storage_key FROM files WHERE user_id = :user
 LIMIT :limit;

-- name: erase_file
DELETE FROM files WHERE id = :file RETURNING size, sha256;

-- name: bytes_of_files
SELECT sha256 FROM files WHERE conversation_id = :conversation AND sha256 IS NOT NULL;

-- name: texts_of_bytes
-- Texts of these bytes, unless a file has them. Their key is the hash, a dot and the kind by which the bytes were read, or in
-- earlier releases the hash alone; `/` is the character after the dot.
SELECT t.sha256 FROM file_texts t
 WHERE t.org_id = :org AND t.sha256 >= :sha256 AND t.sha256 < :sha256 || '/'
   AND NOT EXISTS (SELECT 1 FROM files f WHERE f.org_id = :org AND f.sha256 = :sha256);

-- name: lost_texts_of_org
-- Some texts of an org whose last file is gone.
SELECT t.sha256 FROM file_texts t
 WHERE t.org_id = :org
   AND NOT EXISTS (SELECT 1 FROM files f WHERE f.org_id = :org AND f.sha256 = substr(t.sha256, 1, 64))
 LIMIT :limit;

-- name: conversation_sizes
-- How many turns these conversations have, at most.
SELECT id, next_ordinal FROM conversations WHERE id IN (SELECT value FROM json_each(:conversations)) ORDER BY id;

-- name: size_of_conversation
-- Its turns, messages, files and their bytes.
SELECT (SELECT count(*) FROM turns t WHERE t.conversation_id = :conversation),
       (SELECT count(*) FROM turns t CROSS JOIN messages m ON m.turn_id = t.id
         WHERE t.conversation_id = :conversation AND m.internal = 0),
       (SELECT count(*) FROM files f WHERE f.conversation_id = :conversation),
       (SELECT coalesce(sum(f.size), 0) FROM files f WHERE f.conversation_id = :conversation);

-- name: pages_to_erase
SELECT id FROM pages WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user LIMIT :limit;

-- name: hide_tables
UPDATE tables SET deleted_at = :now, import_id = NULL, import_at = NULL
 WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user AND deleted_at IS NULL
RETURNING row_count;

-- name: hidden_table_of
SELECT serial FROM tables
 WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user AND deleted_at IS NOT NULL LIMIT 1;

-- name: abandon_imports_of
-- Imports of this user into tables of others.
UPDATE tables SET import_id = 'abandoned', import_at = 0, import_user_id = NULL
 WHERE org_id = :org AND workspace_id = :workspace AND import_user_id = :user AND import_id IS NOT NULL;

-- name: forget_importer
UPDATE tables SET import_user_id = NULL WHERE import_user_id = :user;

-- name: rows_of_user
-- Some places of rows that this user added.
SELECT n FROM table_rows WHERE org_id = :org AND user_id = :user LIMIT :limit;

-- name: uncount_row
-- A row of an import that has not ended is not counted yet.
UPDATE tables SET row_count = row_count - 1
 WHERE serial = :serial AND (import_first IS NULL OR :number NOT BETWEEN import_first AND import_last);

-- name: erase_batches_of_user
DELETE FROM row_batches WHERE user_id = :user;

-- name: turns_decided_by
-- Some turns of others, not held by a worker, about whose calls this user has decided.
SELECT id, waiting FROM turns
 WHERE workspace_id = :workspace AND id > :after AND waiting IS NOT NULL AND instr(waiting, '"by_id":"' || :user || '"') > 0
   AND (status <> 'running' OR waiting_until IS NOT NULL)
 ORDER BY id LIMIT :limit;

-- name: replace_in_messages
UPDATE messages SET blocks = replace(blocks, :old, :new), display = replace(display, :old, :new)
 WHERE turn_id = :turn AND (instr(blocks, :old) > 0 OR instr(display, :old) > 0);

-- name: replace_in_events
UPDATE turn_events SET payload = replace(payload, :old, :new) WHERE turn_id = :turn AND instr(payload, :old) > 0;

-- name: replace_in_wait
UPDATE turns SET waiting = replace(waiting, :old, :new) WHERE id = :turn;

-- name: left_to_erase
-- Whether anything of the user is left. A conversation that begins after this finds no user.
SELECT EXISTS (SELECT 1 FROM conversations WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user)
       OR EXISTS (SELECT 1 FROM files WHERE user_id = :user)
       OR EXISTS (SELECT 1 FROM pages WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user)
       OR EXISTS (SELECT 1 FROM tables WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user)
       OR EXISTS (SELECT 1 FROM table_rows WHERE org_id = :org AND user_id = :user)
       OR EXISTS (SELECT 1 FROM turns WHERE workspace_id = :workspace AND waiting IS NOT NULL
                     AND instr(waiting, '"by_id":"' || :user || '"') > 0);

-- name: anonymous_usage
UPDATE usage SET scope_id = :anonymous WHERE org_id = :org AND scope = 'user' AND scope_id = :user;

-- name: anonymous_days
UPDATE usage_days SET user_id = :anonymous WHERE org_id = :org AND workspace_id = :workspace AND user_id = :user;

-- name: erase_outbox_of_user
DELETE FROM outbox WHERE org_id = :org AND user_id = :user;

-- name: erase_user
DELETE FROM members WHERE org_id = :org AND workspace_id = :workspace AND id = :user;

-- name: close_erasure
UPDATE erasures SET erased_at = :now WHERE id = :id AND erased_at IS NULL;

-- name: finish_erasure
UPDATE erasures SET done_at = coalesce(done_at, :now), user_id = NULL, conversation_id = NULL, problem = NULL
 WHERE id = :id;

-- name: drop_old_erasures
DELETE FROM erasures WHERE done_at < :before;

-- name: late_erasures
-- How many erasures have been open since before this, for how long the first of them, and why.
SELECT count(*) OVER (), :now - created_at, problem FROM erasures
 WHERE done_at IS NULL AND created_at < :before ORDER BY created_at LIMIT 1;
