-- The schema as it is now: what all migrations together make. A test proves that it is their sum.
--
-- JSON is kept as the text that was given. Times are Unix epoch milliseconds; booleans are 0 and 1.

CREATE TABLE orgs (
    id         text PRIMARY KEY,
    name       text NOT NULL,
    created_at integer NOT NULL
) STRICT;

CREATE TABLE workspaces (
    id                         text PRIMARY KEY,
    org_id                     text NOT NULL REFERENCES orgs,
    name                       text NOT NULL,
    is_default                 integer NOT NULL DEFAULT 0,
    model                      text,
    monthly_message_limit      integer,
    user_monthly_message_limit integer,
    created_at                 integer NOT NULL
, monthly_token_limit integer, monthly_cost_limit real, stored_byte_limit integer, parallel_turn_limit integer, user_monthly_token_limit integer, user_monthly_cost_limit real, user_stored_byte_limit integer, user_parallel_turn_limit integer, title_model text) STRICT;
CREATE UNIQUE INDEX workspaces_default ON workspaces (org_id) WHERE is_default;
CREATE INDEX workspaces_of_org ON workspaces (org_id);

CREATE TABLE members (
    id           text PRIMARY KEY,
    org_id       text NOT NULL REFERENCES orgs,
    workspace_id text NOT NULL REFERENCES workspaces,
    external_id  text NOT NULL,
    role         text NOT NULL CHECK (role IN ('member', 'admin')),
    created_at   integer NOT NULL, name text, is_disabled integer NOT NULL DEFAULT 0, monthly_message_limit integer, monthly_token_limit integer, monthly_cost_limit real, stored_byte_limit integer, parallel_turn_limit integer,
    UNIQUE (workspace_id, external_id)
) STRICT;

CREATE TABLE api_keys (
    id                    text PRIMARY KEY,
    org_id                text NOT NULL REFERENCES orgs,
    name                  text NOT NULL,
    secret_hash           blob NOT NULL UNIQUE,
    monthly_message_limit integer,
    requests_per_minute   integer,
    allowed_tools         text,
    created_at            integer NOT NULL,
    revoked_at            integer
, workspace_id text REFERENCES workspaces, scopes text, ancestors text, monthly_token_limit integer, monthly_cost_limit real, stored_byte_limit integer, parallel_turn_limit integer) STRICT;
CREATE INDEX api_keys_of_org ON api_keys (org_id);
CREATE INDEX api_keys_of_workspace ON api_keys (workspace_id) WHERE workspace_id IS NOT NULL;

