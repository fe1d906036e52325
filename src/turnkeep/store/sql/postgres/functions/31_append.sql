-- Add whole turns that happened elsewhere, each to a conversation of its own; return their ordinals, in order.
--
-- A job is a turn with what it changes in its conversation; `p_rows` holds the rows of all of them. Three statements, whatever
-- the number of turns, as the work of starting a statement is most of the cost. The conversations are changed first, which
-- locks them, in the order of the turns: that of the conversations' ids. A turn is inserted by a later statement, and only
-- if nothing runs or waits there and its id is new. If one of them cannot be appended, TK010 is raised with the facts of the
-- first (`rules.claims.AppendFacts`), which takes everything back; the caller then sends them one by one.
-- The plans are fixed: loops over the turns that look up each row by its index.
CREATE FUNCTION turnkeep.append(p_jobs turnkeep.append_job[], p_rows turnkeep.message_row[]) RETURNS integer[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    v_now      bigint := turnkeep.now_ms();
    v_ordinals integer[];
    v_inserted integer;
BEGIN
    WITH changed AS (
        UPDATE turnkeep.conversations c
           SET next_ordinal = c.next_ordinal + 1, head_turn_id = n.turn_id, turn_count = c.turn_count + 1,
               message_count = c.message_count + n.visible, updated_at = v_now,
               title = coalesce(c.title, n.title), preview = coalesce(c.preview, n.preview)
          FROM unnest(p_jobs) WITH ORDINALITY n
         WHERE c.id = n.conversation_id AND c.org_id = n.org_id AND c.workspace_id = n.workspace_id
           AND (n.owner IS NULL OR c.user_id = n.owner) AND c.deleted_at IS NULL
        RETURNING n.ordinality, c.next_ordinal - 1 AS ordinal
    )
    SELECT array_agg(x.ordinal ORDER BY x.ordinality) INTO v_ordinals FROM changed x;
    IF array_length(v_ordinals, 1) IS DISTINCT FROM array_length(p_jobs, 1) THEN
        PERFORM turnkeep.refuse('TK010', 'no conversation', 'null');
    END IF;
    -- While nothing runs, the head is the newest turn of the visible chain.
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, ordinal, active, status,
            attempt, principal_ref, source, model, month, input_tokens, output_tokens, cache_read_tokens,
            cache_write_tokens, created_at, started_at, settled_at)
    SELECT n.turn_id, n.org_id, n.workspace_id, n.conversation_id, n.user_id, n.key_id,
           (SELECT t.id FROM turnkeep.turns t
             WHERE t.conversation_id = n.conversation_id AND t.active ORDER BY t.ordinal DESC LIMIT 1),
           v_ordinals[n.ordinality], true, 'succeeded', 1, n.principal_ref, n.source, n.model, n.month,
           n.input_tokens, n.output_tokens, n.cache_read_tokens, n.cache_write_tokens, n.started_at, n.started_at,
           n.settled_at
      FROM unnest(p_jobs) WITH ORDINALITY n
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = n.conversation_id AND t.status = 'running' OFFSET 0)
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = n.conversation_id AND t.status = 'queued' OFFSET 0)
    ON CONFLICT (id) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    IF v_inserted < array_length(p_jobs, 1) THEN
        PERFORM turnkeep.refuse('TK010', 'not appended',
                                turnkeep.append_facts(p_jobs[1].turn_id, p_jobs[1].conversation_id)::text);
    END IF;
    INSERT INTO turnkeep.messages ({message_row_columns}) SELECT r.* FROM unnest(p_rows) r;
    RETURN v_ordinals;
END $$;

-- Why a turn could not be appended: what keeps its conversation busy, and a turn that has its id already. The head and the
-- next ordinal are of no interest then.
CREATE FUNCTION turnkeep.append_facts(p_turn text, p_conversation text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_running record;
    v_known   record;
BEGIN
    SELECT t.id, t.started_at, {t.waiting_for} AS waiting_for
      INTO v_running FROM turnkeep.turns t
     WHERE t.conversation_id = p_conversation AND t.status = 'running';
    SELECT t.conversation_id, t.ordinal INTO v_known FROM turnkeep.turns t WHERE t.id = p_turn;
    RETURN json_build_object(
        'head_turn_id', NULL, 'next_ordinal', 0,
        'running', v_running.id, 'started_at', v_running.started_at,
        'first_waiting', (SELECT t.id FROM turnkeep.turns t
                           WHERE t.conversation_id = p_conversation AND t.status = 'queued'
                           ORDER BY t.ordinal LIMIT 1),
        'known_conversation_id', v_known.conversation_id, 'known_ordinal', v_known.ordinal, 'is_nameless', false,
        'waiting_for', v_running.waiting_for);
END $$;
