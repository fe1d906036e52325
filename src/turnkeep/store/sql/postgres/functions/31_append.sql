-- Add whole turns that happened elsewhere, each to a conversation of its own; return their ordinals, in order.
--
-- Turn i is element i of every array but `p_rows`, which holds the rows of all of them. They come in the order of their
-- conversations' ids, which is the lock order. The conversation is changed first, which locks it. The turn is inserted by a
-- later statement, and only if nothing runs or waits there and its id is new. If one of them cannot be appended, TK010 is
-- raised with the facts (`rules.appends.AppendFacts`), which takes everything back; the caller then sends them one by one.
CREATE FUNCTION turnkeep.append(p_turns turnkeep.turns[], p_owners text[], p_titles text[], p_previews text[],
                                p_visible integer[], p_rows turnkeep.messages[]) RETURNS integer[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now      bigint := turnkeep.now_ms();
    v_turn     turnkeep.turns;
    v_ordinals integer[] := '{}';
BEGIN
    FOR i IN 1 .. array_length(p_turns, 1) LOOP
        v_turn := p_turns[i];
        UPDATE turnkeep.conversations c
           SET next_ordinal = c.next_ordinal + 1, head_turn_id = v_turn.id, turn_count = c.turn_count + 1,
               message_count = c.message_count + p_visible[i], updated_at = v_now,
               title = coalesce(c.title, p_titles[i]), preview = coalesce(c.preview, p_previews[i])
         WHERE c.id = v_turn.conversation_id AND c.org_id = v_turn.org_id AND c.workspace_id = v_turn.workspace_id
           AND (p_owners[i] IS NULL OR c.user_id = p_owners[i]) AND c.deleted_at IS NULL
        RETURNING c.next_ordinal - 1 INTO v_turn.ordinal;
        IF NOT FOUND THEN
            PERFORM turnkeep.refuse('TK010', 'no conversation', 'null');
        END IF;
        -- While nothing runs, the head is the newest turn of the visible chain.
        SELECT t.id INTO v_turn.parent_turn_id FROM turnkeep.turns t
         WHERE t.conversation_id = v_turn.conversation_id AND t.active ORDER BY t.ordinal DESC LIMIT 1;
        INSERT INTO turnkeep.turns
        SELECT (v_turn).*
         WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                            WHERE t.conversation_id = v_turn.conversation_id AND t.status = 'running')
           AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                            WHERE t.conversation_id = v_turn.conversation_id AND t.status = 'queued')
        ON CONFLICT (id) DO NOTHING;
        IF NOT FOUND THEN
            PERFORM turnkeep.refuse('TK010', 'not appended', turnkeep.append_facts(v_turn)::text);
        END IF;
        v_ordinals[i] := v_turn.ordinal;
    END LOOP;
    INSERT INTO turnkeep.messages SELECT r.* FROM unnest(p_rows) r;
    RETURN v_ordinals;
END $$;

-- Why a turn could not be appended: what keeps its conversation busy, and a turn that has its id already.
CREATE FUNCTION turnkeep.append_facts(p_turn turnkeep.turns) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_running record;
    v_known   record;
BEGIN
    SELECT t.id, t.started_at INTO v_running FROM turnkeep.turns t
     WHERE t.conversation_id = p_turn.conversation_id AND t.status = 'running';
    SELECT t.conversation_id, t.ordinal INTO v_known FROM turnkeep.turns t WHERE t.id = p_turn.id;
    RETURN json_build_object(
        'head_turn_id', p_turn.parent_turn_id, 'next_ordinal', p_turn.ordinal,
        'running', v_running.id, 'started_at', v_running.started_at,
        'first_waiting', (SELECT t.id FROM turnkeep.turns t
                           WHERE t.conversation_id = p_turn.conversation_id AND t.status = 'queued'
                           ORDER BY t.ordinal LIMIT 1),
        'known_conversation_id', v_known.conversation_id, 'known_ordinal', v_known.ordinal, 'is_nameless', false);
END $$;
