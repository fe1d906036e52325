-- Conversations: their making, their lists and pages, their end; the index of titles and visible messages; and whole
-- conversations that come from elsewhere. The tables of the index are the engine's; what it finds is read through the
-- client path.

-- name: insert_conversation
INSERT INTO conversations ({new_conversation_columns}) VALUES ({new_conversation_values});

-- name: workspace_exists
SELECT 1 FROM workspaces WHERE id = :workspace AND org_id = :org;

-- name: agent_exists
SELECT 1 FROM agents WHERE id = :agent AND workspace_id = :workspace AND org_id = :org AND deleted_at IS NULL;

-- name: conversation_by_id
SELECT {c.conversation_columns} FROM conversations c WHERE c.id = :conversation;

-- name: conversation_of_host
-- The conversation of this owner (none: '') that has this external id.
SELECT {c.conversation_columns}
  FROM conversations c
 WHERE c.workspace_id = :workspace AND c.external_id = :external_id AND coalesce(c.user_id, '') = :owner
   AND c.deleted_at IS NULL;

-- name: own_conversation
SELECT {c.conversation_columns}
  FROM conversations c
 WHERE c.id = :conversation AND c.org_id = :org AND c.workspace_id = :workspace AND c.deleted_at IS NULL
   AND (:user IS NULL OR c.user_id = :user);

-- name: my_conversation
SELECT {my_conversation_columns}
  FROM my_conversations
 WHERE id = :conversation;

-- name: my_queue
-- The messages of the turns that wait, in the order in which they will run. A turn that has not started has no other row.
SELECT m.id, m.turn_id, m.role, m.blocks, m.display, m.attachments, m.sources, m.usage, t.status, m.created_at,
       coalesce(m.provider, t.model), CASE WHEN coalesce(t.error, m.metadata, t.metadata, t.report) IS NOT NULL THEN
           '[' || coalesce(t.error, 'null') || ',' || coalesce(m.metadata, t.metadata, 'null') || ',' ||
           coalesce(t.report, 'null') || ']' END
  FROM my_turns t CROSS JOIN my_messages m ON m.turn_id = t.id
 WHERE t.conversation_id = ?1 AND t.status = 'queued'
 ORDER BY t.ordinal;

-- name: my_conversations_of_user
-- One page of a user's list. The user and workspace are said once more so that the list's own index gives the order.
-- What comes after the row that exceeds :bytes is left out; a second row is always read, which tells that there is more.
SELECT {c.my_conversation_columns}
  FROM (SELECT id, row_number() OVER w AS n, sum(size) OVER w - size AS before
          FROM (SELECT id, updated_at, octet_length(coalesce(title, '')) + octet_length(coalesce(preview, ''))
                       + coalesce(octet_length(metadata), 0) AS size
                  FROM my_conversations
                 WHERE workspace_id = :workspace AND user_id = :user AND deleted_at IS NULL AND kind <> 'run' AND is_listed
                   AND (updated_at, id) < (:updated_at, :id)
                 ORDER BY updated_at DESC, id DESC
                 LIMIT :limit)
        WINDOW w AS (ORDER BY updated_at DESC, id DESC)) p
 CROSS JOIN my_conversations c ON c.id = p.id
 WHERE p.n <= 2 OR p.before <= :bytes
 ORDER BY p.n;

-- name: my_conversations_of_workspace
-- One page of the whole workspace's list, for a service. :bytes bound it as above.
SELECT {c.my_conversation_columns}
  FROM (SELECT id, row_number() OVER w AS n, sum(size) OVER w - size AS before
          FROM (SELECT id, updated_at, octet_length(coalesce(title, '')) + octet_length(coalesce(preview, ''))
                       + coalesce(octet_length(metadata), 0) AS size
                  FROM my_conversations
                 WHERE workspace_id = :workspace AND deleted_at IS NULL AND kind <> 'run' AND is_listed
                   AND (updated_at, id) < (:updated_at, :id)
                 ORDER BY updated_at DESC, id DESC
                 LIMIT :limit)
        WINDOW w AS (ORDER BY updated_at DESC, id DESC)) p
 CROSS JOIN my_conversations c ON c.id = p.id
 WHERE p.n <= 2 OR p.before <= :bytes
 ORDER BY p.n;

