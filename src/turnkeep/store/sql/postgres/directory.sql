-- Tenants, who may act in them, agents, one-time tokens and usage. Ids are made by the caller, so that a write whose
-- answer was lost can be repeated.

-- name: now
-- The moment of the database's clock, by which everything here is dated.
SELECT turnkeep.now_ms()

-- name: insert_org
INSERT INTO turnkeep.orgs (id, name, created_at) VALUES ($1, $2, turnkeep.now_ms())
ON CONFLICT (id) DO UPDATE SET name = excluded.name
RETURNING id, name, created_at

-- name: lock_first_org
-- One server at a time looks whether there is an org, and makes the first.
SELECT pg_advisory_xact_lock(hashtextextended('turnkeep first org', 0))

-- name: orgs
SELECT {o.org_columns} FROM turnkeep.orgs o ORDER BY o.id

-- name: insert_workspace
INSERT INTO turnkeep.workspaces AS w (id, org_id, name, is_default, model, created_at)
SELECT $1, o.id, $3, $4, $5, turnkeep.now_ms() FROM turnkeep.orgs o WHERE o.id = $2
ON CONFLICT (id) DO UPDATE SET name = excluded.name
RETURNING {w.workspace_columns}

-- name: workspace
SELECT {w.workspace_columns} FROM turnkeep.workspaces w
 WHERE w.org_id = $1 AND (w.id = $2::text OR ($2::text IS NULL AND w.is_default))

-- name: workspaces
SELECT {w.workspace_columns} FROM turnkeep.workspaces w WHERE w.org_id = $1 ORDER BY w.id

-- name: workspace_exists
SELECT 1 FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2

-- name: workspace_to_change
-- Locked, so that other changes wait, and the claims of its turns do not.
SELECT {w.workspace_columns} FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2 FOR NO KEY UPDATE

-- name: change_workspace
UPDATE turnkeep.workspaces w
   SET name = $3, model = $4, ({limit_columns}) = ROW ($5, $6, $7, $8, $9),
       ({user_limit_columns}) = ROW ($10, $11, $12, $13, $14), title_model = $15
 WHERE w.org_id = $1 AND w.id = $2
RETURNING {w.workspace_columns}

-- name: lock_workspace
SELECT w.is_default, EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.workspace_id = w.id),
       EXISTS (SELECT 1 FROM turnkeep.files f WHERE f.workspace_id = w.id),
       EXISTS (SELECT 1 FROM turnkeep.pages p WHERE p.workspace_id = w.id)
       OR EXISTS (SELECT 1 FROM turnkeep.tables t WHERE t.workspace_id = w.id)
  FROM turnkeep.workspaces w WHERE w.org_id = $1 AND w.id = $2
   FOR UPDATE

-- name: delete_members
DELETE FROM turnkeep.members WHERE workspace_id = $1

-- name: delete_agents
DELETE FROM turnkeep.agents WHERE workspace_id = $1

-- name: delete_keys
DELETE FROM turnkeep.api_keys WHERE workspace_id = $1

-- name: delete_workspace
DELETE FROM turnkeep.workspaces WHERE id = $1

-- name: ensure_member
-- The member with that host id. A role or name that is given is stored, one that is not leaves the old one.
INSERT INTO turnkeep.members AS m (id, org_id, workspace_id, external_id, role, name, created_at)
SELECT $1, w.org_id, w.id, $4, coalesce($5::text, 'member'), $6::text, turnkeep.now_ms()
  FROM turnkeep.workspaces w WHERE w.org_id = $2 AND w.id = $3
ON CONFLICT (workspace_id, external_id) DO UPDATE
   SET role = coalesce($5::text, m.role), name = coalesce($6::text, m.name)
RETURNING {m.member_columns}

-- name: members
SELECT {m.member_columns} FROM turnkeep.members m
 WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.id > $3
   AND ($4::text IS NULL OR lower(m.external_id) LIKE $4 ESCAPE '!' OR lower(m.name) LIKE $4 ESCAPE '!')
 ORDER BY m.id LIMIT $5

-- name: member
-- By id, or else by host id.
SELECT {m.member_columns} FROM turnkeep.members m
 WHERE m.org_id = $1 AND m.workspace_id = $2 AND (m.id = $3 OR m.external_id = $3)
 ORDER BY m.id = $3 DESC LIMIT 1

-- name: member_of_host
SELECT {m.member_columns} FROM turnkeep.members m
 WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.external_id = $3

