-- The id under which the host's application knows a conversation, and the lists that `GET /v1/conversations` narrows.
--
-- An id is unique among the conversations of its user that are not deleted, and among those of services. A deleted
-- conversation keeps it, and does not take it from others.

ALTER TABLE conversations ADD COLUMN external_id text;
CREATE UNIQUE INDEX conversations_external_ids ON conversations (workspace_id, external_id, coalesce(user_id, ''))
    WHERE external_id IS NOT NULL AND deleted_at IS NULL;

-- Only conversations with an agent, and those that are no chats, are in these.
CREATE INDEX conversations_of_agent ON conversations (agent_id, updated_at DESC, id DESC)
    WHERE agent_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX conversations_of_kind ON conversations (workspace_id, kind, updated_at DESC, id DESC)
    WHERE kind <> 'chat' AND deleted_at IS NULL;
