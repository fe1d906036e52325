-- Changing, deleting, restoring and purging conversations.

-- The conversation of a writer, locked; a refusal if there is none that this owner may change.
CREATE FUNCTION turnkeep.own_conversation(p_org text, p_workspace text, p_owner text, p_conversation text)
RETURNS turnkeep.conversations LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
BEGIN
    SELECT * INTO v_conversation FROM turnkeep.conversations c
     WHERE c.id = p_conversation AND c.org_id = p_org AND c.workspace_id = p_workspace
       AND (p_owner IS NULL OR c.user_id = p_owner) AND c.deleted_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such conversation.');
    END IF;
    RETURN v_conversation;
END $$;

CREATE FUNCTION turnkeep.check_agent(p_org text, p_workspace text, p_agent text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM turnkeep.agents a WHERE a.id = p_agent AND a.org_id = p_org
                      AND a.workspace_id = p_workspace AND a.deleted_at IS NULL) THEN
        PERFORM turnkeep.refuse('TK001', 'No such agent.');
    END IF;
END $$;

-- Make a conversation; the same id again changes nothing. Its title can be found at once.
CREATE FUNCTION turnkeep.create_conversation(
    p_org text, p_workspace text, p_user text, p_conversation text, p_kind text, p_agent text, p_model text,
    p_workflow text, p_title text, p_title_tokens text[], p_metadata text
) RETURNS SETOF turnkeep.conversations LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
    v_now          bigint := turnkeep.now_ms();
BEGIN
    IF NOT EXISTS (SELECT 1 FROM turnkeep.workspaces w WHERE w.id = p_workspace AND w.org_id = p_org) THEN
        PERFORM turnkeep.refuse('TK001', 'No such workspace.');
    END IF;
    IF p_agent IS NOT NULL THEN
        PERFORM turnkeep.check_agent(p_org, p_workspace, p_agent);
    END IF;
    INSERT INTO turnkeep.conversations
           (id, org_id, workspace_id, user_id, kind, agent_id, model, workflow_id, title, metadata,
            created_at, updated_at)
    VALUES (p_conversation, p_org, p_workspace, p_user, p_kind, p_agent, p_model, p_workflow, p_title, p_metadata,
            v_now, v_now)
    ON CONFLICT (id) DO NOTHING;
    SELECT * INTO v_conversation FROM turnkeep.conversations c WHERE c.id = p_conversation;
    IF p_title_tokens IS NOT NULL THEN
        PERFORM turnkeep.index_title(v_conversation, p_title_tokens);
    END IF;
    RETURN NEXT v_conversation;
END $$;

-- Change what is given (NULL leaves a field as it is, '' takes model or agent away). A new title is searchable at once;
-- a new head switches the visible chain.
CREATE FUNCTION turnkeep.change_conversation(
    p_org text, p_workspace text, p_owner text, p_conversation text,
    p_title text, p_title_tokens text[], p_model text, p_agent text, p_has_metadata boolean,
    p_metadata text, p_head text
) RETURNS SETOF turnkeep.conversations LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations := turnkeep.own_conversation(p_org, p_workspace, p_owner, p_conversation);
    v_change       record;
    v_now          bigint := turnkeep.now_ms();
BEGIN
    IF p_agent <> '' THEN
        PERFORM turnkeep.check_agent(p_org, p_workspace, p_agent);
    END IF;
    IF p_head IS NOT NULL THEN
        PERFORM turnkeep.check_head(p_conversation, p_head);
        SELECT * INTO v_change FROM turnkeep.show_chain(p_conversation, p_head);
        UPDATE turnkeep.conversations c
           SET head_turn_id = p_head, turn_count = c.turn_count + v_change.more_turns,
               message_count = c.message_count + v_change.more_messages
         WHERE c.id = p_conversation;
    END IF;
    IF p_title IS NOT NULL THEN
        PERFORM turnkeep.index_title(v_conversation, p_title_tokens);
    END IF;
    RETURN QUERY
    UPDATE turnkeep.conversations c
       SET title = coalesce(p_title, c.title), model = nullif(coalesce(p_model, c.model), ''),
           agent_id = nullif(coalesce(p_agent, c.agent_id), ''),
           metadata = CASE WHEN p_has_metadata THEN p_metadata ELSE c.metadata END,
           updated_at = CASE WHEN p_title IS NULL AND p_head IS NULL THEN c.updated_at ELSE v_now END
     WHERE c.id = p_conversation
    RETURNING c.*;
END $$;

