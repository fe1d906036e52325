-- Conversations: their making, their lists and pages, their end; the index of titles and visible messages; and whole
-- conversations that come from elsewhere (each statement takes many rows, as one JSON document). What a reader gets goes
-- through the my_ functions. The index is the engine's; what it finds is read through the client path.

-- name: facts_for_new
-- What a new conversation needs to know. Without an agent ($3 is NULL) there is nothing to look for.
SELECT EXISTS (SELECT 1 FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2),
       $3::text IS NULL OR EXISTS (SELECT 1 FROM turnkeep.agents a WHERE a.id = $3 AND a.org_id = $1
                                      AND a.workspace_id = $2 AND a.deleted_at IS NULL),
       turnkeep.now_ms()

-- name: conversation_of_host
-- The conversation of this owner (none: '') that has this external id.
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.workspace_id = $1 AND c.external_id = $3 AND coalesce(c.user_id, '') = $2 AND c.deleted_at IS NULL

-- name: insert_conversation
-- A conversation from its JSON, which can be found by the tokens of its title at once. Whether its user ($4, perhaps none)
-- may do something, and its id if it was made: not if the workspace does not exist, or if the conversation, or another one
-- of its external id, is there already. An erasure of the user waits until it is there, or it waits for the erasure.
WITH allowed AS MATERIALIZED (
    SELECT 1 FROM turnkeep.members m WHERE m.org_id = $3 AND m.id = $4 AND NOT m.is_disabled FOR SHARE
), made AS (
    INSERT INTO turnkeep.conversations AS c ({new_conversation_columns})
    SELECT {n.new_conversation_columns}
      FROM json_populate_record(NULL::turnkeep.conversations, $1::json) n
      JOIN turnkeep.workspaces w ON w.id = n.workspace_id AND w.org_id = n.org_id
     WHERE $4::text IS NULL OR EXISTS (SELECT 1 FROM allowed)
    ON CONFLICT DO NOTHING
    RETURNING c.id, c.workspace_id, c.user_id
), titled AS (
    INSERT INTO turnkeep.search_entries
           (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
    SELECT m.id, m.id, -1, m.workspace_id, m.user_id, array_to_tsvector($2::text[])
      FROM made m WHERE $2 IS NOT NULL
)
SELECT $4 IS NULL OR EXISTS (SELECT 1 FROM allowed), (SELECT m.id FROM made m)

-- name: my_conversation
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_conversation($1, $2, $3, $4) c

-- name: my_conversation_with_queue
SELECT {(c.conversation).conversation_columns}, c.id, c.turn_id, c.role, c.blocks, c.display, c.attachments, c.sources,
       c.usage, c.status, c.created_at, c.model, c.facts
  FROM turnkeep.my_conversation_with_queue($1, $2, $3, $4) c

-- name: my_conversations
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_conversations($1, $2, $3, $4, $5, $6) c

-- name: my_found
-- slow
SELECT {(c.conversation).conversation_columns} FROM turnkeep.my_found($1, $2, $3, $4) c

-- name: my_folders
-- slow
SELECT f.name, f.conversations FROM turnkeep.my_folders($1, $2, $3, $4) f

-- name: rename_folder
-- slow
-- Also of conversations in the trash: one that is restored comes back to where the others are. They are locked in the
-- order of their ids, as by every writer of several.
WITH moved AS MATERIALIZED (
    SELECT c.id FROM turnkeep.conversations c
     WHERE c.workspace_id = $2 AND c.org_id = $1 AND c.folder = $4 AND ($3::text IS NULL OR c.user_id = $3)
     ORDER BY c.id FOR UPDATE OF c
)
UPDATE turnkeep.conversations c SET folder = $5 FROM moved m WHERE c.id = m.id RETURNING c.id

-- name: my_messages
SELECT m.conversation_id, m.blocks, m.display FROM turnkeep.my_messages($1, $2, $3, $4, $5) m

-- name: my_transcript
SELECT m.id, m.turn_id, m.role, m.blocks, m.display, m.attachments, m.sources, m.usage, m.status, m.created_at,
       m.model, m.facts, m.siblings, m.ordinal, m.turn_sequence
  FROM turnkeep.my_transcript($1, $2, $3, $4, $5, $6, $7, $8) m

-- name: my_questions
SELECT q.turn_id, q.question FROM turnkeep.my_questions($1, $2, $3, $4) q

-- name: own_conversation
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NULL

-- name: conversation_rows
-- slow
-- Every row of every branch, behind ($2, $3). Words that steered a turn stand in that turn.
SELECT {m.message_columns}, t.ordinal
  FROM (SELECT x.id, x.ordinal FROM turnkeep.turns x
         WHERE x.conversation_id = $1 AND x.active IN (true, false) AND x.ordinal >= $2
           AND coalesce(x.error::json ->> 'code', '') <> 'steered'
           AND EXISTS (SELECT 1 FROM turnkeep.messages r WHERE r.turn_id = x.id)
         ORDER BY x.ordinal LIMIT $4::integer + 1) t
  JOIN turnkeep.messages m ON m.turn_id = t.id
 WHERE t.ordinal > $2 OR m.turn_sequence > $3
 ORDER BY t.ordinal, m.turn_sequence LIMIT $4::integer

-- name: conversation_turns
-- slow
-- Words that steered a turn are part of that turn.
SELECT {t.turn_columns} FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND coalesce(t.error::json ->> 'code', '') <> 'steered'
 ORDER BY t.ordinal

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
SELECT t.id, t.started_at, {t.waiting_for} FROM turnkeep.turns t
 WHERE t.conversation_id = $1 AND t.status IN ('running', 'queued')
 ORDER BY t.status DESC, t.ordinal LIMIT 1

-- name: show_chain
-- slow
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
-- slow
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

-- name: deleted_conversations
-- slow
-- A page of the trash of this owner, the last deleted first, behind ($4, $5). The client path sees nothing that is deleted,
-- so the owner stands here, as in `restorable_conversation`.
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.workspace_id = $2 AND c.org_id = $1 AND ($3::text IS NULL OR c.user_id = $3)
   AND c.deleted_at IS NOT NULL AND c.kind <> 'run' AND c.is_listed
   AND (c.deleted_at, c.id) < ($4, $5::text COLLATE "C")
 ORDER BY c.deleted_at DESC, c.id DESC LIMIT $6

-- name: restorable_conversation
-- The conversation of this owner, whether it is deleted or not. It stays locked.
SELECT {c.conversation_columns}
  FROM turnkeep.conversations c
 WHERE c.id = $4 AND c.org_id = $1 AND c.workspace_id = $2 AND ($3::text IS NULL OR c.user_id = $3)
   FOR UPDATE OF c

-- name: restore_conversation
-- slow
-- Without its external id, if another conversation of its owner has that now. The answer is the id that it keeps.
WITH files AS (
    UPDATE turnkeep.files f SET deleted_at = NULL, deleted_with = NULL WHERE f.deleted_with = $1 AND f.conversation_id = $1
)
UPDATE turnkeep.conversations c
   SET deleted_at = NULL,
       external_id = CASE WHEN NOT EXISTS (
           SELECT 1 FROM turnkeep.conversations o
            WHERE o.workspace_id = c.workspace_id AND o.external_id = c.external_id
              AND coalesce(o.user_id, '') = coalesce(c.user_id, '') AND o.deleted_at IS NULL)
           THEN c.external_id END
 WHERE c.id = $1
RETURNING c.external_id

-- name: delete_idle
-- slow
-- Delete conversations that have not changed since $1, with their files. Their ids are before $2, as ids begin with their
-- time. One that is locked is in use.
WITH idle AS MATERIALIZED (
    SELECT c.id FROM turnkeep.conversations c
     WHERE c.id < $2 AND c.updated_at < $1 AND c.deleted_at IS NULL
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.settled_at IS NULL OFFSET 0)
     ORDER BY c.id LIMIT $3 FOR UPDATE OF c SKIP LOCKED
), files AS (
    UPDATE turnkeep.files f SET deleted_at = turnkeep.now_ms(), deleted_with = f.conversation_id
     WHERE f.conversation_id = ANY (ARRAY(SELECT i.id FROM idle i)) AND f.deleted_at IS NULL
)
UPDATE turnkeep.conversations c SET deleted_at = turnkeep.now_ms() FROM idle i WHERE c.id = i.id RETURNING c.id

