-- How people sign in to the page: a session for each browser, which can be listed and ended, and links that invite a
-- person. Of the cookie and of the link only a hash is stored. Both go with their user.

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
