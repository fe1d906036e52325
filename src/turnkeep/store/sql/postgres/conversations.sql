-- Conversations: their making, their lists and pages, their end. What a reader gets goes through the my_ functions.

-- name: facts_for_new
-- What a new conversation needs to know. Without an agent ($3 is NULL) there is nothing to look for.
SELECT EXISTS (SELECT 1 FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2),
       $3::text IS NULL OR EXISTS (SELECT 1 FROM turnkeep.agents a WHERE a.id = $3 AND a.org_id = $1
                                      AND a.workspace_id = $2 AND a.deleted_at IS NULL),
       turnkeep.now_ms()

-- name: insert_conversation
-- A conversation from its JSON, which can be found by the tokens of its title at once. No row if the workspace does not
-- exist, or if the conversation is there already.
WITH made AS (
    INSERT INTO turnkeep.conversations AS c ({new_conversation_columns})
    SELECT {n.new_conversation_columns}
      FROM json_populate_record(NULL::turnkeep.conversations, $1::json) n
      JOIN turnkeep.workspaces w ON w.id = n.workspace_id AND w.org_id = n.org_id
    ON CONFLICT (id) DO NOTHING
    RETURNING c.id, c.org_id, c.workspace_id, c.user_id
), titled AS (
    INSERT INTO turnkeep.search_entries
           (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
    SELECT m.id, m.id, -1, m.org_id, m.workspace_id, m.user_id, array_to_tsvector($2::text[])
      FROM made m WHERE $2 IS NOT NULL
)
SELECT m.id FROM made m

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

-- name: conversation_for_write
-- The conversation of this owner. It stays locked.
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL
   FOR UPDATE OF c

-- name: turn_as_head
SELECT t.started_at, t.settled_at FROM turnkeep.turns t WHERE t.conversation_id = $1 AND t.id = $2

-- name: turn_ahead
-- The turn that runs, or else the first that waits.
SELECT t.id, t.started_at FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND t.status IN ('running', 'queued')
 ORDER BY t.status DESC, t.ordinal LIMIT 1

-- name: show_chain
-- Make the visible chain end with this turn; say by how much the counts of the conversation change.
SELECT s.more_turns, s.more_messages FROM turnkeep.show_chain($1, $2) s

-- name: change_conversation
-- Write what a change may change, from the JSON of the conversation.
UPDATE turnkeep.conversations c
   SET ({changed_conversation_columns}) = (SELECT {n.changed_conversation_columns}
                                             FROM json_populate_record(NULL::turnkeep.conversations, $2::json) n)
 WHERE c.id = $1
RETURNING {c.conversation_columns}

-- name: delete_conversation
-- Soft, with its files. A turn that runs is asked to stop.
WITH files AS (
    UPDATE turnkeep.files f SET deleted_at = $2, deleted_with = $1
     WHERE f.conversation_id = $1 AND f.deleted_at IS NULL
), running AS (
    UPDATE turnkeep.turns t SET cancel_requested_at = $2
     WHERE t.conversation_id = $1 AND t.status = 'running' AND t.cancel_requested_at IS NULL
)
UPDATE turnkeep.conversations c SET deleted_at = $2 WHERE c.id = $1

-- name: waiting_turns
SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = $1 AND t.status = 'queued' ORDER BY t.ordinal

-- name: restorable_conversation
-- The conversation of this owner, whether it is deleted or not. It stays locked.
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   FOR UPDATE OF c

-- name: restore_conversation
WITH files AS (
    UPDATE turnkeep.files f SET deleted_at = NULL, deleted_with = NULL WHERE f.deleted_with = $1 AND f.conversation_id = $1
)
UPDATE turnkeep.conversations c SET deleted_at = NULL WHERE c.id = $1

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

-- name: lock_purgeable
-- Those of these conversations that may still be erased. They stay locked.
SELECT c.id FROM turnkeep.conversations c
 WHERE c.id = ANY ($2::text[]) AND c.deleted_at < $1
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.id FOR UPDATE SKIP LOCKED

-- name: purge_search
DELETE FROM turnkeep.search_entries s WHERE s.conversation_id = ANY ($1::text[])

-- name: purge_events
DELETE FROM turnkeep.turn_events e
 WHERE e.turn_id IN (SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[]))

-- name: purge_logs
DELETE FROM turnkeep.turn_logs l
 WHERE l.turn_id IN (SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[]))

-- name: purge_messages
DELETE FROM turnkeep.messages m
 WHERE m.turn_id IN (SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[]))

-- name: purge_tokens
DELETE FROM turnkeep.one_time_tokens o
 WHERE o.turn_id IN (SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[]))

-- name: purge_files
DELETE FROM turnkeep.files f WHERE f.conversation_id = ANY ($1::text[])

-- name: purge_turns
DELETE FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[])

-- name: purge_conversations
DELETE FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[])

-- name: purge_deleted_files
-- Files that were deleted one by one.
DELETE FROM turnkeep.files f WHERE f.id = ANY ($2::text[]) AND f.deleted_at < $1 AND f.deleted_with IS NULL

-- name: not_purged
SELECT c.id FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[])
UNION ALL
SELECT f.id FROM turnkeep.files f WHERE f.id = ANY ($2::text[])