-- name: listed_conversations
-- The ids of a page of a list with filters. This query and the five that follow differ in the index from which they read.
SELECT c.id FROM conversations c INDEXED BY conversations_listed
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user) AND c.deleted_at IS NULL
   AND c.is_listed
   AND c.kind <> 'run' AND (:kind IS NULL OR c.kind = :kind)
   AND (:agent IS NULL OR c.agent_id = :agent) AND (:external_id IS NULL OR c.external_id = :external_id)
   AND (:pinned IS NULL OR c.is_pinned = :pinned) AND (:folder IS NULL OR c.folder = :folder)
   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: listed_of_kind
SELECT c.id FROM conversations c INDEXED BY conversations_of_kind
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user) AND c.deleted_at IS NULL
   AND c.is_listed
   AND c.kind <> 'chat' AND c.kind = :kind
   AND (:agent IS NULL OR c.agent_id = :agent) AND (:external_id IS NULL OR c.external_id = :external_id)
   AND (:pinned IS NULL OR c.is_pinned = :pinned) AND (:folder IS NULL OR c.folder = :folder)
   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: listed_of_agent
SELECT c.id FROM conversations c INDEXED BY conversations_of_agent
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user) AND c.deleted_at IS NULL
   AND c.is_listed
   AND CASE WHEN :kind IS NULL THEN c.kind <> 'run' ELSE c.kind = :kind END
   AND c.agent_id = :agent AND (:external_id IS NULL OR c.external_id = :external_id)
   AND (:pinned IS NULL OR c.is_pinned = :pinned) AND (:folder IS NULL OR c.folder = :folder)
   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: listed_of_external_id
SELECT c.id FROM conversations c INDEXED BY conversations_external_ids
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user) AND c.deleted_at IS NULL
   AND c.is_listed
   AND CASE WHEN :kind IS NULL THEN c.kind <> 'run' ELSE c.kind = :kind END
   AND (:agent IS NULL OR c.agent_id = :agent) AND c.external_id = :external_id
   AND (:pinned IS NULL OR c.is_pinned = :pinned) AND (:folder IS NULL OR c.folder = :folder)
   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: listed_pinned
SELECT c.id FROM conversations c INDEXED BY conversations_pinned
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND c.user_id = :user AND c.deleted_at IS NULL
   AND c.is_listed AND c.is_pinned AND c.is_pinned = :pinned
   AND CASE WHEN :kind IS NULL THEN c.kind <> 'run' ELSE c.kind = :kind END
   AND (:agent IS NULL OR c.agent_id = :agent) AND (:external_id IS NULL OR c.external_id = :external_id)
   AND (:folder IS NULL OR c.folder = :folder)
   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: listed_of_folder
SELECT c.id FROM conversations c INDEXED BY conversations_in_folders
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user) AND c.deleted_at IS NULL
   AND c.is_listed AND c.folder = :folder
   AND CASE WHEN :kind IS NULL THEN c.kind <> 'run' ELSE c.kind = :kind END
   AND (:agent IS NULL OR c.agent_id = :agent) AND (:external_id IS NULL OR c.external_id = :external_id)
   AND (:pinned IS NULL OR c.is_pinned = :pinned) AND (:filed IS NULL OR :filed)
   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
 ORDER BY c.updated_at DESC, c.id DESC LIMIT :limit;

-- name: my_folders
-- The folders of the one who asks, with the number of conversations in each.
SELECT folder, count(*) FROM my_conversations
 WHERE workspace_id = :workspace AND folder IS NOT NULL AND deleted_at IS NULL AND kind <> 'run' AND is_listed
 GROUP BY folder ORDER BY folder LIMIT :limit;

-- name: rename_folder
-- Also of conversations in the trash: one that is restored comes back to where the others are.
UPDATE conversations SET folder = :new_name
 WHERE workspace_id = :workspace AND org_id = :org AND folder = :name AND (:user IS NULL OR user_id = :user);

