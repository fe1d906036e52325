-- Agents with names of their own, and connections to MCP servers that ask for authorization (OAuth).
--
-- `name_key` is the name as names are compared. Each write of this release sets it, unless another agent of the workspace
-- has had the same name since before: then it stays NULL, and the agent keeps its name. Rows that an older release wrote
-- have NULL too; a write looks at their names.

ALTER TABLE agents ADD COLUMN name_key text;
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
