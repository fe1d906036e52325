-- Idle work that stays the same when there is more data: files that no conversation took in have an index, and texts without a
-- file are found by the files that were erased.

CREATE INDEX files_unused ON files (created_at)
    WHERE conversation_id IS NULL AND status = 'ready' AND saved_at IS NULL AND deleted_at IS NULL;

-- Bytes of which a file was erased. Only their texts can have lost their last file.

CREATE TABLE freed_bytes (
    org_id text NOT NULL,
    sha256 text NOT NULL,
    PRIMARY KEY (org_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER files_are_erased AFTER DELETE ON files WHEN old.sha256 IS NOT NULL BEGIN
    INSERT OR IGNORE INTO freed_bytes (org_id, sha256) VALUES (old.org_id, old.sha256);
END;
INSERT OR IGNORE INTO freed_bytes (org_id, sha256) SELECT org_id, substr(sha256, 1, 64) FROM file_texts;

-- Turns up to this one were compacted: what of their events and display follows from their rows is not stored any more.

CREATE TABLE compaction (
    n     integer PRIMARY KEY,  -- 1: there is one
    up_to text NOT NULL
) STRICT;
