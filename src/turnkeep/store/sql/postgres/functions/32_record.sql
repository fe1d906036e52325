-- The fence, and what the holder of a turn writes behind it.
--
-- Job i is element i of every p_ array; rows, events and log lines come packed (see 31_append.sql). Jobs come
-- in the order of their turn ids, which is the lock order. The fence is the row lock that `fence` takes, not a condition
-- on the inserts: what a job writes is decided once its turn is locked, and a job that has lost its turn leaves the
-- others unharmed.

-- Lock a turn and say where its writer stands:
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

-- The payloads of one job's events; NULL if it has none.
CREATE FUNCTION turnkeep.payloads_of(p_job integer, e_events text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_payloads text[];
BEGIN
    FOR i IN 0 .. coalesce(array_length(e_events, 1), 0) / 3 - 1 LOOP
        IF e_events[3 * i + 1] = p_job::text THEN
            v_payloads := v_payloads || e_events[3 * i + 3];
        END IF;
    END LOOP;
    RETURN v_payloads;
END $$;

-- Whether the events behind `p_after` begin with exactly these: the write has happened, only its answer was lost.
CREATE FUNCTION turnkeep.has_events(p_turn text, p_after integer, p_payloads text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(p_payloads = (
        SELECT array_agg(e.payload ORDER BY e.seq) FROM turnkeep.turn_events e
         WHERE e.turn_id = p_turn AND e.seq > p_after AND e.seq <= p_after + array_length(p_payloads, 1)), false);
END $$;

CREATE FUNCTION turnkeep.record(
    p_turn text[], p_attempt integer[], p_after integer[],
    r_rows text, e_events text, l_text text[], l_numbers bigint[]
) RETURNS TABLE (outcome text, last_seq integer, cancel_requested boolean, files_written integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    r_             text[] := string_to_array(r_rows, E'\x1f', '');
    e_             text[] := string_to_array(e_events, E'\x1f', '');
    v_fence        record;
    v_payloads     text[];
    v_is_known     boolean;
    v_held         boolean[] := '{}';
    v_org          text[] := '{}';
    v_conversation text[] := '{}';
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        SELECT * INTO v_fence FROM turnkeep.fence(p_turn[i], p_attempt[i], p_after[i]);
        outcome := v_fence.stand;
        v_payloads := turnkeep.payloads_of(i, e_);
        IF outcome IN ('held', 'ahead') THEN
            v_is_known := CASE WHEN v_payloads IS NULL
                               THEN turnkeep.has_rows_or_logs(p_turn[i], i, r_, l_text, l_numbers)
                               ELSE outcome = 'ahead' AND turnkeep.has_events(p_turn[i], p_after[i], v_payloads) END;
            IF v_is_known THEN
                outcome := 'known';
            END IF;
        END IF;
        v_held[i] := outcome = 'held';
        v_org[i] := (v_fence.turn).org_id;
        v_conversation[i] := (v_fence.turn).conversation_id;
        last_seq := (v_fence.turn).last_seq;
        cancel_requested := (v_fence.turn).cancel_requested_at IS NOT NULL;
        files_written := (v_fence.turn).files_written;
        IF v_held[i] AND v_payloads IS NOT NULL THEN
            last_seq := p_after[i] + array_length(v_payloads, 1);
            UPDATE turnkeep.turns t SET last_seq = p_after[i] + array_length(v_payloads, 1) WHERE t.id = p_turn[i];
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM turnkeep.write_entries(p_turn, v_held, v_org, v_conversation, p_after, r_, e_, l_text, l_numbers);
END $$;

-- A write without events leaves no number to know it by. Its first row does; log lines have no id of their own, so they
-- are compared with the last ones of the turn.
CREATE FUNCTION turnkeep.has_rows_or_logs(p_turn text, p_job integer, r_ text[], l_text text[], l_numbers bigint[])
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_lines text[];
BEGIN
    FOR i IN 0 .. coalesce(array_length(r_, 1), 0) / 15 - 1 LOOP
        IF r_[15 * i + 1] = p_job::text THEN
            RETURN EXISTS (SELECT 1 FROM turnkeep.messages m
                            WHERE m.turn_id = p_turn AND m.turn_sequence = r_[15 * i + 2]::integer
                              AND m.id = r_[15 * i + 6]);
        END IF;
    END LOOP;
    FOR i IN 0 .. coalesce(array_length(l_numbers, 1), 0) / 3 - 1 LOOP
        IF l_numbers[3 * i + 1] = p_job THEN
            v_lines := v_lines || ROW (l_numbers[3 * i + 2], l_text[2 * i + 1], l_text[2 * i + 2], l_numbers[3 * i + 3])::text;
        END IF;
    END LOOP;
    RETURN coalesce(v_lines = (
        SELECT array_agg(ROW (l.after_seq, l.level, l.message, l.ts)::text ORDER BY l.n)
          FROM (SELECT * FROM turnkeep.turn_logs x
                 WHERE x.turn_id = p_turn ORDER BY x.n DESC LIMIT array_length(v_lines, 1)) l), false);
END $$;

-- Write the rows, events and log lines of the jobs that hold their turns.
CREATE FUNCTION turnkeep.write_entries(
    p_turn text[], p_held boolean[], p_org text[], p_conversation text[], p_after integer[],
    r_ text[], e_ text[], l_text text[], l_numbers bigint[]
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF r_ <> '{}' THEN
        INSERT INTO turnkeep.messages
               (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
                attachments, sources, metadata, usage, legacy, provider, created_at)
        SELECT p_turn[r.job], r_[15 * i + 2]::integer, r_[15 * i + 6], p_org[r.job], p_conversation[r.job],
               r_[15 * i + 7], r_[15 * i + 3] = '1', r_[15 * i + 4]::integer, r_[15 * i + 8], r_[15 * i + 9],
               r_[15 * i + 10], r_[15 * i + 11], r_[15 * i + 12], r_[15 * i + 13], r_[15 * i + 14], r_[15 * i + 15],
               r_[15 * i + 5]::bigint
          FROM generate_series(0, array_length(r_, 1) / 15 - 1) i, LATERAL (SELECT r_[15 * i + 1]::integer AS job) r
         WHERE p_held[r.job];
    END IF;
    IF e_ <> '{}' THEN
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        SELECT p_turn[e.job], p_after[e.job] + row_number() OVER (PARTITION BY e.job ORDER BY i), p_org[e.job],
               e_[3 * i + 2], e_[3 * i + 3]
          FROM generate_series(0, array_length(e_, 1) / 3 - 1) i, LATERAL (SELECT e_[3 * i + 1]::integer AS job) e
         WHERE p_held[e.job];
    END IF;
    IF l_numbers <> '{}' THEN
        INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
        SELECT p_turn[l.job],
               coalesce((SELECT max(x.n) FROM turnkeep.turn_logs x WHERE x.turn_id = p_turn[l.job]), 0)
                   + row_number() OVER (PARTITION BY l.job ORDER BY i),
               p_org[l.job], l_numbers[3 * i + 2], l_text[2 * i + 1], l_text[2 * i + 2], l_numbers[3 * i + 3]
          FROM generate_series(0, array_length(l_numbers, 1) / 3 - 1) i,
               LATERAL (SELECT l_numbers[3 * i + 1]::integer AS job) l
         WHERE p_held[l.job];
    END IF;
END $$;
