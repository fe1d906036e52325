-- The life of a turn. Positional parameters where a query runs once per row of a turn, named ones elsewhere.

-- name: claim_facts
-- What a claim depends on, as one document (`rules.claims.ClaimFacts`).
SELECT json_object(
    'now', :now,
    'by_key', json((
        SELECT json_object('id', t.id, 'conversation_id', t.conversation_id, 'org_id', t.org_id,
                           'principal_ref', t.principal_ref, 'request_hash', t.request_hash, 'status', t.status,
                           'attempt', t.attempt, 'worker', t.worker,
                           'user_message_id',
                           (SELECT m.id FROM messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0))
          FROM turns t
         WHERE t.org_id = :org AND t.principal_ref = :ref AND t.idempotency_key = :idempotency_key)),
    'by_id', json((
        SELECT json_object('id', t.id, 'conversation_id', t.conversation_id, 'org_id', t.org_id,
                           'principal_ref', t.principal_ref, 'request_hash', t.request_hash, 'status', t.status,
                           'attempt', t.attempt, 'worker', t.worker,
                           'user_message_id',
                           (SELECT m.id FROM messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0))
          FROM turns t
         WHERE t.id = :turn)),
    'limits', json((
        SELECT json_group_array(json_object(
                   'scope', l.scope, 'scope_id', l.id, 'messages', l.messages, 'tokens', l.tokens, 'cost', l.cost,
                   'turns', l.turns,
                   'used_tokens', CASE WHEN l.tokens IS NOT NULL THEN (
                       SELECT coalesce(sum(u.input_tokens + u.output_tokens), 0) FROM usage u
                        WHERE u.org_id = :org AND u.scope = l.scope AND u.month = :month
                          AND u.scope_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d
                                              WHERE l.scope = 'key' AND d.org_id = :org AND instr(d.ancestors, l.id))) END,
                   'used_cost', CASE WHEN l.cost IS NOT NULL THEN (
                       SELECT total(u.cost) FROM usage u
                        WHERE u.org_id = :org AND u.scope = l.scope AND u.month = :month
                          AND u.scope_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d
                                              WHERE l.scope = 'key' AND d.org_id = :org AND instr(d.ancestors, l.id))) END,
                   'used_messages', CASE WHEN coalesce(l.tokens, l.cost) IS NOT NULL THEN (
                       SELECT u.ui_messages + u.api_messages FROM usage u
                        WHERE u.org_id = :org AND u.scope = l.scope AND u.scope_id = l.id AND u.month = :month) END))
          FROM (SELECT 'workspace' AS scope, w.id, w.monthly_message_limit AS messages, w.monthly_token_limit AS tokens,
                       w.monthly_cost_limit AS cost, w.parallel_turn_limit AS turns
                  FROM workspaces w WHERE w.id = :workspace AND w.org_id = :org
                 UNION ALL
                SELECT 'user', m.id, coalesce(m.monthly_message_limit, w.user_monthly_message_limit),
                       coalesce(m.monthly_token_limit, w.user_monthly_token_limit),
                       coalesce(m.monthly_cost_limit, w.user_monthly_cost_limit),
                       coalesce(m.parallel_turn_limit, w.user_parallel_turn_limit)
                  FROM members m CROSS JOIN workspaces w ON w.id = m.workspace_id
                 WHERE m.id = :member AND m.org_id = :org
                 UNION ALL
                SELECT 'key', k.id, k.monthly_message_limit, k.monthly_token_limit, k.monthly_cost_limit,
                       k.parallel_turn_limit
                  FROM json_each(:keys) e CROSS JOIN api_keys k ON k.id = e.value AND k.org_id = :org) l
         WHERE coalesce(l.messages, l.tokens, l.cost, l.turns) IS NOT NULL)),
    'has_workspace', EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace AND w.org_id = :org),
    'has_user', :member IS NULL
                OR EXISTS (SELECT 1 FROM members m WHERE m.id = :member AND m.org_id = :org AND m.is_disabled = 0),
    'has_agent', :agent IS NULL OR EXISTS (
        SELECT 1 FROM agents a
         WHERE a.id = :agent AND a.org_id = :org AND a.workspace_id = :workspace AND a.deleted_at IS NULL),
    'conversation', json((
        SELECT json_object(
            'head_turn_id', c.head_turn_id,
            'turn_count', c.turn_count,
            'settings', json_object('kind', c.kind, 'agent_id', c.agent_id, 'model', c.model,
                                    'instructions', c.instructions, 'temperature', c.temperature),
            'queue', json_object(
                'next_ordinal', c.next_ordinal,
                'running', json((SELECT json_object('id', r.id, 'started_at', r.started_at,
                                                     'waiting_for', {r.waiting_for})
                                   FROM turns r WHERE r.conversation_id = c.id AND r.status = 'running')),
                'waiting', json((SELECT json_group_array(json_object('id', q.id, 'ordinal', q.ordinal, 'steers', q.steers_turn_id)
                                                           ORDER BY q.ordinal)
                                   FROM turns q INDEXED BY turns_waiting
                                  WHERE q.conversation_id = c.id AND q.status = 'queued'))))
          FROM conversations c
         WHERE c.id = :conversation AND c.org_id = :org AND c.workspace_id = :workspace AND c.deleted_at IS NULL
           AND (:user IS NULL OR c.user_id = :user))),
    'beside', json((
        SELECT json_object('parent_turn_id', b.parent_turn_id, 'status', b.status, 'started_at', b.started_at)
          FROM turns b
         WHERE b.id = :beside AND b.conversation_id = :conversation)),
    'of_external_id', (
        SELECT x.id FROM conversations x
         WHERE x.workspace_id = :workspace AND x.external_id = :external_id
           AND coalesce(x.user_id, '') = coalesce(:member, '') AND x.deleted_at IS NULL));

