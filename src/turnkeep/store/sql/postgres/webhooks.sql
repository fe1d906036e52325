-- Webhooks and their deliveries. The triggers of migration 0017 (their functions: 0023) write the deliveries.

-- name: insert_webhook
-- No row: there is no such workspace, or it has as many webhooks as it may. A repeat finds what was made.
INSERT INTO turnkeep.webhooks AS w ({webhook_columns})
SELECT $1, x.org_id, x.id, $4, $5, $6, NULL, $7, n.now, n.now
  FROM turnkeep.workspaces x, (SELECT turnkeep.now_ms() AS now) n
 WHERE x.org_id = $2 AND x.id = $3
   AND (SELECT count(*) FROM turnkeep.webhooks o WHERE o.workspace_id = x.id AND o.id <> $1) < $8
ON CONFLICT (id) DO UPDATE SET secret = excluded.secret
RETURNING {w.webhook_columns}

-- name: webhooks
SELECT {w.webhook_columns} FROM turnkeep.webhooks w WHERE w.workspace_id = $2 AND w.org_id = $1 ORDER BY w.id DESC

-- name: webhook
SELECT {w.webhook_columns} FROM turnkeep.webhooks w WHERE w.id = $3 AND w.org_id = $1 AND w.workspace_id = $2

-- name: webhook_to_change
-- It stays locked.
SELECT {w.webhook_columns} FROM turnkeep.webhooks w WHERE w.id = $3 AND w.org_id = $1 AND w.workspace_id = $2 FOR NO KEY UPDATE

-- name: change_webhook
UPDATE turnkeep.webhooks w
   SET url = $2, events = $3, is_enabled = $4, disabled_reason = $5, secret = $6, updated_at = turnkeep.now_ms()
 WHERE w.id = $1
RETURNING {w.webhook_columns}

-- name: delete_webhook
-- Its deliveries stay for the purge.
DELETE FROM turnkeep.webhooks w WHERE w.id = $3 AND w.org_id = $1 AND w.workspace_id = $2
RETURNING w.id

-- name: delete_webhooks
DELETE FROM turnkeep.webhooks w WHERE w.workspace_id = $1

-- name: park_deliveries
-- slow
-- No worker looks at the deliveries of a disabled webhook.
UPDATE turnkeep.webhook_deliveries d SET not_before = NULL WHERE d.webhook_id = $1 AND d.not_before IS NOT NULL

-- name: resume_deliveries
-- slow
UPDATE turnkeep.webhook_deliveries d SET not_before = turnkeep.now_ms()
 WHERE d.webhook_id = $1 AND d.not_before IS NULL AND d.status = 'pending'

-- name: deliveries
SELECT {d.delivery_columns} FROM turnkeep.webhook_deliveries d
 WHERE d.webhook_id = $1 AND d.id < $2 ORDER BY d.id DESC LIMIT $3

-- name: redeliver
-- To be sent at once, and tried for three days more. It waits while the webhook is disabled.
UPDATE turnkeep.webhook_deliveries d
   SET status = 'pending', attempts = 0, not_before = CASE WHEN w.is_enabled THEN n.now END, give_up_at = n.now + $5::bigint
  FROM turnkeep.webhooks w, (SELECT turnkeep.now_ms() AS now) n
 WHERE w.id = $3 AND w.org_id = $1 AND w.workspace_id = $2 AND d.webhook_id = w.id AND d.id = $4
RETURNING {d.delivery_columns}

