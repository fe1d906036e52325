-- Webhooks: endpoints of the host that hear of what happens in a workspace, and what is sent to them.
--
-- Triggers write the deliveries, in the transaction that causes them. So they hold for every way in which a turn ends, and a
-- workspace without webhooks pays one look-up in the statement that writes anyway.

CREATE TABLE webhooks (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    url             text NOT NULL,
    events          text NOT NULL,  -- a JSON list
    is_enabled      integer NOT NULL,
    disabled_reason text,
    secret          text NOT NULL,  -- sealed
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL
) STRICT;
CREATE INDEX webhooks_of_workspace ON webhooks (workspace_id);

-- `id` is that of the event, and the same for all webhooks that hear of it. No worker sends a delivery before `not_before`;
-- it is NULL once the delivery has ended, and while the webhook is disabled. `data` holds ids and small facts, no words.
-- No foreign key: to delete a webhook with very many deliveries must not hold up other writes. What it leaves is purged.
CREATE TABLE webhook_deliveries (
    webhook_id      text NOT NULL,
    id              text NOT NULL,
    org_id          text NOT NULL,
    user_id         text,
    conversation_id text,
    type            text NOT NULL,
    data            text NOT NULL,
    status          text NOT NULL DEFAULT 'pending',  -- pending, delivered, failed
    attempts        integer NOT NULL DEFAULT 0,
    created_at      integer NOT NULL,
    not_before      integer,
    give_up_at      integer NOT NULL,
    last_attempt_at integer,
    response_status integer,
    error           text,
    PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_queue ON webhook_deliveries (webhook_id, not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_of_conversation ON webhook_deliveries (conversation_id) WHERE conversation_id IS NOT NULL;
CREATE INDEX webhook_deliveries_of_user ON webhook_deliveries (user_id) WHERE user_id IS NOT NULL;

-- Three days: for so long a delivery is tried. A conversation or a file that was
-- imported is older than its event, so these read the clock.
CREATE TRIGGER outbox_is_reported AFTER INSERT ON outbox BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, new.id, new.org_id, new.user_id, new.conversation_id, new.type,
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'turn_id', t.id,
               'user', json(CASE WHEN m.id IS NOT NULL THEN json_object('id', m.id, 'external_id', m.external_id) END),
               'status', t.status, 'agent_id', t.agent_id, 'model', t.model,
               'error', json(CASE WHEN t.error IS NOT NULL THEN json_object('code', t.error ->> '$.code') END),
               'usage', json_object('input_tokens', t.input_tokens, 'output_tokens', t.output_tokens),
               'created_at', t.created_at, 'settled_at', t.settled_at),
           new.created_at, new.created_at, new.created_at + 259200000
      FROM webhooks w JOIN turns t ON t.id = new.subject_id LEFT JOIN members m ON m.id = new.user_id
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"' || new.type || '"') > 0;
END;
CREATE TRIGGER conversations_are_reported AFTER INSERT ON conversations WHEN new.kind <> 'run' BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.id, 'conversation.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'kind', new.kind, 'agent_id', new.agent_id, 'model', new.model, 'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"conversation.created"') > 0;
END;
CREATE TRIGGER files_are_reported AFTER INSERT ON files WHEN new.status = 'ready' BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.conversation_id, 'file.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'file_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'mime_type', new.mime_type, 'size', new.size, 'source', new.source, 'turn_id', new.turn_id,
               'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"file.created"') > 0;
END;
CREATE TRIGGER completed_files_are_reported AFTER UPDATE OF status ON files
    WHEN new.status = 'ready' AND old.status <> 'ready' BEGIN
    INSERT OR IGNORE INTO webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.conversation_id, 'file.created',
           json_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'file_id', new.id,
               'user', json((SELECT json_object('id', m.id, 'external_id', m.external_id)
                              FROM members m WHERE m.id = new.user_id)),
               'mime_type', new.mime_type, 'size', new.size, 'source', new.source, 'turn_id', new.turn_id,
               'created_at', new.created_at),
           n.now, n.now, n.now + 259200000
      FROM webhooks w, (SELECT CAST(unixepoch('subsec') * 1000 AS integer) AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND instr(w.events, '"file.created"') > 0;
END;

-- Deliveries are erased with their conversation and with their user.
CREATE TRIGGER reports_go_with_their_conversation AFTER DELETE ON conversations BEGIN
    DELETE FROM webhook_deliveries WHERE conversation_id = old.id;
END;
CREATE TRIGGER reports_go_with_their_member AFTER DELETE ON members BEGIN
    DELETE FROM webhook_deliveries WHERE user_id = old.id;
END;