-- name: my_conversations_by_id
SELECT {my_conversation_columns}
  FROM my_conversations
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: transcript_forward
-- Visible messages of the visible chain, from the oldest. The turns are walked in order and the walk ends at the limit.
SELECT m.id, m.turn_id, m.role, CASE WHEN m.display IS NULL THEN m.blocks END, m.display, m.attachments, m.sources,
       m.usage, CASE WHEN {t.waiting_for} IS NULL THEN t.status ELSE 'waiting' END, m.created_at,
       coalesce(m.provider, t.model),
       CASE WHEN coalesce(t.error, m.metadata, t.metadata, t.report) IS NOT NULL THEN
           '[' || coalesce(t.error, 'null') || ',' || coalesce(m.metadata, t.metadata, 'null') || ',' ||
           coalesce(t.report, 'null') || ']' END,
       t.parent_turn_id, t.ordinal, m.turn_sequence
  FROM my_turns t CROSS JOIN my_messages m ON m.turn_id = t.id
 WHERE t.conversation_id = ?1 AND t.active = 1 AND t.ordinal >= ?2 AND (t.ordinal > ?2 OR m.turn_sequence > ?3)
 ORDER BY t.ordinal, m.turn_sequence
 LIMIT ?4;

-- name: transcript_backward
SELECT m.id, m.turn_id, m.role, CASE WHEN m.display IS NULL THEN m.blocks END, m.display, m.attachments, m.sources,
       m.usage, CASE WHEN {t.waiting_for} IS NULL THEN t.status ELSE 'waiting' END, m.created_at,
       coalesce(m.provider, t.model),
       CASE WHEN coalesce(t.error, m.metadata, t.metadata, t.report) IS NOT NULL THEN
           '[' || coalesce(t.error, 'null') || ',' || coalesce(m.metadata, t.metadata, 'null') || ',' ||
           coalesce(t.report, 'null') || ']' END,
       t.parent_turn_id, t.ordinal, m.turn_sequence
  FROM my_turns t CROSS JOIN my_messages m ON m.turn_id = t.id
 WHERE t.conversation_id = ?1 AND t.active = 1 AND t.ordinal <= ?2 AND (t.ordinal < ?2 OR m.turn_sequence < ?3)
 ORDER BY t.ordinal DESC, m.turn_sequence DESC
 LIMIT ?4;

