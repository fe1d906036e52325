-- End turns: rows, events, the terminal event, status, counters, head, usage, tokens and the next waiting turn, at once.
--
-- The arrays are those of `record`, with the terminal event last of a job's events. Jobs come in the order of their
-- conversation ids; `p_turn_order` lists them in the order of their turn ids. A job of a deleted conversation ends too.
CREATE FUNCTION turnkeep.settle(
    p_turn text[], p_attempt integer[], p_after integer[], p_conversation text[], p_turn_order integer[],
    p_status text[], p_error text[], p_usage bigint[], p_has_final boolean[],
    r_rows text, e_events text, l_text text[], l_numbers bigint[]
) RETURNS TABLE (job integer, outcome text, turn turnkeep.turns, promoted text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    r_             text[] := string_to_array(r_rows, E'\x1f', '');
    e_             text[] := string_to_array(e_events, E'\x1f', '');
    v_fence        record;
    v_payloads     text[];
    v_last         integer;
    v_now          bigint;
    v_outcome      text[] := '{}';
    v_held         boolean[] := '{}';
    v_org          text[] := '{}';
    v_conversation text[] := '{}';
    v_turns        turnkeep.turns[] := '{}';
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        PERFORM 1 FROM turnkeep.conversations c WHERE c.id = p_conversation[i] FOR UPDATE;
    END LOOP;
    FOREACH job IN ARRAY p_turn_order LOOP
        SELECT * INTO v_fence FROM turnkeep.fence(p_turn[job], p_attempt[job], p_after[job]);
        outcome := v_fence.stand;
        turn := v_fence.turn;
        v_payloads := turnkeep.payloads_of(job, e_);
        v_last := p_after[job] + array_length(v_payloads, 1);
        IF outcome = 'settled' AND turn.last_seq = v_last AND turnkeep.has_events(
               p_turn[job], v_last - 1, v_payloads[array_length(v_payloads, 1):]) THEN
            outcome := 'known';
        ELSIF outcome = 'held' AND turn.conversation_id <> p_conversation[job] THEN
            outcome := 'lost';
        END IF;
        IF outcome = 'held' THEN
            v_now := turnkeep.now_ms();
            UPDATE turnkeep.turns t
               SET status = p_status[job], error = p_error[job], settled_at = v_now, lease_until = NULL,
                   last_seq = v_last,
                   input_tokens = p_usage[4 * job - 3], output_tokens = p_usage[4 * job - 2],
                   cache_read_tokens = p_usage[4 * job - 1], cache_write_tokens = p_usage[4 * job]
             WHERE t.id = p_turn[job]
            RETURNING * INTO turn;
            UPDATE turnkeep.conversations c
               SET head_turn_id = p_turn[job], updated_at = v_now,
                   message_count = c.message_count + p_has_final[job]::integer
             WHERE c.id = turn.conversation_id;
            UPDATE turnkeep.one_time_tokens o SET expires_at = v_now
             WHERE o.turn_id = p_turn[job] AND o.used_at IS NULL;
        END IF;
        v_outcome[job] := outcome;
        v_held[job] := outcome = 'held';
        v_org[job] := turn.org_id;
        v_conversation[job] := turn.conversation_id;
        v_turns[job] := turn;
    END LOOP;
    PERFORM turnkeep.write_entries(p_turn, v_held, v_org, v_conversation, p_after, r_, e_, l_text, l_numbers);
    PERFORM turnkeep.add_tokens(v_turns, v_held);
    -- Last, since the next turn may start on another branch, which counts the rows that were just written.
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        job := i;
        outcome := v_outcome[i];
        turn := v_turns[i];
        IF v_held[i] AND p_has_final[i] AND turn.files_written > 0 THEN
            UPDATE turnkeep.files f SET message_id = m.id
              FROM turnkeep.messages m
             WHERE f.turn_id = p_turn[i] AND f.message_id IS NULL
               AND m.turn_id = p_turn[i] AND m.role = 'assistant' AND NOT m.internal;
        END IF;
        promoted := CASE WHEN v_held[i] THEN turnkeep.promote(v_conversation[i], turn.settled_at) END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Add what these turns have consumed to their month, each row of usage once and in the order of its key.
CREATE FUNCTION turnkeep.add_tokens(p_turns turnkeep.turns[], p_held boolean[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, input_tokens, output_tokens)
    SELECT t.org_id, s.scope, s.scope_id, t.month, sum(t.input_tokens), sum(t.output_tokens)
      FROM unnest(p_turns) WITH ORDINALITY t
     CROSS JOIN LATERAL (VALUES ('key', t.key_id), ('user', t.user_id), ('workspace', t.workspace_id)) AS s (scope, scope_id)
     WHERE p_held[t.ordinality] AND s.scope_id IS NOT NULL AND t.input_tokens + t.output_tokens > 0
     GROUP BY t.org_id, s.scope, s.scope_id, t.month
     ORDER BY t.org_id, s.scope, s.scope_id, t.month
    ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
       SET input_tokens = u.input_tokens + excluded.input_tokens,
           output_tokens = u.output_tokens + excluded.output_tokens;
END $$;
