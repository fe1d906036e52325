-- Share links. Of a link only a hash is stored. A link has ended for readers when its time is over, when its conversation is
-- deleted, when its user is disabled, and when a message of the shared branch was edited or answered again.

-- name: turn_to_share
-- The last turn of the branch: this one, or else the last that has ended on the visible chain.
SELECT t.id FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND t.active IN (true, false) AND t.started_at IS NOT NULL AND t.settled_at IS NOT NULL
   AND CASE WHEN $2::text IS NULL THEN t.active ELSE t.id = $2 END
 ORDER BY t.ordinal DESC LIMIT 1

-- name: insert_share
INSERT INTO turnkeep.shares AS s (id, org_id, workspace_id, conversation_id, user_id, turn_id, title, with_files,
                                  secret_hash, created_at, expires_at)
SELECT $1, c.org_id, c.workspace_id, c.id, c.user_id, $3, c.title, $4, $5, n.now, n.now + $6::bigint
  FROM turnkeep.conversations c, (SELECT turnkeep.now_ms() AS now) n WHERE c.id = $2
ON CONFLICT (id) DO UPDATE SET secret_hash = excluded.secret_hash
RETURNING {s.share_columns}

-- name: delete_expired_shares
DELETE FROM turnkeep.shares WHERE expires_at <= turnkeep.now_ms()

-- name: share_by_hash
SELECT {s.share_columns}, s.org_id, s.secret_hash
  FROM turnkeep.shares s
  JOIN turnkeep.conversations c ON c.id = s.conversation_id
  JOIN turnkeep.turns h ON h.id = s.turn_id
  LEFT JOIN turnkeep.members m ON m.id = s.user_id
 WHERE s.secret_hash = $1 AND s.expires_at > turnkeep.now_ms() AND c.deleted_at IS NULL
   AND NOT coalesce(m.is_disabled, false)
   AND NOT EXISTS (
       WITH RECURSIVE chain (parent) AS (
           SELECT h.parent_turn_id
            UNION ALL
           SELECT t.parent_turn_id FROM chain JOIN turnkeep.turns t ON t.id = chain.parent)
       SELECT 1 FROM turnkeep.turns n
        WHERE n.conversation_id = s.conversation_id AND n.active IN (true, false) AND n.ordinal > h.ordinal
          AND n.started_at > s.created_at
          AND (n.parent_turn_id IS NULL OR n.parent_turn_id IN (SELECT chain.parent FROM chain)))

-- name: shares
-- slow
-- Those of a workspace, of one user or of one conversation.
SELECT {s.share_columns}
  FROM turnkeep.shares s
  JOIN turnkeep.conversations c ON c.id = s.conversation_id
  JOIN turnkeep.turns h ON h.id = s.turn_id
 WHERE s.workspace_id = $2 AND s.org_id = $1 AND ($3::text IS NULL OR s.user_id = $3)
   AND ($4::text IS NULL OR s.conversation_id = $4) AND s.expires_at > turnkeep.now_ms() AND c.deleted_at IS NULL
   AND NOT EXISTS (
       WITH RECURSIVE chain (parent) AS (
           SELECT h.parent_turn_id
            UNION ALL
           SELECT t.parent_turn_id FROM chain JOIN turnkeep.turns t ON t.id = chain.parent)
       SELECT 1 FROM turnkeep.turns n
        WHERE n.conversation_id = s.conversation_id AND n.active IN (true, false) AND n.ordinal > h.ordinal
          AND n.started_at > s.created_at
          AND (n.parent_turn_id IS NULL OR n.parent_turn_id IN (SELECT chain.parent FROM chain)))
 ORDER BY s.id DESC

-- name: revoke_share
DELETE FROM turnkeep.shares s
 WHERE s.org_id = $1 AND s.workspace_id = $2 AND ($3::text IS NULL OR s.user_id = $3) AND s.id = $4
RETURNING s.id

-- name: shared_turns
-- slow
-- The turns of the branch that ends with this turn, from the oldest, behind $3; with $4 only those that name this file in a
-- visible message.
WITH RECURSIVE chain (id, parent, ordinal) AS (
    SELECT t.id, t.parent_turn_id, t.ordinal FROM turnkeep.turns t WHERE t.id = $2 AND t.conversation_id = $1
     UNION ALL
    SELECT t.id, t.parent_turn_id, t.ordinal FROM chain JOIN turnkeep.turns t ON t.id = chain.parent
)
SELECT c.id, c.ordinal FROM chain c
 WHERE c.ordinal > $3::bigint
   AND ($4::text IS NULL OR EXISTS (
       SELECT 1 FROM turnkeep.messages m
        WHERE m.turn_id = c.id AND NOT m.internal
          AND strpos(concat(m.blocks, ' ', m.display, ' ', m.attachments), $4) > 0 OFFSET 0))
 ORDER BY c.ordinal LIMIT $5

-- name: my_rows_of_turns
-- slow
-- The visible messages of these turns.
SELECT m.id, m.turn_id, m.role, m.blocks, m.display, m.attachments, m.sources, m.usage, m.status, m.created_at,
       m.model, m.facts
  FROM turnkeep.my_rows_of_turns($1, $2, $3, $4) m