-- name: delete_unlisted
-- slow
-- Delete conversations that no list shows and that have not changed since $1, with their files. Their ids are before $2, as ids begin with their
-- time. One that is locked is in use.
WITH idle AS MATERIALIZED (
    SELECT c.id FROM turnkeep.conversations c
     WHERE c.id < $2 AND c.updated_at < $1 AND c.deleted_at IS NULL AND NOT c.is_listed
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.settled_at IS NULL OFFSET 0)
     ORDER BY c.id LIMIT $3 FOR UPDATE OF c SKIP LOCKED
), files AS (
    UPDATE turnkeep.files f SET deleted_at = turnkeep.now_ms(), deleted_with = f.conversation_id
     WHERE f.conversation_id = ANY (ARRAY(SELECT i.id FROM idle i)) AND f.deleted_at IS NULL
)
UPDATE turnkeep.conversations c SET deleted_at = turnkeep.now_ms() FROM idle i WHERE c.id = i.id RETURNING c.id

-- name: purgeable
-- slow
SELECT c.id FROM turnkeep.conversations c
 WHERE c.deleted_at < $1
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.deleted_at, c.id LIMIT $2

-- name: purgeable_files
-- slow
-- Those of these conversations, and those that were deleted one by one.
SELECT f.id, f.storage_key FROM turnkeep.files f WHERE f.conversation_id = ANY ($1::text[])
UNION
(SELECT a.id, a.storage_key FROM turnkeep.files a
  WHERE a.deleted_at < $2 AND a.deleted_with IS NULL ORDER BY a.deleted_at, a.id LIMIT $3)

