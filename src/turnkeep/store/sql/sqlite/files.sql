-- The rows of the file bags.

-- name: taken_names
-- Those of these names that files of the bag have.
SELECT name_key FROM files
 WHERE conversation_id = :conversation AND deleted_at IS NULL AND name_key IN (SELECT value FROM json_each(:keys));

-- name: attach_file
UPDATE files
   SET conversation_id = :conversation, message_id = coalesce(message_id, :message_id), name = :name, name_key = :key
 WHERE id = :id;

-- name: insert_file
-- No row if there is a file with this id.
INSERT INTO files ({new_file_columns}) VALUES ({new_file_values})
ON CONFLICT (id) DO NOTHING
RETURNING {file_columns};

-- name: stored_file
SELECT {file_columns} FROM files WHERE id = :file AND org_id = :org;

-- name: own_file
-- A file that the principal may change: of its conversation, or its own where there is none. An admin may change any
-- of the workspace's Files.
SELECT {f.file_columns}
  FROM files f
 WHERE f.id = :file AND f.org_id = :org AND f.workspace_id = :workspace AND f.deleted_at IS NULL
   AND CASE WHEN f.conversation_id IS NULL
            THEN :user IS NULL OR f.user_id = :user OR (:is_admin AND f.saved_at IS NOT NULL)
            ELSE EXISTS (SELECT 1 FROM conversations c
                          WHERE c.id = f.conversation_id AND c.org_id = :org AND c.workspace_id = :workspace
                            AND c.deleted_at IS NULL AND (:user IS NULL OR c.user_id = :user)) END;

-- name: complete_file
-- The place of the bytes and what was found in them, in one statement: no reader sees one without the other. No row: it
-- is complete already.
UPDATE files
   SET status = 'ready', size = :size, sha256 = :sha256, mime_type = coalesce(:mime_type, mime_type),
       storage_key = coalesce(:storage_key, storage_key), crc32 = :crc32
 WHERE id = :file AND status = 'pending'
RETURNING {file_columns};

-- name: delete_file
UPDATE files SET deleted_at = :now WHERE id = :file;

-- name: my_file
SELECT {file_columns} FROM my_files WHERE id = :file;

-- name: my_files_of_conversation
SELECT {file_columns}
  FROM my_files
 WHERE conversation_id = :conversation AND status = 'ready'
 ORDER BY created_at, id;

-- name: my_conversation_exists
SELECT 1 FROM my_conversations WHERE id = :conversation;

-- name: files_of_conversation
SELECT {file_columns} FROM files WHERE conversation_id = :conversation AND deleted_at IS NULL ORDER BY created_at, id;

-- name: ready_files_of_conversation
SELECT {file_columns}
  FROM files
 WHERE conversation_id = :conversation AND status = 'ready' AND deleted_at IS NULL
 ORDER BY created_at, id;

-- name: my_saved_files
SELECT {file_columns} FROM my_files WHERE saved_at IS NOT NULL AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: my_loose_files
SELECT {file_columns} FROM my_files
 WHERE conversation_id IS NULL AND saved_at IS NULL AND status = 'ready' AND id < :before
 ORDER BY id DESC LIMIT :limit;

-- name: files_by_id
SELECT {file_columns}
  FROM files
 WHERE id IN (SELECT value FROM json_each(:files)) AND org_id = :org AND workspace_id = :workspace
   AND status = 'ready' AND deleted_at IS NULL
 ORDER BY id;

-- name: ready_file_ids
SELECT id FROM files
 WHERE id IN (SELECT value FROM json_each(:files)) AND status = 'ready' AND deleted_at IS NULL;

-- name: files_of_turn
SELECT {file_columns} FROM files WHERE turn_id = :turn AND deleted_at IS NULL ORDER BY created_at, id;

-- name: bag_of_running_turn
SELECT t.org_id, t.workspace_id, t.conversation_id
  FROM turns t JOIN conversations c ON c.id = t.conversation_id
 WHERE t.id = :turn AND t.attempt = :attempt AND t.status = 'running' AND c.deleted_at IS NULL;

