-- Conversations: their making, their lists and pages, their end. What a reader gets goes through the my_ functions.

-- name: create_conversation
SELECT {c.conversation_columns} FROM turnkeep.create_conversation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) c

-- name: my_conversation
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_conversation($1, $2, $3, $4) c

-- name: my_conversation_with_queue
SELECT {(c.conversation).conversation_columns}, c.id, c.turn_id, c.role, c.blocks, c.display, c.attachments, c.sources,
       c.usage, c.status, c.created_at
  FROM turnkeep.my_conversation_with_queue($1, $2, $3, $4) c

-- name: my_conversations
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_conversations($1, $2, $3, $4, $5, $6) c

-- name: my_found
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_found($1, $2, $3, $4) c

-- name: my_messages
SELECT m.conversation_id, m.blocks, m.display FROM turnkeep.my_messages($1, $2, $3, $4, $5) m

-- name: my_transcript
SELECT m.id, m.turn_id, m.role, m.blocks, m.display, m.attachments, m.sources, m.usage, m.status, m.created_at,
       m.siblings, m.ordinal, m.turn_sequence
  FROM turnkeep.my_transcript($1, $2, $3, $4, $5, $6, $7, $8) m

-- name: own_conversation
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL

-- name: conversation_rows
-- Every row of every branch, behind ($2, $3).
SELECT {m.message_columns}, t.ordinal
  FROM (SELECT x.id, x.ordinal FROM turnkeep.turns x
         WHERE x.conversation_id = $1 AND x.active IN (true, false) AND x.ordinal >= $2
           AND EXISTS (SELECT 1 FROM turnkeep.messages r WHERE r.turn_id = x.id)
         ORDER BY x.ordinal LIMIT $4::integer + 1) t
  JOIN turnkeep.messages m ON m.turn_id = t.id
 WHERE t.ordinal > $2 OR m.turn_sequence > $3
 ORDER BY t.ordinal, m.turn_sequence LIMIT $4::integer

-- name: conversation_turns
SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.conversation_id = $1 ORDER BY t.ordinal

-- name: change_conversation
SELECT {c.conversation_columns} FROM turnkeep.change_conversation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) c

-- name: delete_conversation
SELECT turnkeep.delete_conversation($1, $2, $3, $4)

-- name: restore_conversation
SELECT {c.conversation_columns} FROM turnkeep.restore_conversation($1, $2, $3, $4) c

-- name: purgeable
SELECT c.id FROM turnkeep.conversations c
 WHERE c.deleted_at < $1
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.deleted_at, c.id LIMIT $2

-- name: purgeable_files
-- Those of these conversations, and those that were deleted one by one.
SELECT f.id, f.storage_key FROM turnkeep.files f
 WHERE f.conversation_id = ANY ($1::text[])
    OR f.id IN (SELECT a.id FROM turnkeep.files a
                 WHERE a.deleted_at < $2 AND a.deleted_with IS NULL ORDER BY a.deleted_at, a.id LIMIT $3)

-- name: purge
SELECT turnkeep.purge($1, $2, $3)

-- name: not_purged
SELECT c.id FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[])
UNION ALL
SELECT f.id FROM turnkeep.files f WHERE f.id = ANY ($2::text[])

-- name: import_conversation
-- No row if the workspace does not exist, or if this import has already happened.
INSERT INTO turnkeep.conversations
       (id, org_id, workspace_id, user_id, kind, agent_id, model, workflow_id, title, preview, metadata, message_count,
        turn_count, next_ordinal, head_turn_id, created_at, updated_at)
SELECT $4, w.org_id, w.id, $3, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
  FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: import_turn
INSERT INTO turnkeep.turns
       (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, ordinal, active, status, attempt,
        failures, last_seq, cancel_requested_at, background, principal_ref, snapshot, source, model, metadata, month,
        input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, error, created_at, started_at, settled_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
        $25, $26, $27, $28, $29)

-- name: import_entries
SELECT turnkeep.write_entries($1, $2, $3, $4)

-- name: import_file
INSERT INTO turnkeep.files
       (id, org_id, workspace_id, user_id, conversation_id, message_id, name, name_key, mime_type, size, sha256,
        storage_key, source, status, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
