-- The turns of a workspace in one month, newest first: the list behind its usage.

COMMENT ON COLUMN turnkeep.turns.month IS 'The month in which the turn is counted, as 2026-11';
CREATE INDEX CONCURRENTLY turns_of_month ON turnkeep.turns (workspace_id, month, id);
