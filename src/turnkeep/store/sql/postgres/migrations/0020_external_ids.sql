-- The id under which the host's application knows a conversation, and the lists that `GET /v1/conversations` narrows.
--
-- An id is unique among the conversations of its user that are not deleted, and among those of services. A deleted
-- conversation keeps it, and does not take it from others.

ALTER TABLE turnkeep.conversations ADD COLUMN external_id text COLLATE "C";
CREATE UNIQUE INDEX CONCURRENTLY conversations_external_ids
    ON turnkeep.conversations (workspace_id, external_id, coalesce(user_id, ''))
    WHERE external_id IS NOT NULL AND deleted_at IS NULL;

-- Only conversations with an agent, and those that are no chats, are in these. As in the other lists, the period of the
-- last change stands for its time.
CREATE INDEX CONCURRENTLY conversations_of_agent ON turnkeep.conversations (agent_id, updated_period DESC)
    WHERE agent_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX CONCURRENTLY conversations_of_kind ON turnkeep.conversations (workspace_id, kind, updated_period DESC)
    WHERE kind <> 'chat' AND deleted_at IS NULL;
