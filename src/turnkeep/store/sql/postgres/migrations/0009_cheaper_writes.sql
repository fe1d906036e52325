-- What is written about many turns travels as one parameter: a job for each turn (`functions/30_claim.sql` to
-- `33_settle.sql`).
--
-- Constraints that cost more than they protect are dropped. PostgreSQL reads a CHECK anew for every statement, and every turn
-- writes to `usage` twice; its words are written by functions alone. An entry of the search index is written only while its
-- conversation is locked, and erased before it.

CREATE TYPE turnkeep.claim_job AS (
    conversation_id text,
    is_new          boolean,
    facts           text,
    title           text,
    preview         text,
    workspace_limit integer,
    user_limit      integer,
    key_limit       integer
);

CREATE TYPE turnkeep.append_job AS (
    turn_id            text,
    org_id             text,
    workspace_id       text,
    conversation_id    text,
    user_id            text,
    key_id             text,
    owner              text,
    title              text,
    preview            text,
    visible            integer,
    principal_ref      text,
    source             text,
    model              text,
    month              text,
    input_tokens       bigint,
    output_tokens      bigint,
    cache_read_tokens  bigint,
    cache_write_tokens bigint,
    started_at         bigint,
    settled_at         bigint
);

CREATE TYPE turnkeep.record_job AS (turn_id text, attempt integer, after integer, last integer);

CREATE TYPE turnkeep.settle_job AS (
    turn_id            text,
    attempt            integer,
    after              integer,
    last               integer,
    conversation_id    text,
    status             text,
    error              text,
    has_final          boolean,
    input_tokens       bigint,
    output_tokens      bigint,
    cache_read_tokens  bigint,
    cache_write_tokens bigint,
    entry_id           text,
    entry_type         text
);

ALTER TABLE turnkeep.usage DROP CONSTRAINT usage_scope_check;
ALTER TABLE turnkeep.search_entries DROP CONSTRAINT search_entries_conversation_id_fkey;
