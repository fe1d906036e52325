-- How the grouped writes carry their values. Each parameter of a statement costs a few microseconds, and a turn of four
-- rows would have a hundred; so values of one type share an array, one record after the other (writing.py packs them):
--
--   a row     r_text     id, role, blocks, display, attachments, sources, metadata, usage, legacy, provider
--             r_numbers  job, turn_sequence, internal (0, 1), iteration, created_at
--   an event  e_text     type, payload               e_jobs     job
--   a line    l_text     level, message              l_numbers  job, after_seq, ts
--   usage     p_usage    input, output, cache read and cache write tokens
--
-- A job is one turn of the group, counted from 1. Rows, events and lines of a job stand side by side, in order.
-- `append` alone also packs what it knows of each job: p_text holds org, workspace, user, owner, key, conversation, turn,
-- source, model, month, title and preview; p_numbers holds started_at, settled_at, the usage, and how many of the
-- rows are visible.

-- Add whole turns that happened elsewhere, each to a conversation of its own; return their ordinals, in order.
--
-- Three statements, whatever the number of jobs, as the work of starting a statement is most of the cost. The
-- conversations are changed first, which locks them, in the order of the jobs: that of their ids. A turn is inserted only
-- if nothing runs or waits there and its id is new. If one job fails, its reason is raised, which takes everything
-- back; the caller then sends the jobs one by one.
-- The plans are fixed: loops over the jobs that look up each row by its index.
CREATE FUNCTION turnkeep.append(p_text text[], p_numbers bigint[], r_text text[], r_numbers bigint[])
RETURNS integer[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    v_last     integer := array_length(p_text, 1) / 12 - 1;
    v_now      bigint := turnkeep.now_ms();
    v_ordinals integer[];
    v_inserted integer;
BEGIN
    WITH changed AS (
        UPDATE turnkeep.conversations c
           SET next_ordinal = c.next_ordinal + 1, head_turn_id = p_text[12 * j + 7], turn_count = c.turn_count + 1,
               message_count = c.message_count + p_numbers[7 * j + 7], updated_at = v_now,
               title = coalesce(c.title, p_text[12 * j + 11]), preview = coalesce(c.preview, p_text[12 * j + 12])
          FROM generate_series(0, v_last) j
         WHERE c.id = p_text[12 * j + 6] AND c.org_id = p_text[12 * j + 1] AND c.workspace_id = p_text[12 * j + 2]
           AND (p_text[12 * j + 4] IS NULL OR c.user_id = p_text[12 * j + 4]) AND c.deleted_at IS NULL
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
    SELECT p_text[12 * j + 7], p_text[12 * j + 1], p_text[12 * j + 2], p_text[12 * j + 6], p_text[12 * j + 3],
           p_text[12 * j + 5],
           (SELECT t.id FROM turnkeep.turns t
             WHERE t.conversation_id = p_text[12 * j + 6] AND t.active ORDER BY t.ordinal DESC LIMIT 1),
           v_ordinals[j + 1], true, 'succeeded', 1,
           coalesce(p_text[12 * j + 3], p_text[12 * j + 5], p_text[12 * j + 2]),
           p_text[12 * j + 8], p_text[12 * j + 9], p_text[12 * j + 10], p_numbers[7 * j + 3], p_numbers[7 * j + 4],
           p_numbers[7 * j + 5], p_numbers[7 * j + 6], p_numbers[7 * j + 1], p_numbers[7 * j + 1],
           p_numbers[7 * j + 2]
      FROM generate_series(0, v_last) j
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = p_text[12 * j + 6] AND t.status = 'running' OFFSET 0)
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = p_text[12 * j + 6] AND t.status = 'queued' OFFSET 0)
    ON CONFLICT (id) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    IF v_inserted <= v_last THEN
        PERFORM turnkeep.refuse_append(p_text[6], p_text[7]);
    END IF;
    INSERT INTO turnkeep.messages
           (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
            attachments, sources, metadata, usage, legacy, provider, created_at)
    SELECT p_text[12 * r.job - 5], r_numbers[5 * i + 2], r_text[10 * i + 1], p_text[12 * r.job - 11],
           p_text[12 * r.job - 6], r_text[10 * i + 2], r_numbers[5 * i + 3] = 1, r_numbers[5 * i + 4],
           r_text[10 * i + 3], r_text[10 * i + 4], r_text[10 * i + 5], r_text[10 * i + 6], r_text[10 * i + 7],
           r_text[10 * i + 8], r_text[10 * i + 9], r_text[10 * i + 10], r_numbers[5 * i + 5]
      FROM generate_series(0, array_length(r_numbers, 1) / 5 - 1) i,
           LATERAL (SELECT r_numbers[5 * i + 1]::integer AS job) r;
    RETURN v_ordinals;