-- name: attachment_facts
-- The files that a claim may attach, and the names that its conversation has already (`rules.claims.Attachable`).
SELECT json_object(
    'files', json((
        SELECT json_group_array(json_object(
                   'id', f.id, 'name', f.name, 'mime_type', f.mime_type, 'size', f.size, 'status', f.status,
                   'conversation_id', f.conversation_id, 'saved_at', f.saved_at))
          FROM files f
         WHERE f.id IN (SELECT value FROM json_each(:files)) AND f.org_id = :org AND f.workspace_id = :workspace
           AND f.deleted_at IS NULL AND (:user IS NULL OR f.user_id = :user OR f.saved_at IS NOT NULL))),
    'taken_names', json((
        SELECT json_group_array(f.name_key) FROM files f
         WHERE f.conversation_id = :conversation AND f.deleted_at IS NULL)));

-- name: conversation_for_write
-- The conversation as a write needs it, if the principal may see it. No row: it does not exist for them.
SELECT c.head_turn_id, c.next_ordinal, c.kind,
       (SELECT t.id FROM turns t WHERE t.conversation_id = c.id AND t.status = 'running'),
       (SELECT q.id FROM turns q WHERE q.conversation_id = c.id AND q.status = 'queued' ORDER BY q.ordinal LIMIT 1)
  FROM conversations c
 WHERE c.id = :conversation AND c.org_id = :org AND c.workspace_id = :workspace AND c.deleted_at IS NULL
   AND (:user IS NULL OR c.user_id = :user);

-- name: turn_started_at
SELECT started_at FROM turns WHERE id = :turn;

-- name: turn_place
-- Where a turn stands in its conversation.
SELECT parent_turn_id, ordinal, active, status, started_at
  FROM turns
 WHERE id = :turn AND conversation_id = :conversation;

-- name: visible_after
-- How many turns and visible messages the chain has after this ordinal.
SELECT count(*), coalesce(sum((SELECT count(*) FROM messages m
                                WHERE m.turn_id = t.id AND m.internal = 0 AND m.removed IS NOT '"all"')), 0)
  FROM turns t
 WHERE t.conversation_id = :conversation AND t.active = 1 AND t.ordinal > :ordinal;

-- name: visible_of_turn
SELECT count(*) FROM messages WHERE turn_id = :turn AND internal = 0 AND removed IS NOT '"all"';

-- name: hide_after
-- The abandoned suffix leaves the visible chain.
UPDATE turns SET active = 0 WHERE conversation_id = :conversation AND active = 1 AND ordinal > :ordinal;

-- name: show_turn
UPDATE turns SET active = 1 WHERE id = :turn;

