-- Knowledge: pages and tables of a workspace, the text of files, and the full-text indexes over all of them.

CREATE TABLE turnkeep.pages (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    title        text NOT NULL,
    content      text NOT NULL,
    created_at   bigint NOT NULL,
    updated_at   bigint NOT NULL
);
CREATE INDEX pages_of_workspace ON turnkeep.pages (workspace_id, id);

-- One passage for each piece of a page, or of the text of a file (`owner` is the page's id, or the sha256 of the bytes).
-- Tokens are ours, with their places, for ts_rank counts them. A token `@…` names the workspace of a page or the org of
-- a file, so that the index itself passes over what belongs to others. The pending list is off: after a large import
-- every search would read it whole.
CREATE TABLE turnkeep.passages (
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C",
    owner        text COLLATE "C" NOT NULL,
    n            integer NOT NULL,
    start        integer NOT NULL,
    stop         integer NOT NULL,
    place        text,
    tokens       tsvector NOT NULL,
    PRIMARY KEY (owner, org_id, n)
) WITH (toast_tuple_target = 8160);
CREATE INDEX passages_tokens ON turnkeep.passages USING gin (tokens) WITH (fastupdate = off);

-- The text of files, once for the same bytes in one org; `problem` says why there is none.
CREATE TABLE turnkeep.file_texts (
    org_id     text COLLATE "C" NOT NULL,
    sha256     text COLLATE "C" NOT NULL,
    text       text NOT NULL,
    problem    text,
    created_at bigint NOT NULL,
    PRIMARY KEY (org_id, sha256)
);
CREATE INDEX files_of_bytes ON turnkeep.files (org_id, sha256);

-- Rows `import_first` to `import_last` are being imported: nobody sees them before the last of them is there.
CREATE TABLE turnkeep.tables (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces,
    name         text NOT NULL,
    name_key     text NOT NULL,
    description  text NOT NULL,
    columns      text NOT NULL,
    row_count    integer NOT NULL DEFAULT 0,
    last_row     integer NOT NULL DEFAULT 0,
    import_id    text COLLATE "C",
    import_first integer,
    import_last  integer,
    import_at    bigint,
    created_at   bigint NOT NULL,
    updated_at   bigint NOT NULL,
    deleted_at   bigint
);
CREATE INDEX tables_of_workspace ON turnkeep.tables (workspace_id, id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX tables_names ON turnkeep.tables (workspace_id, name_key) WHERE deleted_at IS NULL;
CREATE INDEX tables_deleted ON turnkeep.tables (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX tables_importing ON turnkeep.tables (import_at) WHERE import_at IS NOT NULL;

-- `cells` is a JSON list, one cell for each column by its key. A token `@…` names the table, another the workspace.
CREATE TABLE turnkeep.table_rows (
    table_id   text COLLATE "C" NOT NULL,
    number     integer NOT NULL,
    org_id     text COLLATE "C" NOT NULL,
    cells      json NOT NULL,
    tokens     tsvector NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (table_id, number)
);
CREATE INDEX table_rows_tokens ON turnkeep.table_rows USING gin (tokens) WITH (fastupdate = off);

-- Rows that were added together, under a name of the caller's: the same name again adds nothing.
CREATE TABLE turnkeep.row_batches (
    table_id   text COLLATE "C" NOT NULL,
    batch      text COLLATE "C" NOT NULL,
    first      integer NOT NULL,
    count      integer NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (table_id, batch)
);
CREATE INDEX row_batches_by_age ON turnkeep.row_batches (created_at);
