-- An erasure finds what is a user's by an index, however much others have. An erasure that cannot go on says why, and how
-- often it was tried, so that the pauses between its tries can grow.

CREATE INDEX CONCURRENTLY conversations_of_user ON turnkeep.conversations (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX CONCURRENTLY table_rows_of_user ON turnkeep.table_rows (user_id, table_id, number) WHERE user_id IS NOT NULL;
CREATE INDEX CONCURRENTLY row_batches_of_user ON turnkeep.row_batches (user_id) WHERE user_id IS NOT NULL;
ALTER TABLE turnkeep.erasures ADD COLUMN failures integer NOT NULL DEFAULT 0;
ALTER TABLE turnkeep.erasures ADD COLUMN problem text;
