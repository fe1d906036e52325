-- Files that a sandbox writes back belong to a turn, and its holder is told by a number on the turn's row. Files may be
-- saved for the whole workspace.

ALTER TABLE turnkeep.turns ADD COLUMN files_written integer NOT NULL DEFAULT 0;
ALTER TABLE turnkeep.files ADD COLUMN turn_id text COLLATE "C";
ALTER TABLE turnkeep.files ADD COLUMN saved_at bigint;
CREATE INDEX files_of_turn ON turnkeep.files (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX files_saved ON turnkeep.files (workspace_id, id) WHERE saved_at IS NOT NULL;
CREATE INDEX files_pending ON turnkeep.files (created_at) WHERE status = 'pending';
CREATE INDEX files_deleted ON turnkeep.files (deleted_at) WHERE deleted_at IS NOT NULL;
