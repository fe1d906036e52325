-- Conversations that no list shows. A caller that sends the whole history with each question makes one for each.

ALTER TABLE conversations ADD COLUMN is_listed integer NOT NULL DEFAULT 1;
DROP INDEX conversations_listed;
-- One index for the lists of users and of services: every turn moves its conversation to the front of each index that
-- there is. A user's list passes over the entries of others, ten thousand in a millisecond.
CREATE INDEX conversations_listed ON conversations (workspace_id, updated_at DESC, id DESC, user_id)
    WHERE deleted_at IS NULL AND kind <> 'run' AND is_listed;
-- What the purge looks through.
CREATE INDEX conversations_unlisted ON conversations (id) WHERE deleted_at IS NULL AND NOT is_listed;

-- Webhooks are told of conversations that a list shows.
DROP TRIGGER conversations_are_reported;
CREATE TRIGGER conversations_are_reported AFTER INSERT ON conversations WHEN new.kind <> 'run' AND new.is_listed BEGIN
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