-- name: branches
-- Turns beside the visible chain that once started where turns of a page start ('' for the conversation's beginning).
SELECT p.value, t.ordinal, t.id
  FROM json_each(?2) p CROSS JOIN my_turns t ON coalesce(t.parent_turn_id, '') = p.value
 WHERE t.conversation_id = ?1 AND t.active = 0 AND t.started_at IS NOT NULL;

-- name: questions
-- The questions of these turns, to compare them.
SELECT m.turn_id, m.blocks || coalesce(m.attachments, '')
  FROM json_each(?1) p CROSS JOIN my_messages m ON m.turn_id = p.value
 WHERE m.role = 'user'
 ORDER BY m.turn_sequence DESC;

-- name: conversation_rows
-- Every row of every branch. The turns of a page are chosen first, so that no other turn's rows are touched. Words that
-- steered a turn stand in that turn.
SELECT {m.message_columns}, t.ordinal
  FROM (SELECT id, ordinal
          FROM turns
         WHERE conversation_id = :conversation AND ordinal >= :ordinal AND coalesce(error ->> '$.code', '') <> 'steered'
           AND EXISTS (SELECT 1 FROM messages r WHERE r.turn_id = turns.id)
         ORDER BY ordinal
         LIMIT :limit + 1) t
  CROSS JOIN messages m ON m.turn_id = t.id
 WHERE t.ordinal > :ordinal OR m.turn_sequence > :sequence
 ORDER BY t.ordinal, m.turn_sequence
 LIMIT :limit;

-- name: conversation_turns
-- Words that steered a turn are part of that turn.
SELECT {turn_columns} FROM turns
 WHERE conversation_id = :conversation AND coalesce(error ->> '$.code', '') <> 'steered'
 ORDER BY ordinal;

-- name: turn_as_head
SELECT started_at, settled_at FROM turns WHERE id = :turn AND conversation_id = :conversation;

-- name: turn_ahead
-- The turn that runs, or else the first that waits.
SELECT id, started_at, {turns.waiting_for} FROM turns
 WHERE conversation_id = :conversation AND status IN ('running', 'queued')
 ORDER BY status DESC, ordinal LIMIT 1;

-- name: change_conversation
UPDATE conversations SET {changed_conversation_changes} WHERE id = :id;

-- name: delete_conversation
UPDATE conversations SET deleted_at = :now WHERE id = :conversation;

-- name: delete_files_with
UPDATE files SET deleted_at = :now, deleted_with = :conversation
 WHERE conversation_id = :conversation AND deleted_at IS NULL;

-- name: deleted_conversations
-- A page of the trash of this owner, the last deleted first. The client path sees nothing that is deleted, so the owner
-- stands here, as in `restorable_conversation`.
SELECT {c.conversation_columns}
  FROM conversations c INDEXED BY conversations_trash
 WHERE c.workspace_id = :workspace AND c.org_id = :org AND (:user IS NULL OR c.user_id = :user)
   AND c.deleted_at IS NOT NULL AND c.kind <> 'run' AND c.is_listed AND (c.deleted_at, c.id) < (:deleted_at, :id)
 ORDER BY c.deleted_at DESC, c.id DESC LIMIT :limit;

-- name: restorable_conversation
-- The principal's conversation, whether it is deleted or not, and whether it is.
SELECT c.deleted_at IS NOT NULL
  FROM conversations c
 WHERE c.id = :conversation AND c.org_id = :org AND c.workspace_id = :workspace
   AND (:user IS NULL OR c.user_id = :user);

-- name: restore_conversation
-- Without its external id, if another conversation of its owner has that now.
UPDATE conversations
   SET deleted_at = NULL,
       external_id = CASE WHEN NOT EXISTS (
           SELECT 1 FROM conversations o
            WHERE o.workspace_id = conversations.workspace_id AND o.external_id = conversations.external_id
              AND coalesce(o.user_id, '') = coalesce(conversations.user_id, '') AND o.deleted_at IS NULL)
           THEN external_id END
 WHERE id = :conversation;

-- name: restore_files
UPDATE files SET deleted_at = NULL, deleted_with = NULL WHERE deleted_with = :conversation AND conversation_id = :conversation;

-- name: idle_conversations
-- Those that have not changed since then. Their ids are before :end, as ids begin with their time.
SELECT c.id FROM conversations c
 WHERE c.id < :end AND c.updated_at < :since AND c.deleted_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = c.id AND t.settled_at IS NULL)
 ORDER BY c.id LIMIT :limit;

-- name: old_unlisted_conversations
-- Those that no list shows and that have not changed since then. Their ids are before :end, as ids begin with their time.
SELECT c.id FROM conversations c
 WHERE c.id < :end AND c.updated_at < :since AND c.deleted_at IS NULL AND NOT c.is_listed
   AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = c.id AND t.settled_at IS NULL)
 ORDER BY c.id LIMIT :limit;

-- name: purgeable
SELECT c.id
  FROM conversations c
 WHERE c.deleted_at < :before
   AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = c.id AND t.status = 'running')
 ORDER BY c.deleted_at, c.id
 LIMIT :limit;

-- name: storage_keys
SELECT storage_key FROM files WHERE conversation_id = :conversation;

-- name: purge_tokens_of_search
DELETE FROM search_tokens WHERE rowid IN (SELECT n FROM search_entries WHERE conversation_id = :conversation);

-- name: purge_search
DELETE FROM search_entries WHERE conversation_id = :conversation;

-- name: purge_events
DELETE FROM turn_events WHERE turn_id IN (SELECT id FROM turns WHERE conversation_id = :conversation);

-- name: purge_logs
DELETE FROM turn_logs WHERE turn_id IN (SELECT id FROM turns WHERE conversation_id = :conversation);

-- name: purge_messages
DELETE FROM messages WHERE turn_id IN (SELECT id FROM turns WHERE conversation_id = :conversation);

