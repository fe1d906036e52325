-- Files that a sandbox writes back belong to a turn, and its holder is told by a number on the turn's row. Files may be
-- saved for the whole workspace.

ALTER TABLE turns ADD COLUMN files_written integer NOT NULL DEFAULT 0;
ALTER TABLE files ADD COLUMN turn_id text;
ALTER TABLE files ADD COLUMN saved_at integer;
CREATE INDEX files_of_turn ON files (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX files_saved ON files (workspace_id, id) WHERE saved_at IS NOT NULL;
CREATE INDEX files_pending ON files (created_at) WHERE status = 'pending';
