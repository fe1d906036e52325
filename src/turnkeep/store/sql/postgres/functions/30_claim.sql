-- Claim a turn: `claim_facts` loads, `rules.claims` decides, `write_claim` locks, makes sure that the facts still hold, and
-- writes. Each is one statement. No lock is held between them, so that a worker which is stopped in the middle of a claim
-- keeps no other worker waiting.

-- What a claim depends on, as one document (`rules.claims.ClaimFacts`, but for the time). `p_asked` is made by `turns.py`.
CREATE FUNCTION turnkeep.claim_facts(p_asked json) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_org          text;
    v_workspace    text;
    v_owner        text;
    v_ref          text;
    v_key          text;
    v_turn         text;
    v_idempotency  text;
    v_agent        text;
    v_conversation text;
    v_beside       text;
    v_files        text[];
BEGIN
    SELECT a.org, a.workspace, a.owner, a.ref, a.key, a.turn, a.idempotency_key, a.agent, a.conversation, a.beside, a.files
      INTO v_org, v_workspace, v_owner, v_ref, v_key, v_turn, v_idempotency, v_agent, v_conversation, v_beside, v_files
      FROM json_to_record(p_asked) AS a (org text, workspace text, owner text, ref text, key text, turn text,
                                         idempotency_key text, agent text, conversation text, beside text, files text[]);
    RETURN json_build_object(
        'by_key', CASE WHEN v_idempotency IS NOT NULL THEN (
            SELECT turnkeep.known_turn(t) FROM turnkeep.turns t
             WHERE t.org_id = v_org AND t.principal_ref = v_ref AND t.idempotency_key = v_idempotency) END,
        'by_id', (SELECT turnkeep.known_turn(t) FROM turnkeep.turns t WHERE t.id = v_turn),
        'limits', (
            SELECT json_build_object(
                'workspace', w.monthly_message_limit, 'user', w.user_monthly_message_limit,
                'key', CASE WHEN v_key IS NOT NULL THEN (
                    SELECT k.monthly_message_limit FROM turnkeep.api_keys k WHERE k.id = v_key AND k.org_id = v_org) END)
              FROM turnkeep.workspaces w WHERE w.id = v_workspace AND w.org_id = v_org),
        'has_agent', v_agent IS NULL OR EXISTS (
            SELECT 1 FROM turnkeep.agents a
             WHERE a.id = v_agent AND a.org_id = v_org AND a.workspace_id = v_workspace AND a.deleted_at IS NULL),
        'conversation', CASE WHEN v_conversation IS NOT NULL THEN (
            SELECT json_build_object('head_turn_id', c.head_turn_id, 'queue', json_build_object(
                       'next_ordinal', c.next_ordinal,
                       'running', (SELECT json_build_object('id', r.id, 'started_at', r.started_at) FROM turnkeep.turns r
                                    WHERE r.conversation_id = c.id AND r.status = 'running'),
                       'waiting', coalesce((SELECT json_agg(json_build_object('id', q.id, 'ordinal', q.ordinal)
                                                            ORDER BY q.ordinal)
                                              FROM turnkeep.turns q
                                             WHERE q.conversation_id = c.id AND q.status = 'queued'), '[]')))
              FROM turnkeep.conversations c
             WHERE c.id = v_conversation AND c.org_id = v_org AND c.workspace_id = v_workspace
               AND (v_owner IS NULL OR c.user_id = v_owner) AND c.deleted_at IS NULL) END,
        'beside', CASE WHEN v_beside IS NOT NULL THEN (
            SELECT json_build_object('parent_turn_id', b.parent_turn_id, 'status', b.status, 'started_at', b.started_at)
              FROM turnkeep.turns b WHERE b.id = v_beside AND b.conversation_id = v_conversation) END,
        'files', CASE WHEN v_files <> '{}' THEN coalesce((
            SELECT json_agg(json_build_object('id', f.id, 'name', f.name, 'mime_type', f.mime_type, 'size', f.size,
                                              'status', f.status, 'conversation_id', f.conversation_id,
                                              'saved_at', f.saved_at))
              FROM turnkeep.files f
             WHERE f.id = ANY (v_files) AND f.org_id = v_org AND f.workspace_id = v_workspace AND f.deleted_at IS NULL
               AND (v_owner IS NULL OR f.user_id = v_owner)), '[]') ELSE '[]' END,
        'taken_names', CASE WHEN v_files <> '{}' THEN coalesce((
            SELECT json_agg(f.name_key) FROM turnkeep.files f
             WHERE f.conversation_id = v_conversation AND f.deleted_at IS NULL), '[]') ELSE '[]' END);