-- name: purge_tokens
DELETE FROM one_time_tokens WHERE turn_id IN (SELECT id FROM turns WHERE conversation_id = :conversation);

-- name: purge_outbox
DELETE FROM outbox WHERE conversation_id = :conversation;

-- name: purge_files
DELETE FROM files WHERE conversation_id = :conversation;

-- name: purge_turns
DELETE FROM turns WHERE conversation_id = :conversation;

-- name: purge_conversation
DELETE FROM conversations WHERE id = :conversation;

-- name: purge_deleted_files
-- Files that were deleted one by one.
DELETE FROM files
 WHERE id IN (SELECT id FROM files WHERE deleted_at < :before AND deleted_with IS NULL ORDER BY deleted_at, id LIMIT :limit)
RETURNING storage_key;

-- name: pending_conversations
-- Conversations that have more turns than are indexed, the first of which has ended, so that indexing makes progress: the
-- ordinal up to which they are indexed, the one before the turn that comes after the next :turns, the highest one below the
-- first turn that has not ended, and the title if no search finds it yet. Ordinals may have gaps.
SELECT p.id, p.indexed_ordinal, min(p.stop, coalesce(p.next_active, p.stop), coalesce(p.next_beside, p.stop)) - 1,
       p.stop - 1,
       CASE WHEN NOT EXISTS (SELECT 1 FROM search_entries e
                              WHERE e.conversation_id = p.id AND e.turn_id = p.id AND e.turn_sequence = -1)
            THEN p.title END
  FROM (SELECT c.id, c.indexed_ordinal, c.title,
               coalesce((SELECT min(t.ordinal) FROM turns t
                          WHERE t.conversation_id = c.id AND t.status IN ('queued', 'running')), c.next_ordinal) AS stop,
               (SELECT t.ordinal FROM turns t
                 WHERE t.conversation_id = c.id AND t.active = 1 AND t.ordinal > c.indexed_ordinal
                 ORDER BY t.ordinal LIMIT 1 OFFSET :turns) AS next_active,
               (SELECT t.ordinal FROM turns t
                 WHERE t.conversation_id = c.id AND t.active = 0 AND t.ordinal > c.indexed_ordinal
                 ORDER BY t.ordinal LIMIT 1 OFFSET :turns) AS next_beside
          FROM unindexed u INDEXED BY unindexed_due CROSS JOIN conversations c ON c.id = u.conversation_id
         WHERE u.is_parked = 0 AND (:workspace IS NULL OR u.workspace_id = :workspace) AND c.indexed_ordinal < c.next_ordinal - 1
           AND NOT EXISTS (SELECT 1 FROM turns t
                            WHERE t.conversation_id = c.id AND t.active IN (0, 1) AND t.ordinal = c.indexed_ordinal + 1
                              AND t.settled_at IS NULL)
         LIMIT :limit) p;

-- name: pending_titles
-- Conversations whose title cannot be found yet, because their first turn has not ended.
SELECT c.id, c.title
  FROM unindexed u INDEXED BY unindexed_due CROSS JOIN conversations c ON c.id = u.conversation_id
 WHERE u.is_parked = 0 AND (:workspace IS NULL OR u.workspace_id = :workspace)
   AND c.title IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM search_entries e
                    WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1)
 LIMIT :limit;

-- name: park_waiting
-- Conversations whose next turn waits, and of which everything before is indexed, are passed over until it goes on.
UPDATE unindexed INDEXED BY unindexed_due SET is_parked = 1
 WHERE is_parked = 0
   AND EXISTS (SELECT 1 FROM conversations c CROSS JOIN turns t
                WHERE c.id = unindexed.conversation_id AND t.conversation_id = c.id AND t.active IN (0, 1)
                  AND t.ordinal = c.indexed_ordinal + 1 AND t.waiting_until IS NOT NULL
                  AND (c.title IS NULL OR EXISTS (SELECT 1 FROM search_entries e
                                                   WHERE e.conversation_id = c.id AND e.turn_id = c.id
                                                     AND e.turn_sequence = -1)));

