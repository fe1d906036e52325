-- The types of what is sent about many turns at once: a job for each turn, and the rows that are written with it. They are
-- types of this release, and not those of the tables, so that a table can get a column while servers of another release
-- work with it. `rows.py` knows the order of the columns of a row, `turns.py` that of a job.

CREATE TYPE turnkeep.turn_row AS (
    id                  text,
    org_id              text,
    workspace_id        text,
    conversation_id     text,
    user_id             text,
    key_id              text,
    parent_turn_id      text,
    beside_turn_id      text,
    ordinal             integer,
    active              boolean,
    status              text,
    attempt             integer,
    failures            integer,
    last_seq            integer,
    seq_at_adoption     integer,
    worker              text,
    lease_until         bigint,
    watched_until       bigint,
    cancel_requested_at bigint,
    background          boolean,
    principal_ref       text,
    idempotency_key     text,
    request_hash        text,
    snapshot            text,
    source              text,
    model               text,
    metadata            text,
    month               text,
    input_tokens        bigint,
    output_tokens       bigint,
    cache_read_tokens   bigint,
    cache_write_tokens  bigint,
    error               text,
    created_at          bigint,
    started_at          bigint,
    settled_at          bigint,
    files_written       integer,
    watched_ms          bigint,
    cost                double precision,
    agent_id            text,
    steers_turn_id      text
);

CREATE TYPE turnkeep.message_row AS (
    turn_id         text,
    turn_sequence   integer,
    id              text,
    org_id          text,
    conversation_id text,
    role            text,
    internal        boolean,
    iteration       integer,
    blocks          text,
    display         text,
    attachments     text,
    sources         text,
    metadata        text,
    usage           text,
    legacy          text,
    provider        text,
    created_at      bigint
);

CREATE TYPE turnkeep.event_row AS (turn_id text, seq integer, org_id text, type text, payload text);

CREATE TYPE turnkeep.log_row AS (
    turn_id   text,
    n         integer,
    org_id    text,
    after_seq integer,
    level     text,
    message   text,
    ts        bigint
);

CREATE TYPE turnkeep.claim_job AS (conversation_id text, is_new boolean, facts text, title text, preview text);

CREATE TYPE turnkeep.message_counter AS (
    conversation_id text,
    org_id          text,
    scope           text,
    scope_id        text,
    month           text,
    source          text,
    "limit"         integer,
    turns           integer
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
    entry_type         text,
    cost               double precision,
    report             text
);
