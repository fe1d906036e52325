-- Feedback: what users think of answers, one rating for each user and turn.

-- name: rate_turn
-- The answer of a turn that has ended, in the user's own conversation.
INSERT INTO feedback (turn_id, user_id, org_id, workspace_id, conversation_id, rating, comment, created_at, updated_at)
SELECT t.id, :user, t.org_id, t.workspace_id, t.conversation_id, :rating, :comment, :now, :now
  FROM turns t JOIN conversations c ON c.id = t.conversation_id
 WHERE t.id = :turn AND t.settled_at IS NOT NULL AND c.org_id = :org AND c.workspace_id = :workspace
   AND c.user_id = :user AND c.deleted_at IS NULL
ON CONFLICT (turn_id, user_id) DO UPDATE
   SET rating = excluded.rating, comment = excluded.comment, updated_at = excluded.updated_at
RETURNING {feedback_columns};

-- name: delete_feedback
DELETE FROM feedback WHERE turn_id = :turn AND user_id = :user AND org_id = :org AND workspace_id = :workspace;

-- name: feedback_of_conversation
SELECT {f.feedback_columns} FROM feedback f JOIN conversations c ON c.id = f.conversation_id
 WHERE f.conversation_id = :conversation AND f.user_id = :user AND f.org_id = :org AND f.workspace_id = :workspace
   AND c.deleted_at IS NULL
 ORDER BY f.turn_id;

-- name: feedback_of_workspace
-- A page, newest first, before (:at, :turn). The feedback on deleted conversations is not shown.
SELECT {f.feedback_columns}, t.model, t.agent_id, t.input_tokens, t.output_tokens
  FROM feedback f
 CROSS JOIN conversations c ON c.id = f.conversation_id
 CROSS JOIN turns t ON t.id = f.turn_id
 WHERE f.workspace_id = :workspace AND f.org_id = :org AND (f.created_at, f.turn_id) < (:at, :turn)
   AND f.created_at >= :since AND c.deleted_at IS NULL AND (:rating IS NULL OR f.rating = :rating)
   AND (:agent IS NULL OR t.agent_id = :agent)
 ORDER BY f.created_at DESC, f.turn_id DESC LIMIT :limit;
