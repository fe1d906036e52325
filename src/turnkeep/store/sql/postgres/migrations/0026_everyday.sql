-- What the list of conversations on the page needs beside the conversations themselves.

-- The folder is a name alone: a folder exists while conversations are in it.
ALTER TABLE turnkeep.conversations
    ADD COLUMN is_pinned boolean NOT NULL DEFAULT false,
    ADD COLUMN folder text COLLATE "C",
    ADD COLUMN read_at bigint,
    ADD COLUMN titled_by text,
    ADD COLUMN instructions text,
    ADD COLUMN temperature double precision;
COMMENT ON COLUMN turnkeep.conversations.titled_by IS 'user, model, or question; NULL: the beginning of the question, until a model may write one';
COMMENT ON COLUMN turnkeep.conversations.read_at IS 'a background turn was asked, or its user has read it; no index has it, as turns change it';
COMMENT ON COLUMN turnkeep.conversations.deleted_at IS 'since when it is in the trash; the purge erases it after the retention period';
-- The trash: only what was deleted and is not purged yet is in it. No turn changes it.
CREATE INDEX CONCURRENTLY conversations_trash ON turnkeep.conversations (workspace_id, deleted_at DESC, id DESC, user_id)
    WHERE deleted_at IS NOT NULL;
-- As in the other lists, the period of the last change stands for its time.
CREATE INDEX CONCURRENTLY conversations_pinned ON turnkeep.conversations (workspace_id, user_id, updated_period DESC)
    WHERE is_pinned AND deleted_at IS NULL;
CREATE INDEX CONCURRENTLY conversations_in_folders ON turnkeep.conversations (workspace_id, user_id, folder, updated_period DESC)
    WHERE folder IS NOT NULL;
