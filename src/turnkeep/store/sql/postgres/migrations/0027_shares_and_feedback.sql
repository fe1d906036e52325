-- Share links: one branch of a conversation as it is when it is shared, for everybody who has the link, until the link ends.
-- Of a link only a hash is stored. Links go with their conversation, also when that is only deleted and may be restored, and
-- with its user. A trigger sees to it, so that it holds for servers of the release before, too.

CREATE TABLE turnkeep.shares (
    id              text COLLATE "C" PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL REFERENCES turnkeep.conversations ON DELETE CASCADE,
    user_id         text COLLATE "C" REFERENCES turnkeep.members ON DELETE CASCADE,  -- whose conversation it is
    turn_id         text COLLATE "C" NOT NULL,  -- the last turn of the branch
    title           text,
    with_files      boolean NOT NULL,
    secret_hash     bytea NOT NULL UNIQUE,
    created_at      bigint NOT NULL,
    expires_at      bigint NOT NULL
);
CREATE INDEX shares_of_conversation ON turnkeep.shares (conversation_id);
CREATE INDEX shares_of_user ON turnkeep.shares (user_id);
CREATE INDEX shares_of_workspace ON turnkeep.shares (workspace_id);
CREATE INDEX shares_by_end ON turnkeep.shares (expires_at);

-- The trigger of this migration uses the table at once, for servers of the release before, so its rights are set here.
ALTER TABLE turnkeep.shares ENABLE ROW LEVEL SECURITY;
ALTER TABLE turnkeep.shares FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON turnkeep.shares TO turnkeep_engine USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.shares TO turnkeep_engine;

CREATE FUNCTION turnkeep.end_shares_of_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.shares s WHERE s.conversation_id = new.id;
    RETURN NULL;
END $$;
CREATE TRIGGER shares_end_with_their_conversation AFTER UPDATE OF deleted_at ON turnkeep.conversations
    FOR EACH ROW WHEN (new.deleted_at IS NOT NULL AND old.deleted_at IS NULL)
    EXECUTE FUNCTION turnkeep.end_shares_of_conversation();

-- The trigger alone calls the function, and needs no right to do so.
REVOKE ALL ON FUNCTION turnkeep.end_shares_of_conversation FROM PUBLIC;

-- Feedback: what a user thinks of the answer of a turn. It goes with its conversation and with its user.
CREATE TABLE turnkeep.feedback (
    turn_id         text COLLATE "C" NOT NULL,
    user_id         text COLLATE "C" NOT NULL REFERENCES turnkeep.members ON DELETE CASCADE,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL REFERENCES turnkeep.conversations ON DELETE CASCADE,
    rating          text NOT NULL,  -- up, down
    comment         text,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    PRIMARY KEY (turn_id, user_id)
);
CREATE INDEX feedback_of_user ON turnkeep.feedback (user_id);
CREATE INDEX feedback_of_conversation ON turnkeep.feedback (conversation_id);
CREATE INDEX feedback_of_workspace ON turnkeep.feedback (workspace_id, created_at DESC, turn_id DESC);
ALTER TABLE turnkeep.feedback ENABLE ROW LEVEL SECURITY;
ALTER TABLE turnkeep.feedback FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON turnkeep.feedback TO turnkeep_engine USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.feedback TO turnkeep_engine;
