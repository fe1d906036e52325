-- Tenants, who may act in them, agents, one-time tokens and usage.

-- name: insert_org
INSERT INTO orgs (id, name, created_at) VALUES (:id, :name, :now);

-- name: orgs
SELECT {org_columns} FROM orgs ORDER BY id;

-- name: org_exists
SELECT 1 FROM orgs WHERE id = :org;

-- name: insert_workspace
INSERT INTO workspaces (id, org_id, name, is_default, model, created_at)
VALUES (:id, :org, :name, :is_default, :model, :now)
RETURNING {workspace_columns};

-- name: workspace
SELECT {workspace_columns} FROM workspaces WHERE org_id = :org AND id = :workspace;

-- name: default_workspace
SELECT {workspace_columns} FROM workspaces WHERE org_id = :org AND is_default = 1;

-- name: workspaces
SELECT {workspace_columns} FROM workspaces WHERE org_id = :org ORDER BY id;

-- name: change_workspace
UPDATE workspaces
   SET name = :name, model = :model, {limit_changes}, {user_limit_changes}, title_model = :title_model
 WHERE org_id = :org AND id = :workspace
RETURNING {workspace_columns};

-- name: workspace_holds
SELECT EXISTS (SELECT 1 FROM conversations WHERE workspace_id = :workspace),
       EXISTS (SELECT 1 FROM files WHERE workspace_id = :workspace),
       EXISTS (SELECT 1 FROM pages WHERE workspace_id = :workspace)
       OR EXISTS (SELECT 1 FROM tables WHERE workspace_id = :workspace);

-- name: delete_members
DELETE FROM members WHERE workspace_id = :workspace;

-- name: delete_agents
DELETE FROM agents WHERE workspace_id = :workspace;

-- name: delete_keys
DELETE FROM api_keys WHERE workspace_id = :workspace;

-- name: delete_workspace
DELETE FROM workspaces WHERE id = :workspace;

-- name: ensure_member
-- The member with that host id. A role or name that is given is stored, one that is not leaves the old one.
INSERT INTO members (id, org_id, workspace_id, external_id, role, name, created_at)
VALUES (:id, :org, :workspace, :external, coalesce(:role, 'member'), :name, :now)
ON CONFLICT (workspace_id, external_id) DO UPDATE SET role = coalesce(:role, role), name = coalesce(:name, name)
RETURNING {member_columns};

-- name: members
SELECT {member_columns} FROM members
 WHERE org_id = :org AND workspace_id = :workspace AND id > :after
   AND (:pattern IS NULL OR lower(external_id) LIKE :pattern ESCAPE '!' OR lower(name) LIKE :pattern ESCAPE '!')
 ORDER BY id LIMIT :limit;

-- name: member
-- By id, or else by host id.
SELECT {member_columns} FROM members
 WHERE org_id = :org AND workspace_id = :workspace AND (id = :name OR external_id = :name)
 ORDER BY id = :name DESC LIMIT 1;

-- name: member_of_host
SELECT {member_columns} FROM members
 WHERE org_id = :org AND workspace_id = :workspace AND external_id = :external;

-- name: members_by_id
SELECT {member_columns} FROM members
 WHERE org_id = :org AND id IN (SELECT value FROM json_each(:users));

-- name: member_to_change
SELECT {member_columns} FROM members WHERE org_id = :org AND workspace_id = :workspace AND id = :user;

-- name: change_member
UPDATE members
   SET name = :name, role = :role, is_disabled = :is_disabled, {limit_changes}
 WHERE org_id = :org AND workspace_id = :workspace AND id = :user
RETURNING {member_columns};

-- name: open_turns
SELECT id
  FROM (SELECT id, 0 AS is_running FROM turns INDEXED BY turns_waiting
         WHERE status = 'queued' AND org_id = :org AND user_id = :user
         UNION ALL
        SELECT id, 1 FROM turns INDEXED BY turns_single_flight
         WHERE status = 'running' AND org_id = :org AND user_id = :user)
 ORDER BY is_running, id;

-- name: user_is_enabled
SELECT 1 FROM members WHERE org_id = :org AND id = :user AND is_disabled = 0;

-- name: limit_of_user
SELECT monthly_message_limit FROM members WHERE org_id = :org AND id = :user;

-- name: insert_key
INSERT INTO api_keys (id, org_id, name, secret_hash, requests_per_minute, allowed_tools, created_at, revoked_at,
                      workspace_id, scopes, ancestors, {limit_columns})
