-- Feedback: what users think of answers, one rating for each user and turn.

-- name: rate_turn
-- The answer of a turn that has ended, in the user's own conversation.
INSERT INTO turnkeep.feedback AS f
       (turn_id, user_id, org_id, workspace_id, conversation_id, rating, comment, created_at, updated_at)
SELECT t.id, $3, t.org_id, t.workspace_id, t.conversation_id, $5, $6, n.now, n.now
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id,
       (SELECT turnkeep.now_ms() AS now) n
 WHERE t.id = $4 AND t.settled_at IS NOT NULL AND c.org_id = $1 AND c.workspace_id = $2
   AND c.user_id = $3 AND c.deleted_at IS NULL
ON CONFLICT (turn_id, user_id) DO UPDATE
   SET rating = excluded.rating, comment = excluded.comment, updated_at = excluded.updated_at
RETURNING {f.feedback_columns}

-- name: delete_feedback
DELETE FROM turnkeep.feedback f WHERE f.org_id = $1 AND f.workspace_id = $2 AND f.user_id = $3 AND f.turn_id = $4
RETURNING f.turn_id

-- name: feedback_of_conversation
SELECT {f.feedback_columns}
  FROM turnkeep.feedback f JOIN turnkeep.conversations c ON c.id = f.conversation_id
 WHERE f.org_id = $1 AND f.workspace_id = $2 AND f.user_id = $3 AND f.conversation_id = $4 AND c.deleted_at IS NULL
 ORDER BY f.turn_id

-- name: feedback_of_workspace
-- slow
-- A page, newest first, before ($3, $4). The feedback on deleted conversations is not shown.
SELECT {f.feedback_columns}, t.model, t.agent_id, t.input_tokens, t.output_tokens
  FROM turnkeep.feedback f
  JOIN turnkeep.conversations c ON c.id = f.conversation_id
  JOIN turnkeep.turns t ON t.id = f.turn_id
 WHERE f.org_id = $1 AND f.workspace_id = $2 AND (f.created_at, f.turn_id) < ($3::bigint, $4::text COLLATE "C")
   AND f.created_at >= $5::bigint AND c.deleted_at IS NULL AND ($6::text IS NULL OR f.rating = $6)
   AND ($7::text IS NULL OR t.agent_id = $7)
 ORDER BY f.created_at DESC, f.turn_id DESC LIMIT $8
