-- A sweep costs nothing for a turn that waits. Its conversation stays unindexed for as long as it waits, which may be a
-- week, and every sweep looked at all of these conversations. Such a conversation is parked, once everything before that
-- turn is indexed. When the wait ends, its conversation is due again.
ALTER TABLE unindexed ADD COLUMN is_parked integer NOT NULL DEFAULT 0;
CREATE INDEX unindexed_due ON unindexed (conversation_id) WHERE is_parked = 0;
CREATE TRIGGER turns_go_on AFTER UPDATE OF waiting_until ON turns
    WHEN old.waiting_until IS NOT NULL AND new.waiting_until IS NULL BEGIN
    UPDATE unindexed SET is_parked = 0 WHERE conversation_id = new.conversation_id;
END;