VALUES (:id, :org, :name, :hash, :per_minute, :tools, :created_at, :revoked_at, :workspace, :scopes, :ancestors,
        {limit_values})
ON CONFLICT DO NOTHING;

-- name: key_is_live
SELECT 1 FROM api_keys WHERE id = :maker AND org_id = :org AND revoked_at IS NULL;

-- name: same_key
SELECT 1 FROM api_keys WHERE id = :id AND org_id = :org AND secret_hash = :hash;

-- name: key_by_hash
SELECT {key_columns}, secret_hash FROM api_keys WHERE secret_hash = :hash AND revoked_at IS NULL;

-- name: keys
-- All of the org, or those alone that are pinned to one workspace of it.
SELECT {key_columns} FROM api_keys
 WHERE org_id = :org AND (:workspace IS NULL OR workspace_id = :workspace) ORDER BY id;

-- name: keys_by_id
SELECT {key_columns} FROM api_keys WHERE org_id = :org AND id IN (SELECT value FROM json_each(:keys));

-- name: revoke_key
UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now)
 WHERE org_id = :org AND id = :key AND (:workspace IS NULL OR workspace_id = :workspace);

-- name: revoke_made_keys
-- Those that this key made, and those that they made.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now) WHERE org_id = :org AND instr(ancestors, :key);

-- name: insert_agent
INSERT INTO agents (id, org_id, workspace_id, spec, name_key, created_at, updated_at)
VALUES (:id, :org, :workspace, :spec, :name_key, :now, :now)
RETURNING {agent_columns};

-- name: agents_named
-- Other agents that may have the name of this key: those with the key, and all without one.
SELECT name_key, spec ->> '$.name' FROM agents
 WHERE workspace_id = :workspace AND deleted_at IS NULL AND id <> :agent AND (name_key = :name_key OR name_key IS NULL);

-- name: my_agent
SELECT {agent_columns} FROM my_agents WHERE id = :agent;

-- name: my_agents_page
SELECT {agent_columns}
  FROM my_agents
 WHERE (:before IS NULL OR id < :before)
   AND (:reached IS NULL OR id IN (SELECT value FROM json_each(:reached)))
 ORDER BY id DESC
 LIMIT :limit;

-- name: agent_to_change
SELECT {agent_columns} FROM agents
 WHERE id = :agent AND org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL;

-- name: change_agent
UPDATE agents
   SET spec = :spec, name_key = :name_key, updated_at = :now
 WHERE id = :agent AND org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL
RETURNING {agent_columns};

-- name: delete_agent
UPDATE agents
   SET deleted_at = :now
 WHERE id = :agent AND org_id = :org AND workspace_id = :workspace AND deleted_at IS NULL;

-- name: begin_mcp_connection
-- An authorization has begun. What the workspace is connected with stays until it has ended well.
INSERT INTO mcp_connections (id, org_id, workspace_id, user_id, url, issuer, attempt, version, created_at)
VALUES (:id, :org, :workspace, :user, :url, :issuer, :attempt, 0, :now)
ON CONFLICT (workspace_id, url) DO UPDATE
   SET attempt = excluded.attempt,
       issuer = CASE WHEN sealed IS NULL THEN excluded.issuer ELSE issuer END,
       user_id = CASE WHEN sealed IS NULL THEN excluded.user_id ELSE user_id END
RETURNING {mcp_connection_columns};

-- name: mcp_connections
SELECT {mcp_connection_columns} FROM mcp_connections
 WHERE workspace_id = :workspace AND org_id = :org ORDER BY id DESC;

-- name: mcp_connection
SELECT {mcp_connection_columns} FROM mcp_connections WHERE id = :id AND workspace_id = :workspace AND org_id = :org;

-- name: mcp_connection_at
SELECT {mcp_connection_columns} FROM mcp_connections WHERE workspace_id = :workspace AND url = :url AND org_id = :org;

-- name: finish_mcp_connection
-- Only the attempt that is stored can end, once.
UPDATE mcp_connections
   SET sealed = :sealed, attempt = NULL, user_id = :user, issuer = :issuer, problem = NULL, version = version + 1,
       refresh_until = 0, connected_at = :now
 WHERE id = :id AND workspace_id = :workspace AND org_id = :org AND attempt = :attempt
RETURNING {mcp_connection_columns};