-- name: lock_purgeable
-- slow
-- Those of these conversations that may still be erased. They stay locked.
SELECT c.id FROM turnkeep.conversations c
 WHERE c.id = ANY ($2::text[]) AND c.deleted_at < $1
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.id FOR UPDATE SKIP LOCKED

-- name: purge_search
-- slow
DELETE FROM turnkeep.search_entries s WHERE s.conversation_id = ANY ($1::text[])

-- name: turns_to_purge
-- slow
-- Their ids choose the partitions of events and messages.
SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[])

-- name: purge_events
-- slow
DELETE FROM turnkeep.turn_events e WHERE e.turn_id = ANY ($1::text[])

-- name: purge_logs
-- slow
DELETE FROM turnkeep.turn_logs l WHERE l.turn_id = ANY ($1::text[])

-- name: purge_messages
-- slow
DELETE FROM turnkeep.messages m WHERE m.turn_id = ANY ($1::text[])

-- name: purge_tokens
-- slow
DELETE FROM turnkeep.one_time_tokens o WHERE o.turn_id = ANY ($1::text[])

-- name: purge_outbox
-- slow
DELETE FROM turnkeep.outbox o WHERE o.conversation_id = ANY ($1::text[])

-- name: purge_files
-- slow
DELETE FROM turnkeep.files f WHERE f.conversation_id = ANY ($1::text[])

-- name: purge_turns
-- slow
DELETE FROM turnkeep.turns t WHERE t.conversation_id = ANY ($1::text[])

-- name: purge_conversations
-- slow
DELETE FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[])

-- name: purge_deleted_files
-- slow
-- Files that were deleted one by one.
DELETE FROM turnkeep.files f WHERE f.id = ANY ($2::text[]) AND f.deleted_at < $1 AND f.deleted_with IS NULL

-- name: not_purged
-- slow
SELECT c.id FROM turnkeep.conversations c WHERE c.id = ANY ($1::text[])
UNION ALL
SELECT f.id FROM turnkeep.files f WHERE f.id = ANY ($2::text[])

