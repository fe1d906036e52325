-- Limits of tokens, cost, stored bytes and parallel turns for workspaces, each of their users, members and keys. Usage by
-- day, user, agent, model and source, which outlives the turns. Erasures as jobs, so that one which was interrupted is
-- continued. What a user has made (pages, tables, rows) and what a key has brought (files) names its maker, as it could
-- not be erased or counted otherwise.

ALTER TABLE turnkeep.workspaces
    ADD COLUMN monthly_token_limit bigint,
    ADD COLUMN monthly_cost_limit double precision,
    ADD COLUMN stored_byte_limit bigint,
    ADD COLUMN parallel_turn_limit integer,
    ADD COLUMN user_monthly_token_limit bigint,
    ADD COLUMN user_monthly_cost_limit double precision,
    ADD COLUMN user_stored_byte_limit bigint,
    ADD COLUMN user_parallel_turn_limit integer;
ALTER TABLE turnkeep.members
    ADD COLUMN stored_byte_limit bigint,
    ADD COLUMN parallel_turn_limit integer;
ALTER TABLE turnkeep.api_keys
    ADD COLUMN monthly_token_limit bigint,
    ADD COLUMN monthly_cost_limit double precision,
    ADD COLUMN stored_byte_limit bigint,
    ADD COLUMN parallel_turn_limit integer;
ALTER TYPE turnkeep.message_counter ADD ATTRIBUTE turns integer;

ALTER TABLE turnkeep.turns ADD COLUMN agent_id text;
ALTER TABLE turnkeep.files ADD COLUMN key_id text;
ALTER TABLE turnkeep.pages ADD COLUMN user_id text;
ALTER TABLE turnkeep.tables ADD COLUMN user_id text;
ALTER TABLE turnkeep.tables ADD COLUMN import_user_id text;
ALTER TABLE turnkeep.table_rows ADD COLUMN user_id text;
ALTER TABLE turnkeep.row_batches ADD COLUMN user_id text;
CREATE INDEX files_of_key ON turnkeep.files (key_id, size) WHERE key_id IS NOT NULL;
CREATE INDEX files_of_user ON turnkeep.files (user_id) WHERE user_id IS NOT NULL;

-- One row for what ended turns of one day used. The empty string stands for no user, no agent and no model. `unpriced` are
-- messages whose model had no price, and which `cost` leaves out.
CREATE TABLE turnkeep.usage_days (
    org_id             text NOT NULL,
    workspace_id       text NOT NULL,
    day                text NOT NULL,
    user_id            text NOT NULL,
    agent_id           text NOT NULL,
    model              text NOT NULL,
    source             text NOT NULL,
    messages           bigint NOT NULL DEFAULT 0,
    input_tokens       bigint NOT NULL DEFAULT 0,
    output_tokens      bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    cost               double precision NOT NULL DEFAULT 0,
    unpriced           bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, workspace_id, day, user_id, agent_id, model, source)
);
-- A turn that happened elsewhere has no events and is not counted.
DO $$
BEGIN
    IF row_security_active('turnkeep.turns') AND NOT pg_has_role(current_user, 'turnkeep_engine', 'USAGE') THEN
        RAISE EXCEPTION 'The user % sees no turns. Grant it the role turnkeep_engine, and migrate again.', current_user;
    END IF;
END $$;
INSERT INTO turnkeep.usage_days
SELECT org_id, workspace_id, to_char(to_timestamp(created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD'),
       coalesce(user_id, ''), coalesce(snapshot::json ->> 'agent_id', ''), coalesce(model, ''), source, count(*),
       sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens), coalesce(sum(cost), 0),
       count(*) - count(cost)
  FROM turnkeep.turns
 WHERE settled_at IS NOT NULL AND started_at IS NOT NULL AND last_seq > 0
 GROUP BY 1, 2, 3, 4, 5, 6, 7;
UPDATE turnkeep.turns SET agent_id = snapshot::json ->> 'agent_id' WHERE status IN ('queued', 'running');

-- The erasure of a user (`user_id`) or of a conversation. No worker takes it before `not_before`. `erased_at`: its rows and
-- bytes are gone. `done_at`: so is what caches and free pages held. Then it names nobody any more.
CREATE TABLE turnkeep.erasures (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    user_id         text,
    conversation_id text,
    counts          text NOT NULL,
    created_at      bigint NOT NULL,
    not_before      bigint NOT NULL,
    erased_at       bigint,
    done_at         bigint
);
CREATE INDEX erasures_open ON turnkeep.erasures (not_before) WHERE done_at IS NULL;
CREATE INDEX erasures_erased ON turnkeep.erasures (erased_at) WHERE erased_at IS NOT NULL;
