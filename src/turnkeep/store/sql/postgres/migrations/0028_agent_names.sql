-- Agents with names of their own, and connections to MCP servers that ask for authorization (OAuth).
--
-- `name_key` is the name as names are compared. Each write of this release sets it, unless another agent of the workspace
-- has had the same name since before: then it stays NULL, and the agent keeps its name. Rows that an older release wrote
-- have NULL too; a write looks at their names.

ALTER TABLE turnkeep.agents ADD COLUMN name_key text COLLATE "C";
CREATE UNIQUE INDEX CONCURRENTLY agents_names ON turnkeep.agents (workspace_id, name_key) WHERE deleted_at IS NULL;

-- `sealed` and `attempt` are encrypted. A worker that renews the tokens holds the connection until `refresh_until`.
CREATE TABLE turnkeep.mcp_connections (
    id            text COLLATE "C" PRIMARY KEY,
    org_id        text COLLATE "C" NOT NULL,
    workspace_id  text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces ON DELETE CASCADE,
    user_id       text COLLATE "C" REFERENCES turnkeep.members ON DELETE CASCADE,
    url           text COLLATE "C" NOT NULL,
    issuer        text NOT NULL,
    sealed        text,
    attempt       text,
    problem       text,
    version       bigint NOT NULL,
    refresh_until bigint NOT NULL DEFAULT 0,
    created_at    bigint NOT NULL,
    connected_at  bigint
);
CREATE UNIQUE INDEX mcp_connections_of_workspace ON turnkeep.mcp_connections (workspace_id, url);
CREATE INDEX mcp_connections_of_user ON turnkeep.mcp_connections (user_id) WHERE user_id IS NOT NULL;
