-- How people sign in to the page: a session for each browser, which can be listed and ended, and links that invite a
-- person. Of the cookie and of the link only a hash is stored. Both go with their user.

CREATE TABLE turnkeep.sessions (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL,
    user_id      text COLLATE "C" NOT NULL REFERENCES turnkeep.members ON DELETE CASCADE,
    secret_hash  bytea NOT NULL UNIQUE,
    method       text NOT NULL,  -- link, oidc, invite
    browser      text NOT NULL,  -- how the browser calls itself
    created_at   bigint NOT NULL,
    last_used_at bigint NOT NULL,
    expires_at   bigint NOT NULL
);
CREATE INDEX sessions_of_user ON turnkeep.sessions (user_id);
CREATE INDEX sessions_by_end ON turnkeep.sessions (expires_at);

CREATE TABLE turnkeep.invites (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL,
    user_id      text COLLATE "C" NOT NULL REFERENCES turnkeep.members ON DELETE CASCADE,
    secret_hash  bytea NOT NULL UNIQUE,
    created_at   bigint NOT NULL,
    expires_at   bigint NOT NULL,
    used_at      bigint
);
CREATE INDEX invites_of_user ON turnkeep.invites (user_id);
CREATE INDEX invites_of_workspace ON turnkeep.invites (workspace_id);
CREATE INDEX invites_by_end ON turnkeep.invites (expires_at);
