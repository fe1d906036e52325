-- Decisions of a user about calls of others. An erasure of this user looks for them.

COMMENT ON COLUMN turnkeep.turns.waiting IS 'model.waits.Wait; by_id of an answer names a user who does not own the turn';
CREATE INDEX CONCURRENTLY turns_that_waited ON turnkeep.turns (workspace_id, id) WHERE waiting IS NOT NULL;