-- name: count_message
-- One more POST for a scope and month.
INSERT INTO usage (org_id, month, ui_messages, api_messages, scope, scope_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (org_id, scope, scope_id, month)
DO UPDATE SET ui_messages = ui_messages + excluded.ui_messages, api_messages = api_messages + excluded.api_messages;

-- name: counted_messages
-- How many there are.
SELECT ui_messages + api_messages FROM usage WHERE org_id = ?1 AND scope = ?2 AND scope_id = ?3 AND month = ?4;

-- name: counted_turn
-- What the message of a turn was counted for.
SELECT workspace_id, user_id, key_id, month FROM turns WHERE id = :turn;

-- name: count_tokens
-- What a settled turn consumed.
INSERT INTO usage (org_id, scope, scope_id, month, input_tokens, output_tokens, cost)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (org_id, scope, scope_id, month)
DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
              output_tokens = output_tokens + excluded.output_tokens,
              cost = cost + excluded.cost;

-- name: open_turns_of
-- Turns of a scope that run or wait, but for those that are being stopped, and those that the new turn stops (`gone`).
-- The turns of a key are those of the keys that it made, too.
SELECT count(*)
  FROM (SELECT r.id, r.workspace_id, r.user_id, r.key_id FROM turns r INDEXED BY turns_single_flight
         WHERE r.status = 'running' AND r.cancel_requested_at IS NULL
         UNION ALL
        SELECT q.id, q.workspace_id, q.user_id, q.key_id FROM turns q INDEXED BY turns_waiting WHERE q.status = 'queued') t
 WHERE t.id NOT IN (SELECT value FROM json_each(:gone))
   AND CASE :scope
       WHEN 'workspace' THEN t.workspace_id = :scope_id
       WHEN 'user' THEN t.user_id = :scope_id
       ELSE t.key_id = :scope_id
            OR EXISTS (SELECT 1 FROM api_keys d WHERE d.id = t.key_id AND instr(d.ancestors, :scope_id)) END;

-- name: count_day
-- A turn that has ended, for the usage of its day.
INSERT INTO usage_days (org_id, workspace_id, day, user_id, agent_id, model, source, messages, input_tokens, output_tokens,
                        cache_read_tokens, cache_write_tokens, cost, unpriced)
SELECT org_id, workspace_id, strftime('%Y-%m-%d', created_at / 1000, 'unixepoch'), coalesce(user_id, ''),
       coalesce(agent_id, ''), coalesce(model, ''), source, 1, input_tokens, output_tokens, cache_read_tokens,
       cache_write_tokens, coalesce(cost, 0), cost IS NULL
  FROM turns WHERE id = ?1
ON CONFLICT DO UPDATE
   SET messages = messages + 1, input_tokens = input_tokens + excluded.input_tokens,
       output_tokens = output_tokens + excluded.output_tokens,
       cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
       cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens, cost = cost + excluded.cost,
       unpriced = unpriced + excluded.unpriced;

-- name: insert_turn
INSERT INTO turns (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, beside_turn_id,
                   ordinal, active, status, attempt, failures, last_seq, seq_at_adoption, worker, lease_until,
                   watched_until, watched_ms, cancel_requested_at, background, principal_ref, idempotency_key,
                   request_hash, snapshot, source, model, metadata, month, input_tokens, output_tokens,
                   cache_read_tokens, cache_write_tokens, error, created_at, started_at, settled_at, agent_id,
                   steers_turn_id)
VALUES (:id, :org_id, :workspace_id, :conversation_id, :user_id, :key_id, :parent_turn_id, :beside_turn_id,
        :ordinal, :active, :status, :attempt, :failures, :last_seq, :seq_at_adoption, :worker, :lease_until,
        :watched_until, :watched_ms, :cancel_requested_at, :background, :principal_ref, :idempotency_key,
        :request_hash, :snapshot, :source, :model, :metadata, :month, :input_tokens, :output_tokens,
        :cache_read_tokens, :cache_write_tokens, :error, :created_at, :started_at, :settled_at, :agent_id,
        :steers_turn_id);

-- name: insert_whole_turn
-- A turn that happened elsewhere: settled from the start.
INSERT INTO turns (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id,
                   ordinal, active, status, attempt, principal_ref, source, model, month,
                   input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
                   created_at, started_at, settled_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, 'succeeded', 1, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?17, ?18);

-- name: append_facts
-- What an append depends on, in one look (`rules.claims.AppendFacts`, in the order of its fields).
SELECT c.head_turn_id, c.next_ordinal, r.id, r.started_at,
       (SELECT q.id FROM turns q WHERE q.conversation_id = c.id AND q.status = 'queued' ORDER BY q.ordinal LIMIT 1),
       k.conversation_id, k.ordinal, c.title IS NULL OR c.preview IS NULL,
       {r.waiting_for}
  FROM conversations c
  LEFT JOIN turns r ON r.conversation_id = c.id AND r.status = 'running'
  LEFT JOIN turns k ON k.id = ?5
 WHERE c.id = ?1 AND c.org_id = ?2 AND c.workspace_id = ?3 AND c.deleted_at IS NULL
   AND (?4 IS NULL OR c.user_id = ?4);

-- name: conversation_appended
UPDATE conversations
   SET head_turn_id = ?2, next_ordinal = next_ordinal + 1, turn_count = turn_count + 1,
       message_count = message_count + ?3, updated_at = ?4, title = coalesce(title, ?5), preview = coalesce(preview, ?6)
 WHERE id = ?1;

-- name: insert_message
INSERT INTO messages (turn_id, turn_sequence, id, conversation_id, role, internal, iteration, blocks, display,
                      attachments, sources, metadata, usage, legacy, provider, created_at, org_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17);

-- name: insert_event
INSERT INTO turn_events (turn_id, seq, org_id, type, payload) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: insert_log
INSERT INTO turn_logs (turn_id, n, org_id, after_seq, level, message, ts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: last_log
SELECT coalesce(max(n), 0) FROM turn_logs WHERE turn_id = :turn;

-- name: logs_from
SELECT after_seq, level, message, ts FROM turn_logs WHERE turn_id = :turn AND n > :n ORDER BY n;

-- name: conversation_claimed
-- A turn was asked for. One that waits counts nothing yet.
UPDATE conversations
   SET next_ordinal = next_ordinal + 1, turn_count = turn_count + :turns, message_count = message_count + :messages,
       updated_at = :now, read_at = :read_at,
       title = coalesce(title, :title), preview = coalesce(preview, :preview)
 WHERE id = :conversation;

-- name: conversation_counts
UPDATE conversations
   SET turn_count = turn_count + :turns, message_count = message_count + :messages, updated_at = :now
 WHERE id = :conversation;

-- name: fence
-- Who may write to this turn, and where its events stand.
SELECT status, attempt, last_seq, cancel_requested_at IS NOT NULL, conversation_id, org_id, files_written, steers
  FROM turns WHERE id = ?1;

-- name: events_between
SELECT type, payload FROM turn_events WHERE turn_id = :turn AND seq > :after AND seq <= :last ORDER BY seq;

-- name: message_at
SELECT id FROM messages WHERE turn_id = :turn AND turn_sequence = :sequence;

-- name: advance_turn
UPDATE turns SET last_seq = ?2 WHERE id = ?1;

-- name: count_steer
UPDATE turns SET steers = steers + 1 WHERE id = :turn;

-- name: steers_of
-- The queued turns whose words steer this turn, with their questions.
SELECT {m.message_columns}
  FROM turns q INDEXED BY turns_waiting CROSS JOIN messages m ON m.turn_id = q.id AND m.turn_sequence = 0
 WHERE q.conversation_id = :conversation AND q.status = 'queued' AND q.steers_turn_id = :turn
 ORDER BY q.ordinal;

-- name: wait
-- The turn waits: no worker holds it, and it needs no reader. The attempt rises, so that its last holder writes no more.
UPDATE turns
   SET attempt = attempt + 1, worker = NULL, lease_until = NULL, watched_until = NULL, background = 1,
       waiting = :waiting, waiting_until = :until
 WHERE id = :turn;

-- name: hold_wait
-- The turn waits, and its worker holds it meanwhile. Nobody has to watch it.
UPDATE turns SET waiting = :waiting, watched_until = NULL, background = 1 WHERE id = :turn;

-- name: change_held_wait
-- Another answer came, for a turn that its worker holds.
UPDATE turns SET waiting = :waiting WHERE id = :turn;

-- name: change_wait
-- Another answer came. Without `until` the turn goes on: any worker may adopt it.
UPDATE turns
   SET waiting = :waiting, waiting_until = :until, lease_until = CASE WHEN :until IS NULL THEN -1 ELSE lease_until END
 WHERE id = :turn;

-- name: end_overdue_waits
-- What was not answered in time goes on without an answer, from now on: it may have ended while no server ran. The text is
-- extended as it is, since a parser might write its numbers in another way.
UPDATE turns INDEXED BY turns_deadlines
   SET waiting_until = NULL, lease_until = -1, waiting = '{"resumed_at":' || :now || ',' || substr(waiting, 2)
 WHERE waiting_until IS NOT NULL AND waiting_until <= :now
RETURNING id;

-- name: trusted_tools
SELECT trusted_tools FROM conversations WHERE id = :conversation;

-- name: trust_tools
UPDATE conversations SET trusted_tools = :tools WHERE id = :conversation;

-- name: settlement_facts
-- The turn as its settlement finds it, whether it has one-time tokens, and whether another turn waits for its end.
SELECT {t.turn_columns}, t.org_id, t.key_id, t.files_written,
       EXISTS (SELECT 1 FROM one_time_tokens o WHERE o.turn_id = t.id),
       EXISTS (SELECT 1 FROM turns q INDEXED BY turns_waiting
                WHERE q.conversation_id = t.conversation_id AND q.status = 'queued')
  FROM turns t
 WHERE t.id = ?1;

-- name: settle_turn
UPDATE turns
   SET status = ?2, last_seq = ?3, lease_until = NULL, settled_at = ?4, error = ?5, input_tokens = ?6,
       output_tokens = ?7, cache_read_tokens = ?8, cache_write_tokens = ?9, cost = ?10,
       report = ?11
 WHERE id = ?1;

-- name: conversation_settled
UPDATE conversations SET head_turn_id = ?2, message_count = message_count + ?3, updated_at = ?4 WHERE id = ?1;

-- name: expire_tokens
UPDATE one_time_tokens SET expires_at = :now WHERE turn_id = :turn AND used_at IS NULL AND expires_at > :now;

-- name: promotion_facts
-- What decides which waiting turn runs next, as one document (`rules.turns.PromotionFacts`). No row: no turn waits.
-- SQLite would choose to read all turns of the conversation if the index were not named.
SELECT json_object(
    'is_deleted', c.deleted_at IS NOT NULL,
    'head_turn_id', c.head_turn_id,
    'waiting', json_group_array(json_object(
        'id', q.id,
        'beside', json((
            SELECT json_object('parent_turn_id', b.parent_turn_id, 'status', b.status, 'started_at', b.started_at)
              FROM turns b
             WHERE b.id = q.beside_turn_id AND b.conversation_id = q.conversation_id))) ORDER BY q.ordinal))
  FROM turns q INDEXED BY turns_waiting JOIN conversations c ON c.id = q.conversation_id
 WHERE q.conversation_id = :conversation AND q.status = 'queued'
 GROUP BY c.id;

-- name: all_waiting
SELECT id FROM turns WHERE conversation_id = :conversation AND status = 'queued' ORDER BY ordinal;

-- name: move_waiting
UPDATE turns SET ordinal = :ordinal WHERE id = :turn;

-- name: start_waiting
-- A waiting turn may run now. Its lease has already ended, so that any worker may adopt it. Readers who left while it
-- waited, or were cut off, have their time once more.
UPDATE turns
   SET status = 'running', active = 1, parent_turn_id = :parent, lease_until = 0, started_at = :now,
       watched_until = max(watched_until, :now + watched_ms)
 WHERE id = :turn;

-- name: cancel_waiting
UPDATE turns
   SET status = 'cancelled', settled_at = :now, error = :error, last_seq = last_seq + 1
 WHERE id = :turn
RETURNING {turn_columns}, key_id, org_id;

-- name: key_and_ancestors
-- The keys for which a message of this key counts.
SELECT :key UNION SELECT a.value FROM api_keys k, json_each(k.ancestors) a WHERE k.id = :key;

-- name: refund_message
UPDATE usage
   SET ui_messages = ui_messages - ?3, api_messages = api_messages - ?4
 WHERE org_id = ?1 AND scope = ?5 AND scope_id = ?6 AND month = ?2;

-- name: request_cancel
UPDATE turns SET cancel_requested_at = coalesce(cancel_requested_at, :now) WHERE id = :turn AND status = 'running';

-- name: change_turn_metadata
UPDATE turns SET metadata = :metadata WHERE id = :turn;

-- name: renew_turn
UPDATE turns
   SET lease_until = :lease_until
 WHERE id = :turn AND attempt = :attempt AND status = 'running'
RETURNING cancel_requested_at IS NOT NULL, files_written;

-- name: hand_over_turn
UPDATE turns SET lease_until = 0 WHERE id = :turn AND attempt = :attempt AND status = 'running';

-- name: release_worker
UPDATE turns INDEXED BY turns_held SET lease_until = 0
 WHERE status = 'running' AND waiting_until IS NULL AND worker = :worker;

-- name: expired_turns
-- Turns to adopt: running, and their leases have ended. The longest abandoned come first. The columns are those of
-- `rules.turns.ExpiredTurn`, in its order. Turns that were handed over have no lease.
SELECT t.id, t.conversation_id, t.org_id,
       (SELECT m.id FROM messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0),
       t.attempt, t.failures, t.last_seq, t.seq_at_adoption, t.lease_until, t.lease_until = -1
  FROM turns t INDEXED BY turns_held
 WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < :now
   AND (NOT :only_handed_over OR t.lease_until <= 0)
 ORDER BY t.lease_until, t.id
 LIMIT :limit;

-- name: expired_turn
SELECT t.id, t.conversation_id, t.org_id,
       (SELECT m.id FROM messages m WHERE m.turn_id = t.id AND m.turn_sequence = 0),
       t.attempt, t.failures, t.last_seq, t.seq_at_adoption, t.lease_until, t.lease_until = -1
  FROM turns t
 WHERE t.id = :turn AND t.status = 'running' AND t.lease_until < :now;

-- name: adopt_turn
-- The readers of the worker that went silent are forgotten: they were cut off, and have not left. A turn that comes out
-- of the queue keeps those who wait for it.
UPDATE turns
   SET attempt = :attempt, failures = :failures, last_seq = :last_seq, seq_at_adoption = :last_seq,
       worker = :worker, lease_until = :lease_until,
       watched_until = CASE WHEN :is_first_start THEN watched_until END
 WHERE id = :turn
RETURNING {turn_columns};

-- name: abandon_leases
-- What an earlier boot held can be adopted at once: one server owns this file, and it is not that one.
UPDATE turns INDEXED BY turns_single_flight SET lease_until = 1 WHERE status = 'running' AND lease_until > 1;

-- name: due_work
-- What a sweep finds to do (`DueWork`). The conditions are those of the statements that do the work. The queue is looked
-- at only with `queue`: every queued turn costs something, also one behind a turn that waits for a week.
SELECT :queue AND EXISTS (SELECT 1 FROM turns q INDEXED BY turns_waiting
                WHERE q.status = 'queued'
                  AND NOT EXISTS (SELECT 1 FROM turns r
                                   WHERE r.conversation_id = q.conversation_id AND r.status = 'running')),
       EXISTS (SELECT 1 FROM turns t INDEXED BY turns_held
                WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < :now),
       EXISTS (SELECT 1 FROM turns t INDEXED BY turns_held
                WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.background = 0 AND t.watched_until < :now
                  AND t.cancel_requested_at IS NULL),
       EXISTS (SELECT 1 FROM unindexed u INDEXED BY unindexed_due CROSS JOIN conversations c ON c.id = u.conversation_id
                WHERE u.is_parked = 0
                  AND (c.indexed_ordinal < c.next_ordinal - 1
                       AND NOT EXISTS (SELECT 1 FROM turns t
                                        WHERE t.conversation_id = c.id AND t.active IN (0, 1)
                                          AND t.ordinal = c.indexed_ordinal + 1 AND t.settled_at IS NULL
                                          AND t.waiting_until IS NULL)
                   OR (c.title IS NOT NULL
                       AND NOT EXISTS (SELECT 1 FROM search_entries e
                                        WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1)))),
       EXISTS (SELECT 1 FROM erasures e WHERE e.done_at IS NULL AND e.not_before <= :now),
       coalesce((SELECT max(e.erased_at) FROM erasures e WHERE e.erased_at IS NOT NULL), 0),
       EXISTS (SELECT 1 FROM webhook_deliveries d INDEXED BY webhook_deliveries_due WHERE d.not_before <= :now),
       EXISTS (SELECT 1 FROM turns t INDEXED BY turns_deadlines
                WHERE t.waiting_until IS NOT NULL AND t.waiting_until <= :now);

-- name: backlog
-- How many turns do not run, and how long the oldest have waited (`Backlog`). A lease of 1 or less was handed over: since when
-- is not known, and not for long.
SELECT q.turns, q.ms, u.turns, u.ms, w.turns
  FROM (SELECT count(*) AS turns, max(0, coalesce(:now - min(t.created_at), 0)) AS ms
          FROM turns t INDEXED BY turns_waiting WHERE t.status = 'queued') q,
       (SELECT count(*) AS turns, max(0, coalesce(:now - min(CASE WHEN t.lease_until > 1 THEN t.lease_until END), 0)) AS ms
          FROM turns t INDEXED BY turns_held
         WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < :now) u,
       (SELECT count(*) AS turns FROM turns t INDEXED BY turns_deadlines WHERE t.waiting_until IS NOT NULL) w;

-- name: conversations_waiting
-- Conversations in which turns wait and none runs.
SELECT DISTINCT q.conversation_id
  FROM turns q INDEXED BY turns_waiting
 WHERE q.status = 'queued'
   AND NOT EXISTS (SELECT 1 FROM turns r WHERE r.conversation_id = q.conversation_id AND r.status = 'running');

-- name: watch_turn
UPDATE turns
   SET watched_until = max(coalesce(watched_until, 0), :until), watched_ms = :ms
 WHERE id = :turn AND status IN ('running', 'queued') AND background = 0;

-- name: unwatch_turn
UPDATE turns
   SET watched_until = :until, watched_ms = :ms
 WHERE id = :turn AND status IN ('running', 'queued') AND background = 0 AND watched_until > :until;

-- name: cancel_unwatched
UPDATE turns INDEXED BY turns_held
   SET cancel_requested_at = :now
 WHERE status = 'running' AND waiting_until IS NULL AND background = 0 AND watched_until < :now AND cancel_requested_at IS NULL
RETURNING id;

-- name: own_turn
-- A turn, if its conversation is the principal's and not deleted.
SELECT {t.turn_columns}
  FROM turns t
 WHERE t.id = :turn
   AND EXISTS (SELECT 1 FROM conversations c
                WHERE c.id = t.conversation_id AND c.org_id = :org AND c.workspace_id = :workspace
                  AND c.deleted_at IS NULL AND (:user IS NULL OR c.user_id = :user));

-- name: turn_by_id
SELECT {turn_columns} FROM turns WHERE id = :turn;

-- name: running_turn
SELECT {turn_columns} FROM turns WHERE id = :turn AND attempt = :attempt AND status = 'running';

-- name: remember_call
-- A model call that was counted, as a token that is spent. No row: it was remembered before, or the turn has ended.
INSERT INTO one_time_tokens (token_hash, org_id, turn_id, attempt, purpose, expires_at, used_at)
SELECT :hash, org_id, id, attempt, 'run', 0, :now FROM turns
 WHERE id = :turn AND attempt = :attempt AND status = 'running'
ON CONFLICT (token_hash) DO UPDATE SET used_at = excluded.used_at WHERE one_time_tokens.used_at IS NULL
RETURNING turn_id;

-- name: open_call
-- A model call that is not counted yet, as a token that is not spent. It has expired from the beginning.
INSERT INTO one_time_tokens (token_hash, org_id, turn_id, attempt, purpose, expires_at)
SELECT :hash, org_id, id, attempt, 'run', 0 FROM turns WHERE id = :turn AND attempt = :attempt AND status = 'running'
ON CONFLICT DO NOTHING;

-- name: has_open_calls
SELECT EXISTS (SELECT 1 FROM one_time_tokens
                WHERE turn_id = :turn AND attempt = :attempt AND expires_at = 0 AND used_at IS NULL);

-- name: count_usage
-- Tokens of a model call that the holder did not make itself. Its settlement replaces the sum with one that has them.
UPDATE turns
   SET input_tokens = input_tokens + :input, output_tokens = output_tokens + :output,
       cache_read_tokens = cache_read_tokens + :cache_read, cache_write_tokens = cache_write_tokens + :cache_write
 WHERE id = :turn AND attempt = :attempt AND status = 'running'
RETURNING id;

-- name: my_turn
SELECT {turn_columns} FROM my_turns WHERE id = :turn;

-- name: last_seqs
-- How far these turns have come, for all readers of a worker at once.
SELECT id, last_seq FROM turns WHERE id IN (SELECT value FROM json_each(?1));

-- name: events_after
-- The display of the final row rides on the last event, which is stored without it.
SELECT e.seq, e.payload,
       CASE WHEN e.type IN ('result', 'error') THEN
           (SELECT m.display FROM messages m WHERE m.turn_id = e.turn_id AND m.internal = 0 AND m.role = 'assistant'
             ORDER BY m.turn_sequence DESC LIMIT 1) END
  FROM turn_events e
 WHERE e.turn_id = ?1 AND e.seq > ?2
 ORDER BY e.seq
 LIMIT ?3;

-- name: compacted_up_to
SELECT coalesce((SELECT up_to FROM compaction), '');

-- name: turns_to_compact
-- Ids are sorted by time.
SELECT {turn_columns} FROM turns WHERE id > :after ORDER BY id LIMIT :limit;

-- name: event_payloads
SELECT payload FROM turn_events WHERE turn_id = :turn ORDER BY seq;

-- name: drop_events
DELETE FROM turn_events WHERE turn_id = :turn;

-- name: mark_compacted
UPDATE turns SET last_seq = 0 WHERE id = :turn;

-- name: drop_display
UPDATE messages SET display = NULL WHERE turn_id = :turn AND turn_sequence = :sequence;

-- name: compacted
INSERT INTO compaction (n, up_to) VALUES (1, :turn) ON CONFLICT (n) DO UPDATE SET up_to = excluded.up_to;

-- name: turn_rows
SELECT {message_columns} FROM messages WHERE turn_id = ?1 ORDER BY turn_sequence;

-- name: chain_forward
-- Turns of the visible chain beyond an ordinal, the oldest first.
SELECT {turn_columns} FROM turns
 WHERE conversation_id = :conversation AND active = 1 AND ordinal > :past
 ORDER BY ordinal LIMIT :limit;

-- name: chain_backward
SELECT {turn_columns} FROM turns
 WHERE conversation_id = :conversation AND active = 1 AND ordinal < :past
 ORDER BY ordinal DESC LIMIT :limit;

-- name: window
-- Rows of the newest turns of the visible chain, before an ordinal, newest first. Both indexes are walked backwards,
-- nothing is sorted. What most rows lack comes as one column, as each costs.
SELECT m.turn_id, m.turn_sequence, m.id, m.role, m.internal, m.iteration, m.blocks, m.usage, m.provider, m.created_at,
       CASE WHEN coalesce(m.attachments, m.sources, m.metadata, m.legacy, m.removed) IS NOT NULL THEN
           '[' || coalesce(m.attachments, 'null') || ',' || coalesce(m.sources, 'null') || ',' ||
           coalesce(m.metadata, 'null') || ',' || coalesce(m.legacy, 'null') || ',' ||
           coalesce(m.removed, 'null') || ']' END,
       t.ordinal, t.report
  FROM turns t CROSS JOIN messages m ON m.turn_id = t.id
 WHERE t.conversation_id = ?1 AND t.active = 1 AND t.ordinal < ?4
   AND t.ordinal >= (SELECT min(ordinal)
                       FROM (SELECT ordinal FROM turns
                              WHERE conversation_id = ?1 AND active = 1 AND ordinal < ?4
                              ORDER BY ordinal DESC
                              LIMIT ?2))
 ORDER BY t.ordinal DESC, m.turn_sequence DESC
 LIMIT ?3;
