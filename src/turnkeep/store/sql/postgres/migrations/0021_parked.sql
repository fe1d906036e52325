-- A sweep costs nothing for a turn that waits. Its conversation stays unindexed for as long as it waits, which may be a week, and
-- every sweep looked at all of these conversations. Such a conversation is parked, once everything before that turn is
-- indexed. When the wait ends, its conversation is due again.
ALTER TABLE turnkeep.unindexed ADD COLUMN is_parked boolean NOT NULL DEFAULT false;
CREATE INDEX CONCURRENTLY unindexed_due ON turnkeep.unindexed (conversation_id) WHERE NOT is_parked;

CREATE FUNCTION turnkeep.unpark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE turnkeep.unindexed u SET is_parked = false WHERE u.conversation_id = new.conversation_id AND u.is_parked;
    RETURN NULL;
END $$;
CREATE TRIGGER turns_go_on AFTER UPDATE OF waiting_until, cancel_requested_at ON turnkeep.turns
    FOR EACH ROW WHEN (old.waiting_until IS NOT NULL AND new.waiting_until IS NULL) EXECUTE FUNCTION turnkeep.unpark();

REVOKE ALL ON FUNCTION turnkeep.unpark FROM PUBLIC;
