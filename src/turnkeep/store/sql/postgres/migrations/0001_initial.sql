-- The first schema: tenants, conversations, turns with their rows and events, files, tokens and usage.
--
-- JSON is kept as text, not jsonb: jsonb reorders keys and rewrites numbers, and what the model said must come back
-- byte for byte (a prompt cache depends on it). Ids are text in the C collation, so that they compare as bytes.
-- Times are Unix epoch milliseconds.

CREATE SCHEMA IF NOT EXISTS turnkeep;

-- The one clock of leases and timestamps: the database's own.
CREATE FUNCTION turnkeep.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

CREATE TABLE turnkeep.orgs (
    id         text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    created_at bigint NOT NULL
);

CREATE TABLE turnkeep.workspaces (
    id                         text COLLATE "C" PRIMARY KEY,
    org_id                     text COLLATE "C" NOT NULL REFERENCES turnkeep.orgs,
    name                       text NOT NULL,
    is_default                 boolean NOT NULL DEFAULT false,
    model                      text,
    monthly_message_limit      integer,
    user_monthly_message_limit integer,
    created_at                 bigint NOT NULL
);
CREATE UNIQUE INDEX workspaces_default ON turnkeep.workspaces (org_id) WHERE is_default;
CREATE INDEX workspaces_of_org ON turnkeep.workspaces (org_id);

CREATE TABLE turnkeep.members (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL REFERENCES turnkeep.orgs,
    workspace_id text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    external_id  text NOT NULL,
    role         text NOT NULL CHECK (role IN ('member', 'admin')),
    created_at   bigint NOT NULL,
    UNIQUE (workspace_id, external_id)
);

CREATE TABLE turnkeep.api_keys (
    id                    text COLLATE "C" PRIMARY KEY,
    org_id                text COLLATE "C" NOT NULL REFERENCES turnkeep.orgs,
    name                  text NOT NULL,
    secret_hash           bytea NOT NULL UNIQUE,
    monthly_message_limit integer,
    requests_per_minute   integer,
    allowed_tools         text,
    created_at            bigint NOT NULL,
    revoked_at            bigint
);
CREATE INDEX api_keys_of_org ON turnkeep.api_keys (org_id);

CREATE TABLE turnkeep.agents (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    spec         text NOT NULL,
    created_at   bigint NOT NULL,
    updated_at   bigint NOT NULL,
    deleted_at   bigint
);
CREATE INDEX agents_of_workspace ON turnkeep.agents (workspace_id, id) WHERE deleted_at IS NULL;

-- The tables that every turn writes to have no CHECK constraints: PostgreSQL reads each of them anew for every statement,
-- which took a tenth of an append. Their words are checked before they come here, and written by functions alone.

-- Counts and head are those of the visible chain. `next_ordinal` numbers every turn of every branch.
-- `indexed_ordinal`: turns up to here are in the search index.
CREATE TABLE turnkeep.conversations (
    id              text COLLATE "C" PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    user_id         text COLLATE "C",
    kind            text NOT NULL,  -- chat, sandbox, run
    agent_id        text COLLATE "C",
    model           text,
    workflow_id     text,
    title           text,
    preview         text,
    metadata        text,
    message_count   integer NOT NULL DEFAULT 0,
    turn_count      integer NOT NULL DEFAULT 0,
    next_ordinal    integer NOT NULL DEFAULT 1,
    indexed_ordinal integer NOT NULL DEFAULT 0,
    head_turn_id    text COLLATE "C",
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    deleted_at      bigint
) WITH (fillfactor = 80);
CREATE INDEX conversations_listed ON turnkeep.conversations (workspace_id, user_id, updated_at DESC, id DESC)
    WHERE deleted_at IS NULL AND kind <> 'run';
CREATE INDEX conversations_of_workspace ON turnkeep.conversations (workspace_id, updated_at DESC, id DESC)
    WHERE deleted_at IS NULL AND kind <> 'run';
CREATE INDEX conversations_to_index ON turnkeep.conversations (workspace_id, id) WHERE indexed_ordinal < next_ordinal - 1;
CREATE INDEX conversations_deleted ON turnkeep.conversations (deleted_at) WHERE deleted_at IS NOT NULL;

