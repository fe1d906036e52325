-- Webhooks: endpoints of the host that hear of what happens in a workspace, and what is sent to them.
--
-- Triggers write the deliveries, in the transaction that causes them. So they hold for every release that writes and for
-- every way in which a turn ends, and a workspace without webhooks pays one look-up in the statement that writes anyway.

CREATE TABLE turnkeep.webhooks (
    id              text COLLATE "C" PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL REFERENCES turnkeep.workspaces ON DELETE CASCADE,
    url             text NOT NULL,
    events          text NOT NULL,  -- a JSON list
    is_enabled      boolean NOT NULL,
    disabled_reason text,
    secret          text NOT NULL,  -- sealed
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL
);
CREATE INDEX webhooks_of_workspace ON turnkeep.webhooks (workspace_id);

-- `id` is that of the event, and the same for all webhooks that hear of it. No worker sends a delivery before `not_before`;
-- it is NULL once the delivery has ended, and while the webhook is disabled. `data` holds ids and small facts, no words.
-- No foreign key: the end of a turn must neither wait for one who deletes the webhook, nor fail because of that. What a
-- deleted webhook leaves is purged.
CREATE TABLE turnkeep.webhook_deliveries (
    webhook_id      text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    org_id          text COLLATE "C" NOT NULL,
    user_id         text COLLATE "C",
    conversation_id text COLLATE "C",
    type            text NOT NULL,
    data            text NOT NULL,
    status          text NOT NULL DEFAULT 'pending',  -- pending, delivered, failed
    attempts        integer NOT NULL DEFAULT 0,
    created_at      bigint NOT NULL,
    not_before      bigint,
    give_up_at      bigint NOT NULL,
    last_attempt_at bigint,
    response_status integer,
    error           text,
    PRIMARY KEY (webhook_id, id)
);
CREATE INDEX webhook_deliveries_due ON turnkeep.webhook_deliveries (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_queue ON turnkeep.webhook_deliveries (webhook_id, not_before) WHERE not_before IS NOT NULL;
CREATE INDEX webhook_deliveries_by_age ON turnkeep.webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_of_conversation ON turnkeep.webhook_deliveries (conversation_id)
    WHERE conversation_id IS NOT NULL;
CREATE INDEX webhook_deliveries_of_user ON turnkeep.webhook_deliveries (user_id) WHERE user_id IS NOT NULL;

-- Triggers of this migration use the tables at once, for servers of the release before, so their rights are set here.
DO $$
DECLARE
    v_table text;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['webhooks', 'webhook_deliveries'] LOOP
        EXECUTE format('ALTER TABLE turnkeep.%I ENABLE ROW LEVEL SECURITY', v_table);
        EXECUTE format('ALTER TABLE turnkeep.%I FORCE ROW LEVEL SECURITY', v_table);
        EXECUTE format('CREATE POLICY engine ON turnkeep.%I TO turnkeep_engine USING (true) WITH CHECK (true)', v_table);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.%I TO turnkeep_engine', v_table);
    END LOOP;
END $$;

-- Three days: for so long a delivery is tried.
CREATE FUNCTION turnkeep.report_turns() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
CREATE TRIGGER outbox_is_reported AFTER INSERT ON turnkeep.outbox
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION turnkeep.report_turns();

CREATE FUNCTION turnkeep.report_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
CREATE TRIGGER conversations_are_reported AFTER INSERT ON turnkeep.conversations
    FOR EACH ROW WHEN (new.kind <> 'run') EXECUTE FUNCTION turnkeep.report_conversation();

CREATE FUNCTION turnkeep.report_file() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
CREATE TRIGGER files_are_reported AFTER INSERT ON turnkeep.files
    FOR EACH ROW WHEN (new.status = 'ready') EXECUTE FUNCTION turnkeep.report_file();
CREATE TRIGGER completed_files_are_reported AFTER UPDATE OF status ON turnkeep.files
    FOR EACH ROW WHEN (new.status = 'ready' AND old.status <> 'ready') EXECUTE FUNCTION turnkeep.report_file();

-- Deliveries are erased with their conversation and with their user, also by a release that does not know them.

CREATE FUNCTION turnkeep.erase_reports_of_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.webhook_deliveries d WHERE d.conversation_id = old.id;
    RETURN NULL;
END $$;
CREATE FUNCTION turnkeep.erase_reports_of_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.webhook_deliveries d WHERE d.user_id = old.id;
    RETURN NULL;
END $$;
CREATE TRIGGER reports_go_with_their_conversation AFTER DELETE ON turnkeep.conversations
    FOR EACH ROW EXECUTE FUNCTION turnkeep.erase_reports_of_conversation();
CREATE TRIGGER reports_go_with_their_member AFTER DELETE ON turnkeep.members
    FOR EACH ROW EXECUTE FUNCTION turnkeep.erase_reports_of_member();

-- Triggers alone call these functions, and need no right to do so.

REVOKE ALL ON FUNCTION turnkeep.report_turns, turnkeep.report_conversation, turnkeep.report_file,
    turnkeep.erase_reports_of_conversation, turnkeep.erase_reports_of_member FROM PUBLIC;