-- name: members_by_id
SELECT {m.member_columns} FROM turnkeep.members m WHERE m.org_id = $1 AND m.id = ANY ($2::text[])

-- name: member_to_change
SELECT {m.member_columns} FROM turnkeep.members m
 WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.id = $3 FOR NO KEY UPDATE

-- name: change_member
UPDATE turnkeep.members m
   SET name = $4, role = $5, is_disabled = $6, ({limit_columns}) = ROW ($7, $8, $9, $10, $11)
 WHERE m.org_id = $1 AND m.workspace_id = $2 AND m.id = $3
RETURNING {m.member_columns}

-- name: open_turns
SELECT o.id
  FROM (SELECT q.id, false AS is_running FROM turnkeep.turns q WHERE q.status = 'queued' AND q.org_id = $1 AND q.user_id = $2
         UNION ALL
        SELECT r.id, true FROM turnkeep.turns r WHERE r.status = 'running' AND r.org_id = $1 AND r.user_id = $2) o
 ORDER BY o.is_running, o.id

-- name: lock_user
-- The user, if they may do something. An erasure of this user waits until the transaction has ended.
SELECT 1 FROM turnkeep.members m WHERE m.org_id = $1 AND m.id = $2 AND NOT m.is_disabled FOR SHARE

-- name: limit_of_user
SELECT m.monthly_message_limit FROM turnkeep.members m WHERE m.org_id = $1 AND m.id = $2

-- name: insert_key
-- Unless its maker ($12) is revoked. The revocation of any of its ancestors waits until the key is there, and then finds
-- it; or the key waits for the revocation. All ancestors are locked, because the key ends with each of them.
WITH locked AS (
    SELECT a.id, a.revoked_at FROM turnkeep.api_keys a
     WHERE a.org_id = $2 AND a.id IN (SELECT jsonb_array_elements_text($11::text::jsonb)) ORDER BY a.id FOR SHARE OF a
)
INSERT INTO turnkeep.api_keys
       (id, org_id, name, secret_hash, requests_per_minute, allowed_tools, created_at, revoked_at, workspace_id, scopes,
        ancestors, {limit_columns})
SELECT $1, o.id, $3, $4, $5, $6, $7, $8, w.id, $10, $11, $13, $14, $15, $16, $17
  FROM turnkeep.orgs o LEFT JOIN turnkeep.workspaces w ON w.org_id = o.id AND w.id = $9::text
 WHERE o.id = $2 AND ($9::text IS NULL OR w.id IS NOT NULL)
   AND ($12::text IS NULL OR (SELECT count(*) FROM locked m WHERE m.id = $12 AND m.revoked_at IS NULL) = 1)
ON CONFLICT DO NOTHING
RETURNING id

-- name: facts_for_key
-- Why a key could not be added. Without a workspace ($3 is NULL) there is none to look for.
SELECT EXISTS (SELECT 1 FROM turnkeep.orgs o WHERE o.id = $2),
       $3::text IS NULL OR EXISTS (SELECT 1 FROM turnkeep.workspaces w WHERE w.org_id = $2 AND w.id = $3),
       $5::text IS NULL OR EXISTS (SELECT 1 FROM turnkeep.api_keys m
                                    WHERE m.id = $5 AND m.org_id = $2 AND m.revoked_at IS NULL),
       EXISTS (SELECT 1 FROM turnkeep.api_keys k WHERE k.id = $1 AND k.org_id = $2 AND k.secret_hash = $4)

-- name: key_by_hash
SELECT {k.key_columns}, k.secret_hash FROM turnkeep.api_keys k WHERE k.secret_hash = $1 AND k.revoked_at IS NULL

-- name: keys
-- All of the org, or those alone that are pinned to one workspace of it.
SELECT {k.key_columns} FROM turnkeep.api_keys k
 WHERE k.org_id = $1 AND ($2::text IS NULL OR k.workspace_id = $2) ORDER BY k.id

-- name: keys_by_id
SELECT {k.key_columns} FROM turnkeep.api_keys k WHERE k.org_id = $1 AND k.id = ANY ($2::text[])

-- name: revoke_key
UPDATE turnkeep.api_keys SET revoked_at = coalesce(revoked_at, turnkeep.now_ms())
 WHERE org_id = $1 AND id = $2 AND ($3::text IS NULL OR workspace_id = $3)
RETURNING id