-- name: pending_conversations
-- slow
-- Conversations that have more turns than are indexed, the first of which has ended, so that indexing makes progress: the
-- ordinal up to which they are indexed, the one before the turn that comes after the next $3, the highest one below the
-- first turn that has not ended, and the title. Ordinals may have gaps. OFFSET 0 keeps each condition a look-up per row
-- found; without it the planner may read every conversation there is.
SELECT c.id, c.indexed_ordinal, least(n.next - 1, e.stop - 1), e.stop - 1, c.title
  FROM turnkeep.unindexed u
 CROSS JOIN LATERAL (SELECT c.* FROM turnkeep.conversations c WHERE c.id = u.conversation_id OFFSET 0) c
 CROSS JOIN LATERAL (
       SELECT least((SELECT min(t.ordinal) FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'queued'),
                    (SELECT t.ordinal FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running'),
                    c.next_ordinal) AS stop OFFSET 0) e
 CROSS JOIN LATERAL (
       SELECT least((SELECT t.ordinal FROM turnkeep.turns t
                      WHERE t.conversation_id = c.id AND t.active = true AND t.ordinal > c.indexed_ordinal
                      ORDER BY t.ordinal LIMIT 1 OFFSET $3::integer),
                    (SELECT t.ordinal FROM turnkeep.turns t
                      WHERE t.conversation_id = c.id AND t.active = false AND t.ordinal > c.indexed_ordinal
                      ORDER BY t.ordinal LIMIT 1 OFFSET $3::integer)) AS next OFFSET 0) n
 WHERE NOT u.is_parked AND ($1::text IS NULL OR u.workspace_id = $1) AND c.indexed_ordinal < c.next_ordinal - 1
   AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                    WHERE t.conversation_id = c.id AND t.active IN (true, false) AND t.ordinal = c.indexed_ordinal + 1
                      AND t.settled_at IS NULL OFFSET 0)
 LIMIT $2

-- name: pending_titles
-- slow
-- Conversations whose title cannot be found yet, because their first turn has not ended.
SELECT c.id, c.title
  FROM turnkeep.unindexed u
 CROSS JOIN LATERAL (SELECT c.* FROM turnkeep.conversations c WHERE c.id = u.conversation_id OFFSET 0) c
 WHERE NOT u.is_parked AND ($1::text IS NULL OR u.workspace_id = $1) AND c.title IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM turnkeep.search_entries e
                    WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1 OFFSET 0)
 LIMIT $2