-- A turn can become the head if it has run and ended, while nothing runs or waits.
CREATE FUNCTION turnkeep.check_head(p_conversation text, p_head text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_head turnkeep.turns;
BEGIN
    SELECT * INTO v_head FROM turnkeep.turns t WHERE t.id = p_head AND t.conversation_id = p_conversation;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such turn.');
    END IF;
    PERFORM turnkeep.must_wait(p_conversation, false, NULL, 'reject', 0, 0);
    IF v_head.settled_at IS NULL OR v_head.started_at IS NULL THEN
        PERFORM turnkeep.refuse('TK002', 'Only a turn that has run and ended can become the head.');
    END IF;
END $$;

CREATE FUNCTION turnkeep.index_title(p_conversation turnkeep.conversations, p_tokens text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.search_entries AS s
           (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
    VALUES (p_conversation.id, p_conversation.id, -1, p_conversation.org_id, p_conversation.workspace_id,
            p_conversation.user_id, array_to_tsvector(p_tokens))
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO UPDATE SET tokens = excluded.tokens
     WHERE s.tokens <> excluded.tokens;
END $$;

-- Let the titles of these conversations be found, unless they have been changed since they were read.
CREATE FUNCTION turnkeep.index_titles(p_conversation text[], p_title text[], p_tokens text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
BEGIN
    FOR i IN 1 .. array_length(p_conversation, 1) LOOP
        SELECT * INTO v_conversation FROM turnkeep.conversations c
         WHERE c.id = p_conversation[i] AND c.title = p_title[i] FOR UPDATE;
        IF FOUND THEN
            PERFORM turnkeep.index_title(v_conversation, string_to_array(p_tokens[i], ' '));
        END IF;
    END LOOP;
END $$;

-- Soft, with its files. A turn that runs is asked to stop; those that wait end here.
CREATE FUNCTION turnkeep.delete_conversation(p_org text, p_workspace text, p_owner text, p_conversation text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
BEGIN
    PERFORM turnkeep.own_conversation(p_org, p_workspace, p_owner, p_conversation);
    v_now := turnkeep.now_ms();
    UPDATE turnkeep.conversations c SET deleted_at = v_now WHERE c.id = p_conversation;
    UPDATE turnkeep.files f SET deleted_at = v_now, deleted_with = p_conversation
     WHERE f.conversation_id = p_conversation AND f.deleted_at IS NULL;
    UPDATE turnkeep.turns t SET cancel_requested_at = v_now
     WHERE t.conversation_id = p_conversation AND t.status = 'running' AND t.cancel_requested_at IS NULL;
    PERFORM turnkeep.cancel_all_waiting(p_conversation, v_now);
END $$;

-- Undo a delete. One that is not deleted is answered as it is, so that a repeat is no mistake.
CREATE FUNCTION turnkeep.restore_conversation(p_org text, p_workspace text, p_owner text, p_conversation text)
RETURNS SETOF turnkeep.conversations LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
BEGIN
    SELECT * INTO v_conversation FROM turnkeep.conversations c
     WHERE c.id = p_conversation AND c.org_id = p_org AND c.workspace_id = p_workspace
       AND (p_owner IS NULL OR c.user_id = p_owner) FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such conversation.');
    END IF;
    IF v_conversation.deleted_at IS NULL THEN
        RETURN NEXT v_conversation;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE turnkeep.conversations c SET deleted_at = NULL WHERE c.id = p_conversation RETURNING c.*;
    UPDATE turnkeep.files f SET deleted_at = NULL, deleted_with = NULL WHERE f.deleted_with = p_conversation;
END $$;

-- Erase these conversations and files, as far as they were deleted before that moment and nothing runs there.
CREATE FUNCTION turnkeep.purge(p_before bigint, p_conversations text[], p_files text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_ids   text[];
    v_turns text[];
BEGIN
    v_ids := ARRAY(
        SELECT c.id FROM turnkeep.conversations c
         WHERE c.id = ANY (p_conversations) AND c.deleted_at < p_before
           AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
         ORDER BY c.id FOR UPDATE SKIP LOCKED);
    v_turns := ARRAY(SELECT t.id FROM turnkeep.turns t WHERE t.conversation_id = ANY (v_ids));
    DELETE FROM turnkeep.files f
     WHERE f.conversation_id = ANY (v_ids)
        OR (f.id = ANY (p_files) AND f.deleted_at < p_before AND f.deleted_with IS NULL);
    DELETE FROM turnkeep.search_entries s WHERE s.conversation_id = ANY (v_ids);
    DELETE FROM turnkeep.one_time_tokens o WHERE o.turn_id = ANY (v_turns);
    DELETE FROM turnkeep.turn_logs l WHERE l.turn_id = ANY (v_turns);
    DELETE FROM turnkeep.turn_events e WHERE e.turn_id = ANY (v_turns);
    DELETE FROM turnkeep.messages m WHERE m.turn_id = ANY (v_turns);
    DELETE FROM turnkeep.turns t WHERE t.id = ANY (v_turns);
    DELETE FROM turnkeep.conversations c WHERE c.id = ANY (v_ids);
END $$;

-- Add entries to the search index and move its mark, unless another worker has moved it first.
CREATE FUNCTION turnkeep.index_turns(p_conversation text, p_from integer, p_to integer, p_title text,
                                     p_title_tokens text[], p_turn text[], p_sequence integer[], p_tokens text[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
BEGIN
    UPDATE turnkeep.conversations c SET indexed_ordinal = p_to
     WHERE c.id = p_conversation AND c.indexed_ordinal = p_from
    RETURNING * INTO v_conversation;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF v_conversation.title = p_title THEN
        PERFORM turnkeep.index_title(v_conversation, p_title_tokens);
    END IF;
    -- Tokens hold no spaces, so that those of one entry travel as one text.
    INSERT INTO turnkeep.search_entries
           (conversation_id, turn_id, turn_sequence, org_id, workspace_id, user_id, tokens)
    SELECT p_conversation, e.turn, e.sequence, v_conversation.org_id, v_conversation.workspace_id,
           v_conversation.user_id, array_to_tsvector(string_to_array(e.tokens, ' '))
      FROM unnest(p_turn, p_sequence, p_tokens) AS e (turn, sequence, tokens)
    ON CONFLICT (conversation_id, turn_id, turn_sequence) DO NOTHING;
    RETURN true;
END $$;