-- name: rows_to_index
SELECT m.turn_id, m.turn_sequence, CASE WHEN m.display IS NULL THEN m.blocks END, m.display
  FROM turns t CROSS JOIN messages m ON m.turn_id = t.id
 WHERE t.conversation_id = ?1 AND t.active IN (0, 1) AND t.ordinal > ?2 AND t.ordinal <= ?3
   AND m.internal = 0 AND m.removed IS NOT '"all"';

-- name: mark_indexed
-- Only one of several indexers moves the mark, and only that one may add the entries.
UPDATE conversations SET indexed_ordinal = ?3 WHERE id = ?1 AND indexed_ordinal = ?2;

-- name: removed_of
-- What was removed of a row, whether a reader could see it, and whether its turn is on the visible chain.
SELECT m.removed, m.internal = 0, t.active
  FROM messages m JOIN turns t ON t.id = m.turn_id
 WHERE m.turn_id = :turn AND m.turn_sequence = :sequence AND m.conversation_id = :conversation;

-- name: remove_blocks
UPDATE messages SET removed = :removed WHERE turn_id = :turn AND turn_sequence = :sequence;

-- name: entry_of_row
SELECT n FROM search_entries
 WHERE conversation_id = :conversation AND turn_id = :turn AND turn_sequence = :sequence;

-- name: take_ordinal
UPDATE conversations SET next_ordinal = next_ordinal + 1 WHERE id = :conversation;

-- name: pending_title
-- Whether this is still the title of the conversation, and no search finds it yet.
SELECT 1 FROM conversations
 WHERE id = ?1 AND title = ?2
   AND NOT EXISTS (SELECT 1 FROM search_entries WHERE conversation_id = ?1 AND turn_id = ?1 AND turn_sequence = -1);

-- name: title_entry
SELECT n FROM search_entries
 WHERE conversation_id = :conversation AND turn_id = :conversation AND turn_sequence = -1;

-- name: last_entry
SELECT coalesce(max(n), 0) FROM search_entries;

-- name: add_entry
INSERT INTO search_entries (n, conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id)
SELECT ?1, id, ?3, ?4, org_id, workspace_id, user_id FROM conversations WHERE id = ?2;

-- name: add_tokens
INSERT INTO search_tokens (rowid, tokens) VALUES (?1, ?2);

-- name: drop_tokens
DELETE FROM search_tokens WHERE rowid = :n;

-- name: drop_entry
DELETE FROM search_entries WHERE n = :n;

-- name: search
-- Conversations in which one entry holds every word: a title, or a message on the visible chain. :bytes bound them as they
-- bound a list.
SELECT id
  FROM (SELECT id, row_number() OVER w AS n, sum(size) OVER w - size AS before
          FROM (SELECT c.id, c.updated_at, octet_length(coalesce(c.title, '')) + octet_length(coalesce(c.preview, ''))
                       + coalesce(octet_length(c.metadata), 0) AS size
                  FROM conversations c
                 WHERE c.id IN (
                       SELECT e.conversation_id
                         FROM search_tokens s CROSS JOIN search_entries e ON e.n = s.rowid
                        WHERE s.search_tokens MATCH :query AND e.org_id = :org AND e.workspace_id = :workspace
                          AND (:user IS NULL OR e.user_id = :user)
                          AND (e.turn_sequence = -1
                               OR EXISTS (SELECT 1 FROM turns t WHERE t.id = e.turn_id AND t.active = 1)))
                   AND c.deleted_at IS NULL AND c.is_listed
                   AND CASE WHEN :kind IS NULL THEN c.kind <> 'run' ELSE c.kind = :kind END
                   AND (:agent IS NULL OR c.agent_id = :agent)
                   AND (:external_id IS NULL OR c.external_id = :external_id)
                   AND (:pinned IS NULL OR c.is_pinned = :pinned)
                   AND (:folder IS NULL OR c.folder = :folder)
                   AND (:filed IS NULL OR (c.folder IS NOT NULL) = :filed)
                   AND c.updated_at >= :since AND (c.updated_at, c.id) < (:updated_at, :id)
                 ORDER BY c.updated_at DESC, c.id DESC
                 LIMIT :limit)
        WINDOW w AS (ORDER BY updated_at DESC, id DESC))
 WHERE n <= 2 OR before <= :bytes
 ORDER BY n;