-- name: index_title
-- Let the title of this conversation be found by these tokens instead of those before.
INSERT INTO turnkeep.search_entries AS s
       (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
SELECT c.id, c.id, -1, c.workspace_id, c.user_id, array_to_tsvector($2::text[])
  FROM turnkeep.conversations c WHERE c.id = $1
ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
 WHERE s.tokens <> excluded.tokens

-- name: index_titles
-- slow
-- The same for these conversations, but for those whose title has changed since it was read. Tokens hold no spaces, so
-- those of one title travel as one text.
WITH named AS (
    SELECT c.id, c.workspace_id, c.user_id, e.tokens
      FROM turnkeep.conversations c
      JOIN unnest($1::text[], $2::text[], $3::text[]) AS e (id, title, tokens) ON c.id = e.id AND c.title = e.title
     ORDER BY c.id FOR UPDATE OF c
)
INSERT INTO turnkeep.search_entries AS s
       (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
SELECT n.id, n.id, -1, n.workspace_id, n.user_id, array_to_tsvector(string_to_array(n.tokens, ' '))
  FROM named n
ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
 WHERE s.tokens <> excluded.tokens

-- name: park_waiting
-- Conversations whose next turn waits, and of which everything before is indexed, are passed over until it goes on. The lock
-- lets a turn that goes on at this moment find its conversation parked, or not be parked.
UPDATE turnkeep.unindexed u SET is_parked = true
  FROM (SELECT d.conversation_id
          FROM turnkeep.unindexed d
         CROSS JOIN LATERAL (SELECT c.* FROM turnkeep.conversations c WHERE c.id = d.conversation_id OFFSET 0) c
          JOIN turnkeep.turns t ON t.conversation_id = c.id AND t.active IN (true, false)
                               AND t.ordinal = c.indexed_ordinal + 1 AND t.waiting_until IS NOT NULL
         WHERE NOT d.is_parked
           AND (c.title IS NULL OR EXISTS (SELECT 1 FROM turnkeep.search_entries e
                                            WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1
                                           OFFSET 0))
         LIMIT $1 FOR SHARE OF t SKIP LOCKED) p
 WHERE u.conversation_id = p.conversation_id

-- name: rows_to_index
-- slow
-- The visible rows of the turns after $2 up to $3 of each of these conversations. OFFSET 0 keeps it a look-up for each.
SELECT r.conversation_id, r.turn_id, r.turn_sequence, r.blocks, r.display
  FROM unnest($1::text[], $2::integer[], $3::integer[]) AS w (id, after, last)
 CROSS JOIN LATERAL (
       SELECT t.conversation_id, m.turn_id, m.turn_sequence, CASE WHEN m.display IS NULL THEN m.blocks END AS blocks,
              m.display
         FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
        WHERE t.conversation_id = w.id AND t.active IN (true, false) AND t.ordinal > w.after AND t.ordinal <= w.last
          AND NOT m.internal AND m.removed IS DISTINCT FROM '"all"' OFFSET 0) r

-- name: removed_of
-- What was removed of a row, whether a reader could see it, and whether its turn is on the visible chain.
SELECT m.removed, NOT m.internal AS is_visible, t.active
  FROM turnkeep.messages m JOIN turnkeep.turns t ON t.id = m.turn_id
 WHERE m.turn_id = $1 AND m.turn_sequence = $2 AND m.conversation_id = $3

-- name: remove_blocks
UPDATE turnkeep.messages m SET removed = $3 WHERE m.turn_id = $1 AND m.turn_sequence = $2

-- name: forget_entry
DELETE FROM turnkeep.search_entries s WHERE s.conversation_id = $3 AND s.turn_id = $1 AND s.turn_sequence = $2

-- name: take_ordinal
UPDATE turnkeep.conversations c SET next_ordinal = c.next_ordinal + 1 WHERE c.id = $1

-- name: index_turns
-- slow
-- Move the mark of each conversation from $2 to $3, add its entries ($6 to $9), and index its title, unless that has
-- changed since it was read. The answer names the conversations whose mark was moved: for the others another worker was
-- quicker, and nothing is added. They are locked in the order of their ids, as by every writer of several. Tokens hold
-- no spaces, so those of one entry travel as one text.
WITH locked AS MATERIALIZED (
    SELECT c.id, c.workspace_id, c.user_id, w.last, CASE WHEN c.title = w.title THEN w.tokens END AS tokens
      FROM turnkeep.conversations c
      JOIN unnest($1::text[], $2::integer[], $3::integer[], $4::text[], $5::text[]) AS w (id, after, last, title, tokens)
        ON c.id = w.id AND c.indexed_ordinal = w.after
     ORDER BY c.id FOR UPDATE OF c
), marked AS (
    UPDATE turnkeep.conversations c SET indexed_ordinal = l.last FROM locked l WHERE c.id = l.id
), titled AS (
    INSERT INTO turnkeep.search_entries AS s
           (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
    SELECT l.id, l.id, -1, l.workspace_id, l.user_id, array_to_tsvector(string_to_array(l.tokens, ' '))
      FROM locked l WHERE l.tokens IS NOT NULL
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
     WHERE s.tokens <> excluded.tokens
), added AS (
    INSERT INTO turnkeep.search_entries
           (conversation_id, turn_id, turn_sequence, workspace_id, user_id, tokens)
    SELECT l.id, e.turn, e.sequence, l.workspace_id, l.user_id,
           array_to_tsvector(string_to_array(e.tokens, ' '))
      FROM locked l JOIN unnest($6::text[], $7::text[], $8::integer[], $9::text[]) AS e (id, turn, sequence, tokens)
        ON e.id = l.id
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO NOTHING
)
SELECT l.id FROM locked l

-- name: found_conversations
-- slow
SELECT f.id FROM turnkeep.found_conversations($1, $2, $3, $4::text::tsquery, $5, $6, $7, $8::json) f

-- name: listed_conversations
-- slow
-- The ids of a page of a list with filters.
SELECT f.id FROM turnkeep.listed_conversations($1, $2, $3, NULL, $4, $5, $6, $7::json) f

-- name: found_messages
-- slow
-- The newest message that matches, of each of these conversations.
SELECT DISTINCT ON (e.conversation_id) e.turn_id, e.turn_sequence
  FROM turnkeep.search_entries e JOIN turnkeep.turns t ON t.id = e.turn_id
 WHERE e.conversation_id = ANY ($1::text[]) AND e.tokens @@ $2::text::tsquery AND t.active
 ORDER BY e.conversation_id, t.ordinal DESC, e.turn_sequence DESC

-- name: import_turns
-- slow
WITH imported AS (
    INSERT INTO turnkeep.turns ({imported_turn_columns})
    SELECT {n.imported_turn_columns} FROM json_populate_recordset(NULL::turnkeep.turns, $1::json) n
)
INSERT INTO turnkeep.turn_reports (turn_id, org_id, conversation_id, report)
SELECT n.id, n.org_id, n.conversation_id, n.report
  FROM json_to_recordset($1::json) AS n (id text, org_id text, conversation_id text, report text)
 WHERE n.report IS NOT NULL

-- name: import_messages
-- slow
INSERT INTO turnkeep.messages ({message_columns}, org_id)
SELECT {n.message_columns}, n.org_id FROM json_populate_recordset(NULL::turnkeep.messages, $1::json) n

-- name: import_events
-- slow
INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
SELECT n.turn_id, n.seq, n.org_id, n.type, n.payload FROM json_populate_recordset(NULL::turnkeep.turn_events, $1::json) n

-- name: import_logs
-- slow
INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
SELECT n.turn_id, n.n, n.org_id, n.after_seq, n.level, n.message, n.ts
  FROM json_populate_recordset(NULL::turnkeep.turn_logs, $1::json) n

-- name: row_counts
-- slow
-- How much there is: orgs, conversations, turns, messages and files.
SELECT (SELECT count(*) FROM turnkeep.orgs), (SELECT count(*) FROM turnkeep.conversations), (SELECT count(*) FROM turnkeep.turns),
       (SELECT count(*) FROM turnkeep.messages), (SELECT count(*) FROM turnkeep.files)

-- name: table_sizes
-- slow
-- Every table with its partitions and indexes, the largest first: its bytes, and its rows, living and dead, as the
-- statistics have them.
SELECT t.relname::text, sum(pg_total_relation_size(c.oid))::bigint, sum(s.n_live_tup)::bigint, sum(s.n_dead_tup)::bigint
  FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
  LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
  JOIN pg_class t ON t.oid = coalesce(i.inhparent, c.oid)
 WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind = 'r'
 GROUP BY t.relname
 ORDER BY 2 DESC, 1

-- name: row_problems
-- slow
-- Rows that contradict each other, as those of an incomplete backup do: what is wrong, how often, and the id of one.
WITH events AS (
    SELECT e.turn_id, count(*) AS n, bool_or(e.type IN ('result', 'error')) AS is_ended
      FROM turnkeep.turn_events e GROUP BY e.turn_id
), rows_of_turn AS (
    SELECT m.turn_id, count(*) AS n, max(m.turn_sequence) AS last, 
           count(*) FILTER (WHERE NOT m.internal AND m.removed IS DISTINCT FROM '"all"') AS visible
      FROM turnkeep.messages m GROUP BY m.turn_id
), shown AS (
    SELECT t.conversation_id, count(*) AS turns, coalesce(sum(r.visible), 0) AS messages
      FROM turnkeep.turns t LEFT JOIN rows_of_turn r ON r.turn_id = t.id WHERE t.active GROUP BY t.conversation_id
), problems AS (
    SELECT 'turns without all of their events' AS what, t.id
      FROM turnkeep.turns t LEFT JOIN events e ON e.turn_id = t.id WHERE t.last_seq <> coalesce(e.n, 0)
    UNION ALL
    SELECT 'settled turns without their last event', t.id
      FROM turnkeep.turns t LEFT JOIN events e ON e.turn_id = t.id
     WHERE t.settled_at IS NOT NULL AND t.last_seq > 0 AND NOT coalesce(e.is_ended, false)
    UNION ALL
    SELECT 'turns without all of their messages', t.id
      FROM turnkeep.turns t LEFT JOIN rows_of_turn r ON r.turn_id = t.id WHERE coalesce(r.n, 0) <> coalesce(r.last, 0) + 1
    UNION ALL
    SELECT 'events without their turn', e.turn_id
      FROM events e LEFT JOIN turnkeep.turns t ON t.id = e.turn_id WHERE t.id IS NULL
    UNION ALL
    SELECT 'messages without their turn', r.turn_id
      FROM rows_of_turn r LEFT JOIN turnkeep.turns t ON t.id = r.turn_id WHERE t.id IS NULL
    UNION ALL
    SELECT 'conversations without all of their turns or messages', c.id
      FROM turnkeep.conversations c LEFT JOIN shown s ON s.conversation_id = c.id
     WHERE c.turn_count <> coalesce(s.turns, 0) OR c.message_count <> coalesce(s.messages, 0)
)
SELECT p.what, count(*), min(p.id) FROM problems p GROUP BY p.what ORDER BY p.what
