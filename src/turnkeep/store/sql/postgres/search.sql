-- The index of titles and visible messages. It is the engine's; what it finds is read through the client path.

-- name: pending_conversations
-- Conversations with a settled turn right after what is indexed, so that indexing makes progress. The planner
-- believes that a third of all conversations wait. The order is that of the index conversations_to_index, and OFFSET 0
-- keeps the condition a look-up per row found; without either, every conversation there is would be read.
SELECT c.id, c.indexed_ordinal
  FROM turnkeep.conversations c
 WHERE c.indexed_ordinal < c.next_ordinal - 1 AND ($1::text IS NULL OR c.workspace_id = $1)
   AND EXISTS (SELECT 1 FROM turnkeep.turns t
                WHERE t.conversation_id = c.id AND t.active IN (true, false) AND t.ordinal = c.indexed_ordinal + 1
                  AND t.settled_at IS NOT NULL OFFSET 0)
 ORDER BY c.workspace_id, c.id LIMIT $2

-- name: pending_titles
-- Conversations whose title cannot be found yet, because their first turn has not ended. The order and OFFSET 0
-- have the same reason as above.
SELECT c.id, c.title
  FROM turnkeep.conversations c
 WHERE c.indexed_ordinal < c.next_ordinal - 1 AND ($1::text IS NULL OR c.workspace_id = $1) AND c.title IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM turnkeep.search_entries e
                    WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1 OFFSET 0)
 ORDER BY c.workspace_id, c.id LIMIT $2

-- name: index_title
-- Let the title of this conversation be found by these tokens instead of those before.
INSERT INTO turnkeep.search_entries AS s
       (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
SELECT c.id, c.id, -1, c.org_id, c.workspace_id, c.user_id, array_to_tsvector($2::text[])
  FROM turnkeep.conversations c WHERE c.id = $1
ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
 WHERE s.tokens <> excluded.tokens

-- name: index_titles
-- The same for these conversations, but for those whose title has changed since it was read. Tokens hold no spaces, so
-- those of one title travel as one text.
WITH named AS (
    SELECT c.id, c.org_id, c.workspace_id, c.user_id, e.tokens
      FROM turnkeep.conversations c
      JOIN unnest($1::text[], $2::text[], $3::text[]) AS e (id, title, tokens) ON c.id = e.id AND c.title = e.title
     ORDER BY c.id FOR UPDATE OF c
)
INSERT INTO turnkeep.search_entries AS s
       (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
SELECT n.id, n.id, -1, n.org_id, n.workspace_id, n.user_id, array_to_tsvector(string_to_array(n.tokens, ' '))
  FROM named n
ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
 WHERE s.tokens <> excluded.tokens

-- name: settled_up_to
-- The highest ordinal below the first turn that has not ended, and the title.
SELECT coalesce((SELECT min(t.ordinal) FROM turnkeep.turns t
                  WHERE t.conversation_id = c.id AND t.status IN ('queued', 'running')), c.next_ordinal) - 1, c.title
  FROM turnkeep.conversations c WHERE c.id = $1

-- name: rows_to_index
SELECT m.turn_id, m.turn_sequence, m.blocks, m.display
  FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
 WHERE t.conversation_id = $1 AND t.active IN (true, false) AND t.ordinal > $2 AND t.ordinal <= $3 AND NOT m.internal

-- name: index_turns
-- Add entries to the index and move its mark from $2 to $3. No row if another worker has moved it first. The title is
-- indexed too, unless it has changed since it was read.
WITH marked AS (
    UPDATE turnkeep.conversations c SET indexed_ordinal = $3 WHERE c.id = $1 AND c.indexed_ordinal = $2
    RETURNING c.id, c.org_id, c.workspace_id, c.user_id, c.title
), titled AS (
    INSERT INTO turnkeep.search_entries AS s
           (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
    SELECT m.id, m.id, -1, m.org_id, m.workspace_id, m.user_id, array_to_tsvector($5::text[])
      FROM marked m WHERE m.title = $4
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
     WHERE s.tokens <> excluded.tokens
), added AS (
    INSERT INTO turnkeep.search_entries
           (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
    SELECT m.id, e.turn, e.sequence, m.org_id, m.workspace_id, m.user_id,
           array_to_tsvector(string_to_array(e.tokens, ' '))
      FROM marked m, unnest($6::text[], $7::integer[], $8::text[]) AS e (turn, sequence, tokens)
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO NOTHING
)
SELECT m.id FROM marked m

-- name: found_conversations
-- A page of conversations with an entry that matches: of the visible chain, or the title's.
SELECT c.id
  FROM turnkeep.conversations c
 WHERE c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL AND c.kind <> 'run' AND (c.updated_at, c.id) < ($5::bigint, $6::text)
   AND c.id IN (SELECT e.conversation_id
                  FROM turnkeep.search_entries e LEFT JOIN turnkeep.turns t ON t.id = e.turn_id
                 WHERE e.workspace_id = $2 AND ($3::text IS NULL OR e.user_id = $3)
                   AND e.tokens @@ $4::text::tsquery AND (e.turn_sequence = -1 OR t.active))
 ORDER BY c.updated_at DESC, c.id DESC LIMIT $7

-- name: found_messages
-- The newest message that matches, of each of these conversations.
SELECT DISTINCT ON (e.conversation_id) e.turn_id, e.turn_sequence
  FROM turnkeep.search_entries e JOIN turnkeep.turns t ON t.id = e.turn_id
 WHERE e.conversation_id = ANY ($1::text[]) AND e.tokens @@ $2::text::tsquery AND t.active
 ORDER BY e.conversation_id, t.ordinal DESC, e.turn_sequence DESC
