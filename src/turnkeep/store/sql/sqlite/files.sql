-- The rows of the file bags.

-- name: file_for_attach
SELECT {file_columns}
  FROM files
 WHERE id = :file AND org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL
   AND (:user IS NULL OR user_id = :user);

-- name: name_is_taken
SELECT 1 FROM files WHERE conversation_id = :conversation AND name_key = :key AND deleted_at IS NULL;

-- name: attach_file
UPDATE files
   SET conversation_id = :conversation, message_id = coalesce(message_id, :message), name = :name, name_key = :key
 WHERE id = :file;

-- name: insert_file
INSERT INTO files (id, org_id, workspace_id, user_id, conversation_id, message_id, name, name_key, mime_type, size,
                   sha256, storage_key, source, status, created_at)
VALUES (:id, :org, :workspace, :user, :conversation, :message, :name, :key, :mime_type, :size,
        :sha256, :storage_key, :source, :status, :created_at)
RETURNING {file_columns};

-- name: own_file
-- A file that the principal may change: of its conversation, or its own where there is none.
SELECT {f.file_columns}
  FROM files f
 WHERE f.id = :file AND f.org_id = :org AND f.workspace_id = :workspace AND f.deleted_at IS NULL
   AND CASE WHEN f.conversation_id IS NULL THEN :user IS NULL OR f.user_id = :user
            ELSE EXISTS (SELECT 1 FROM conversations c
                          WHERE c.id = f.conversation_id AND c.org_id = :org AND c.workspace_id = :workspace
                            AND c.deleted_at IS NULL AND (:user IS NULL OR c.user_id = :user)) END;

-- name: complete_file
UPDATE files SET status = 'ready', size = :size, sha256 = :sha256 WHERE id = :file RETURNING {file_columns};

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