-- name: lease_mcp_connection
-- One worker renews the tokens of a version. No row: another one does, or has done so.
UPDATE mcp_connections SET refresh_until = :now + :ms
 WHERE id = :id AND version = :version AND refresh_until <= :now
RETURNING id;

-- name: renew_mcp_connection
UPDATE mcp_connections SET sealed = :sealed, problem = :problem, version = version + 1, refresh_until = 0
 WHERE id = :id AND version = :version;

-- name: delete_mcp_connection
DELETE FROM mcp_connections WHERE id = :id AND workspace_id = :workspace AND org_id = :org
RETURNING {mcp_connection_columns};

-- name: usage
SELECT ui_messages, api_messages, input_tokens, output_tokens
  FROM usage
 WHERE org_id = :org AND scope = :scope AND scope_id = :scope_id AND month = :month;

-- name: usage_rows
-- What each group has used: turns that have ended, from the usage of days, and those that run or wait. `priced` are ended
-- turns whose model had a price.
SELECT CASE :group_by WHEN 'user' THEN d.user_id WHEN 'agent' THEN d.agent_id WHEN 'model' THEN d.model
                      WHEN 'day' THEN d.day ELSE d.source END AS place,
       sum(d.messages) AS messages, sum(d.input_tokens), sum(d.output_tokens), sum(d.cache_read_tokens),
       sum(d.cache_write_tokens), total(d.cost), sum(d.priced), sum(d.unpriced)
  FROM (SELECT u.day, u.user_id, u.agent_id, u.model, u.source, u.messages, u.input_tokens, u.output_tokens,
               u.cache_read_tokens, u.cache_write_tokens, u.cost, u.messages - u.unpriced AS priced, u.unpriced
          FROM usage_days u
         WHERE u.org_id = :org AND u.workspace_id = :workspace AND u.day BETWEEN :month || '-01' AND :month || '-31'
         UNION ALL
        SELECT strftime('%Y-%m-%d', t.created_at / 1000, 'unixepoch'), coalesce(t.user_id, ''), coalesce(t.agent_id, ''),
               coalesce(t.model, ''), t.source, 1, t.input_tokens, t.output_tokens, t.cache_read_tokens,
               t.cache_write_tokens, 0, 0, 0
          FROM turns t INDEXED BY turns_single_flight
         WHERE t.status = 'running' AND t.org_id = :org AND t.workspace_id = :workspace AND t.month = :month
         UNION ALL
        SELECT strftime('%Y-%m-%d', t.created_at / 1000, 'unixepoch'), coalesce(t.user_id, ''), coalesce(t.agent_id, ''),
               coalesce(t.model, ''), t.source, 1, 0, 0, 0, 0, 0, 0, 0
          FROM turns t INDEXED BY turns_waiting
         WHERE t.status = 'queued' AND t.org_id = :org AND t.workspace_id = :workspace AND t.month = :month) d
 WHERE (:user IS NULL OR d.user_id = :user) AND (:agent IS NULL OR d.agent_id = :agent)
   AND (:model IS NULL OR d.model = :model) AND (:day IS NULL OR d.day = :day)
 GROUP BY place ORDER BY messages DESC, place LIMIT :limit;

-- name: usage_turns
-- The turns of a month that are counted, newest first. One that was stopped in the queue is not, and neither is one that
-- happened elsewhere. The columns are those of `commands.CountedTurn`, in its order.
SELECT t.id, t.user_id, t.agent_id, t.model, t.source,
       CASE WHEN t.status = 'running' AND t.waiting_until IS NOT NULL THEN 'waiting' ELSE t.status END,
       t.created_at, t.started_at, t.settled_at, t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens,
       t.cost
  FROM turns t INDEXED BY turns_of_month CROSS JOIN conversations c ON c.id = t.conversation_id
 WHERE t.workspace_id = :workspace AND t.month = :month AND t.id < :before AND t.org_id = :org AND c.deleted_at IS NULL
   AND t.snapshot IS NOT NULL AND (t.started_at IS NOT NULL OR t.status = 'queued')
   AND (:user IS NULL OR t.user_id = :user) AND (:agent IS NULL OR t.agent_id = :agent)
   AND (:model IS NULL OR t.model = :model)
   AND (:day IS NULL OR strftime('%Y-%m-%d', t.created_at / 1000, 'unixepoch') = :day)
 ORDER BY t.id DESC LIMIT :limit;

