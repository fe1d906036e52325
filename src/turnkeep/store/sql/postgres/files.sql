-- The rows of the file bags.

-- name: lock_bag
-- While it is locked, no other caller chooses names in this bag.
SELECT 1 FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL
   FOR UPDATE

-- name: taken_names_among
-- Those of these names that files of the bag have.
SELECT f.name_key FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.name_key = ANY ($2::text[]) AND f.deleted_at IS NULL

-- name: lock_files
-- In the order in which claims lock them.
SELECT 1 FROM turnkeep.files f WHERE f.id = ANY ($1::text[]) ORDER BY f.id FOR UPDATE

-- name: attachable_files
-- Those of these files that a conversation may take in, and the names that it has already (`rules.claims.Attachable`).
SELECT turnkeep.attachable($1, $2, $3, $4, $5)::text

-- name: attach_files
-- Put files into a conversation, under their names there.
UPDATE turnkeep.files f
   SET conversation_id = $1, message_id = coalesce(f.message_id, a.message_id), name = a.name, name_key = a.key
  FROM json_to_recordset($2::json) AS a (id text, message_id text, name text, key text)
 WHERE f.id = a.id

-- name: insert_files
-- Those that were inserted. One whose id is there already is left out.
INSERT INTO turnkeep.files AS f ({new_file_columns})
SELECT {n.new_file_columns} FROM json_populate_recordset(NULL::turnkeep.files, $1::json) n
ON CONFLICT (id) DO NOTHING
RETURNING {f.file_columns}

-- name: stored_files
SELECT {f.file_columns} FROM turnkeep.files f WHERE f.id = ANY ($1::text[]) AND f.org_id = $2

-- name: own_file
SELECT {f.file_columns} FROM turnkeep.files f WHERE f.id = $5 AND turnkeep.owns_file(f, $1, $2, $3, $4)

-- name: complete_file
-- The place of the bytes and what was found in them, in one statement: no reader sees one without the other, and of
-- many callers at once one decides. No row: it is complete already, or there is no such file for this owner.
UPDATE turnkeep.files f
   SET status = 'ready', size = $5, sha256 = $6, mime_type = coalesce($7::text, f.mime_type),
       storage_key = coalesce($8::text, f.storage_key), crc32 = $9
 WHERE f.id = $4 AND f.status = 'pending' AND turnkeep.owns_file(f, $1, $2, $3, false)
RETURNING {f.file_columns}

-- name: delete_file
UPDATE turnkeep.files f SET deleted_at = turnkeep.now_ms()
 WHERE f.id = $5 AND turnkeep.owns_file(f, $1, $2, $3, $4)
RETURNING f.id

-- name: my_file
SELECT {f.file_columns} FROM turnkeep.my_file($1, $2, $3, $4) f

-- name: my_files
SELECT {f.file_columns} FROM turnkeep.my_files($1, $2, $3, $4) f

-- name: files_of_conversation
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: my_loose_files
SELECT {f.file_columns} FROM turnkeep.my_loose_files($1, $2, $3, $4, $5) f

-- name: my_saved_files
SELECT {f.file_columns} FROM turnkeep.my_saved_files($1, $2, $3, $4, $5) f

-- name: lock_bag_of_token
SELECT 1 FROM turnkeep.conversations c
 WHERE c.id = (SELECT t.conversation_id FROM turnkeep.one_time_tokens o JOIN turnkeep.turns t ON t.id = o.turn_id
                WHERE o.token_hash = $1)
   FOR UPDATE

-- name: upload
-- What is known of an upload token, of its turn, and of the files that come with it. The turn and the token stay locked.
SELECT turnkeep.now_ms(), o.used_at, o.expires_at, o.attempt, t.id, t.status, t.attempt, t.org_id, t.workspace_id,
       c.user_id, c.id, c.deleted_at,
       (SELECT count(*) FROM turnkeep.files f WHERE f.turn_id = t.id AND f.id = ANY ($2::text[])), t.key_id
  FROM turnkeep.turns t
  JOIN turnkeep.one_time_tokens o ON o.turn_id = t.id
  JOIN turnkeep.conversations c ON c.id = t.conversation_id
 WHERE o.token_hash = $1 AND o.purpose = 'upload'
   FOR UPDATE OF t, o

-- name: mark_token_spent
-- The holder of the turn reads the number of files with every record and every renewal.
WITH spent AS (UPDATE turnkeep.one_time_tokens o SET used_at = turnkeep.now_ms() WHERE o.token_hash = $1)
UPDATE turnkeep.turns t SET files_written = t.files_written + $3::integer WHERE t.id = $2

-- name: files_by_id
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.id = ANY ($3::text[]) AND f.org_id = $1 AND f.workspace_id = $2
   AND f.status = 'ready' AND f.deleted_at IS NULL ORDER BY f.id

