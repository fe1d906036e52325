-- A workspace without webhooks does not pay for them. The triggers of migration 0017 prepared an INSERT into
-- `webhook_deliveries`, with all its indexes, for every conversation, every file and every end of a turn. Now they first look
-- whether the workspace has a webhook.

CREATE OR REPLACE FUNCTION turnkeep.report_turns() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM inserted o JOIN turnkeep.webhooks w ON w.workspace_id = o.workspace_id AND w.is_enabled) THEN
        RETURN NULL;
    END IF;
    INSERT INTO turnkeep.webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, o.id, o.org_id, o.user_id, o.conversation_id, o.type,
           json_build_object('workspace_id', o.workspace_id, 'conversation_id', o.conversation_id, 'turn_id', t.id,
               'user', CASE WHEN m.id IS NOT NULL THEN json_build_object('id', m.id, 'external_id', m.external_id) END,
               'status', t.status, 'agent_id', t.agent_id, 'model', t.model,
               'error', CASE WHEN t.error IS NOT NULL THEN json_build_object('code', t.error::json ->> 'code') END,
               'usage', json_build_object('input_tokens', t.input_tokens, 'output_tokens', t.output_tokens),
               'created_at', t.created_at, 'settled_at', t.settled_at)::text,
           o.created_at, o.created_at, o.created_at + 259200000
      FROM inserted o
      JOIN turnkeep.webhooks w ON w.workspace_id = o.workspace_id AND w.is_enabled
                              AND strpos(w.events, '"' || o.type || '"') > 0
      JOIN turnkeep.turns t ON t.id = o.subject_id
      LEFT JOIN turnkeep.members m ON m.id = o.user_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION turnkeep.report_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM turnkeep.webhooks w WHERE w.workspace_id = new.workspace_id AND w.is_enabled) THEN
        RETURN NULL;
    END IF;
    INSERT INTO turnkeep.webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.id, 'conversation.created',
           json_build_object('workspace_id', new.workspace_id, 'conversation_id', new.id,
               'user', (SELECT json_build_object('id', m.id, 'external_id', m.external_id)
                          FROM turnkeep.members m WHERE m.id = new.user_id),
               'kind', new.kind, 'agent_id', new.agent_id, 'model', new.model, 'created_at', new.created_at)::text,
           n.now, n.now, n.now + 259200000
      FROM turnkeep.webhooks w, (SELECT turnkeep.now_ms() AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND strpos(w.events, '"conversation.created"') > 0
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION turnkeep.report_file() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM turnkeep.webhooks w WHERE w.workspace_id = new.workspace_id AND w.is_enabled) THEN
        RETURN NULL;
    END IF;
    INSERT INTO turnkeep.webhook_deliveries
           (webhook_id, id, org_id, user_id, conversation_id, type, data, created_at, not_before, give_up_at)
    SELECT w.id, 'evt_' || substr(new.id, 6), new.org_id, new.user_id, new.conversation_id, 'file.created',
           json_build_object('workspace_id', new.workspace_id, 'conversation_id', new.conversation_id, 'file_id', new.id,
               'user', (SELECT json_build_object('id', m.id, 'external_id', m.external_id)
                          FROM turnkeep.members m WHERE m.id = new.user_id),
               'mime_type', new.mime_type, 'size', new.size, 'source', new.source, 'turn_id', new.turn_id,
               'created_at', new.created_at)::text,
           n.now, n.now, n.now + 259200000
      FROM turnkeep.webhooks w, (SELECT turnkeep.now_ms() AS now) n
     WHERE w.workspace_id = new.workspace_id AND w.is_enabled AND strpos(w.events, '"file.created"') > 0
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
