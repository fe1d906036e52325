-- How the grouped writes carry their values.
--
-- Each parameter of a statement costs a few microseconds on its way, and each NULL or number in an array half a one in the
-- driver; a turn of four rows would have a hundred. So the rows of a group travel as one text, their fields joined by the
-- unit separator (U+001F), which JSON escapes and which writing.py refuses everywhere else. A NULL is an empty field.
--
--   r_rows     job, turn_sequence, internal (0, 1), iteration, created_at, id, role, blocks, display, attachments,
--              sources, metadata, usage, legacy, provider
--   e_events   job, type, payload
--   l_text     level, message              (arrays, since a log line may hold anything)
--   l_numbers  job, after_seq, ts
--   p_jobs     for `append`: org, workspace, user, owner, key, conversation, turn, source, model, month, title, preview,
--              started_at, settled_at, input, output, cache read and cache write tokens, visible rows
--   p_usage    for `settle`: input, output, cache read and cache write tokens
--
-- A job is one turn of the group, counted from 1. Rows, events and lines of a job stand side by side, in order.

-- Add whole turns that happened elsewhere, each to a conversation of its own; return their ordinals, in order.
--
-- Three statements, whatever the number of jobs, as the work of starting a statement is most of the cost. The
-- conversations are changed first, which locks them, in the order of the jobs: that of their ids. A turn is inserted
-- only if nothing runs or waits there and its id is new. If one job fails, its reason is raised, which takes everything
-- back; the caller then sends the jobs one by one.
-- The plans are fixed: loops over the jobs that look up each row by its index.
CREATE FUNCTION turnkeep.append(p_jobs text, r_rows text) RETURNS integer[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    j_         text[] := string_to_array(p_jobs, E'\x1f', '');
    r_         text[] := string_to_array(r_rows, E'\x1f', '');
    v_last     integer := array_length(j_, 1) / 19 - 1;
    v_now      bigint := turnkeep.now_ms();
    v_ordinals integer[];
    v_inserted integer;
BEGIN
    WITH changed AS (
        UPDATE turnkeep.conversations c
           SET next_ordinal = c.next_ordinal + 1, head_turn_id = j_[19 * j + 7], turn_count = c.turn_count + 1,
               message_count = c.message_count + j_[19 * j + 19]::integer, updated_at = v_now,
               title = coalesce(c.title, j_[19 * j + 11]), preview = coalesce(c.preview, j_[19 * j + 12])
          FROM generate_series(0, v_last) j
         WHERE c.id = j_[19 * j + 6] AND c.org_id = j_[19 * j + 1] AND c.workspace_id = j_[19 * j + 2]
           AND (j_[19 * j + 4] IS NULL OR c.user_id = j_[19 * j + 4]) AND c.deleted_at IS NULL
        RETURNING j, c.next_ordinal - 1 AS ordinal
    )
    SELECT array_agg(x.ordinal ORDER BY x.j) INTO v_ordinals FROM changed x;
    IF array_length(v_ordinals, 1) IS DISTINCT FROM v_last + 1 THEN
        PERFORM turnkeep.refuse('TK001', 'No such conversation.');
    END IF;
    -- While nothing runs, the head is the newest turn of the visible chain.
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, ordinal, active, status,
            attempt, principal_ref, source, model, month, input_tokens, output_tokens, cache_read_tokens,
            cache_write_tokens, created_at, started_at, settled_at)
    SELECT j_[19 * j + 7], j_[19 * j + 1], j_[19 * j + 2], j_[19 * j + 6], j_[19 * j + 3], j_[19 * j + 5],
           (SELECT t.id FROM turnkeep.turns t
             WHERE t.conversation_id = j_[19 * j + 6] AND t.active ORDER BY t.ordinal DESC LIMIT 1),
           v_ordinals[j + 1], true, 'succeeded', 1, coalesce(j_[19 * j + 3], j_[19 * j + 5], j_[19 * j + 2]),
           j_[19 * j + 8], j_[19 * j + 9], j_[19 * j + 10], j_[19 * j + 15]::bigint, j_[19 * j + 16]::bigint,
           j_[19 * j + 17]::bigint, j_[19 * j + 18]::bigint, j_[19 * j + 13]::bigint, j_[19 * j + 13]::bigint,
           j_[19 * j + 14]::bigint
      FROM generate_series(0, v_last) j
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = j_[19 * j + 6] AND t.status = 'running' OFFSET 0)
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = j_[19 * j + 6] AND t.status = 'queued' OFFSET 0)
    ON CONFLICT (id) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    IF v_inserted <= v_last THEN
        PERFORM turnkeep.refuse_append(j_[6], j_[7]);
    END IF;
    INSERT INTO turnkeep.messages
           (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
            attachments, sources, metadata, usage, legacy, provider, created_at)
    SELECT j_[19 * r.job - 12], r_[15 * i + 2]::integer, r_[15 * i + 6], j_[19 * r.job - 18], j_[19 * r.job - 13],
           r_[15 * i + 7], r_[15 * i + 3] = '1', r_[15 * i + 4]::integer, r_[15 * i + 8], r_[15 * i + 9],
           r_[15 * i + 10], r_[15 * i + 11], r_[15 * i + 12], r_[15 * i + 13], r_[15 * i + 14], r_[15 * i + 15],
           r_[15 * i + 5]::bigint
      FROM generate_series(0, array_length(r_, 1) / 15 - 1) i, LATERAL (SELECT r_[15 * i + 1]::integer AS job) r;
    RETURN v_ordinals;