END $$;

-- A turn as `rules.claims.KnownTurn` has it.
CREATE FUNCTION turnkeep.known_turn(p_turn turnkeep.turns) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', p_turn.id, 'conversation_id', p_turn.conversation_id, 'org_id', p_turn.org_id,
        'principal_ref', p_turn.principal_ref, 'request_hash', p_turn.request_hash, 'status', p_turn.status,
        'attempt', p_turn.attempt, 'worker', p_turn.worker,
        'user_message_id',
        (SELECT m.id FROM turnkeep.messages m WHERE m.turn_id = p_turn.id AND m.turn_sequence = 0))
$$;

-- Write what was decided, if the facts are still those that the decision was made of. Returns NULL, or else the facts as
-- they are now, with nothing written. Raises TK006, with the counters, if one of them is over its limit.
--
-- The conversation and the files are locked first, and looked at by a later statement: a single one that waits for a lock
-- would still see what was there before it waited. `p_claim` holds the columns of the `turn`, of its `message` and of a new
-- `conversation`, the `event`, the `attachments` under their new names, the waiting turn that it `cancels` and the running
-- one that it `stops`, the `moves` of waiting turns, and the `scopes` in the order in which they are locked, with
-- their `limits`. The counters come last, as all claims of a workspace share one.
CREATE FUNCTION turnkeep.write_claim(p_asked json, p_facts text, p_claim json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_turn          turnkeep.turns := json_populate_record(NULL::turnkeep.turns, p_claim -> 'turn');
    v_message       turnkeep.messages := json_populate_record(NULL::turnkeep.messages, p_claim -> 'message');
    v_facts         json;
    v_more_turns    integer := 0;
    v_more_messages integer := 0;
    v_counted       json;
    v_is_over       boolean;
BEGIN
    PERFORM 1 FROM turnkeep.conversations c WHERE c.id = v_turn.conversation_id FOR UPDATE;
    IF p_claim ->> 'attachments' IS NOT NULL THEN
        PERFORM 1 FROM turnkeep.files f
          WHERE f.id IN (SELECT a.id FROM json_to_recordset(p_claim -> 'attachments') AS a (id text))
          ORDER BY f.id FOR UPDATE;
    END IF;
    v_facts := turnkeep.claim_facts(p_asked);
    IF v_facts::text <> p_facts THEN
        RETURN v_facts;
    END IF;
    IF p_claim ->> 'conversation' IS NOT NULL THEN
        INSERT INTO turnkeep.conversations
               (id, org_id, workspace_id, user_id, kind, agent_id, model, workflow_id, title, metadata, created_at, updated_at)
        SELECT c.id, c.org_id, c.workspace_id, c.user_id, c.kind, c.agent_id, c.model, c.workflow_id, c.title, c.metadata,
               c.created_at, c.updated_at
          FROM json_populate_record(NULL::turnkeep.conversations, p_claim -> 'conversation') c;
    END IF;
    IF p_claim ->> 'attachments' IS NOT NULL THEN
        UPDATE turnkeep.files f
           SET conversation_id = v_turn.conversation_id, message_id = coalesce(f.message_id, v_message.id),
               name = a.name, name_key = a.name_key
          FROM json_to_recordset(p_claim -> 'attachments') AS a (id text, name text, name_key text)
         WHERE f.id = a.id;
    END IF;
    IF p_claim ->> 'cancels' IS NOT NULL THEN
        PERFORM turnkeep.cancel_turns(ARRAY[p_claim ->> 'cancels'], v_turn.created_at,
                                      p_claim ->> 'cancel_error', p_claim ->> 'cancel_event');
    END IF;
    IF p_claim ->> 'stops' IS NOT NULL THEN
        UPDATE turnkeep.turns t SET cancel_requested_at = v_turn.created_at
         WHERE t.id = p_claim ->> 'stops' AND t.cancel_requested_at IS NULL;
    END IF;
    IF p_claim ->> 'moves' IS NOT NULL THEN
        UPDATE turnkeep.turns t SET ordinal = m.ordinal
          FROM json_to_recordset(p_claim -> 'moves') AS m (id text, ordinal integer)
         WHERE t.id = m.id;
    END IF;
    IF v_turn.status = 'running' THEN
        IF (p_claim ->> 'is_branch')::boolean THEN
            SELECT c.more_turns, c.more_messages INTO v_more_turns, v_more_messages
              FROM turnkeep.show_chain(v_turn.conversation_id, v_turn.parent_turn_id) c;
        END IF;
        v_more_turns := v_more_turns + 1;
        v_more_messages := v_more_messages + 1;
    END IF;
    INSERT INTO turnkeep.turns
           (id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, beside_turn_id, ordinal, active,
            status, attempt, last_seq, seq_at_adoption, worker, lease_until, watched_until, watched_ms, background,
            principal_ref, idempotency_key, request_hash, snapshot, source, model, metadata, month, created_at, started_at)
    VALUES (v_turn.id, v_turn.org_id, v_turn.workspace_id, v_turn.conversation_id, v_turn.user_id, v_turn.key_id,
            v_turn.parent_turn_id, v_turn.beside_turn_id, v_turn.ordinal, v_turn.active, v_turn.status, v_turn.attempt,
            v_turn.last_seq, v_turn.seq_at_adoption, v_turn.worker, v_turn.lease_until, v_turn.watched_until,
            v_turn.watched_ms, v_turn.background, v_turn.principal_ref, v_turn.idempotency_key, v_turn.request_hash,
            v_turn.snapshot, v_turn.source, v_turn.model, v_turn.metadata, v_turn.month, v_turn.created_at,
            v_turn.started_at);
    INSERT INTO turnkeep.messages SELECT v_message.*;
    INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
    VALUES (v_turn.id, 1, v_turn.org_id, 'turn', p_claim ->> 'event');
    UPDATE turnkeep.conversations c
       SET next_ordinal = c.next_ordinal + 1, updated_at = v_turn.created_at,
           title = coalesce(c.title, p_claim ->> 'title'), preview = coalesce(c.preview, p_claim ->> 'preview'),
           turn_count = c.turn_count + v_more_turns, message_count = c.message_count + v_more_messages
     WHERE c.id = v_turn.conversation_id;
    WITH counted AS (
        INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, ui_messages, api_messages)
        SELECT v_turn.org_id, s.scope, s.scope_id, v_turn.month, (v_turn.source = 'ui')::integer,
               (v_turn.source = 'api')::integer
          FROM json_to_recordset(p_claim -> 'scopes') AS s (scope text, scope_id text)
        ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
           SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages
        RETURNING u.scope, u.ui_messages + u.api_messages AS messages
    )
    SELECT json_object_agg(c.scope, c.messages), bool_or(c.messages > (p_claim -> 'limits' ->> c.scope)::integer)
      INTO v_counted, v_is_over
      FROM counted c;
    IF v_is_over THEN
        PERFORM turnkeep.refuse('TK006', 'over a limit', v_counted::text);
    END IF;
    RETURN NULL;
END $$;
