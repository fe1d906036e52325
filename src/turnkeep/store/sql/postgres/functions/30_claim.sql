-- Claim a turn: its own transaction, in the order idempotency, conversation, attachments, busy, quota, rows.

CREATE FUNCTION turnkeep.claim(
    p_org text, p_workspace text, p_user text, p_owner text, p_key text, p_ref text,
    p_turn text, p_is_repeat boolean, p_worker text, p_lease_ms bigint,
    p_conversation text, p_is_new boolean, p_kind text, p_agent text, p_new_model text, p_workflow text,
    p_new_title text, p_new_metadata text,
    p_message text, p_blocks text, p_attachments text, p_metadata text, p_title text, p_preview text,
    p_beside text, p_files text[], p_names text[], p_name_keys text[],
    p_if_busy text, p_queue_limit integer, p_background boolean, p_watched_ms bigint,
    p_source text, p_model text, p_snapshot text, p_idempotency text, p_hash text
) RETURNS TABLE (turn turnkeep.turns, user_message_id text, is_new boolean, is_held boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
    v_parent       text;
    v_turns        integer := 0;
    v_messages     integer := 0;
    v_now          bigint;
    v_waits        boolean;
    v_ordinal      integer;
BEGIN
    turn := turnkeep.claimed_before(p_org, p_ref, p_turn, p_idempotency, p_hash);
    IF turn.id IS NULL THEN
        IF p_is_new THEN
            SELECT * INTO v_conversation FROM turnkeep.create_conversation(
                p_org, p_workspace, p_user, p_conversation, p_kind, p_agent, p_new_model, p_workflow, p_new_title,
                NULL, p_new_metadata);
        ELSE
            SELECT * INTO v_conversation FROM turnkeep.conversations c
             WHERE c.id = p_conversation AND c.org_id = p_org AND c.workspace_id = p_workspace
               AND (p_owner IS NULL OR c.user_id = p_owner) AND c.deleted_at IS NULL
               FOR UPDATE;
            IF NOT FOUND THEN
                PERFORM turnkeep.refuse('TK001', 'No such conversation.');
            END IF;
            -- Whoever held the lock before may have been this very request, sent twice.
            turn := turnkeep.claimed_before(p_org, p_ref, p_turn, p_idempotency, p_hash);
        END IF;
    END IF;
    IF turn.id IS NOT NULL THEN
        SELECT m.id INTO user_message_id FROM turnkeep.messages m WHERE m.turn_id = turn.id AND m.turn_sequence = 0;
        is_new := false;
        -- The answer to this very claim was lost, and its worker still holds the turn. A key that is sent again by
        -- its client is another matter: whoever came first runs the turn.
        is_held := turn.id = p_turn AND (p_idempotency IS NULL OR p_is_repeat)
                   AND turn.status = 'running' AND turn.attempt = 1 AND turn.worker = p_worker;
        RETURN NEXT;
        RETURN;
    END IF;

    v_now := turnkeep.now_ms();
    PERFORM turnkeep.check_beside(v_conversation.id, p_beside);
    PERFORM turnkeep.attach(v_conversation, p_owner, p_message, p_files, p_names, p_name_keys);
    v_waits := turnkeep.must_wait(v_conversation.id, p_is_new, p_beside, p_if_busy, p_queue_limit, v_now);
    PERFORM turnkeep.reserve(p_org, p_workspace, p_user, p_key, p_source, turnkeep.month_of(v_now));

    IF NOT v_waits THEN
        SELECT p.parent, p.more_turns + 1, p.more_messages + 1 INTO v_parent, v_turns, v_messages
          FROM turnkeep.open_place(v_conversation.id, v_conversation.head_turn_id, p_beside) p;
    END IF;
    v_ordinal := v_conversation.next_ordinal;
    IF v_waits AND p_if_busy = 'interrupt' THEN
        v_ordinal := turnkeep.free_first_place(v_conversation.id, v_ordinal);
    END IF;
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, beside_turn_id, ordinal, active,
            status, attempt, last_seq, seq_at_adoption, worker, lease_until, watched_until, watched_ms, background,
            principal_ref, idempotency_key, request_hash, snapshot, source, model, metadata, month,
            created_at, started_at)
    VALUES (p_turn, p_org, p_workspace, v_conversation.id, p_user, p_key,
            v_parent, p_beside, v_ordinal, NOT v_waits,
            CASE WHEN v_waits THEN 'queued' ELSE 'running' END, CASE WHEN v_waits THEN 0 ELSE 1 END, 1,
            CASE WHEN v_waits THEN 0 ELSE 1 END, CASE WHEN v_waits THEN NULL ELSE p_worker END,
            CASE WHEN v_waits THEN NULL ELSE v_now + p_lease_ms END, v_now + p_watched_ms, coalesce(p_watched_ms, 0),
            p_background,
            p_ref, p_idempotency, p_hash, p_snapshot, p_source, p_model, p_metadata, turnkeep.month_of(v_now),
            v_now, CASE WHEN v_waits THEN NULL ELSE v_now END)
    RETURNING * INTO turn;
    INSERT INTO turnkeep.messages
           (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, blocks, attachments, metadata, created_at)
    VALUES (p_turn, 0, p_message, p_org, v_conversation.id, 'user', false, p_blocks, p_attachments, p_metadata, v_now);
    INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
    VALUES (p_turn, 1, p_org, 'turn',
            turnkeep.began_json(p_turn, v_conversation.id, p_message, turn.status, turn.attempt));
    UPDATE turnkeep.conversations c
       SET next_ordinal = c.next_ordinal + 1, updated_at = v_now,
           title = coalesce(c.title, p_title), preview = coalesce(c.preview, p_preview),
           turn_count = c.turn_count + v_turns, message_count = c.message_count + v_messages
     WHERE c.id = v_conversation.id;
    user_message_id := p_message;
    is_new := true;
    is_held := NOT v_waits;
    RETURN NEXT;