END $$;

-- The same for a group of one, which is what most groups are: a statement that is made of array elements takes twice as
-- long to start as one that is made of parameters.
CREATE FUNCTION turnkeep.append_one(
    p_org text, p_workspace text, p_user text, p_owner text, p_key text, p_conversation text, p_turn text,
    p_source text, p_model text, p_month text, p_title text, p_preview text, p_started bigint, p_settled bigint,
    p_input bigint, p_output bigint, p_cache_read bigint, p_cache_write bigint, p_visible integer, r_rows text
) RETURNS integer[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    r_        text[] := string_to_array(r_rows, E'\x1f', '');
    v_ordinal integer;
BEGIN
    UPDATE turnkeep.conversations c
       SET next_ordinal = c.next_ordinal + 1, head_turn_id = p_turn, turn_count = c.turn_count + 1,
           message_count = c.message_count + p_visible, updated_at = turnkeep.now_ms(),
           title = coalesce(c.title, p_title), preview = coalesce(c.preview, p_preview)
     WHERE c.id = p_conversation AND c.org_id = p_org AND c.workspace_id = p_workspace
       AND (p_owner IS NULL OR c.user_id = p_owner) AND c.deleted_at IS NULL
    RETURNING c.next_ordinal - 1 INTO v_ordinal;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such conversation.');
    END IF;
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, ordinal, active, status,
            attempt, principal_ref, source, model, month, input_tokens, output_tokens, cache_read_tokens,
            cache_write_tokens, created_at, started_at, settled_at)
    SELECT p_turn, p_org, p_workspace, p_conversation, p_user, p_key,
           (SELECT t.id FROM turnkeep.turns t
             WHERE t.conversation_id = p_conversation AND t.active ORDER BY t.ordinal DESC LIMIT 1),
           v_ordinal, true, 'succeeded', 1, coalesce(p_user, p_key, p_workspace), p_source, p_model, p_month,
           p_input, p_output, p_cache_read, p_cache_write, p_started, p_started, p_settled
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = p_conversation AND t.status = 'running')
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = p_conversation AND t.status = 'queued')
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse_append(p_conversation, p_turn);
    END IF;
    INSERT INTO turnkeep.messages
           (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
            attachments, sources, metadata, usage, legacy, provider, created_at)
    SELECT p_turn, r_[15 * i + 2]::integer, r_[15 * i + 6], p_org, p_conversation, r_[15 * i + 7], r_[15 * i + 3] = '1',
           r_[15 * i + 4]::integer, r_[15 * i + 8], r_[15 * i + 9], r_[15 * i + 10], r_[15 * i + 11], r_[15 * i + 12],
           r_[15 * i + 13], r_[15 * i + 14], r_[15 * i + 15], r_[15 * i + 5]::bigint
      FROM generate_series(0, array_length(r_, 1) / 15 - 1) i;
    RETURN ARRAY[v_ordinal];
END $$;

-- Why a turn could not be appended: it is here already (TK010, with its ordinal), elsewhere, or the conversation is busy.
-- Of a group it looks at the first only: a group is sent again one by one, whatever the reason.
CREATE FUNCTION turnkeep.refuse_append(p_conversation text, p_turn text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_known record;
BEGIN
    SELECT t.ordinal, t.conversation_id INTO v_known FROM turnkeep.turns t WHERE t.id = p_turn;
    IF v_known.conversation_id = p_conversation THEN
        PERFORM turnkeep.refuse('TK010', 'This turn is here already.', v_known.ordinal::text);
    ELSIF v_known.conversation_id IS NOT NULL THEN
        PERFORM turnkeep.refuse('TK001', 'No such turn.');
    END IF;
    PERFORM turnkeep.must_wait(p_conversation, false, NULL, 'reject', 0, 0);
    PERFORM turnkeep.refuse('TK007', 'Another turn of the same group could not be appended.');
END $$;
