-- What the list of conversations on the page needs beside the conversations themselves.

-- The folder is a name alone: a folder exists while conversations are in it.
ALTER TABLE conversations ADD COLUMN is_pinned integer NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN folder text;
-- When a background turn was asked, or the user has read it. No index has it, as turns change it.
ALTER TABLE conversations ADD COLUMN read_at integer;
-- Who wrote the title: user, model or question. NULL: the beginning of the question, until a model may write one.
ALTER TABLE conversations ADD COLUMN titled_by text;
ALTER TABLE conversations ADD COLUMN instructions text;
ALTER TABLE conversations ADD COLUMN temperature real;
-- The trash: only what was deleted and is not purged yet is in it. No turn changes it.
CREATE INDEX conversations_trash ON conversations (workspace_id, deleted_at DESC, id DESC, user_id)
    WHERE deleted_at IS NOT NULL;
CREATE INDEX conversations_pinned ON conversations (workspace_id, user_id, updated_at DESC, id DESC)
    WHERE is_pinned AND deleted_at IS NULL;
CREATE INDEX conversations_in_folders ON conversations (workspace_id, folder, updated_at DESC, id DESC, user_id)
    WHERE folder IS NOT NULL;