-- name: newest_matches
-- The newest matching message of each of these conversations (the bare columns are those of the greatest place).
SELECT e.conversation_id, e.turn_id, e.turn_sequence, max(t.ordinal * 1000000 + e.turn_sequence)
  FROM search_tokens s CROSS JOIN search_entries e ON e.n = s.rowid
  JOIN turns t ON t.id = e.turn_id AND t.active = 1
 WHERE s.search_tokens MATCH :query AND e.conversation_id IN (SELECT value FROM json_each(:ids))
 GROUP BY e.conversation_id;

-- name: my_message
SELECT {message_columns} FROM my_messages WHERE turn_id = :turn AND turn_sequence = :sequence;

-- name: insert_imported_turn
INSERT INTO turns ({imported_turn_columns}, report) VALUES ({imported_turn_values}, :report);

-- name: insert_imported_message
INSERT INTO messages ({message_columns}, org_id) VALUES ({message_values}, :org_id);

-- name: insert_imported_event
INSERT INTO turn_events (turn_id, seq, org_id, type, payload) VALUES (:turn_id, :seq, :org_id, :type, :payload);

-- name: insert_imported_log
INSERT INTO turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
VALUES (:turn_id, :n, :org_id, :after_seq, :level, :message, :ts);

-- name: row_counts
-- How much there is: orgs, conversations, turns, messages and files.
SELECT (SELECT count(*) FROM orgs), (SELECT count(*) FROM conversations), (SELECT count(*) FROM turns),
       (SELECT count(*) FROM messages), (SELECT count(*) FROM files);

-- name: row_problems
-- Rows that contradict each other, as those of an incomplete backup do: what is wrong, how often, and the id of one.
WITH events AS (
    SELECT e.turn_id, count(*) AS n, max(e.type IN ('result', 'error')) AS is_ended
      FROM turn_events e GROUP BY e.turn_id
), rows_of_turn AS (
    SELECT m.turn_id, count(*) AS n, max(m.turn_sequence) AS last, 
           count(*) FILTER (WHERE NOT m.internal AND m.removed IS NOT '"all"') AS visible
      FROM messages m GROUP BY m.turn_id
), shown AS (
    SELECT t.conversation_id, count(*) AS turns, coalesce(sum(r.visible), 0) AS messages
      FROM turns t LEFT JOIN rows_of_turn r ON r.turn_id = t.id WHERE t.active GROUP BY t.conversation_id
), problems AS (
    SELECT 'turns without all of their events' AS what, t.id
      FROM turns t LEFT JOIN events e ON e.turn_id = t.id WHERE t.last_seq <> coalesce(e.n, 0)
    UNION ALL
    SELECT 'settled turns without their last event', t.id
      FROM turns t LEFT JOIN events e ON e.turn_id = t.id
     WHERE t.settled_at IS NOT NULL AND t.last_seq > 0 AND NOT coalesce(e.is_ended, false)
    UNION ALL
    SELECT 'turns without all of their messages', t.id
      FROM turns t LEFT JOIN rows_of_turn r ON r.turn_id = t.id WHERE coalesce(r.n, 0) <> coalesce(r.last, 0) + 1
    UNION ALL
    SELECT 'events without their turn', e.turn_id
      FROM events e LEFT JOIN turns t ON t.id = e.turn_id WHERE t.id IS NULL
    UNION ALL
    SELECT 'messages without their turn', r.turn_id
      FROM rows_of_turn r LEFT JOIN turns t ON t.id = r.turn_id WHERE t.id IS NULL
    UNION ALL
    SELECT 'conversations without all of their turns or messages', c.id
      FROM conversations c LEFT JOIN shown s ON s.conversation_id = c.id
     WHERE c.turn_count <> coalesce(s.turns, 0) OR c.message_count <> coalesce(s.messages, 0)
)
SELECT p.what, count(*), min(p.id) FROM problems p GROUP BY p.what ORDER BY p.what;
