-- Share links: one branch of a conversation as it is when it is shared, for everybody who has the link, until the link ends.
-- Of a link only a hash is stored. Links go with their conversation, also when that is only deleted and may be restored, and
-- with its user.

CREATE TABLE shares (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    conversation_id text NOT NULL REFERENCES conversations ON DELETE CASCADE,
    user_id         text REFERENCES members ON DELETE CASCADE,  -- whose conversation it is
    turn_id         text NOT NULL,  -- the last turn of the branch
    title           text,
    with_files      integer NOT NULL,
    secret_hash     blob NOT NULL UNIQUE,
    created_at      integer NOT NULL,
    expires_at      integer NOT NULL
) STRICT;
CREATE INDEX shares_of_conversation ON shares (conversation_id);
CREATE INDEX shares_of_user ON shares (user_id);
CREATE INDEX shares_of_workspace ON shares (workspace_id);
CREATE INDEX shares_by_end ON shares (expires_at);
CREATE TRIGGER shares_end_with_their_conversation AFTER UPDATE OF deleted_at ON conversations
    WHEN new.deleted_at IS NOT NULL AND old.deleted_at IS NULL BEGIN
    DELETE FROM shares WHERE conversation_id = new.id;
END;

-- Feedback: what a user thinks of the answer of a turn. It goes with its conversation and with its user.
CREATE TABLE feedback (
    turn_id         text NOT NULL,
    user_id         text NOT NULL REFERENCES members ON DELETE CASCADE,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    conversation_id text NOT NULL REFERENCES conversations ON DELETE CASCADE,
    rating          text NOT NULL,  -- up, down
    comment         text,
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL,
    PRIMARY KEY (turn_id, user_id)
) STRICT;
CREATE INDEX feedback_of_user ON feedback (user_id);
CREATE INDEX feedback_of_conversation ON feedback (conversation_id);
CREATE INDEX feedback_of_workspace ON feedback (workspace_id, created_at DESC, turn_id DESC);
