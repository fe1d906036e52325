-- End turns: rows, events, the terminal event, status, counters, head, usage, tokens and the outbox, at once.
--
-- The parameters are those of `record`; the terminal event is the last of a job. A job says besides how the turn ends, and `p_outbox` what
-- the outside hears of it. Jobs
-- come in the order of their turn ids, after all their conversations were locked in the order of theirs. A turn of a deleted
-- conversation ends too.
--
-- Where another turn waits in the conversation, one job is left undone with the outcome `waiting`, unless `p_promotes`: the
-- caller then settles it in a transaction of its own, in which the rules decide what runs next.
CREATE FUNCTION turnkeep.settle(
    p_jobs json, p_rows turnkeep.messages[], p_events turnkeep.turn_events[], p_logs turnkeep.turn_logs[],
    p_outbox json, p_promotes boolean
) RETURNS TABLE (outcome text, turn turnkeep.turns) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_job    record;
    v_fence  record;
    v_now    bigint;
    v_held   text[] := '{}';
    v_carry  text[] := '{}';
    v_turns  turnkeep.turns[] := '{}';
BEGIN
    PERFORM 1 FROM turnkeep.conversations c
      WHERE c.id = ANY (ARRAY(SELECT j.conversation_id FROM json_to_recordset(p_jobs) AS j (conversation_id text)))
      ORDER BY c.id FOR UPDATE;
    FOR v_job IN
        SELECT * FROM json_to_recordset(p_jobs) AS j (
            turn_id text, attempt integer, after integer, last integer, conversation_id text, status text, error text,
            has_final boolean, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
            cache_write_tokens bigint, cost double precision)
    LOOP
        SELECT * INTO v_fence FROM turnkeep.fence(v_job.turn_id, v_job.attempt, v_job.after);
        outcome := v_fence.stand;
        turn := v_fence.turn;
        IF outcome = 'settled' THEN
            IF turn.last_seq = v_job.last AND turnkeep.has_events(v_job.turn_id, v_job.last - 1, p_events) THEN
                outcome := 'known';
            END IF;
        ELSIF outcome = 'held' AND turn.conversation_id <> v_job.conversation_id THEN
            outcome := 'lost';
        ELSIF outcome = 'held' AND NOT p_promotes AND EXISTS (
                SELECT 1 FROM turnkeep.turns q WHERE q.conversation_id = v_job.conversation_id AND q.status = 'queued') THEN
            outcome := 'waiting';
        END IF;
        IF outcome = 'held' THEN
            v_now := turnkeep.now_ms();
            UPDATE turnkeep.turns t
               SET status = v_job.status, error = v_job.error, settled_at = v_now, lease_until = NULL,
                   last_seq = v_job.last, input_tokens = v_job.input_tokens, output_tokens = v_job.output_tokens,
                   cache_read_tokens = v_job.cache_read_tokens, cache_write_tokens = v_job.cache_write_tokens,
                   cost = v_job.cost
             WHERE t.id = v_job.turn_id
            RETURNING * INTO turn;
            UPDATE turnkeep.conversations c
               SET head_turn_id = v_job.turn_id, updated_at = v_now,
                   message_count = c.message_count + v_job.has_final::integer
             WHERE c.id = turn.conversation_id;
            UPDATE turnkeep.one_time_tokens o SET expires_at = v_now
             WHERE o.turn_id = v_job.turn_id AND o.used_at IS NULL;
            v_held := v_held || v_job.turn_id;
            v_turns := v_turns || turn;
            IF v_job.has_final AND turn.files_written > 0 THEN
                v_carry := v_carry || v_job.turn_id;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM turnkeep.write_entries(v_held, p_rows, p_events, p_logs);
    PERFORM turnkeep.write_outbox(v_turns, p_outbox);
    PERFORM turnkeep.add_tokens(v_turns);
    IF v_carry <> '{}' THEN
        UPDATE turnkeep.files f SET message_id = m.id
          FROM turnkeep.messages m
         WHERE f.turn_id = ANY (v_carry) AND f.message_id IS NULL
           AND m.turn_id = f.turn_id AND m.role = 'assistant' AND NOT m.internal;
    END IF;
END $$;

-- Add what these turns have consumed to their month, each row of usage once and in the order of its key.
CREATE FUNCTION turnkeep.add_tokens(p_turns turnkeep.turns[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, input_tokens, output_tokens, cost)
    SELECT t.org_id, s.scope, s.scope_id, t.month, sum(t.input_tokens), sum(t.output_tokens), coalesce(sum(t.cost), 0)
      FROM unnest(p_turns) t
     CROSS JOIN LATERAL (VALUES ('key', t.key_id), ('user', t.user_id), ('workspace', t.workspace_id)) AS s (scope, scope_id)
     WHERE s.scope_id IS NOT NULL AND t.input_tokens + t.output_tokens > 0
     GROUP BY t.org_id, s.scope, s.scope_id, t.month
     ORDER BY t.org_id, s.scope, s.scope_id, t.month
    ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
       SET input_tokens = u.input_tokens + excluded.input_tokens,
           output_tokens = u.output_tokens + excluded.output_tokens,
           cost = u.cost + excluded.cost;
END $$;