-- Turns and what hangs on them have no foreign keys: every insert joins a parent row that it has just locked, which
-- proves the same and costs a third of the time.
-- `seq_at_adoption` tells progress from its absence; `lease_until` 0 means that the turn was let go on purpose.
CREATE TABLE turnkeep.turns (
    id                  text COLLATE "C" PRIMARY KEY,
    org_id              text COLLATE "C" NOT NULL,
    workspace_id        text COLLATE "C" NOT NULL,
    conversation_id     text COLLATE "C" NOT NULL,
    user_id             text COLLATE "C",
    key_id              text COLLATE "C",
    parent_turn_id      text COLLATE "C",
    beside_turn_id      text COLLATE "C",
    ordinal             integer NOT NULL,
    active              boolean NOT NULL,
    status              text NOT NULL,  -- queued, running, succeeded, failed, cancelled
    attempt             integer NOT NULL DEFAULT 0,
    failures            integer NOT NULL DEFAULT 0,
    last_seq            integer NOT NULL DEFAULT 0,
    seq_at_adoption     integer NOT NULL DEFAULT 0,
    worker              text,
    lease_until         bigint,
    watched_until       bigint,
    cancel_requested_at bigint,
    background          boolean NOT NULL DEFAULT false,
    principal_ref       text COLLATE "C" NOT NULL,
    idempotency_key     text,
    request_hash        text,
    snapshot            text,
    source              text NOT NULL,  -- ui, api
    model               text,
    metadata            text,
    month               text NOT NULL,
    input_tokens        bigint NOT NULL DEFAULT 0,
    output_tokens       bigint NOT NULL DEFAULT 0,
    cache_read_tokens   bigint NOT NULL DEFAULT 0,
    cache_write_tokens  bigint NOT NULL DEFAULT 0,
    error               text,
    created_at          bigint NOT NULL,
    started_at          bigint,
    settled_at          bigint
) WITH (fillfactor = 80);
-- Single flight is this index, not application code: it holds for every worker and every bug.
CREATE UNIQUE INDEX turns_single_flight ON turnkeep.turns (conversation_id) WHERE status = 'running';
CREATE INDEX turns_waiting ON turnkeep.turns (conversation_id, ordinal) WHERE status = 'queued';
-- The visible chain (active) is one range of this index, whatever was abandoned beside it.
CREATE INDEX turns_of_conversation ON turnkeep.turns (conversation_id, active, ordinal);
CREATE UNIQUE INDEX turns_idempotency ON turnkeep.turns (org_id, principal_ref, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- Rows of a few kilobytes stay in the table: compressing or moving them out costs more than it saves.
CREATE TABLE turnkeep.messages (
    turn_id         text COLLATE "C" NOT NULL,
    turn_sequence   integer NOT NULL,
    id              text COLLATE "C" NOT NULL,
    org_id          text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    role            text NOT NULL,  -- user, assistant, system
    internal        boolean NOT NULL,
    iteration       integer,
    blocks          text NOT NULL,
    display         text,
    attachments     text,
    sources         text,
    metadata        text,
    usage           text,
    legacy          text,
    provider        text,
    created_at      bigint NOT NULL,
    PRIMARY KEY (turn_id, turn_sequence)
) WITH (toast_tuple_target = 8160);

CREATE TABLE turnkeep.turn_events (
    turn_id text COLLATE "C" NOT NULL,
    seq     integer NOT NULL,
    org_id  text COLLATE "C" NOT NULL,
    type    text NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (turn_id, seq)
) WITH (toast_tuple_target = 8160);
CREATE UNIQUE INDEX turn_events_one_terminal ON turnkeep.turn_events (turn_id) WHERE type IN ('result', 'error');

CREATE TABLE turnkeep.turn_logs (
    turn_id   text COLLATE "C" NOT NULL,
    n         integer NOT NULL,
    org_id    text COLLATE "C" NOT NULL,
    after_seq integer NOT NULL,
    level     text NOT NULL,
    message   text NOT NULL,
    ts        bigint,
    PRIMARY KEY (turn_id, n)
);

-- `name_key` is the name as it collides: case and Unicode form folded. `deleted_with` names the conversation whose
-- delete took the file, so that a restore revives only those.
CREATE TABLE turnkeep.files (
    id              text COLLATE "C" PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    user_id         text COLLATE "C",
    conversation_id text COLLATE "C" REFERENCES turnkeep.conversations,
    message_id      text COLLATE "C",
    name            text NOT NULL,
    name_key        text NOT NULL,
    mime_type       text NOT NULL,
    size            bigint NOT NULL,
    sha256          text,
    storage_key     text NOT NULL UNIQUE,
    source          text NOT NULL CHECK (source IN ('user', 'sandbox')),
    status          text NOT NULL CHECK (status IN ('pending', 'ready')),
    created_at      bigint NOT NULL,
    deleted_at      bigint,
    deleted_with    text COLLATE "C"
);
CREATE UNIQUE INDEX files_names ON turnkeep.files (conversation_id, name_key)
    WHERE conversation_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX files_of_conversation ON turnkeep.files (conversation_id);

CREATE TABLE turnkeep.one_time_tokens (
    token_hash bytea PRIMARY KEY,
    org_id     text COLLATE "C" NOT NULL,
    turn_id    text COLLATE "C" NOT NULL REFERENCES turnkeep.turns,
    attempt    integer NOT NULL,
    purpose    text NOT NULL CHECK (purpose IN ('setup', 'run', 'upload')),
    expires_at bigint NOT NULL,
    used_at    bigint
);
CREATE INDEX one_time_tokens_of_turn ON turnkeep.one_time_tokens (turn_id);

-- One row per scope and month, so that a limit is checked and counted by one locked row.
CREATE TABLE turnkeep.usage (
    org_id        text COLLATE "C" NOT NULL,
    scope         text NOT NULL CHECK (scope IN ('workspace', 'user', 'key')),
    scope_id      text COLLATE "C" NOT NULL,
    month         text NOT NULL,
    ui_messages   integer NOT NULL DEFAULT 0,
    api_messages  integer NOT NULL DEFAULT 0,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, scope, scope_id, month)
) WITH (fillfactor = 70);

-- What a search looks through: one row for each visible message, and one for each title (turn_sequence -1 under the
-- conversation's own id). Kept apart from the rows, so that a turn is not made to wait for its index.
CREATE TABLE turnkeep.search_entries (
    conversation_id text COLLATE "C" NOT NULL REFERENCES turnkeep.conversations,
    turn_id         text COLLATE "C" NOT NULL,
    turn_sequence   integer NOT NULL,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL,
    user_id         text COLLATE "C",
    tokens          tsvector NOT NULL,
    PRIMARY KEY (conversation_id, turn_id, turn_sequence)
);
CREATE INDEX search_entries_tokens ON turnkeep.search_entries USING gin (tokens);