-- name: revoke_made_keys
-- Those that this key made, and those that they made.
UPDATE turnkeep.api_keys SET revoked_at = coalesce(revoked_at, turnkeep.now_ms())
 WHERE org_id = $1 AND strpos(ancestors, $2) > 0

-- name: insert_agent
INSERT INTO turnkeep.agents AS a (id, org_id, workspace_id, spec, name_key, created_at, updated_at)
SELECT $1, w.org_id, w.id, $4, $5, n.now, n.now
  FROM turnkeep.workspaces w, (SELECT turnkeep.now_ms() AS now) n WHERE w.org_id = $2 AND w.id = $3
ON CONFLICT (id) DO UPDATE SET spec = excluded.spec
RETURNING {a.agent_columns}

-- name: agents_named
-- Other agents that may have the name of this key: those with the key, and all without one.
SELECT a.name_key, a.spec::json ->> 'name' FROM turnkeep.agents a
 WHERE a.workspace_id = $1 AND a.deleted_at IS NULL AND a.id <> $2 AND (a.name_key = $3 OR a.name_key IS NULL)

-- name: my_agent
SELECT {a.agent_columns} FROM turnkeep.my_agent($1, $2, $3, $4) a

-- name: my_agents
SELECT {a.agent_columns} FROM turnkeep.my_agents($1, $2, $3, $4, $5) a

-- name: my_reached_agents
SELECT {a.agent_columns} FROM turnkeep.my_reached_agents($1, $2, $3, $4, $5, $6) a

-- name: agent_to_change
SELECT {a.agent_columns} FROM turnkeep.agents a
 WHERE a.id = $3 AND a.org_id = $1 AND a.workspace_id = $2 AND a.deleted_at IS NULL FOR NO KEY UPDATE

-- name: change_agent
UPDATE turnkeep.agents a SET spec = $4, name_key = $5, updated_at = turnkeep.now_ms()
 WHERE a.id = $3 AND a.org_id = $1 AND a.workspace_id = $2 AND a.deleted_at IS NULL
RETURNING {a.agent_columns}

-- name: delete_agent
UPDATE turnkeep.agents a SET deleted_at = turnkeep.now_ms()
 WHERE a.id = $3 AND a.org_id = $1 AND a.workspace_id = $2 AND a.deleted_at IS NULL
RETURNING a.id

-- name: begin_mcp_connection
-- An authorization has begun. What the workspace is connected with stays until it has ended well.
INSERT INTO turnkeep.mcp_connections AS c (id, org_id, workspace_id, user_id, url, issuer, attempt, version, created_at)
SELECT $1, w.org_id, w.id, $4, $5, $6, $7, 0, turnkeep.now_ms()
  FROM turnkeep.workspaces w WHERE w.org_id = $2 AND w.id = $3
ON CONFLICT (workspace_id, url) DO UPDATE
   SET attempt = excluded.attempt,
       issuer = CASE WHEN c.sealed IS NULL THEN excluded.issuer ELSE c.issuer END,
       user_id = CASE WHEN c.sealed IS NULL THEN excluded.user_id ELSE c.user_id END
RETURNING {c.mcp_connection_columns}

-- name: mcp_connections
SELECT {c.mcp_connection_columns} FROM turnkeep.mcp_connections c
 WHERE c.workspace_id = $2 AND c.org_id = $1 ORDER BY c.id DESC

-- name: mcp_connection
SELECT {c.mcp_connection_columns} FROM turnkeep.mcp_connections c
 WHERE c.id = $3 AND c.workspace_id = $2 AND c.org_id = $1

-- name: mcp_connection_at
SELECT {c.mcp_connection_columns} FROM turnkeep.mcp_connections c
 WHERE c.workspace_id = $2 AND c.url = $3 AND c.org_id = $1

-- name: finish_mcp_connection
-- Only the attempt that is stored can end, once. A repeat finds what was written.
UPDATE turnkeep.mcp_connections c
   SET sealed = $5, attempt = NULL, user_id = $6, issuer = $7, problem = NULL, refresh_until = 0,
       version = c.version + (c.sealed IS DISTINCT FROM $5)::integer, connected_at = turnkeep.now_ms()
 WHERE c.id = $3 AND c.workspace_id = $2 AND c.org_id = $1 AND (c.attempt = $4 OR c.sealed = $5)
RETURNING {c.mcp_connection_columns}

