-- Knowledge: pages and tables of a workspace, the text of files, and the full-text indexes over all of them.

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
) STRICT;
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
) STRICT;
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
) STRICT;
CREATE VIRTUAL TABLE row_tokens USING fts5 (
    tokens, content='', contentless_delete=1, tokenize="ascii"
);

-- Rows that were added together, under a name of the caller's: the same name again adds nothing.
CREATE TABLE row_batches (
    table_serial integer NOT NULL,
    batch        text NOT NULL,
    first        integer NOT NULL,
    count        integer NOT NULL,
    created_at   integer NOT NULL,
    PRIMARY KEY (table_serial, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX row_batches_by_age ON row_batches (created_at);