-- name: ready_file_ids
SELECT f.id FROM turnkeep.files f
 WHERE f.id = ANY ($1::text[]) AND f.status = 'ready' AND f.deleted_at IS NULL

-- name: files_of_turn
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.turn_id = $1 AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: bag_of_running_turn
SELECT t.org_id, t.workspace_id, t.conversation_id
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id
 WHERE t.id = $1 AND t.attempt = $2 AND t.status = 'running' AND c.deleted_at IS NULL

-- name: ready_files_of_conversation
SELECT {f.file_columns} FROM turnkeep.files f
 WHERE f.conversation_id = $1 AND f.status = 'ready' AND f.deleted_at IS NULL ORDER BY f.created_at, f.id

-- name: all_files
-- slow
-- Deleted ones too, as long as they can be restored.
SELECT {f.file_columns} FROM turnkeep.files f WHERE f.id > $1 COLLATE "C" ORDER BY f.id LIMIT $2

-- name: discard_files
-- Those of these files that no message needs. One that a claim has attached meanwhile is in a conversation.
DELETE FROM turnkeep.files f
 WHERE f.id = ANY ($1::text[]) AND f.message_id IS NULL AND f.saved_at IS NULL AND f.turn_id IS NULL
   AND (f.status = 'pending' OR f.conversation_id IS NULL) AND f.storage_key NOT LIKE 'imported/%'
RETURNING f.id, f.storage_key

-- name: drop_unfinished_files
-- slow
-- Uploads that were never completed, and files that no conversation took in. What an import named is no upload: its bytes
-- may still come.
DELETE FROM turnkeep.files f
 WHERE f.id = ANY (ARRAY(SELECT x.id FROM turnkeep.files x
                          WHERE x.status = 'pending' AND x.created_at < $1 AND x.storage_key NOT LIKE 'imported/%'
                          ORDER BY x.created_at, x.id LIMIT $3 FOR UPDATE SKIP LOCKED)
                   || ARRAY(SELECT x.id FROM turnkeep.files x
                             WHERE x.conversation_id IS NULL AND x.status = 'ready' AND x.saved_at IS NULL
                               AND x.deleted_at IS NULL AND x.created_at < $2
                             ORDER BY x.created_at, x.id LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING f.id, f.storage_key

-- name: known_storage_keys
-- slow
SELECT f.storage_key FROM turnkeep.files f WHERE f.storage_key = ANY ($1::text[])

-- name: stored_bytes
-- The limits for files of this workspace ($1), user ($2) and key ($3; and of the keys that made it), and the bytes that are
-- stored. Deleted files count until their bytes are erased. $4 and $5: the server itself has a limit for workspaces, for
-- users.
SELECT l.scope, l.id, l.most,
       (CASE l.scope
        WHEN 'workspace' THEN (SELECT coalesce(sum(f.size), 0) FROM turnkeep.files f WHERE f.workspace_id = l.id)
        WHEN 'user' THEN (SELECT coalesce(sum(f.size), 0) FROM turnkeep.files f WHERE f.workspace_id = $1 AND f.user_id = l.id)
        ELSE (SELECT coalesce(sum(f.size), 0) FROM turnkeep.files f
               WHERE f.key_id IN (SELECT l.id UNION ALL
                                  SELECT d.id FROM turnkeep.api_keys d WHERE strpos(d.ancestors, l.id) > 0)) END)::bigint
  FROM (SELECT 'user' AS scope, m.id, coalesce(m.stored_byte_limit, w.user_stored_byte_limit) AS most, $5::boolean AS asked
          FROM turnkeep.members m JOIN turnkeep.workspaces w ON w.id = m.workspace_id WHERE m.id = $2
         UNION ALL
        SELECT 'workspace', w.id, w.stored_byte_limit, $4::boolean FROM turnkeep.workspaces w WHERE w.id = $1
         UNION ALL
        SELECT 'key', k.id, k.stored_byte_limit, false FROM turnkeep.api_keys k
         WHERE k.id = $3 OR k.id IN (SELECT a.id FROM turnkeep.api_keys o, json_array_elements_text(o.ancestors::json) AS a (id)
                                      WHERE o.id = $3)) l
 WHERE l.most IS NOT NULL OR l.asked

-- name: lock_stored_bytes
-- Other files of these scopes wait until this transaction has ended.
SELECT pg_advisory_xact_lock(hashtextextended(a.id, 0)) FROM (SELECT unnest($1::text[]) AS id ORDER BY 1) a

-- name: pending_file_ids
-- slow
SELECT f.id FROM turnkeep.files f WHERE f.status = 'pending' AND f.deleted_at IS NULL AND f.id = ANY ($1::text[])