-- name: upload
-- What is known of an upload token, of its turn, and of the files that come with it.
SELECT :now, o.used_at, o.expires_at, o.attempt, t.id, t.status, t.attempt, t.org_id, t.workspace_id, c.user_id, c.id,
       c.deleted_at,
       (SELECT count(*) FROM files f WHERE f.turn_id = t.id AND f.id IN (SELECT value FROM json_each(:files))), t.key_id
  FROM one_time_tokens o
  JOIN turns t ON t.id = o.turn_id
  JOIN conversations c ON c.id = t.conversation_id
 WHERE o.token_hash = :hash AND o.purpose = 'upload';

-- name: mark_token_spent
UPDATE one_time_tokens SET used_at = :now WHERE token_hash = :hash;

-- name: count_written_files
-- Its holder reads this number with every record and every renewal.
UPDATE turns SET files_written = files_written + :count WHERE id = :turn;

-- name: carry_written_files
UPDATE files SET message_id = :message WHERE turn_id = :turn AND message_id IS NULL;

-- name: discard_files
-- Those of these files that no message needs. One that a claim has attached meanwhile is in a conversation.
DELETE FROM files
 WHERE id IN (SELECT value FROM json_each(:files)) AND message_id IS NULL AND saved_at IS NULL AND turn_id IS NULL
   AND (status = 'pending' OR conversation_id IS NULL) AND storage_key NOT LIKE 'imported/%'
RETURNING id, storage_key;

-- name: drop_unfinished_files
-- Uploads that were never completed, and files that no conversation took in. What an import named is no upload: its bytes
-- may still come.
DELETE FROM files
 WHERE id IN (SELECT id FROM (SELECT id FROM files
                               WHERE status = 'pending' AND created_at < :before AND storage_key NOT LIKE 'imported/%'
                               ORDER BY created_at, id LIMIT :limit)
              UNION ALL
              SELECT id FROM (SELECT id FROM files
                               WHERE conversation_id IS NULL AND status = 'ready' AND saved_at IS NULL
                                 AND deleted_at IS NULL AND created_at < :unused_before
                               ORDER BY created_at, id LIMIT :limit))
RETURNING id, storage_key;

-- name: known_storage_keys
SELECT storage_key FROM files WHERE storage_key IN (SELECT value FROM json_each(:keys));

-- name: stored_bytes
-- The limits for files of this workspace, user and key (and of the keys that made it), and the bytes that are stored. Deleted
-- files count until their bytes are erased. `workspace_asked` and `user_asked`: the server itself has a limit.
SELECT l.scope, l.id, l.most,
       CASE l.scope
       WHEN 'workspace' THEN (SELECT coalesce(sum(f.size), 0) FROM files f WHERE f.workspace_id = l.id)
       WHEN 'user' THEN (SELECT coalesce(sum(f.size), 0) FROM files f WHERE f.workspace_id = :workspace AND f.user_id = l.id)
       ELSE (SELECT coalesce(sum(f.size), 0) FROM files f
              WHERE f.key_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d WHERE instr(d.ancestors, l.id))) END
  FROM (SELECT 'user' AS scope, m.id, coalesce(m.stored_byte_limit, w.user_stored_byte_limit) AS most, :user_asked AS asked
          FROM members m CROSS JOIN workspaces w ON w.id = m.workspace_id WHERE m.id = :user
         UNION ALL
        SELECT 'workspace', w.id, w.stored_byte_limit, :workspace_asked FROM workspaces w WHERE w.id = :workspace
         UNION ALL
        SELECT 'key', k.id, k.stored_byte_limit, 0 FROM api_keys k
         WHERE k.id = :key OR k.id IN (SELECT a.value FROM api_keys o, json_each(o.ancestors) a WHERE o.id = :key)) l
 WHERE l.most IS NOT NULL OR l.asked;

-- name: pending_file_ids
SELECT id FROM files WHERE status = 'pending' AND deleted_at IS NULL AND id IN (SELECT value FROM json_each(:files));

-- name: all_files
-- Deleted ones too, as long as they can be restored.
SELECT {file_columns} FROM files WHERE id > :after ORDER BY id LIMIT :limit;
