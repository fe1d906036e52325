-- The fence, and what the holder of a turn writes behind it.
--
-- `p_jobs` is a list of `{"turn_id", "attempt", "after", "last"}` in the order of the turn ids, which is the lock order:
-- events `after + 1` … `last` are to be written, under this attempt. Rows, events and log lines of all jobs come as rows of
-- their tables, in order; their org and conversation are those of the turn, whatever they say. The fence is the row lock
-- that `fence` takes, not a condition on the inserts: what a job writes is decided once its turn is locked, and a job that
-- has lost its turn leaves the others unharmed.

-- Lock a turn and say where its writer stands (`rules.turns.Stand`):
--   held       it is the writer's, and the next number is the one that the writer expects
--   lost       another worker has taken it over, or it does not exist
--   settled    it has ended
--   ahead      it is the writer's, but other events (or these, already) are behind the number that the writer expects
CREATE FUNCTION turnkeep.fence(p_turn text, p_attempt integer, p_after integer, OUT stand text, OUT turn turnkeep.turns)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT * INTO turn FROM turnkeep.turns t WHERE t.id = p_turn FOR UPDATE;
    stand := CASE WHEN turn.id IS NULL OR turn.attempt <> p_attempt THEN 'lost'
                  WHEN turn.settled_at IS NOT NULL THEN 'settled'
                  WHEN turn.status <> 'running' THEN 'lost'
                  WHEN turn.last_seq <> p_after THEN 'ahead'
                  ELSE 'held' END;
END $$;

-- Whether these events of the turn, those behind `p_after`, are stored already: only the answer to the write was lost.
CREATE FUNCTION turnkeep.has_events(p_turn text, p_after integer, p_events turnkeep.turn_events[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT 1 FROM unnest(p_events) w
          LEFT JOIN turnkeep.turn_events e ON e.turn_id = w.turn_id AND e.seq = w.seq
         WHERE w.turn_id = p_turn AND w.seq > p_after AND e.payload IS DISTINCT FROM w.payload);
END $$;

CREATE FUNCTION turnkeep.record(
    p_jobs json, p_rows turnkeep.messages[], p_events turnkeep.turn_events[], p_logs turnkeep.turn_logs[]
) RETURNS TABLE (outcome text, last_seq integer, cancel_requested boolean, files_written integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_job   record;
    v_fence record;
    v_held  text[] := '{}';
BEGIN
    FOR v_job IN SELECT * FROM json_to_recordset(p_jobs) AS j (turn_id text, attempt integer, after integer, last integer) LOOP
        SELECT * INTO v_fence FROM turnkeep.fence(v_job.turn_id, v_job.attempt, v_job.after);
        outcome := v_fence.stand;
        last_seq := (v_fence.turn).last_seq;
        cancel_requested := (v_fence.turn).cancel_requested_at IS NOT NULL;
        files_written := (v_fence.turn).files_written;
        IF v_job.last = v_job.after THEN
            IF outcome IN ('held', 'ahead') AND turnkeep.has_rows_or_logs(v_job.turn_id, p_rows, p_logs) THEN
                outcome := 'known';
            END IF;
        ELSIF outcome = 'ahead' THEN
            IF turnkeep.has_events(v_job.turn_id, v_job.after, p_events) THEN
                outcome := 'known';
            END IF;
        ELSIF outcome = 'held' THEN
            last_seq := v_job.last;
            UPDATE turnkeep.turns t SET last_seq = v_job.last WHERE t.id = v_job.turn_id;
        END IF;
        IF outcome = 'held' THEN
            v_held := v_held || v_job.turn_id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM turnkeep.write_entries(v_held, p_rows, p_events, p_logs);
END $$;

-- A write without events leaves no number to know it by. Its first row does; log lines have no id of their own, so they
-- are compared with the last ones of the turn.
CREATE FUNCTION turnkeep.has_rows_or_logs(p_turn text, p_rows turnkeep.messages[], p_logs turnkeep.turn_logs[])
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_row   record;
    v_lines text[];
BEGIN
    SELECT r.turn_sequence, r.id INTO v_row FROM unnest(p_rows) r
     WHERE r.turn_id = p_turn ORDER BY r.turn_sequence LIMIT 1;
    IF FOUND THEN
        RETURN EXISTS (SELECT 1 FROM turnkeep.messages m
                        WHERE m.turn_id = p_turn AND m.turn_sequence = v_row.turn_sequence AND m.id = v_row.id);
    END IF;
    SELECT array_agg(ROW (l.after_seq, l.level, l.message, l.ts)::text ORDER BY l.n) INTO v_lines
      FROM unnest(p_logs) l WHERE l.turn_id = p_turn;
    RETURN coalesce(v_lines = (
        SELECT array_agg(ROW (l.after_seq, l.level, l.message, l.ts)::text ORDER BY l.n)
          FROM (SELECT * FROM turnkeep.turn_logs x
                 WHERE x.turn_id = p_turn ORDER BY x.n DESC LIMIT array_length(v_lines, 1)) l), false);
END $$;

-- Write the rows, events and log lines of these turns, which are locked. Others among them are left out.
-- The plans are fixed: loops that look up each turn by its index.
CREATE FUNCTION turnkeep.write_entries(
    p_held text[], p_rows turnkeep.messages[], p_events turnkeep.turn_events[], p_logs turnkeep.turn_logs[]
) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
BEGIN
    IF p_held = '{}' THEN
        RETURN;
    END IF;
    IF array_length(p_rows, 1) > 0 THEN
        INSERT INTO turnkeep.messages
               (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
                attachments, sources, metadata, usage, legacy, provider, created_at)
        SELECT r.turn_id, r.turn_sequence, r.id, t.org_id, t.conversation_id, r.role, r.internal, r.iteration, r.blocks,
               r.display, r.attachments, r.sources, r.metadata, r.usage, r.legacy, r.provider, r.created_at
          FROM unnest(p_rows) r JOIN turnkeep.turns t ON t.id = r.turn_id
         WHERE r.turn_id = ANY (p_held);
    END IF;
    IF array_length(p_events, 1) > 0 THEN
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        SELECT e.turn_id, e.seq, t.org_id, e.type, e.payload
          FROM unnest(p_events) e JOIN turnkeep.turns t ON t.id = e.turn_id
         WHERE e.turn_id = ANY (p_held);
    END IF;
    IF array_length(p_logs, 1) > 0 THEN
        INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
        SELECT l.turn_id, l.n + coalesce((SELECT max(x.n) FROM turnkeep.turn_logs x WHERE x.turn_id = l.turn_id), 0),
               t.org_id, l.after_seq, l.level, l.message, l.ts
          FROM unnest(p_logs) l JOIN turnkeep.turns t ON t.id = l.turn_id
         WHERE l.turn_id = ANY (p_held);
    END IF;
END $$;
