-- How many bytes a user and a workspace keep is summed up with every new file, from this index alone.

CREATE INDEX files_stored ON files (workspace_id, user_id, size);
