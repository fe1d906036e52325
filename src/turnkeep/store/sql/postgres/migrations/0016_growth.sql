-- Work and rows that stay the same when there is more data.
--
-- One worker at a time does what need not be done by each of them. It holds this lease.

CREATE TABLE turnkeep.sweep_lease (
    n           integer PRIMARY KEY,  -- 1: there is one lease
    worker      text NOT NULL,
    lease_until bigint NOT NULL
);

-- Conversations with turns that no search finds yet. A table, as a partial index over the two ordinals would be changed by
-- every turn. The triggers hold for every release that writes.

CREATE TABLE turnkeep.unindexed (
    conversation_id text COLLATE "C" PRIMARY KEY,
    workspace_id    text COLLATE "C" NOT NULL
);

CREATE FUNCTION turnkeep.note_unindexed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.unindexed (conversation_id, workspace_id) VALUES (new.id, new.workspace_id)
    ON CONFLICT (conversation_id) DO NOTHING;
    RETURN NULL;
END $$;
CREATE FUNCTION turnkeep.forget_unindexed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.unindexed u WHERE u.conversation_id = old.id;
    RETURN NULL;
END $$;
CREATE TRIGGER conversations_get_a_turn AFTER UPDATE OF next_ordinal ON turnkeep.conversations
    FOR EACH ROW EXECUTE FUNCTION turnkeep.note_unindexed();
CREATE TRIGGER conversations_come_with_turns AFTER INSERT ON turnkeep.conversations
    FOR EACH ROW WHEN (new.indexed_ordinal < new.next_ordinal - 1) EXECUTE FUNCTION turnkeep.note_unindexed();
CREATE TRIGGER conversations_are_indexed AFTER UPDATE OF indexed_ordinal ON turnkeep.conversations
    FOR EACH ROW WHEN (new.indexed_ordinal >= new.next_ordinal - 1) EXECUTE FUNCTION turnkeep.forget_unindexed();
CREATE TRIGGER conversations_are_purged AFTER DELETE ON turnkeep.conversations
    FOR EACH ROW EXECUTE FUNCTION turnkeep.forget_unindexed();

DO $$
BEGIN
    IF row_security_active('turnkeep.conversations') AND NOT pg_has_role(current_user, 'turnkeep_engine', 'USAGE') THEN
        RAISE EXCEPTION 'The user % sees no conversations. Grant it the role turnkeep_engine, and migrate again.', current_user;
    END IF;
END $$;
INSERT INTO turnkeep.unindexed (conversation_id, workspace_id)
SELECT c.id, c.workspace_id FROM turnkeep.conversations c WHERE c.indexed_ordinal < c.next_ordinal - 1;

-- Lists are sorted by `updated_at`, which changes with every turn. An index over it would have to be changed as well, and
-- PostgreSQL would write the row to another place (no HOT update). The index therefore has the five minutes in which the
-- conversation was changed last; a list sorts the few conversations of the same five minutes. It takes the place of two
-- indexes over `updated_at`.

ALTER TABLE turnkeep.conversations ADD COLUMN updated_period bigint GENERATED ALWAYS AS (updated_at / 300000) STORED;
DROP INDEX turnkeep.conversations_listed, turnkeep.conversations_of_workspace, turnkeep.conversations_to_index;
CREATE INDEX CONCURRENTLY conversations_of_user_by_period ON turnkeep.conversations (workspace_id, user_id, updated_period DESC)
    WHERE deleted_at IS NULL AND kind <> 'run';
CREATE INDEX CONCURRENTLY conversations_by_period ON turnkeep.conversations (workspace_id, updated_period DESC)
    WHERE deleted_at IS NULL AND kind <> 'run';
CREATE INDEX CONCURRENTLY files_unused ON turnkeep.files (created_at)
    WHERE conversation_id IS NULL AND status = 'ready' AND saved_at IS NULL AND deleted_at IS NULL;

-- Bytes of which a file was erased. Only their texts can have lost their last file.

CREATE TABLE turnkeep.freed_bytes (
    org_id text COLLATE "C" NOT NULL,
    sha256 text COLLATE "C" NOT NULL,
    PRIMARY KEY (org_id, sha256)
);

-- The row is locked also if it is there already: whoever looks for other files of these bytes leaves it until the commit.
CREATE FUNCTION turnkeep.note_freed_bytes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.freed_bytes (org_id, sha256) VALUES (old.org_id, old.sha256)
    ON CONFLICT (org_id, sha256) DO UPDATE SET sha256 = excluded.sha256;
    RETURN NULL;
END $$;
CREATE TRIGGER files_are_erased AFTER DELETE ON turnkeep.files
    FOR EACH ROW WHEN (old.sha256 IS NOT NULL) EXECUTE FUNCTION turnkeep.note_freed_bytes();
INSERT INTO turnkeep.freed_bytes (org_id, sha256) SELECT DISTINCT t.org_id, substr(t.sha256, 1, 64) FROM turnkeep.file_texts t;

-- Counters that many turns at once change: each connection counts in a slot of its own, and what was counted is the sum of
-- `usage` (`usage_days`) and its slots. Only a counter with a limit is locked, in `usage`. The sweeper adds the slots up.

CREATE TABLE turnkeep.usage_slots (
    org_id        text COLLATE "C" NOT NULL,
    scope         text NOT NULL,
    scope_id      text COLLATE "C" NOT NULL,
    month         text NOT NULL,
    slot          integer NOT NULL,
    ui_messages   integer NOT NULL DEFAULT 0,
    api_messages  integer NOT NULL DEFAULT 0,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cost          double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, scope, scope_id, month, slot)
) WITH (fillfactor = 50);

CREATE TABLE turnkeep.usage_day_slots (
    org_id             text NOT NULL,
    workspace_id       text NOT NULL,
    day                text NOT NULL,
    user_id            text NOT NULL,
    agent_id           text NOT NULL,
    model              text NOT NULL,
    source             text NOT NULL,
    slot               integer NOT NULL,
    messages           bigint NOT NULL DEFAULT 0,
    input_tokens       bigint NOT NULL DEFAULT 0,
    output_tokens      bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    cost               double precision NOT NULL DEFAULT 0,
    unpriced           bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, workspace_id, day, user_id, agent_id, model, source, slot)
) WITH (fillfactor = 50);

-- Turns up to this one were compacted: what of their events and display follows from their rows is not stored any more.

CREATE TABLE turnkeep.compaction (
    n     integer PRIMARY KEY,  -- 1: there is one
    up_to text COLLATE "C" NOT NULL
);

-- Of all changes of a turn only renewals leave its indexes as they are. A tenth of a page is enough for them.

ALTER TABLE turnkeep.turns SET (fillfactor = 90);

-- The org of an entry follows from its workspace. No query asks for it, and an entry is written for every message.

ALTER TABLE turnkeep.search_entries ALTER COLUMN org_id DROP NOT NULL;

-- Triggers alone call these functions, and need no right to do so.

REVOKE ALL ON FUNCTION turnkeep.note_unindexed, turnkeep.forget_unindexed, turnkeep.note_freed_bytes FROM PUBLIC;
