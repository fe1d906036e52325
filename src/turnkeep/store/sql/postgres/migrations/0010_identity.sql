-- Who a user is and what they may spend: a name, whether they are disabled, and monthly limits of their own. What a key
-- may reach (`scopes`), and the keys that it counts with (`ancestors`: the key that made it, the maker of that one, and so
-- on). Costs, for the limit of a user: of a turn if its model has a price, and of each scope and month. A message may be
-- counted for many keys, so the counters of a claim are a list of their own beside its job.

ALTER TABLE turnkeep.members
    ADD COLUMN name text,
    ADD COLUMN is_disabled boolean NOT NULL DEFAULT false,
    ADD COLUMN monthly_message_limit integer,
    ADD COLUMN monthly_token_limit bigint,
    ADD COLUMN monthly_cost_limit double precision;
ALTER TABLE turnkeep.api_keys
    ADD COLUMN scopes text,
    ADD COLUMN ancestors text;
ALTER TABLE turnkeep.turns ADD COLUMN cost double precision;
ALTER TABLE turnkeep.usage ADD COLUMN cost double precision NOT NULL DEFAULT 0;
ALTER TYPE turnkeep.settle_job ADD ATTRIBUTE cost double precision;
ALTER TYPE turnkeep.claim_job
    DROP ATTRIBUTE workspace_limit,
    DROP ATTRIBUTE user_limit,
    DROP ATTRIBUTE key_limit;
CREATE TYPE turnkeep.message_counter AS (
    conversation_id text,
    org_id          text,
    scope           text,
    scope_id        text,
    month           text,
    source          text,
    "limit"         integer
);
