-- The index of titles and visible messages. Its tables are the engine's; what it finds is read through the client path.

-- name: pending_conversations
-- Conversations with a settled turn right after what is indexed, so that indexing makes progress.
SELECT c.id, c.indexed_ordinal
  FROM unindexed u CROSS JOIN conversations c ON c.id = u.conversation_id
 WHERE (:workspace IS NULL OR u.workspace_id = :workspace)
   AND EXISTS (SELECT 1 FROM turns t
                WHERE t.conversation_id = c.id AND t.active IN (0, 1) AND t.ordinal = c.indexed_ordinal + 1
                  AND t.settled_at IS NOT NULL)
 LIMIT :limit;

-- name: pending_titles
-- Conversations whose title cannot be found yet, because their first turn has not ended.
SELECT c.id
  FROM unindexed u CROSS JOIN conversations c ON c.id = u.conversation_id
 WHERE (:workspace IS NULL OR u.workspace_id = :workspace)
   AND c.title IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM search_entries e
                    WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1)
 LIMIT :limit;

-- name: settled_up_to
-- The highest ordinal below the first turn that has not ended.
SELECT coalesce((SELECT min(t.ordinal) FROM turns t
                  WHERE t.conversation_id = c.id AND t.status IN ('queued', 'running')), c.next_ordinal) - 1
  FROM conversations c
 WHERE c.id = :conversation;

-- name: rows_to_index
SELECT {m.message_columns}
  FROM turns t CROSS JOIN messages m ON m.turn_id = t.id
 WHERE t.conversation_id = :conversation AND t.active IN (0, 1) AND t.ordinal > :after AND t.ordinal <= :last
   AND m.internal = 0;

-- name: mark_indexed
-- Only one of several indexers moves the mark, and only that one may add the entries.
UPDATE conversations SET indexed_ordinal = :last WHERE id = :conversation AND indexed_ordinal = :after;

-- name: title_of
SELECT title FROM conversations WHERE id = :conversation AND title IS NOT NULL;

-- name: title_entry
SELECT n FROM search_entries
 WHERE conversation_id = :conversation AND turn_id = :conversation AND turn_sequence = -1;

-- name: add_entry
INSERT INTO search_entries (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id)
SELECT id, :turn, :sequence, org_id, workspace_id, user_id FROM conversations WHERE id = :conversation
RETURNING n;

-- name: add_tokens
INSERT INTO search_tokens (rowid, tokens) VALUES (:n, :tokens);

-- name: drop_tokens
DELETE FROM search_tokens WHERE rowid = :n;

-- name: drop_entry
DELETE FROM search_entries WHERE n = :n;

-- name: search
-- Conversations in which one entry holds every word: a title, or a message on the visible chain.
SELECT c.id
  FROM conversations c
 WHERE c.id IN (
       SELECT e.conversation_id
         FROM search_tokens s CROSS JOIN search_entries e ON e.n = s.rowid
        WHERE s.search_tokens MATCH :query AND e.org_id = :org AND e.workspace_id = :workspace
          AND (:user IS NULL OR e.user_id = :user)
          AND (e.turn_sequence = -1 OR EXISTS (SELECT 1 FROM turns t WHERE t.id = e.turn_id AND t.active = 1)))
   AND c.deleted_at IS NULL AND c.kind <> 'run'
   AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC
 LIMIT :limit;

-- name: newest_matches
-- The newest matching message of each of these conversations (the bare columns are those of the greatest place).
SELECT e.conversation_id, e.turn_id, e.turn_sequence, max(t.ordinal * 1000000 + e.turn_sequence)
  FROM search_tokens s CROSS JOIN search_entries e ON e.n = s.rowid
  JOIN turns t ON t.id = e.turn_id AND t.active = 1
 WHERE s.search_tokens MATCH :query AND e.conversation_id IN (SELECT value FROM json_each(:ids))
 GROUP BY e.conversation_id;

-- name: my_message
SELECT {message_columns} FROM my_messages WHERE turn_id = :turn AND turn_sequence = :sequence;
