-- Share links. Of a link only a hash is stored. A link has ended for readers when its time is over, when its conversation is
-- deleted, when its user is disabled, and when a message of the shared branch was edited or answered again.

-- name: turn_to_share
-- The last turn of the branch: this one, or else the last that has ended on the visible chain.
SELECT id FROM turns
 WHERE conversation_id = :conversation AND active IN (0, 1) AND started_at IS NOT NULL AND settled_at IS NOT NULL
   AND CASE WHEN :turn IS NULL THEN active ELSE id = :turn END
 ORDER BY ordinal DESC LIMIT 1;

-- name: insert_share
INSERT INTO shares (id, org_id, workspace_id, conversation_id, user_id, turn_id, title, with_files, secret_hash,
                    created_at, expires_at)
SELECT :id, org_id, workspace_id, id, user_id, :turn, title, :with_files, :hash, :now, :expires_at
  FROM conversations WHERE id = :conversation
RETURNING {share_columns};

-- name: delete_expired_shares
DELETE FROM shares WHERE expires_at <= :now;

-- name: share_by_hash
SELECT {s.share_columns}, s.org_id, s.secret_hash
  FROM shares s
  JOIN conversations c ON c.id = s.conversation_id
  JOIN turns h ON h.id = s.turn_id
  LEFT JOIN members m ON m.id = s.user_id
 WHERE s.secret_hash = :hash AND s.expires_at > :now AND c.deleted_at IS NULL AND NOT coalesce(m.is_disabled, 0)
   AND NOT EXISTS (
       WITH RECURSIVE chain (parent) AS (
           SELECT h.parent_turn_id
            UNION ALL
           SELECT t.parent_turn_id FROM chain CROSS JOIN turns t ON t.id = chain.parent)
       SELECT 1 FROM turns n
        WHERE n.conversation_id = s.conversation_id AND n.active IN (0, 1) AND n.ordinal > h.ordinal
          AND n.started_at > s.created_at
          AND (n.parent_turn_id IS NULL OR n.parent_turn_id IN (SELECT chain.parent FROM chain)));

-- name: shares
-- Those of a workspace, of one user or of one conversation.
SELECT {s.share_columns}
  FROM shares s
  JOIN conversations c ON c.id = s.conversation_id
  JOIN turns h ON h.id = s.turn_id
 WHERE s.workspace_id = :workspace AND s.org_id = :org AND (:user IS NULL OR s.user_id = :user)
   AND (:conversation IS NULL OR s.conversation_id = :conversation) AND s.expires_at > :now AND c.deleted_at IS NULL
   AND NOT EXISTS (
       WITH RECURSIVE chain (parent) AS (
           SELECT h.parent_turn_id
            UNION ALL
           SELECT t.parent_turn_id FROM chain CROSS JOIN turns t ON t.id = chain.parent)
       SELECT 1 FROM turns n
        WHERE n.conversation_id = s.conversation_id AND n.active IN (0, 1) AND n.ordinal > h.ordinal
          AND n.started_at > s.created_at
          AND (n.parent_turn_id IS NULL OR n.parent_turn_id IN (SELECT chain.parent FROM chain)))
 ORDER BY s.id DESC;

-- name: revoke_share
DELETE FROM shares
 WHERE org_id = :org AND workspace_id = :workspace AND id = :id AND (:user IS NULL OR user_id = :user);

-- name: shared_turns
-- The turns of the branch that ends with this turn, from the oldest, behind :after; with :file only those that name this
-- file in a visible message.
WITH RECURSIVE chain (id, parent, ordinal) AS (
    SELECT t.id, t.parent_turn_id, t.ordinal FROM turns t WHERE t.id = :turn AND t.conversation_id = :conversation
     UNION ALL
    SELECT t.id, t.parent_turn_id, t.ordinal FROM chain CROSS JOIN turns t ON t.id = chain.parent
)
SELECT c.id, c.ordinal FROM chain c
 WHERE c.ordinal > :after
   AND (:file IS NULL OR EXISTS (
       SELECT 1 FROM messages m
        WHERE m.turn_id = c.id AND m.internal = 0
          AND (instr(m.blocks, :file) > 0 OR instr(m.display, :file) > 0 OR instr(m.attachments, :file) > 0)))
 ORDER BY c.ordinal LIMIT :limit;

-- name: my_rows_of_turns
-- The visible messages of these turns.
SELECT m.id, m.turn_id, m.role, CASE WHEN m.display IS NULL THEN m.blocks END, m.display, m.attachments, m.sources,
       m.usage, t.status, m.created_at, coalesce(m.provider, t.model),
       CASE WHEN coalesce(t.error, m.metadata, t.metadata, t.report) IS NOT NULL THEN
           '[' || coalesce(t.error, 'null') || ',' || coalesce(m.metadata, t.metadata, 'null') || ',' ||
           coalesce(t.report, 'null') || ']' END
  FROM json_each(?1) w CROSS JOIN my_turns t ON t.id = w.value CROSS JOIN my_messages m ON m.turn_id = t.id
 ORDER BY t.ordinal, m.turn_sequence;
