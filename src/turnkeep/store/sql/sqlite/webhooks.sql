-- Webhooks and their deliveries. The triggers of migration 0017 write the deliveries.

-- name: insert_webhook
-- No row: there is no such workspace, or it has as many webhooks as it may.
INSERT INTO webhooks ({webhook_columns})
SELECT :id, org_id, id, :url, :events, :is_enabled, NULL, :secret, :now, :now FROM workspaces
 WHERE org_id = :org AND id = :workspace AND (SELECT count(*) FROM webhooks WHERE workspace_id = :workspace) < :most
RETURNING {webhook_columns};

-- name: webhooks
SELECT {webhook_columns} FROM webhooks WHERE workspace_id = :workspace AND org_id = :org ORDER BY id DESC;

-- name: webhook
SELECT {webhook_columns} FROM webhooks WHERE id = :id AND org_id = :org AND workspace_id = :workspace;

-- name: change_webhook
UPDATE webhooks
   SET url = :url, events = :events, is_enabled = :is_enabled, disabled_reason = :disabled_reason, secret = :secret,
       updated_at = :now
 WHERE id = :id
RETURNING {webhook_columns};

-- name: delete_webhook
-- Its deliveries stay for the purge.
DELETE FROM webhooks WHERE id = :id AND org_id = :org AND workspace_id = :workspace;

-- name: delete_webhooks
DELETE FROM webhooks WHERE workspace_id = :workspace;

-- name: park_deliveries
-- No worker looks at the deliveries of a disabled webhook.
UPDATE webhook_deliveries SET not_before = NULL WHERE webhook_id = :webhook AND not_before IS NOT NULL;

-- name: resume_deliveries
UPDATE webhook_deliveries SET not_before = :now WHERE webhook_id = :webhook AND not_before IS NULL AND status = 'pending';

-- name: deliveries
SELECT {delivery_columns} FROM webhook_deliveries WHERE webhook_id = :webhook AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: redeliver
-- To be sent at once, and tried for three days more. It waits while the webhook is disabled.
UPDATE webhook_deliveries
   SET status = 'pending', attempts = 0, give_up_at = :give_up_at,
       not_before = CASE WHEN (SELECT is_enabled FROM webhooks WHERE id = :webhook) THEN :now END
 WHERE webhook_id = (SELECT id FROM webhooks WHERE id = :webhook AND org_id = :org AND workspace_id = :workspace) AND id = :id
RETURNING {delivery_columns};

-- name: next_waiting_webhook
-- The next webhook with deliveries that wait.
SELECT webhook_id FROM webhook_deliveries INDEXED BY webhook_deliveries_queue
 WHERE not_before IS NOT NULL AND webhook_id > :after ORDER BY webhook_id LIMIT 1;

-- name: take_deliveries
-- Lease deliveries of this webhook that are due. Those of a disabled one are parked.
UPDATE webhook_deliveries
   SET not_before = CASE WHEN w.is_enabled THEN :until END, attempts = attempts + w.is_enabled
  FROM webhooks w
 WHERE w.id = :webhook AND webhook_id = :webhook
   AND webhook_deliveries.id IN (SELECT d.id FROM webhook_deliveries d INDEXED BY webhook_deliveries_queue
                                  WHERE d.webhook_id = :webhook AND d.not_before <= :now
                                  ORDER BY d.not_before LIMIT :limit)
RETURNING {delivery_columns};

-- name: webhook_by_id
SELECT {webhook_columns} FROM webhooks WHERE id = :webhook;

-- name: end_attempt
-- How an attempt has ended. With a pause it is tried again, unless its time is over; without one it has ended. Nothing
-- changes if another attempt has begun since.
UPDATE webhook_deliveries
   SET last_attempt_at = :now, response_status = :response_status, error = :error,
       status = CASE WHEN :pause IS NULL THEN :status WHEN :now >= give_up_at THEN 'failed' ELSE 'pending' END,
       not_before = CASE WHEN :pause IS NOT NULL AND :now < give_up_at
                              AND (SELECT is_enabled FROM webhooks WHERE id = :webhook)
                         THEN min(:now + :pause, give_up_at) END
 WHERE webhook_id = :webhook AND id = :id AND attempts = :attempts AND status = 'pending'
RETURNING {delivery_columns};

-- name: disable_webhook
UPDATE webhooks SET is_enabled = 0, disabled_reason = :reason, updated_at = :now WHERE id = :webhook AND is_enabled;

-- name: purge_old_deliveries
DELETE FROM webhook_deliveries
 WHERE (webhook_id, id) IN (SELECT webhook_id, id FROM webhook_deliveries WHERE created_at < :before
                                AND give_up_at < :now
                             ORDER BY created_at LIMIT :limit);

-- name: purge_orphaned_deliveries
-- Of webhooks that are gone. The walk goes from webhook to webhook through the key.
DELETE FROM webhook_deliveries
 WHERE (webhook_id, id) IN (
       WITH RECURSIVE known (webhook_id) AS (
           SELECT min(webhook_id) FROM webhook_deliveries
           UNION ALL
           SELECT (SELECT min(d.webhook_id) FROM webhook_deliveries d WHERE d.webhook_id > k.webhook_id)
             FROM known k WHERE k.webhook_id IS NOT NULL
       ), gone AS MATERIALIZED (
           SELECT k.webhook_id FROM known k
            WHERE k.webhook_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.id = k.webhook_id))
       SELECT d.webhook_id, d.id FROM gone g CROSS JOIN webhook_deliveries d ON d.webhook_id = g.webhook_id
        LIMIT :limit);

-- name: late_deliveries
-- Webhooks that are disabled because their endpoint is gone, and those that have failed for longer than this.
SELECT (SELECT count(*) FROM webhooks WHERE disabled_reason IS NOT NULL),
       (SELECT count(*) FROM webhooks w
         WHERE w.is_enabled AND EXISTS (SELECT 1 FROM webhook_deliveries d
                                         WHERE d.webhook_id = w.id AND d.not_before IS NOT NULL AND d.attempts > 0
                                           AND d.created_at < :before));
