-- An erasure finds what is a user's by an index, however much others have. An erasure that cannot go on says why, and how
-- often it was tried, so that the pauses between its tries can grow.

CREATE INDEX conversations_of_user ON conversations (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX table_rows_of_user ON table_rows (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX row_batches_of_user ON row_batches (user_id) WHERE user_id IS NOT NULL;
ALTER TABLE erasures ADD COLUMN failures integer NOT NULL DEFAULT 0;
ALTER TABLE erasures ADD COLUMN problem text;
