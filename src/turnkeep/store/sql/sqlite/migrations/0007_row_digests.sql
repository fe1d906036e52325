-- A batch of rows keeps a hash of the request that added it, so that another request under the same key is told from the
-- same one again. Batches from before have none, and are known by their names alone.

ALTER TABLE row_batches ADD COLUMN digest text;
