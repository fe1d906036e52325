-- Limits of tokens, cost, stored bytes and parallel turns for workspaces, each of their users, members and keys. Usage by
-- day, user, agent, model and source, which outlives the turns. Erasures as jobs, so that one which was interrupted is
-- continued. What a user has made (pages, tables, rows) and what a key has brought (files) names its maker, as it could
-- not be erased or counted otherwise.

ALTER TABLE workspaces ADD COLUMN monthly_token_limit integer;
ALTER TABLE workspaces ADD COLUMN monthly_cost_limit real;
ALTER TABLE workspaces ADD COLUMN stored_byte_limit integer;
ALTER TABLE workspaces ADD COLUMN parallel_turn_limit integer;
ALTER TABLE workspaces ADD COLUMN user_monthly_token_limit integer;
ALTER TABLE workspaces ADD COLUMN user_monthly_cost_limit real;
ALTER TABLE workspaces ADD COLUMN user_stored_byte_limit integer;
ALTER TABLE workspaces ADD COLUMN user_parallel_turn_limit integer;
ALTER TABLE members ADD COLUMN stored_byte_limit integer;
ALTER TABLE members ADD COLUMN parallel_turn_limit integer;
ALTER TABLE api_keys ADD COLUMN monthly_token_limit integer;
ALTER TABLE api_keys ADD COLUMN monthly_cost_limit real;
ALTER TABLE api_keys ADD COLUMN stored_byte_limit integer;
ALTER TABLE api_keys ADD COLUMN parallel_turn_limit integer;

ALTER TABLE turns ADD COLUMN agent_id text;
ALTER TABLE files ADD COLUMN key_id text;
ALTER TABLE pages ADD COLUMN user_id text;
ALTER TABLE tables ADD COLUMN user_id text;
ALTER TABLE tables ADD COLUMN import_user_id text;
ALTER TABLE table_rows ADD COLUMN user_id text;
ALTER TABLE row_batches ADD COLUMN user_id text;
CREATE INDEX files_of_key ON files (key_id, size) WHERE key_id IS NOT NULL;
CREATE INDEX files_of_user ON files (user_id) WHERE user_id IS NOT NULL;

-- One row for what ended turns of one day used. The empty string stands for no user, no agent and no model. `unpriced` are
-- messages whose model had no price, and which `cost` leaves out.
CREATE TABLE usage_days (
    org_id             text NOT NULL,
    workspace_id       text NOT NULL,
    day                text NOT NULL,
    user_id            text NOT NULL,
    agent_id           text NOT NULL,
    model              text NOT NULL,
    source             text NOT NULL,
    messages           integer NOT NULL DEFAULT 0,
    input_tokens       integer NOT NULL DEFAULT 0,
    output_tokens      integer NOT NULL DEFAULT 0,
    cache_read_tokens  integer NOT NULL DEFAULT 0,
    cache_write_tokens integer NOT NULL DEFAULT 0,
    cost               real NOT NULL DEFAULT 0,
    unpriced           integer NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, workspace_id, day, user_id, agent_id, model, source)
) STRICT, WITHOUT ROWID;
-- A turn that happened elsewhere has no events and is not counted.
INSERT INTO usage_days
SELECT org_id, workspace_id, strftime('%Y-%m-%d', created_at / 1000, 'unixepoch'), coalesce(user_id, ''),
       coalesce(snapshot ->> '$.agent_id', ''), coalesce(model, ''), source, count(*), sum(input_tokens), sum(output_tokens),
       sum(cache_read_tokens), sum(cache_write_tokens), total(cost), count(*) - count(cost)
  FROM turns
 WHERE settled_at IS NOT NULL AND started_at IS NOT NULL AND last_seq > 0
 GROUP BY 1, 2, 3, 4, 5, 6, 7;
UPDATE turns SET agent_id = snapshot ->> '$.agent_id' WHERE status IN ('queued', 'running');

-- The erasure of a user (`user_id`) or of a conversation. No worker takes it before `not_before`. `erased_at`: its rows and
-- bytes are gone. `done_at`: so is what caches and free pages held. Then it names nobody any more.
CREATE TABLE erasures (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    user_id         text,
    conversation_id text,
    counts          text NOT NULL,
    created_at      integer NOT NULL,
    not_before      integer NOT NULL,
    erased_at       integer,
    done_at         integer
) STRICT;
CREATE INDEX erasures_open ON erasures (not_before) WHERE done_at IS NULL;
CREATE INDEX erasures_erased ON erasures (erased_at) WHERE erased_at IS NOT NULL;