-- name: limit_uses
-- The limits of a workspace or a user, and of a key; then what is used of those that are set, but for parallel turns. The
-- keys that a key has made count with it.
SELECT l.scope, l.id, l.messages, l.tokens, l.cost, l.bytes, l.turns,
       CASE WHEN l.messages IS NOT NULL THEN (
           SELECT sum(u.ui_messages + u.api_messages) FROM usage u
            WHERE u.org_id = :org AND u.scope = l.scope AND u.scope_id = l.id AND u.month = :month) END,
       CASE WHEN l.tokens IS NOT NULL THEN (
           SELECT sum(u.input_tokens + u.output_tokens) FROM usage u
            WHERE u.org_id = :org AND u.scope = l.scope AND u.month = :month
              AND u.scope_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d
                                  WHERE l.scope = 'key' AND d.org_id = :org AND instr(d.ancestors, l.id))) END,
       CASE WHEN l.cost IS NOT NULL THEN (
           SELECT total(u.cost) FROM usage u
            WHERE u.org_id = :org AND u.scope = l.scope AND u.month = :month
              AND u.scope_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d
                                  WHERE l.scope = 'key' AND d.org_id = :org AND instr(d.ancestors, l.id))) END,
       CASE WHEN l.bytes IS NULL THEN NULL
            WHEN l.scope = 'workspace' THEN (SELECT sum(f.size) FROM files f WHERE f.workspace_id = l.id)
            WHEN l.scope = 'user' THEN (SELECT sum(f.size) FROM files f WHERE f.workspace_id = :workspace AND f.user_id = l.id)
            ELSE (SELECT sum(f.size) FROM files f
                   WHERE f.key_id IN (SELECT l.id UNION ALL SELECT d.id FROM api_keys d WHERE instr(d.ancestors, l.id))) END
  FROM (SELECT 'workspace' AS scope, w.id, w.monthly_message_limit AS messages, w.monthly_token_limit AS tokens,
               w.monthly_cost_limit AS cost, w.stored_byte_limit AS bytes, w.parallel_turn_limit AS turns
          FROM workspaces w WHERE :scope = 'workspace' AND w.id = :workspace AND w.org_id = :org
         UNION ALL
        SELECT 'user', m.id, coalesce(m.monthly_message_limit, w.user_monthly_message_limit),
               coalesce(m.monthly_token_limit, w.user_monthly_token_limit),
               coalesce(m.monthly_cost_limit, w.user_monthly_cost_limit),
               coalesce(m.stored_byte_limit, w.user_stored_byte_limit),
               coalesce(m.parallel_turn_limit, w.user_parallel_turn_limit)
          FROM members m CROSS JOIN workspaces w ON w.id = m.workspace_id
         WHERE m.id = :user AND m.org_id = :org AND m.workspace_id = :workspace
         UNION ALL
        SELECT 'key', k.id, k.monthly_message_limit, k.monthly_token_limit, k.monthly_cost_limit, k.stored_byte_limit,
               k.parallel_turn_limit
          FROM api_keys k WHERE k.id = :key AND k.org_id = :org) l;

-- name: key_usage
-- What a key has used of its own limit.
SELECT coalesce(u.ui_messages + u.api_messages, 0), k.monthly_message_limit
  FROM api_keys k
  LEFT JOIN usage u ON u.org_id = k.org_id AND u.scope = 'key' AND u.scope_id = k.id AND u.month = :month
 WHERE k.id = :key AND k.org_id = :org;

-- name: insert_token
INSERT INTO one_time_tokens (token_hash, org_id, turn_id, attempt, purpose, expires_at)
SELECT :hash, org_id, id, :attempt, :purpose, :expires_at FROM turns WHERE id = :turn;

-- name: peek_token
SELECT o.purpose, o.turn_id, o.attempt
  FROM one_time_tokens o
 WHERE o.token_hash = :hash AND o.purpose = :purpose AND o.used_at IS NULL AND o.expires_at > :now
   AND EXISTS (SELECT 1 FROM turns t WHERE t.id = o.turn_id AND t.status = 'running' AND t.attempt = o.attempt);

-- name: spend_token
-- One statement, so that of many who come at once exactly one is given the binding.
UPDATE one_time_tokens
   SET used_at = :now
 WHERE token_hash = :hash AND purpose = :purpose AND used_at IS NULL AND expires_at > :now
   AND EXISTS (SELECT 1 FROM turns t
                WHERE t.id = one_time_tokens.turn_id AND t.status = 'running'
                  AND t.attempt = one_time_tokens.attempt)
RETURNING purpose, turn_id, attempt;