CREATE TABLE agents (
    id           text PRIMARY KEY,
    org_id       text NOT NULL,
    workspace_id text NOT NULL REFERENCES workspaces,
    spec         text NOT NULL,
    created_at   integer NOT NULL,
    updated_at   integer NOT NULL,
    deleted_at   integer
, name_key text) STRICT;
CREATE INDEX agents_of_workspace ON agents (workspace_id, id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX agents_names ON agents (workspace_id, name_key) WHERE deleted_at IS NULL;

-- `sealed` and `attempt` are encrypted. A worker that renews the tokens holds the connection until `refresh_until`.
CREATE TABLE mcp_connections (
    id            text PRIMARY KEY,
    org_id        text NOT NULL,
    workspace_id  text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    user_id       text REFERENCES members ON DELETE CASCADE,
    url           text NOT NULL,
    issuer        text NOT NULL,
    sealed        text,
    attempt       text,
    problem       text,
    version       integer NOT NULL,
    refresh_until integer NOT NULL DEFAULT 0,
    created_at    integer NOT NULL,
    connected_at  integer
) STRICT;
CREATE UNIQUE INDEX mcp_connections_of_workspace ON mcp_connections (workspace_id, url);
CREATE INDEX mcp_connections_of_user ON mcp_connections (user_id) WHERE user_id IS NOT NULL;

-- Counts and head are those of the visible chain. `next_ordinal` numbers every turn of every branch.
-- `indexed_ordinal`: turns up to here are in the search index.
CREATE TABLE conversations (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL REFERENCES workspaces,
    user_id         text,
    kind            text NOT NULL CHECK (kind IN ('chat', 'sandbox', 'run')),
    agent_id        text,
    model           text,
    workflow_id     text,
    title           text,
    preview         text,
    metadata        text,
    message_count   integer NOT NULL DEFAULT 0,
    turn_count      integer NOT NULL DEFAULT 0,
    next_ordinal    integer NOT NULL DEFAULT 1,
    indexed_ordinal integer NOT NULL DEFAULT 0,
    head_turn_id    text,
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL,
    deleted_at      integer
, trusted_tools text, external_id text, is_listed integer NOT NULL DEFAULT 1, is_pinned integer NOT NULL DEFAULT 0, folder text, read_at integer, titled_by text, instructions text, temperature real) STRICT;
-- One index for the lists of users and of services: every turn moves its conversation to the front of each index that
-- there is. A user's list passes over the entries of others, ten thousand in a millisecond.
CREATE INDEX conversations_listed ON conversations (workspace_id, updated_at DESC, id DESC, user_id)
    WHERE deleted_at IS NULL AND kind <> 'run' AND is_listed;
-- What the purge looks through.
CREATE INDEX conversations_unlisted ON conversations (id) WHERE deleted_at IS NULL AND NOT is_listed;
CREATE INDEX conversations_deleted ON conversations (deleted_at) WHERE deleted_at IS NOT NULL;
-- The trash: only what was deleted and is not purged yet is in it. No turn changes it.
CREATE INDEX conversations_trash ON conversations (workspace_id, deleted_at DESC, id DESC, user_id)
    WHERE deleted_at IS NOT NULL;
CREATE INDEX conversations_pinned ON conversations (workspace_id, user_id, updated_at DESC, id DESC)
    WHERE is_pinned AND deleted_at IS NULL;
CREATE INDEX conversations_in_folders ON conversations (workspace_id, folder, updated_at DESC, id DESC, user_id)
    WHERE folder IS NOT NULL;
CREATE INDEX conversations_of_user ON conversations (user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX conversations_external_ids ON conversations (workspace_id, external_id, coalesce(user_id, ''))
    WHERE external_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX conversations_of_agent ON conversations (agent_id, updated_at DESC, id DESC)
    WHERE agent_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX conversations_of_kind ON conversations (workspace_id, kind, updated_at DESC, id DESC)
    WHERE kind <> 'chat' AND deleted_at IS NULL;

-- Conversations with turns that no search finds yet. A table, as a partial index over the two ordinals would be
-- rewritten at every turn; here only the first turn after an indexing writes.
CREATE TABLE unindexed (
    conversation_id text PRIMARY KEY,
    workspace_id    text NOT NULL
, is_parked integer NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
-- Without those whose next turn waits for a person or for the caller.
CREATE INDEX unindexed_due ON unindexed (conversation_id) WHERE is_parked = 0;
CREATE TRIGGER conversations_get_a_turn AFTER UPDATE OF next_ordinal ON conversations BEGIN
    INSERT OR IGNORE INTO unindexed (conversation_id, workspace_id) VALUES (new.id, new.workspace_id);
END;
CREATE TRIGGER conversations_come_with_turns AFTER INSERT ON conversations WHEN new.next_ordinal > 1 BEGIN
    INSERT OR IGNORE INTO unindexed (conversation_id, workspace_id) VALUES (new.id, new.workspace_id);
END;
CREATE TRIGGER conversations_are_indexed AFTER UPDATE OF indexed_ordinal ON conversations
    WHEN new.indexed_ordinal >= new.next_ordinal - 1 BEGIN
    DELETE FROM unindexed WHERE conversation_id = new.id;
END;
CREATE TRIGGER conversations_are_purged AFTER DELETE ON conversations BEGIN
    DELETE FROM unindexed WHERE conversation_id = old.id;
END;

-- Turns and what hangs on them have no foreign keys: every insert joins a parent row that it has just locked, which
-- proves the same and costs a third of the time.
-- `seq_at_adoption` tells progress from its absence; `lease_until` 0 means that the turn was let go on purpose.
CREATE TABLE turns (
    id                  text PRIMARY KEY,
    org_id              text NOT NULL,
    workspace_id        text NOT NULL,
    conversation_id     text NOT NULL,
    user_id             text,
    key_id              text,
    parent_turn_id      text,
    beside_turn_id      text,
    ordinal             integer NOT NULL,
    active              integer NOT NULL,
    status              text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    attempt             integer NOT NULL DEFAULT 0,
    failures            integer NOT NULL DEFAULT 0,
    last_seq            integer NOT NULL DEFAULT 0,
    seq_at_adoption     integer NOT NULL DEFAULT 0,
    worker              text,
    lease_until         integer,
    watched_until       integer,
    cancel_requested_at integer,
    background          integer NOT NULL DEFAULT 0,
    principal_ref       text NOT NULL,
    idempotency_key     text,
    request_hash        text,
    snapshot            text,
    source              text NOT NULL CHECK (source IN ('ui', 'api')),
    model               text,
    metadata            text,
    month               text NOT NULL,
    input_tokens        integer NOT NULL DEFAULT 0,
    output_tokens       integer NOT NULL DEFAULT 0,
    cache_read_tokens   integer NOT NULL DEFAULT 0,
    cache_write_tokens  integer NOT NULL DEFAULT 0,
    error               text,
    created_at          integer NOT NULL,
    started_at          integer,
    settled_at          integer
, files_written integer NOT NULL DEFAULT 0, watched_ms integer NOT NULL DEFAULT 30000, cost real, agent_id text, report text, waiting text, waiting_until integer, steers integer NOT NULL DEFAULT 0, steers_turn_id text) STRICT;
-- Single flight is this index, not application code: it holds for every worker and every bug.
CREATE UNIQUE INDEX turns_single_flight ON turns (conversation_id) WHERE status = 'running';
CREATE INDEX turns_waiting ON turns (conversation_id, ordinal) WHERE status = 'queued';
-- The visible chain (active) is one range of this index, whatever was abandoned beside it.
-- That it is unique lets SQLite read turns with their rows in order without sorting them.
CREATE UNIQUE INDEX turns_of_conversation ON turns (conversation_id, active, ordinal);
-- What was abandoned, by the place where it began; the visible chain pays nothing for it.
CREATE INDEX turns_beside ON turns (conversation_id, coalesce(parent_turn_id, ''))
    WHERE active = 0 AND started_at IS NOT NULL;
CREATE UNIQUE INDEX turns_idempotency ON turns (org_id, principal_ref, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX turns_deadlines ON turns (waiting_until) WHERE waiting_until IS NOT NULL;
-- What an erasure looks through for decisions about calls of others.
CREATE INDEX turns_that_waited ON turns (workspace_id, id) WHERE waiting IS NOT NULL;
-- The list behind the usage of a month.
CREATE INDEX turns_of_month ON turns (workspace_id, month, id);
-- What every sweep looks through: turns that run, without those that wait.
CREATE INDEX turns_held ON turns (conversation_id) WHERE status = 'running' AND waiting_until IS NULL;
-- Whoever asks for a stop ends the wait: the turn can be adopted at once, and is settled.
CREATE TRIGGER turns_are_stopped AFTER UPDATE OF cancel_requested_at ON turns
    WHEN new.cancel_requested_at IS NOT NULL AND new.waiting_until IS NOT NULL BEGIN
    UPDATE turns SET waiting_until = NULL, lease_until = -1 WHERE id = new.id;
END;
CREATE TRIGGER turns_go_on AFTER UPDATE OF waiting_until ON turns
    WHEN old.waiting_until IS NOT NULL AND new.waiting_until IS NULL BEGIN
    UPDATE unindexed SET is_parked = 0 WHERE conversation_id = new.conversation_id;
END;

CREATE TABLE messages (
    turn_id         text NOT NULL,
    turn_sequence   integer NOT NULL,
    id              text NOT NULL,
    org_id          text NOT NULL,
    conversation_id text NOT NULL,
    role            text NOT NULL CHECK (role IN ('user', 'assistant', 'system')),
    internal        integer NOT NULL,
    iteration       integer,
    blocks          text NOT NULL,
    display         text,
    attachments     text,
    sources         text,
    metadata        text,
    usage           text,
    legacy          text,
    provider        text,
    created_at      integer NOT NULL, removed text,
    PRIMARY KEY (turn_id, turn_sequence)
) STRICT;

CREATE TABLE turn_events (
    turn_id text NOT NULL,
    seq     integer NOT NULL,
    org_id  text NOT NULL,
    type    text NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (turn_id, seq)
) STRICT;
CREATE UNIQUE INDEX turn_events_one_terminal ON turn_events (turn_id) WHERE type IN ('result', 'error');

CREATE TABLE turn_logs (
    turn_id   text NOT NULL,
    n         integer NOT NULL,
    org_id    text NOT NULL,
    after_seq integer NOT NULL,
    level     text NOT NULL,
    message   text NOT NULL,
    ts        integer,
    PRIMARY KEY (turn_id, n)
) STRICT;

-- `name_key` is the name as it collides: case and Unicode form folded. `deleted_with` names the conversation whose
-- delete took the file, so that a restore revives only those.
CREATE TABLE files (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL REFERENCES workspaces,
    user_id         text,
    conversation_id text REFERENCES conversations,
    message_id      text,
    name            text NOT NULL,
    name_key        text NOT NULL,
    mime_type       text NOT NULL,
    size            integer NOT NULL,
    sha256          text,
    storage_key     text NOT NULL UNIQUE,
    source          text NOT NULL CHECK (source IN ('user', 'sandbox')),
    status          text NOT NULL CHECK (status IN ('pending', 'ready')),
    created_at      integer NOT NULL,
    deleted_at      integer,
    deleted_with    text
, turn_id text, saved_at integer, crc32 integer, key_id text, purpose text) STRICT;
CREATE UNIQUE INDEX files_names ON files (conversation_id, name_key)
    WHERE conversation_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX files_of_conversation ON files (conversation_id);
CREATE INDEX files_deleted ON files (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX files_of_turn ON files (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX files_saved ON files (workspace_id, id) WHERE saved_at IS NOT NULL;
CREATE INDEX files_unused ON files (created_at)
    WHERE conversation_id IS NULL AND status = 'ready' AND saved_at IS NULL AND deleted_at IS NULL;
CREATE INDEX files_pending ON files (created_at) WHERE status = 'pending';
CREATE INDEX files_of_key ON files (key_id, size) WHERE key_id IS NOT NULL;
CREATE INDEX files_of_user ON files (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE one_time_tokens (
    token_hash blob PRIMARY KEY,
    org_id     text NOT NULL,
    turn_id    text NOT NULL REFERENCES turns,
    attempt    integer NOT NULL,
    purpose    text NOT NULL CHECK (purpose IN ('setup', 'run', 'upload')),
    expires_at integer NOT NULL,
    used_at    integer
) STRICT;
CREATE INDEX one_time_tokens_of_turn ON one_time_tokens (turn_id);

-- One row per scope and month, so that a limit is checked and counted by one locked row.
CREATE TABLE usage (
    org_id        text NOT NULL,
    scope         text NOT NULL CHECK (scope IN ('workspace', 'user', 'key')),
    scope_id      text NOT NULL,
    month         text NOT NULL,
    ui_messages   integer NOT NULL DEFAULT 0,
    api_messages  integer NOT NULL DEFAULT 0,
    input_tokens  integer NOT NULL DEFAULT 0,
    output_tokens integer NOT NULL DEFAULT 0, cost real NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, scope, scope_id, month)
) STRICT;

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

-- What a search looks through: one entry for each visible message, and one for each title (turn_sequence -1 under the
-- conversation's own id). Kept apart from the rows, so that a turn is not made to wait for its index. The tokens are
-- ours (words, and pairs of CJK characters), separated by spaces; `search_tokens` is indexed by the entry's rowid.
-- The tokenizer `ascii` leaves every other character alone, where `unicode61` would cut our words at their marks.
CREATE TABLE search_entries (
    n               integer PRIMARY KEY,
    conversation_id text NOT NULL REFERENCES conversations,
    turn_id         text NOT NULL,
    turn_sequence   integer NOT NULL,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    user_id         text,
    UNIQUE (conversation_id, turn_id, turn_sequence)
) STRICT;
CREATE VIRTUAL TABLE search_tokens USING fts5 (
    tokens, content='', contentless_delete=1, tokenize="ascii", detail=none
);

-- Pages, and what can be found in them: one passage for each piece of a page, or of the text of a file (`owner` is the
-- page's id, or the sha256 of the bytes). Tokens are ours, as in `search_tokens`, but each as often as it occurs, for
-- BM25 counts them.
CREATE TABLE pages (
    id           text PRIMARY KEY,
    org_id       text NOT NULL,
    workspace_id text NOT NULL REFERENCES workspaces,
    title        text NOT NULL,
    content      text NOT NULL,
    created_at   integer NOT NULL,
    updated_at   integer NOT NULL
, user_id text) STRICT;
CREATE INDEX pages_of_workspace ON pages (workspace_id, id);

CREATE TABLE passages (
    n            integer PRIMARY KEY,
    org_id       text NOT NULL,
    workspace_id text,
    owner        text NOT NULL,
    start        integer NOT NULL,
    stop         integer NOT NULL,
    place        text
) STRICT;
CREATE INDEX passages_of_owner ON passages (owner, org_id);
CREATE VIRTUAL TABLE passage_tokens USING fts5 (
    title, body, content='', contentless_delete=1, tokenize="ascii"
);

-- The text of files, once for the same bytes in one org; `problem` says why there is none.
CREATE TABLE file_texts (
    org_id     text NOT NULL,
    sha256     text NOT NULL,
    text       text NOT NULL,
    problem    text,
    created_at integer NOT NULL,
    PRIMARY KEY (org_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX files_of_bytes ON files (org_id, sha256);

-- Bytes of which a file was erased. Only their texts can have lost their last file.
CREATE TABLE freed_bytes (
    org_id text NOT NULL,
    sha256 text NOT NULL,
    PRIMARY KEY (org_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER files_are_erased AFTER DELETE ON files WHEN old.sha256 IS NOT NULL BEGIN
    INSERT OR IGNORE INTO freed_bytes (org_id, sha256) VALUES (old.org_id, old.sha256);
END;
CREATE INDEX files_stored ON files (workspace_id, user_id, size);

-- Tables. Rows `import_first` to `import_last` are being imported: nobody sees them before the last of them is there.
-- A row's rowid is its table's serial times 2^32 and its number, so that the rows of a table are one range, in the
-- table as in its full-text index.
CREATE TABLE tables (
    serial       integer PRIMARY KEY,
    id           text NOT NULL UNIQUE,
    org_id       text NOT NULL,
    workspace_id text NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    name_key     text NOT NULL,
    description  text NOT NULL,
    columns      text NOT NULL,
    row_count    integer NOT NULL DEFAULT 0,
    last_row     integer NOT NULL DEFAULT 0,
    import_id    text,
    import_first integer,
    import_last  integer,
    import_at    integer,
    created_at   integer NOT NULL,
    updated_at   integer NOT NULL,
    deleted_at   integer
, user_id text, import_user_id text) STRICT;
CREATE INDEX tables_of_workspace ON tables (workspace_id, id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX tables_names ON tables (workspace_id, name_key) WHERE deleted_at IS NULL;
CREATE INDEX tables_deleted ON tables (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX tables_importing ON tables (import_at) WHERE import_at IS NOT NULL;

CREATE TABLE table_rows (
    n          integer PRIMARY KEY,
    org_id     text NOT NULL,
    cells      text NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
, user_id text) STRICT;
CREATE INDEX table_rows_of_user ON table_rows (user_id) WHERE user_id IS NOT NULL;
CREATE VIRTUAL TABLE row_tokens USING fts5 (
    tokens, content='', contentless_delete=1, tokenize="ascii"
);

-- Rows that were added together, under a name of the caller's: the same name again adds nothing.
CREATE TABLE row_batches (
    table_serial integer NOT NULL,
    batch        text NOT NULL,
    first        integer NOT NULL,
    count        integer NOT NULL,
    created_at   integer NOT NULL, digest text, user_id text,
    PRIMARY KEY (table_serial, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX row_batches_by_age ON row_batches (created_at);
CREATE INDEX row_batches_of_user ON row_batches (user_id) WHERE user_id IS NOT NULL;

-- Turns up to this one were compacted: what of their events and display follows from their rows is not stored any more.

CREATE TABLE compaction (
    n     integer PRIMARY KEY,  -- 1: there is one
    up_to text NOT NULL
) STRICT;

-- What the outside must hear of: written in the transaction that made it true, and erased once it is delivered. An entry is
-- leased to the worker that delivers it: no worker takes it before `not_before`.
CREATE TABLE outbox (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    user_id         text,
    type            text NOT NULL,  -- turn.succeeded, turn.failed, turn.cancelled
    conversation_id text,
    subject_id      text NOT NULL,  -- the turn
    created_at      integer NOT NULL,
    not_before      integer NOT NULL,
    attempts        integer NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

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
, failures integer NOT NULL DEFAULT 0, problem text) STRICT;
CREATE INDEX erasures_open ON erasures (not_before) WHERE done_at IS NULL;
CREATE INDEX erasures_erased ON erasures (erased_at) WHERE erased_at IS NOT NULL;

-- Sign-in to the page: a session for each browser, and links that invite a person.
CREATE TABLE sessions (
    id           text PRIMARY KEY,
    org_id       text NOT NULL,
    workspace_id text NOT NULL,
    user_id      text NOT NULL REFERENCES members ON DELETE CASCADE,
    secret_hash  blob NOT NULL UNIQUE,
    method       text NOT NULL,  -- link, oidc, invite
    browser      text NOT NULL,  -- how the browser calls itself
    created_at   integer NOT NULL,
    last_used_at integer NOT NULL,
    expires_at   integer NOT NULL
) STRICT;
CREATE INDEX sessions_of_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (expires_at);

CREATE TABLE invites (
    id           text PRIMARY KEY,
    org_id       text NOT NULL,
    workspace_id text NOT NULL,
    user_id      text NOT NULL REFERENCES members ON DELETE CASCADE,
    secret_hash  blob NOT NULL UNIQUE,
    created_at   integer NOT NULL,
    expires_at   integer NOT NULL,
    used_at      integer
) STRICT;
CREATE INDEX invites_of_user ON invites (user_id);
CREATE INDEX invites_of_workspace ON invites (workspace_id);
CREATE INDEX invites_by_end ON invites (expires_at);

-- Share links. Of a link only a hash is stored. Links go with their conversation, also when that is only deleted, and with
-- its user.
CREATE TABLE shares (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    conversation_id text NOT NULL REFERENCES conversations ON DELETE CASCADE,
    user_id         text REFERENCES members ON DELETE CASCADE,  -- whose conversation it is
    turn_id         text NOT NULL,  -- the last turn of the branch
    title           text,
    with_files      integer NOT NULL,
    secret_hash     blob NOT NULL UNIQUE,
    created_at      integer NOT NULL,
    expires_at      integer NOT NULL
) STRICT;
CREATE INDEX shares_of_conversation ON shares (conversation_id);
CREATE INDEX shares_of_user ON shares (user_id);
CREATE INDEX shares_of_workspace ON shares (workspace_id);
CREATE INDEX shares_by_end ON shares (expires_at);
CREATE TRIGGER shares_end_with_their_conversation AFTER UPDATE OF deleted_at ON conversations
    WHEN new.deleted_at IS NOT NULL AND old.deleted_at IS NULL BEGIN
    DELETE FROM shares WHERE conversation_id = new.id;
END;

-- Feedback: what a user thinks of the answer of a turn. It goes with its conversation and with its user.
CREATE TABLE feedback (
    turn_id         text NOT NULL,
    user_id         text NOT NULL REFERENCES members ON DELETE CASCADE,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    conversation_id text NOT NULL REFERENCES conversations ON DELETE CASCADE,
    rating          text NOT NULL,  -- up, down
    comment         text,
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL,
    PRIMARY KEY (turn_id, user_id)
) STRICT;
CREATE INDEX feedback_of_user ON feedback (user_id);
CREATE INDEX feedback_of_conversation ON feedback (conversation_id);
CREATE INDEX feedback_of_workspace ON feedback (workspace_id, created_at DESC, turn_id DESC);

-- Webhooks: endpoints of the host that hear of what happens in a workspace, and what is sent to them. Triggers write the
-- deliveries, in the transaction that causes them.
CREATE TABLE webhooks (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    url             text NOT NULL,
    events          text NOT NULL,  -- a JSON list
    is_enabled      integer NOT NULL,
    disabled_reason text,
    secret          text NOT NULL,  -- sealed
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL
) STRICT;
CREATE INDEX webhooks_of_workspace ON webhooks (workspace_id);

-- `id` is that of the event, and the same for all webhooks that hear of it. No worker sends a delivery before `not_before`;
-- it is NULL once the delivery has ended, and while the webhook is disabled. `data` holds ids and small facts, no words.
-- No foreign key: to delete a webhook with very many deliveries must not hold up other writes. What it leaves is purged.
CREATE TABLE webhook_deliveries (
    webhook_id      text NOT NULL,
    id              text NOT NULL,
    org_id          text NOT NULL,
    user_id         text,
    conversation_id text,
    type            text NOT NULL,
    data            text NOT NULL,
    status          text NOT NULL DEFAULT 'pending',  -- pending, delivered, failed
    attempts        integer NOT NULL DEFAULT 0,
    created_at      integer NOT NULL,
    not_before      integer,
    give_up_at      integer NOT NULL,
    last_attempt_at integer,
    response_status integer,
    error           text,
    PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_queue ON webhook_deliveries (webhook_id, not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_of_conversation ON webhook_deliveries (conversation_id) WHERE conversation_id IS NOT NULL;
CREATE INDEX webhook_deliveries_of_user ON webhook_deliveries (user_id) WHERE user_id IS NOT NULL;

-- Three days: for so long a delivery is tried. A conversation or a file that was
-- imported is older than its event, so these read the clock.
CREATE TRIGGER outbox_is_reported AFTER INSERT ON outbox BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, new.id, new.org_id, new.user_id, new.conversation_id, new.type,
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'turn_id', t.id,
               'user', json(CASE WHEN m.id IS NOT NULL THEN json_object('id', m.id, 'external_id', m.external_id) END),
               'status', t.status, 'agent_id', t.agent_id, 'model', t.model,
               'error', json(CASE WHEN t.error IS NOT NULL THEN json_object('code', t.error ->> '$.code') END),
               'usage', json_object('input_tokens', t.input_tokens, 'output_tokens', t.output_tokens),
               'created_at', t.created_at, 'settled_at', t.settled_at),
           new.created_at, new.created_at, new.created_at + 259200000
      FROM webhooks w JOIN turns t ON t.id = new.subject_id LEFT JOIN members m ON m.id = new.user_id
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"' || new.type || '"') > 0;
END;
CREATE TRIGGER conversations_are_reported AFTER INSERT ON conversations WHEN new.kind <> 'run' AND new.is_listed BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.id, 'conversation.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'kind', new.kind, 'agent_id', new.agent_id, 'model', new.model, 'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"conversation.created"') > 0;
END;
CREATE TRIGGER files_are_reported AFTER INSERT ON files WHEN new.status = 'ready' BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.conversation_id, 'file.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'file_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'mime_type', new.mime_type, 'size', new.size, 'source', new.source, 'turn_id', new.turn_id,
               'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"file.created"') > 0;
END;
CREATE TRIGGER completed_files_are_reported AFTER UPDATE OF status ON files
    WHEN new.status = 'ready' AND old.status <> 'ready' BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.conversation_id, 'file.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'file_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'mime_type', new.mime_type, 'size', new.size, 'source', new.source, 'turn_id', new.turn_id,
               'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"file.created"') > 0;
END;

-- Deliveries are erased with their conversation and with their user.
CREATE TRIGGER reports_go_with_their_conversation AFTER DELETE ON conversations BEGIN
    DELETE FROM webhook_deliveries WHERE conversation_id = old.id;
END;
CREATE TRIGGER reports_go_with_their_member AFTER DELETE ON members BEGIN
    DELETE FROM webhook_deliveries WHERE user_id = old.id;
END;
