-- On PostgreSQL, a workspace without webhooks does not pay for them. Here nothing changes: a trigger that finds no webhook
-- costs one look into an index.

SELECT 1;