END $$;

-- The same for a group of one, which is what most groups are: the values go into variables first, since a statement that
-- is made of array elements takes twice as long to start.
CREATE FUNCTION turnkeep.append_one(p_text text[], p_numbers bigint[], r_text text[], r_numbers bigint[])
RETURNS integer[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_org          text := p_text[1];
    v_workspace    text := p_text[2];
    v_user         text := p_text[3];
    v_owner        text := p_text[4];
    v_key          text := p_text[5];
    v_conversation text := p_text[6];
    v_turn         text := p_text[7];
    v_source       text := p_text[8];
    v_model        text := p_text[9];
    v_month        text := p_text[10];
    v_title        text := p_text[11];
    v_preview      text := p_text[12];
    v_started      bigint := p_numbers[1];
    v_settled      bigint := p_numbers[2];
    v_visible      integer := p_numbers[7];
    v_now          bigint := turnkeep.now_ms();
    v_ref          text := coalesce(v_user, v_key, v_workspace);
    v_ordinal      integer;
BEGIN
    UPDATE turnkeep.conversations c
       SET next_ordinal = c.next_ordinal + 1, head_turn_id = v_turn, turn_count = c.turn_count + 1,
           message_count = c.message_count + v_visible, updated_at = v_now,
           title = coalesce(c.title, v_title), preview = coalesce(c.preview, v_preview)
     WHERE c.id = v_conversation AND c.org_id = v_org AND c.workspace_id = v_workspace
       AND (v_owner IS NULL OR c.user_id = v_owner) AND c.deleted_at IS NULL
    RETURNING c.next_ordinal - 1 INTO v_ordinal;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such conversation.');
    END IF;
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, ordinal, active, status,
            attempt, principal_ref, source, model, month, input_tokens, output_tokens, cache_read_tokens,
            cache_write_tokens, created_at, started_at, settled_at)
    SELECT v_turn, v_org, v_workspace, v_conversation, v_user, v_key,
           (SELECT t.id FROM turnkeep.turns t
             WHERE t.conversation_id = v_conversation AND t.active ORDER BY t.ordinal DESC LIMIT 1),
           v_ordinal, true, 'succeeded', 1, v_ref, v_source, v_model, v_month,
           p_numbers[3], p_numbers[4], p_numbers[5], p_numbers[6], v_started, v_started, v_settled
     WHERE NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = v_conversation AND t.status = 'running')
       AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                        WHERE t.conversation_id = v_conversation AND t.status = 'queued')
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse_append(v_conversation, v_turn);
    END IF;
    INSERT INTO turnkeep.messages
           (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
            attachments, sources, metadata, usage, legacy, provider, created_at)
    SELECT v_turn, r_numbers[5 * i + 2], r_text[10 * i + 1], v_org, v_conversation, r_text[10 * i + 2],
           r_numbers[5 * i + 3] = 1, r_numbers[5 * i + 4], r_text[10 * i + 3], r_text[10 * i + 4], r_text[10 * i + 5],
           r_text[10 * i + 6], r_text[10 * i + 7], r_text[10 * i + 8], r_text[10 * i + 9], r_text[10 * i + 10],
           r_numbers[5 * i + 5]
      FROM generate_series(0, array_length(r_numbers, 1) / 5 - 1) i;
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
    PERFORM turnkeep.must_wait(p_conversation, false, 'reject', 0, 0);
    PERFORM turnkeep.refuse('TK007', 'Another turn of the same group could not be appended.');
END $$;