END $$;

-- The turn that this request has already made, found by its idempotency key or by its turn id; a row of NULLs if none.
CREATE FUNCTION turnkeep.claimed_before(p_org text, p_ref text, p_turn text, p_idempotency text, p_hash text)
RETURNS turnkeep.turns LANGUAGE plpgsql AS $$
DECLARE
    v_turn turnkeep.turns;
BEGIN
    IF p_idempotency IS NOT NULL THEN
        SELECT * INTO v_turn FROM turnkeep.turns t
         WHERE t.org_id = p_org AND t.principal_ref = p_ref AND t.idempotency_key = p_idempotency;
        IF FOUND THEN
            IF v_turn.request_hash IS DISTINCT FROM p_hash THEN
                PERFORM turnkeep.refuse('TK004', 'Another request has this key.', v_turn.id);
            END IF;
            RETURN v_turn;
        END IF;
    END IF;
    SELECT * INTO v_turn FROM turnkeep.turns t WHERE t.id = p_turn;
    IF FOUND AND (v_turn.org_id, v_turn.principal_ref) IS DISTINCT FROM (p_org, p_ref) THEN
        PERFORM turnkeep.refuse('TK007', 'This turn id is taken.');
    END IF;
    RETURN v_turn;
END $$;

CREATE FUNCTION turnkeep.check_beside(p_conversation text, p_beside text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_turn record;
BEGIN
    IF p_beside IS NULL THEN
        RETURN;
    END IF;
    SELECT t.started_at, t.settled_at INTO v_turn FROM turnkeep.turns t
     WHERE t.id = p_beside AND t.conversation_id = p_conversation;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such turn.');
    -- One that has not ended keeps the conversation busy, and `if_busy` says what becomes of that.
    ELSIF v_turn.settled_at IS NOT NULL AND v_turn.started_at IS NULL THEN
        PERFORM turnkeep.refuse('TK002', 'A turn that never started cannot be edited or regenerated. Send it again.');
    END IF;
END $$;

-- Put these files into the conversation's bag, under the names that the caller has chosen for them in this transaction.
CREATE FUNCTION turnkeep.attach(p_conversation turnkeep.conversations, p_owner text, p_message text,
                                p_files text[], p_names text[], p_name_keys text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_file turnkeep.files;
BEGIN
    FOR i IN 1 .. coalesce(array_length(p_files, 1), 0) LOOP
        SELECT * INTO v_file FROM turnkeep.files f
         WHERE f.id = p_files[i] AND f.org_id = p_conversation.org_id
           AND f.workspace_id = p_conversation.workspace_id AND f.deleted_at IS NULL
           AND (p_owner IS NULL OR f.user_id = p_owner)
           FOR UPDATE;
        IF NOT FOUND THEN
            PERFORM turnkeep.refuse('TK001', 'No such file.');
        ELSIF v_file.status <> 'ready' THEN
            PERFORM turnkeep.refuse('TK002', 'File ' || v_file.id || ' is not complete yet. '
                                             || 'Attach it once its upload has ended.');
        ELSIF v_file.saved_at IS NOT NULL THEN
            PERFORM turnkeep.refuse('TK002', 'File ' || v_file.id || ' is one of the workspace''s Files. '
                                             || 'Save a copy into the conversation first.');
        ELSIF v_file.conversation_id <> p_conversation.id THEN
            PERFORM turnkeep.refuse('TK002', 'File ' || v_file.id || ' belongs to another conversation. '
                                             || 'Upload it again for this one.');
        END IF;
        UPDATE turnkeep.files f
           SET conversation_id = p_conversation.id, message_id = coalesce(f.message_id, p_message),
               name = CASE WHEN f.conversation_id IS NULL THEN p_names[i] ELSE f.name END,
               name_key = CASE WHEN f.conversation_id IS NULL THEN p_name_keys[i] ELSE f.name_key END
         WHERE f.id = v_file.id;
    END LOOP;
END $$;

-- Whether the turn waits in the queue; refuses when it may not. Under the conversation's lock nobody else can answer.
CREATE FUNCTION turnkeep.must_wait(p_conversation text, p_is_new boolean, p_beside text, p_if_busy text,
                                   p_queue_limit integer, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_replaced   turnkeep.turns;
    v_running    text;
    v_started_at bigint;
    v_first      text;
    v_waiting    integer;
BEGIN
    IF p_is_new THEN
        RETURN false;
    END IF;
    SELECT t.id, t.started_at INTO v_running, v_started_at FROM turnkeep.turns t
     WHERE t.conversation_id = p_conversation AND t.status = 'running';
    SELECT count(*), (array_agg(t.id ORDER BY t.ordinal))[1] INTO v_waiting, v_first
      FROM turnkeep.turns t WHERE t.conversation_id = p_conversation AND t.status = 'queued';
    IF v_running IS NULL AND v_waiting = 0 THEN
        RETURN false;
    END IF;
    IF p_if_busy = 'reject' THEN
        PERFORM turnkeep.refuse('TK003', 'The conversation is busy.',
            json_build_object('turn_id', coalesce(v_running, v_first), 'started_at', v_started_at)::text);
    END IF;
    IF p_if_busy = 'interrupt' THEN
        -- An edit of a waiting turn replaces it. Every other turn goes on waiting.
        SELECT * INTO v_replaced FROM turnkeep.turns t WHERE t.id = p_beside AND t.status = 'queued' FOR UPDATE;
        IF FOUND THEN
            PERFORM turnkeep.cancel_waiting(v_replaced, p_now);
            v_waiting := v_waiting - 1;
        END IF;
    END IF;
    -- A full queue has one more place, for a turn that interrupts.
    IF v_waiting >= p_queue_limit + (p_if_busy = 'interrupt')::integer THEN
        PERFORM turnkeep.refuse('TK005', v_waiting || ' turns wait in this conversation, which is the limit. '
                                || 'Wait for one of them, or cancel some.');
    END IF;
    IF p_if_busy = 'interrupt' THEN
        UPDATE turnkeep.turns t SET cancel_requested_at = p_now
         WHERE t.id = v_running AND t.cancel_requested_at IS NULL;
    END IF;
    RETURN true;
END $$;

-- Move every waiting turn one place back; return the ordinal that is free in front of them. The last one gets
-- `p_free`, an ordinal that no turn has. Ordinals of turns that have started or ended do not change.
CREATE FUNCTION turnkeep.free_first_place(p_conversation text, p_free integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_first integer;
BEGIN
    SELECT min(t.ordinal) INTO v_first FROM turnkeep.turns t
     WHERE t.conversation_id = p_conversation AND t.status = 'queued';
    UPDATE turnkeep.turns t SET ordinal = q.place
      FROM (SELECT w.id, lead(w.ordinal, 1, p_free) OVER (ORDER BY w.ordinal) AS place FROM turnkeep.turns w
             WHERE w.conversation_id = p_conversation AND w.status = 'queued') q
     WHERE t.id = q.id;
    RETURN coalesce(v_first, p_free);
END $$;

-- Count one message for every scope, and refuse if one of them is over its limit then. Each row is locked from here to
-- the commit, so of two that come at limit - 1 one passes.
CREATE FUNCTION turnkeep.reserve(p_org text, p_workspace text, p_user text, p_key text, p_source text, p_month text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_workspace record;
    v_key_limit integer;
    v_scope     record;
    v_used      integer;
    v_limit     integer;
    v_full      text;
    v_full_at   integer;
BEGIN
    SELECT w.monthly_message_limit, w.user_monthly_message_limit INTO v_workspace
      FROM turnkeep.workspaces w WHERE w.id = p_workspace;
    IF p_key IS NOT NULL THEN
        SELECT k.monthly_message_limit INTO v_key_limit FROM turnkeep.api_keys k WHERE k.id = p_key;
    END IF;
    FOR v_scope IN SELECT * FROM turnkeep.scopes(p_workspace, p_user, p_key) LOOP
        INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, ui_messages, api_messages)
        VALUES (p_org, v_scope.scope, v_scope.scope_id, p_month,
                (p_source = 'ui')::integer, (p_source = 'api')::integer)
        ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
           SET ui_messages = u.ui_messages + excluded.ui_messages,
               api_messages = u.api_messages + excluded.api_messages
        RETURNING u.ui_messages + u.api_messages INTO v_used;
        v_limit := CASE v_scope.scope WHEN 'workspace' THEN v_workspace.monthly_message_limit
                                      WHEN 'user' THEN v_workspace.user_monthly_message_limit
                                      ELSE v_key_limit END;
        IF v_used > v_limit THEN
            v_full := v_scope.scope;
            v_full_at := v_limit;
        END IF;
    END LOOP;
    IF v_full IS NOT NULL THEN
        PERFORM turnkeep.refuse('TK006', 'This ' || CASE v_full WHEN 'key' THEN 'API key' ELSE v_full END
                                || ' has used up its limit of ' || v_full_at
                                || ' messages a month. Raise the limit, or wait for the next month.');
    END IF;
END $$;
