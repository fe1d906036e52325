-- The fence, and what the holder of a turn writes behind it.
--
-- A job says that events `after + 1` … `last` of a turn are to be written, under this attempt. Jobs come in the order of the
-- turn ids, which is the lock order. Rows, events and log lines of all jobs come as rows of their tables, in order; their
-- org and conversation are those of the turn, whatever they say. The fence is the row lock that the first part of the
-- statement takes, not a condition on the inserts: what a job writes is decided once its turn is locked, and a job that has
-- lost its turn leaves the others unharmed. Everything is one statement, as the start of a statement is much of its cost.

-- Where the writer of a locked turn stands (`rules.turns.Stand`). Plain SQL, so that it becomes part of the query.
--   held       it is the writer's, and the next number is the one that the writer expects
--   lost       another worker has taken it over
--   settled    it has ended
--   ahead      it is the writer's, but other events (or these, already) are behind the number that the writer expects
CREATE FUNCTION turnkeep.stand_of(p_status text, p_settled_at bigint, p_held integer, p_last_seq integer,
                                  p_attempt integer, p_after integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_held <> p_attempt THEN 'lost'
                WHEN p_settled_at IS NOT NULL THEN 'settled'
                WHEN p_status <> 'running' THEN 'lost'
                WHEN p_last_seq <> p_after THEN 'ahead'
                ELSE 'held' END
$$;

-- Whether these events of the turn, those behind `p_after`, are stored already: only the answer to the write was lost.
CREATE FUNCTION turnkeep.has_events(p_turn text, p_after integer, p_events turnkeep.event_row[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT 1 FROM unnest(p_events) w
          LEFT JOIN turnkeep.turn_events e ON e.turn_id = w.turn_id AND e.seq = w.seq
         WHERE w.turn_id = p_turn AND w.seq > p_after AND e.payload IS DISTINCT FROM w.payload);
END $$;

-- One row for each turn that exists. The plans are fixed: loops that look up each turn by its index.
CREATE FUNCTION turnkeep.record(
    p_jobs turnkeep.record_job[], p_rows turnkeep.message_row[], p_events turnkeep.event_row[], p_logs turnkeep.log_row[]
) RETURNS TABLE (turn_id text, outcome text, last_seq integer, cancel_requested boolean, files_written integer, steers integer)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_known text[] := '{}';
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(p_jobs) j WHERE j.last = j.after) THEN
        -- Jobs without events. Whether they are stored is told by a statement that begins once their turns are locked.
        PERFORM 1 FROM turnkeep.turns t
          WHERE t.id = ANY (ARRAY(SELECT j.turn_id FROM unnest(p_jobs) j)) ORDER BY t.id FOR UPDATE;
        v_known := ARRAY(SELECT t.id FROM unnest(p_jobs) j JOIN turnkeep.turns t ON t.id = j.turn_id
                          WHERE j.last = j.after AND t.attempt = j.attempt AND t.status = 'running'
                            AND turnkeep.has_rows_or_logs(t.id, p_rows, p_logs));
    END IF;
    RETURN QUERY
    WITH fence AS MATERIALIZED (
        SELECT j.*, t.org_id, t.conversation_id, t.last_seq, t.files_written, t.steers,
               t.cancel_requested_at IS NOT NULL AS cancel_requested,
               CASE WHEN t.id = ANY (v_known) THEN 'known'
                    ELSE turnkeep.stand_of(t.status, t.settled_at, t.attempt, t.last_seq, j.attempt, j.after) END AS stand
          FROM unnest(p_jobs) j JOIN turnkeep.turns t ON t.id = j.turn_id
         ORDER BY t.id FOR UPDATE OF t
    ), moved AS (
        UPDATE turnkeep.turns t SET last_seq = f.last
          FROM fence f WHERE t.id = f.turn_id AND f.stand = 'held' AND f.last > f.after
    ), said AS (
        INSERT INTO turnkeep.messages
               (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
                attachments, sources, metadata, usage, legacy, provider, created_at)
        SELECT r.turn_id, r.turn_sequence, r.id, f.org_id, f.conversation_id, r.role, r.internal, r.iteration, r.blocks,
               r.display, r.attachments, r.sources, r.metadata, r.usage, r.legacy, r.provider, r.created_at
          FROM unnest(p_rows) r JOIN fence f ON f.turn_id = r.turn_id AND f.stand = 'held'
    ), told AS (
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        SELECT e.turn_id, e.seq, f.org_id, e.type, e.payload
          FROM unnest(p_events) e JOIN fence f ON f.turn_id = e.turn_id AND f.stand = 'held'
    ), logged AS (
        INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
        SELECT l.turn_id, l.n + coalesce((SELECT max(x.n) FROM turnkeep.turn_logs x WHERE x.turn_id = l.turn_id), 0),
               f.org_id, l.after_seq, l.level, l.message, l.ts
          FROM unnest(p_logs) l JOIN fence f ON f.turn_id = l.turn_id AND f.stand = 'held'
    )
    SELECT f.turn_id, f.stand, CASE WHEN f.stand = 'held' THEN f.last ELSE f.last_seq END, f.cancel_requested,
           f.files_written, f.steers
      FROM fence f;
END $$;

-- A write without events leaves no number to know it by. Its first row does; log lines have no id of their own, so they
-- are compared with the last ones of the turn.
CREATE FUNCTION turnkeep.has_rows_or_logs(p_turn text, p_rows turnkeep.message_row[], p_logs turnkeep.log_row[])
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
