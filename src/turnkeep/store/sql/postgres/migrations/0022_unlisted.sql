-- Conversations that no list shows. A caller that sends the whole history with each question makes one for each.

ALTER TABLE turnkeep.conversations ADD COLUMN is_listed boolean NOT NULL DEFAULT true;
-- The indexes without `is_listed` serve the release before this one. They can go when it is gone.
CREATE INDEX CONCURRENTLY conversations_of_user_listed ON turnkeep.conversations (workspace_id, user_id, updated_period DESC)
    WHERE deleted_at IS NULL AND kind <> 'run' AND is_listed;
CREATE INDEX CONCURRENTLY conversations_listed_by_period ON turnkeep.conversations (workspace_id, updated_period DESC)
    WHERE deleted_at IS NULL AND kind <> 'run' AND is_listed;
-- What the purge looks through.
CREATE INDEX CONCURRENTLY conversations_unlisted ON turnkeep.conversations (id) WHERE deleted_at IS NULL AND NOT is_listed;

-- Webhooks are told of conversations that a list shows.
DROP TRIGGER conversations_are_reported ON turnkeep.conversations;
CREATE TRIGGER conversations_are_reported AFTER INSERT ON turnkeep.conversations
    FOR EACH ROW WHEN (new.kind <> 'run' AND new.is_listed) EXECUTE FUNCTION turnkeep.report_conversation();
