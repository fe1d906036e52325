-- End turns: rows, events, the terminal event, status, counters, head, usage, tokens and the outbox, at once.
--
-- A job says how one turn ends; rows, events and log lines are as in `record`, and the terminal event is the last of a job.
-- Jobs come in the order of their turn ids, after all their conversations were locked in the order of theirs. A turn of a
-- deleted conversation ends too. There is one row in the answer for each turn that exists; its `turn` is NULL unless the
-- outcome is `held`.
--
-- Where another turn waits in the conversation, one job is left undone with the outcome `waiting`, unless `p_promotes`: the
-- caller then settles it in a transaction of its own, in which the rules decide what runs next. Whether one waits is told by
-- a statement that begins once the conversation is locked.
CREATE FUNCTION turnkeep.settle(
    p_jobs turnkeep.settle_job[], p_rows turnkeep.message_row[], p_events turnkeep.event_row[], p_logs turnkeep.log_row[],
    p_promotes boolean
) RETURNS TABLE (turn_id text, outcome text, last_seq integer, turn turnkeep.turns, report text) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
BEGIN
    PERFORM 1 FROM turnkeep.conversations c
      WHERE c.id = ANY (ARRAY(SELECT j.conversation_id FROM unnest(p_jobs) j)) ORDER BY c.id FOR UPDATE;
    v_now := turnkeep.now_ms();
    RETURN QUERY
    WITH fence AS MATERIALIZED (
        SELECT j.*, t.org_id, t.last_seq,
               CASE WHEN t.conversation_id <> j.conversation_id THEN 'lost'
                    ELSE turnkeep.stand_of(t.status, t.settled_at, t.attempt, t.last_seq, j.attempt, j.after) END AS stand,
               NOT p_promotes AND EXISTS (
                   SELECT 1 FROM turnkeep.turns q WHERE q.conversation_id = t.conversation_id AND q.status = 'queued'
               ) AS is_waited_for
          FROM unnest(p_jobs) j JOIN turnkeep.turns t ON t.id = j.turn_id
         ORDER BY t.id FOR UPDATE OF t
    ), ended AS (
        UPDATE turnkeep.turns t
           SET status = f.status, error = f.error, settled_at = v_now, lease_until = NULL, last_seq = f.last,
               input_tokens = f.input_tokens, output_tokens = f.output_tokens, cache_read_tokens = f.cache_read_tokens,
               cache_write_tokens = f.cache_write_tokens, cost = f.cost
          FROM fence f WHERE t.id = f.turn_id AND f.stand = 'held' AND NOT f.is_waited_for
        RETURNING t.id, t.org_id, t.workspace_id, t.conversation_id, t.user_id, t.key_id, t.month, t.input_tokens,
                  t.output_tokens, t.cache_read_tokens, t.cache_write_tokens, t.cost, t.agent_id, t.model, t.source,
                  t.created_at, t.files_written, f.has_final, f.entry_id, f.entry_type, f.report,
                  t AS turn
    ), headed AS (
        UPDATE turnkeep.conversations c
           SET head_turn_id = e.id, updated_at = v_now, message_count = c.message_count + e.has_final::integer
          FROM ended e WHERE c.id = e.conversation_id
    ), said AS (
        INSERT INTO turnkeep.messages
               (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
                attachments, sources, metadata, usage, legacy, provider, created_at)
        SELECT r.turn_id, r.turn_sequence, r.id, e.org_id, e.conversation_id, r.role, r.internal, r.iteration, r.blocks,
               r.display, r.attachments, r.sources, r.metadata, r.usage, r.legacy, r.provider, r.created_at
          FROM unnest(p_rows) r JOIN ended e ON e.id = r.turn_id
    ), noted AS (
        INSERT INTO turnkeep.turn_reports (turn_id, org_id, conversation_id, report)
        SELECT e.id, e.org_id, e.conversation_id, e.report FROM ended e WHERE e.report IS NOT NULL
    ), told AS (
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        SELECT r.turn_id, r.seq, e.org_id, r.type, r.payload FROM unnest(p_events) r JOIN ended e ON e.id = r.turn_id
    ), logged AS (
        INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
        SELECT l.turn_id, l.n + coalesce((SELECT max(x.n) FROM turnkeep.turn_logs x WHERE x.turn_id = l.turn_id), 0),
               e.org_id, l.after_seq, l.level, l.message, l.ts
          FROM unnest(p_logs) l JOIN ended e ON e.id = l.turn_id
    ), reported AS (
        INSERT INTO turnkeep.outbox
               (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
        SELECT e.entry_id, e.org_id, e.workspace_id, e.user_id, e.entry_type, e.conversation_id, e.id, v_now, v_now
          FROM ended e
    ), expired AS (
        UPDATE turnkeep.one_time_tokens o SET expires_at = v_now
          FROM ended e WHERE o.turn_id = e.id AND o.used_at IS NULL
    ), counted AS (
        -- In the slots of this connection. Each once, and in the order of its key: another connection may have the same slot.
        INSERT INTO turnkeep.usage_slots AS u (org_id, scope, scope_id, month, slot, input_tokens, output_tokens, cost)
        SELECT e.org_id, s.scope, s.scope_id, e.month, turnkeep.own_slot(), sum(e.input_tokens), sum(e.output_tokens),
               coalesce(sum(e.cost), 0)
          FROM ended e
         CROSS JOIN LATERAL (VALUES ('key', e.key_id), ('user', e.user_id), ('workspace', e.workspace_id))
                            AS s (scope, scope_id)
         WHERE s.scope_id IS NOT NULL AND e.input_tokens + e.output_tokens > 0
         GROUP BY e.org_id, s.scope, s.scope_id, e.month
         ORDER BY e.org_id, s.scope, s.scope_id, e.month
        ON CONFLICT (org_id, scope, scope_id, month, slot) DO UPDATE
           SET input_tokens = u.input_tokens + excluded.input_tokens,
               output_tokens = u.output_tokens + excluded.output_tokens, cost = u.cost + excluded.cost
    ), counted_days AS (
        INSERT INTO turnkeep.usage_day_slots AS d
               (org_id, workspace_id, day, user_id, agent_id, model, source, slot, messages, input_tokens, output_tokens,
                cache_read_tokens, cache_write_tokens, cost, unpriced)
        SELECT e.org_id, e.workspace_id, to_char(to_timestamp(e.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD'),
               coalesce(e.user_id, ''), coalesce(e.agent_id, ''), coalesce(e.model, ''), e.source, turnkeep.own_slot(), count(*),
               sum(e.input_tokens), sum(e.output_tokens), sum(e.cache_read_tokens), sum(e.cache_write_tokens),
               coalesce(sum(e.cost), 0), count(*) - count(e.cost)
          FROM ended e GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
        ON CONFLICT (org_id, workspace_id, day, user_id, agent_id, model, source, slot) DO UPDATE
           SET messages = d.messages + excluded.messages, input_tokens = d.input_tokens + excluded.input_tokens,
               output_tokens = d.output_tokens + excluded.output_tokens,
               cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
               cache_write_tokens = d.cache_write_tokens + excluded.cache_write_tokens, cost = d.cost + excluded.cost,
               unpriced = d.unpriced + excluded.unpriced
    )
    SELECT f.turn_id, CASE WHEN f.stand = 'held' AND f.is_waited_for THEN 'waiting' ELSE f.stand END, f.last_seq, e.turn,
           e.report
      FROM fence f LEFT JOIN ended e ON e.id = f.turn_id;
    -- Files that a sandbox wrote back belong to the answer.
    IF EXISTS (SELECT 1 FROM unnest(p_jobs) j JOIN turnkeep.files f ON f.turn_id = j.turn_id WHERE f.message_id IS NULL) THEN
        UPDATE turnkeep.files f SET message_id = m.id
          FROM unnest(p_jobs) j JOIN turnkeep.messages m ON m.turn_id = j.turn_id AND m.role = 'assistant' AND NOT m.internal
         WHERE f.turn_id = j.turn_id AND f.message_id IS NULL;
    END IF;
END $$;