-- name: take_deliveries
-- Lease deliveries that are due: of each webhook at most `each` ($4 for those in $3, 1 for others), none of those in $2. The
-- walk goes from webhook to webhook through the index, beginning after $1, so that a long queue of one holds up no other. The
-- due ones of a disabled webhook are parked. They are updated by their places, since the planner does not know how few they are.
WITH RECURSIVE waiting AS (
    (SELECT d.webhook_id FROM turnkeep.webhook_deliveries d
      WHERE d.not_before IS NOT NULL AND d.webhook_id > $1 ORDER BY d.webhook_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.webhook_id FROM turnkeep.webhook_deliveries d
             WHERE d.not_before IS NOT NULL AND d.webhook_id > x.webhook_id ORDER BY d.webhook_id LIMIT 1)
      FROM waiting x WHERE x.webhook_id IS NOT NULL
), due AS MATERIALIZED (
    SELECT d.place FROM waiting x
     CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM turnkeep.webhook_deliveries d
         WHERE d.webhook_id = x.webhook_id AND d.not_before <= (SELECT turnkeep.now_ms())
         ORDER BY d.not_before LIMIT CASE WHEN x.webhook_id = ANY ($3::text[]) THEN $4::integer ELSE 1 END
           FOR UPDATE SKIP LOCKED) d
     WHERE x.webhook_id <> ALL ($2::text[]) AND EXISTS (SELECT 1 FROM turnkeep.webhooks w WHERE w.id = x.webhook_id)
     LIMIT $5
)
UPDATE turnkeep.webhook_deliveries d
   SET not_before = CASE WHEN w.is_enabled THEN turnkeep.now_ms() + $6::bigint END,
       attempts = d.attempts + w.is_enabled::integer
  FROM turnkeep.webhooks w
 WHERE w.id = d.webhook_id AND d.ctid = ANY (ARRAY(SELECT x.place FROM due x))
RETURNING {d.delivery_columns}, {w.webhook_columns}

-- name: end_attempt
-- How an attempt has ended. With a pause ($6) it is tried again, unless its time is over; without one it has ended. Nothing
-- changes if another attempt has begun since.
UPDATE turnkeep.webhook_deliveries d
   SET last_attempt_at = n.now, response_status = $4, error = $5,
       status = CASE WHEN $6::bigint IS NULL THEN $7 WHEN n.now >= d.give_up_at THEN 'failed' ELSE 'pending' END,
       not_before = CASE WHEN $6::bigint IS NOT NULL AND n.now < d.give_up_at AND w.is_enabled
                         THEN least(n.now + $6::bigint, d.give_up_at) END
  FROM turnkeep.webhooks w, (SELECT turnkeep.now_ms() AS now) n
 WHERE w.id = d.webhook_id AND d.webhook_id = $1 AND d.id = $2 AND d.attempts = $3 AND d.status = 'pending'
RETURNING {d.delivery_columns}

-- name: disable_webhook
UPDATE turnkeep.webhooks w SET is_enabled = false, disabled_reason = $2, updated_at = turnkeep.now_ms()
 WHERE w.id = $1 AND w.is_enabled
RETURNING w.id

-- name: purge_old_deliveries
-- slow
DELETE FROM turnkeep.webhook_deliveries d
 WHERE d.ctid = ANY (ARRAY(SELECT x.ctid FROM turnkeep.webhook_deliveries x
                            WHERE x.created_at < (SELECT turnkeep.now_ms()) - $1::bigint
                              AND x.give_up_at < (SELECT turnkeep.now_ms())
                            ORDER BY x.created_at LIMIT $2))
RETURNING d.id

-- name: purge_orphaned_deliveries
-- slow
-- Of webhooks that are gone. The walk goes from webhook to webhook through the index.
WITH RECURSIVE known AS (
    (SELECT d.webhook_id FROM turnkeep.webhook_deliveries d ORDER BY d.webhook_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.webhook_id FROM turnkeep.webhook_deliveries d
             WHERE d.webhook_id > x.webhook_id ORDER BY d.webhook_id LIMIT 1)
      FROM known x WHERE x.webhook_id IS NOT NULL
), orphaned AS MATERIALIZED (
    SELECT o.place FROM known x
     CROSS JOIN LATERAL (SELECT d.ctid AS place FROM turnkeep.webhook_deliveries d
                          WHERE d.webhook_id = x.webhook_id ORDER BY d.id LIMIT $1) o
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.webhooks w WHERE w.id = x.webhook_id)
     LIMIT $1
)
DELETE FROM turnkeep.webhook_deliveries d WHERE d.ctid = ANY (ARRAY(SELECT x.place FROM orphaned x))
RETURNING d.id

-- name: late_deliveries
-- Webhooks that are disabled because their endpoint is gone, and those that have failed for longer than this.
SELECT (SELECT count(*) FROM turnkeep.webhooks w WHERE w.disabled_reason IS NOT NULL),
       (SELECT count(*) FROM turnkeep.webhooks w
         WHERE w.is_enabled AND EXISTS (SELECT 1 FROM turnkeep.webhook_deliveries d
                                         WHERE d.webhook_id = w.id AND d.not_before IS NOT NULL AND d.attempts > 0
                                           AND d.created_at < turnkeep.now_ms() - $1::bigint))
