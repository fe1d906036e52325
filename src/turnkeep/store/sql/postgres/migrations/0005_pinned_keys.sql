-- A service key may be pinned to one workspace: then it reaches no other, and sees nothing internal. Keys from before have
-- none, and go on to speak for their whole org.

ALTER TABLE turnkeep.api_keys ADD COLUMN workspace_id text COLLATE "C" REFERENCES turnkeep.workspaces;
CREATE INDEX api_keys_of_workspace ON turnkeep.api_keys (workspace_id) WHERE workspace_id IS NOT NULL;