-- name: lease_mcp_connection
-- One worker renews the tokens of a version. No row: another one does, or has done so.
UPDATE turnkeep.mcp_connections c SET refresh_until = turnkeep.now_ms() + $3::bigint
 WHERE c.id = $1 AND c.version = $2 AND c.refresh_until <= turnkeep.now_ms()
RETURNING c.id

-- name: renew_mcp_connection
UPDATE turnkeep.mcp_connections c SET sealed = $3, problem = $4, version = c.version + 1, refresh_until = 0
 WHERE c.id = $1 AND c.version = $2

-- name: delete_mcp_connection
DELETE FROM turnkeep.mcp_connections c WHERE c.id = $3 AND c.workspace_id = $2 AND c.org_id = $1
RETURNING {c.mcp_connection_columns}

-- name: usage
SELECT u.ui_messages, u.api_messages, u.input_tokens, u.output_tokens FROM turnkeep.used_in($1, $2, $3, $4) u

-- name: usage_rows
-- What each group ($8) has used: turns that have ended, from the usage of days, and those that run or wait. `priced` are
-- ended turns whose model had a price.
SELECT (CASE $8::text WHEN 'user' THEN d.user_id WHEN 'agent' THEN d.agent_id WHEN 'model' THEN d.model
                      WHEN 'day' THEN d.day ELSE d.source END) COLLATE "C" AS place,
       sum(d.messages)::bigint AS messages, sum(d.input_tokens)::bigint, sum(d.output_tokens)::bigint,
       sum(d.cache_read_tokens)::bigint, sum(d.cache_write_tokens)::bigint, sum(d.cost)::double precision,
       sum(d.priced)::bigint, sum(d.unpriced)::bigint
  FROM (SELECT u.day, u.user_id, u.agent_id, u.model, u.source, u.messages, u.input_tokens, u.output_tokens,
               u.cache_read_tokens, u.cache_write_tokens, u.cost, u.messages - u.unpriced AS priced, u.unpriced
          FROM turnkeep.usage_days u
         WHERE u.org_id = $1 AND u.workspace_id = $2 AND u.day BETWEEN $3 || '-01' AND $3 || '-31'
         UNION ALL
        SELECT s.day, s.user_id, s.agent_id, s.model, s.source, s.messages, s.input_tokens, s.output_tokens,
               s.cache_read_tokens, s.cache_write_tokens, s.cost, s.messages - s.unpriced, s.unpriced
          FROM turnkeep.usage_day_slots s
         WHERE s.org_id = $1 AND s.workspace_id = $2 AND s.day BETWEEN $3 || '-01' AND $3 || '-31'
         UNION ALL
        SELECT to_char(to_timestamp(t.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD'), coalesce(t.user_id, ''),
               coalesce(t.agent_id, ''), coalesce(t.model, ''), t.source, 1, t.input_tokens, t.output_tokens,
               t.cache_read_tokens, t.cache_write_tokens, 0, 0, 0
          FROM turnkeep.turns t
         WHERE t.status = 'running' AND t.org_id = $1 AND t.workspace_id = $2 AND t.month = $3
         UNION ALL
        SELECT to_char(to_timestamp(t.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD'), coalesce(t.user_id, ''),
               coalesce(t.agent_id, ''), coalesce(t.model, ''), t.source, 1, 0, 0, 0, 0, 0, 0, 0
          FROM turnkeep.turns t
         WHERE t.status = 'queued' AND t.org_id = $1 AND t.workspace_id = $2 AND t.month = $3) d
 WHERE ($4::text IS NULL OR d.user_id = $4) AND ($5::text IS NULL OR d.agent_id = $5)
   AND ($6::text IS NULL OR d.model = $6) AND ($7::text IS NULL OR d.day = $7)
 GROUP BY place ORDER BY messages DESC, place LIMIT $9

-- name: usage_turns
-- The turns of a month that are counted, newest first. One that was stopped in the queue is not, and neither is one that
-- happened elsewhere. The columns are those of `commands.CountedTurn`, in its order.
SELECT t.id, t.user_id, t.agent_id, t.model, t.source,
       CASE WHEN t.status = 'running' AND t.waiting_until IS NOT NULL THEN 'waiting' ELSE t.status END,
       t.created_at, t.started_at, t.settled_at, t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens,
       t.cost
  FROM turnkeep.turns t JOIN turnkeep.conversations c ON c.id = t.conversation_id
 WHERE t.workspace_id = $2 AND t.month = $3 AND t.id < $8 AND t.org_id = $1 AND c.deleted_at IS NULL
   AND t.snapshot IS NOT NULL AND (t.started_at IS NOT NULL OR t.status = 'queued')
   AND ($4::text IS NULL OR t.user_id = $4) AND ($5::text IS NULL OR t.agent_id = $5)
   AND ($6::text IS NULL OR t.model = $6)
   AND ($7::text IS NULL OR to_char(to_timestamp(t.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD') = $7)
 ORDER BY t.id DESC LIMIT $9

-- name: limit_uses
-- The limits of a workspace or a user, and of a key; then what is used of those that are set. The keys that a key has made
-- count with it.
SELECT l.scope, l.id, l.messages, l.tokens, l.cost, l.bytes, l.turns,
       CASE WHEN l.messages IS NOT NULL THEN (
           SELECT u.ui_messages + u.api_messages FROM turnkeep.used_in($1, l.scope, l.id, $6) u) END,
       CASE WHEN l.tokens IS NOT NULL THEN (
           SELECT sum(u.input_tokens + u.output_tokens)::bigint
             FROM (SELECT l.id UNION ALL SELECT d.id FROM turnkeep.api_keys d
                    WHERE l.scope = 'key' AND d.org_id = $1 AND strpos(d.ancestors, l.id) > 0) s (id),
                  turnkeep.used_in($1, l.scope, s.id, $6) u) END,
       CASE WHEN l.cost IS NOT NULL THEN (
           SELECT sum(u.cost)
             FROM (SELECT l.id UNION ALL SELECT d.id FROM turnkeep.api_keys d
                    WHERE l.scope = 'key' AND d.org_id = $1 AND strpos(d.ancestors, l.id) > 0) s (id),
                  turnkeep.used_in($1, l.scope, s.id, $6) u) END,
       (CASE WHEN l.bytes IS NULL THEN NULL
             WHEN l.scope = 'workspace' THEN (SELECT sum(f.size) FROM turnkeep.files f WHERE f.workspace_id = l.id)
             WHEN l.scope = 'user' THEN (SELECT sum(f.size) FROM turnkeep.files f WHERE f.workspace_id = $2 AND f.user_id = l.id)
             ELSE (SELECT sum(f.size) FROM turnkeep.files f
                    WHERE f.key_id IN (SELECT l.id UNION ALL
                                       SELECT d.id FROM turnkeep.api_keys d WHERE strpos(d.ancestors, l.id) > 0)) END)::bigint,
       CASE WHEN l.turns IS NOT NULL THEN turnkeep.open_turns_of(l.scope, l.id) END
  FROM (SELECT 'workspace' AS scope, w.id, w.monthly_message_limit AS messages, w.monthly_token_limit AS tokens,
               w.monthly_cost_limit AS cost, w.stored_byte_limit AS bytes, w.parallel_turn_limit AS turns
          FROM turnkeep.workspaces w WHERE $3::text = 'workspace' AND w.id = $2 AND w.org_id = $1
         UNION ALL
        SELECT 'user', m.id, coalesce(m.monthly_message_limit, w.user_monthly_message_limit),
               coalesce(m.monthly_token_limit, w.user_monthly_token_limit),
               coalesce(m.monthly_cost_limit, w.user_monthly_cost_limit),
               coalesce(m.stored_byte_limit, w.user_stored_byte_limit),
               coalesce(m.parallel_turn_limit, w.user_parallel_turn_limit)
          FROM turnkeep.members m JOIN turnkeep.workspaces w ON w.id = m.workspace_id
         WHERE m.id = $4::text AND m.org_id = $1 AND m.workspace_id = $2
         UNION ALL
        SELECT 'key', k.id, k.monthly_message_limit, k.monthly_token_limit, k.monthly_cost_limit, k.stored_byte_limit,
               k.parallel_turn_limit
          FROM turnkeep.api_keys k WHERE k.id = $5::text AND k.org_id = $1) l

-- name: add_up_slots
-- slow
-- Move what was counted in some slots to `usage`. Slots in which a transaction is counting just now wait for the next time.
-- The answer has a row for each slot.
WITH taken AS (
    DELETE FROM turnkeep.usage_slots s
     USING (SELECT x.org_id, x.scope, x.scope_id, x.month, x.slot FROM turnkeep.usage_slots x
             LIMIT $1 FOR UPDATE SKIP LOCKED) x
     WHERE (s.org_id, s.scope, s.scope_id, s.month, s.slot) = (x.org_id, x.scope, x.scope_id, x.month, x.slot)
    RETURNING s.*
), added AS (
    INSERT INTO turnkeep.usage AS u
           (org_id, scope, scope_id, month, ui_messages, api_messages, input_tokens, output_tokens, cost)
    SELECT t.org_id, t.scope, t.scope_id, t.month, sum(t.ui_messages), sum(t.api_messages), sum(t.input_tokens),
           sum(t.output_tokens), sum(t.cost)
      FROM taken t GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
       SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages,
           input_tokens = u.input_tokens + excluded.input_tokens,
           output_tokens = u.output_tokens + excluded.output_tokens, cost = u.cost + excluded.cost
)
SELECT t.slot FROM taken t

-- name: add_up_day_slots
-- slow
-- The same for `usage_days`.
WITH taken AS (
    DELETE FROM turnkeep.usage_day_slots s
     USING (SELECT x.org_id, x.workspace_id, x.day, x.user_id, x.agent_id, x.model, x.source, x.slot
              FROM turnkeep.usage_day_slots x LIMIT $1 FOR UPDATE SKIP LOCKED) x
     WHERE (s.org_id, s.workspace_id, s.day, s.user_id, s.agent_id, s.model, s.source, s.slot)
           = (x.org_id, x.workspace_id, x.day, x.user_id, x.agent_id, x.model, x.source, x.slot)
    RETURNING s.*
), added AS (
    INSERT INTO turnkeep.usage_days AS d
           (org_id, workspace_id, day, user_id, agent_id, model, source, messages, input_tokens, output_tokens,
            cache_read_tokens, cache_write_tokens, cost, unpriced)
    SELECT t.org_id, t.workspace_id, t.day, t.user_id, t.agent_id, t.model, t.source, sum(t.messages), sum(t.input_tokens),
           sum(t.output_tokens), sum(t.cache_read_tokens), sum(t.cache_write_tokens), sum(t.cost), sum(t.unpriced)
      FROM taken t GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (org_id, workspace_id, day, user_id, agent_id, model, source) DO UPDATE
       SET messages = d.messages + excluded.messages, input_tokens = d.input_tokens + excluded.input_tokens,
           output_tokens = d.output_tokens + excluded.output_tokens,
           cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = d.cache_write_tokens + excluded.cache_write_tokens, cost = d.cost + excluded.cost,
           unpriced = d.unpriced + excluded.unpriced
)
SELECT t.slot FROM taken t

-- name: key_usage
-- What a key has used of its own limit.
SELECT u.ui_messages + u.api_messages, k.monthly_message_limit
  FROM turnkeep.api_keys k, turnkeep.used_in(k.org_id, 'key', k.id, $3) u
 WHERE k.org_id = $1 AND k.id = $2

-- name: insert_token
INSERT INTO turnkeep.one_time_tokens AS o (token_hash, org_id, turn_id, attempt, purpose, expires_at)
SELECT $1, t.org_id, t.id, $3, $4, turnkeep.now_ms() + $5::bigint FROM turnkeep.turns t WHERE t.id = $2
ON CONFLICT (token_hash) DO UPDATE SET purpose = excluded.purpose
 WHERE (o.turn_id, o.attempt, o.purpose) = (excluded.turn_id, excluded.attempt, excluded.purpose)
RETURNING o.turn_id

-- name: peek_token
SELECT o.purpose, o.turn_id, o.attempt FROM turnkeep.one_time_tokens o
 WHERE o.token_hash = $1 AND o.purpose = $2 AND o.used_at IS NULL AND o.expires_at > turnkeep.now_ms()
   AND EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.id = o.turn_id AND t.status = 'running' AND t.attempt = o.attempt)

-- name: spend_token
-- One statement, so that of many who come at once exactly one is given the binding.
UPDATE turnkeep.one_time_tokens o SET used_at = turnkeep.now_ms()
 WHERE o.token_hash = $1 AND o.purpose = $2 AND o.used_at IS NULL AND o.expires_at > turnkeep.now_ms()
   AND EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.id = o.turn_id AND t.status = 'running' AND t.attempt = o.attempt)
RETURNING o.purpose, o.turn_id, o.attempt

-- name: expire_tokens
UPDATE turnkeep.one_time_tokens o SET expires_at = turnkeep.now_ms()
 WHERE o.turn_id = $1 AND o.used_at IS NULL AND o.expires_at > turnkeep.now_ms()
